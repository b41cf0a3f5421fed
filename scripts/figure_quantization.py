"""Tables of what fewer bits cost and bring, from results of formats.py, kv_choices.py, quantize_quality.py,
format_speed.py and same_files.py."""

from __future__ import annotations

from functools import partial
from typing import Any

from figure_runs import At, Result, Row, Table, value_at

FORMATS = "benchmarks/formats.py --text FILE --write"
KV = "benchmarks/kv_choices.py PROMPTS --write"
MODELS = {"smollm2": "SmolLM2", "gemma3-270m": "Gemma 3 270M"}
NAMES = (
    "int8", "eetq", "Q8_0", "Q8_0, float32", "fp8", "Q6_K", "Q5_K_M", "Q5_0", "Q4_K_M", "Q4_1", "Q4_0",
    "IQ4_NL", "IQ4_XS", "int4", "nf4", "Q3_K_M", "Q2_K",
)  # fmt: skip
"""As formats.py names them, which says how each is made; float32 and f16 are what they are held against."""
MOST = {"int8": 1.001, "Q8_0": 1.001}
IN_EIGHT = ("int8", "eetq", "Q8_0", "Q8_0, float32")
"""Of which the loss is as small as its error: that stands beside it."""


def over(name: str, result: Result) -> float | None:
    """Its perplexity over that of float32 of the 16-bit file."""
    ours, plain = (value_at(result, f"forms/{each}/perplexity") for each in (name, "float32"))
    return None if None in (ours, plain) else float(ours / plain)


def lost(model: str, name: str) -> Row:
    path = f"forms/{name}"
    at: tuple[At, ...] = (
        partial(over, name), f"{path}/bits", f"{path}/weights_mb", f"{path}/kl", f"{path}/agreement",
    )  # fmt: skip
    ratio = "{0:.4f}"
    if name in IN_EIGHT:
        at, ratio = (*at, f"{path}/over_error"), "{0:.4f} ± {5:.4f}"
    return Row(
        f"{MODELS[model]}, {name}", "formats", at,
        ("{1:.2f}", "{2:.0f} MB", "{3:.4f}", "{4:.1%}", ratio), most=MOST.get(name), bound="{:g}",
        only={"settings/model": model},
    )  # fmt: skip


def pages(rounds: str, kind: str) -> str:
    return f"pages/{rounds}/{kind}/equal"


def same(result: Result) -> Any:
    """First choices with int8 pages as with 16-bit ones."""
    return value_at(result, pages("auto", "int8"))


def layers(name: str, folder: str, method: str, what: str, least: float) -> Row:
    """What a method cuts of rounding to nearest, on a real model's layers."""
    at = f"result/cuts/{method}"
    return Row(
        f"{name}, {method.upper()}: of {what}", f"quantize-quality-{folder}",
        (f"{at}/cut", f"{at}/median", lambda result: len(value_at(result, "result/layers") or ())),
        ("{2:d}", "{1:.0%}", "{0:.0%}"), least=least, bound="{:.0%}",
    )  # fmt: skip


ENCODERS = {"all-MiniLM-L6-v2 (f32)": "minilm", "all-mpnet-base-v2 (f32)": "mpnet",
            "Whisper base's decoder (f16)": "whisper"}  # fmt: skip
CUTS = (("gptq", "the error of rounding to nearest", 0.30),
        ("awq", "that of rounding to nearest with zero points", 0.15))  # fmt: skip
FOUR_BITS = ("int4", "Q4_0", "Q4_1", "Q4_K_M")
"""Of integers with 4 bits and their scales: at least twice as fast as 16 bits."""
SPEEDS = (
    "f16", "int8", "eetq", "Q8_0", "fp8", "Q6_K", "Q5_K_M", "Q5_0", "Q4_K_M", "Q4_1", "Q4_0", "IQ4_NL",
    "IQ4_XS", "int4", "nf4", "Q3_K_M", "Q2_K",
)  # fmt: skip


def speed(name: str) -> Row:
    at = f"forms/{name}"
    first = f"{at}/over_wanted" if name != "f16" else lambda result: None if speeds(result) is None else 1.0
    return Row(
        name, "format_speed",
        (first, f"{at}/layout", f"{at}/bits", f"{at}/bytes", f"{at}/tok_s", f"{at}/spread", f"{at}/bandwidth",
         f"{at}/share", f"{at}/of_cache"),
        ("{1}", "{2:.2f}", "{3:MB}", "{4:rate} ({5:.2f})", "{6:GB}", "{8:.0%}", "{7:.0%}", "{0:.2f}"),
        least=None if name == "f16" else 1.0, spread=f"{at}/spread",
    )  # fmt: skip


def speeds(result: Result) -> Any:
    return value_at(result, "forms/f16/tok_s")


SAME = "benchmarks/same_files.py 'Qwen2.5-Coder 1.5B, Q4_K_M=FILE' --write"
FILES = ("Qwen2.5-Coder 1.5B, Q4_K_M", "1.1B, Q6_K", "1.1B, Q3_K_M", "1.1B, Q2_K")
WORK = ("decode, 1 stream", "prompt of 256", "decode, 32 streams")


def beside(file: str, work: str) -> Row:
    """The same file in both engines."""
    at = f"rows/{file}, {work}"
    asked = 1.4 if file.startswith("Qwen") and work == WORK[0] else 1.0
    return Row(
        f"{file}: {work}", "same_files",
        (f"{at}/ratio", f"{at}/ours", f"{at}/spread", f"{at}/theirs", f"{at}/their_spread"),
        ("{1:rate} ({2:.2f})", "{3:rate} ({4:.2f})", "{0:.2f}"), least=asked, spread=f"{at}/spread",
        detail=lambda result: chosen_settings(value_at(result, f"{at}/settings") or {}), why=f"{at}/why",
    )  # fmt: skip


def fork(file: str, work: str) -> Row:
    """The same row's third engine, of which nothing is asked."""
    at = f"rows/{file}, {work}"
    return Row(
        f"{file}: {work}", "same_files",
        (f"{at}/ik/ratio", f"{at}/ours", f"{at}/spread", f"{at}/ik/theirs", f"{at}/ik/their_spread"),
        ("{1:rate} ({2:.2f})", "{3:rate} ({4:.2f})", "{0:.2f}"), spread=f"{at}/spread",
        detail=lambda result: chosen_settings(value_at(result, f"{at}/ik/settings") or {}),
    )  # fmt: skip


def chosen_settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


TABLES = {
    "layers": Table(
        tuple(layers(name, folder, *cut) for name, folder in ENCODERS.items() for cut in CUTS),
        columns=("layers", "median layer", "all together"), first="4 bits in groups of 128",
        command="benchmarks/quantize_quality.py FOLDER --transformers --text FILE --samples 32 --length 128",
    ),
    "format-speed": Table(
        tuple(map(speed, SPEEDS)),
        columns=("layout", "bits a weight", "read a step", "tok/s", "read a second",
                 "of its loop's rate in a cache", "of the fastest reading", "over what it should be"),
        first="format", command="benchmarks/format_speed.py --write",
    ),
    "over-f16": Table(tuple(
        Row(f"{name}, tok/s over f16's", "format_speed", (f"forms/{name}/over_f16",), ("{0:.2f}",),
            "benchmarks/format_speed.py --write", least=2.0, bound="{:g}x", spread=f"forms/{name}/spread")
        for name in FOUR_BITS
    )),
    "same-files": Table(
        tuple(beside(file, work) for file in FILES for work in WORK),
        columns=("Octavo", "llama.cpp", "ratio"), first="tok/s", detail="llama.cpp's settings",
        command=SAME,
    ),
    "same-files-ik": Table(
        tuple(fork(file, work) for file in FILES for work in WORK),
        columns=("Octavo", "ik_llama.cpp", "ratio"), first="tok/s", detail="ik_llama.cpp's settings",
        command=f"{SAME} --ik llama-batched-bench",
    ),
    "held": Table(tuple(
        Row(f"{file}: weights in memory over those of the file", "same_files",
            (f"held/{file}",), ("{0:.3f}",), SAME,
            most=1.12 if file.startswith("Qwen") else 1.1)
        for file in FILES
    )),
    "formats": Table(
        tuple(lost(model, name) for model in MODELS for name in NAMES),
        columns=("bits a weight, head and embedding among them", "weights", "KL divergence",
                 "same first choices", "perplexity over float32's"),
        first="format", command=FORMATS,
    ),
    "kv-choices": Table((
        Row("first choices with int8 pages as with float16 ones, MT-bench's first turns, teacher-forced "
            "(int16 pages; float32 pages)", "kv_choices",
            (same, pages("auto", "int16"), pages("auto", "float32")), ("{0:.1%} ({1:.1%}; {2:.1%})",), KV,
            least=0.98, bound="{:.0%}"),
        Row("the same where nothing but the pages is rounded", "kv_choices",
            (pages("float32", "int8"), pages("float32", "int16"), pages("float32", "float32")),
            ("{0:.1%} ({1:.1%}; {2:.1%})",), KV, least=0.98, bound="{:.0%}"),
    )),
}  # fmt: skip
