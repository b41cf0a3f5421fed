"""Tables of what fewer bits cost, from results of formats.py and kv_choices.py."""

from __future__ import annotations

from functools import partial
from typing import Any

from figure_runs import Result, Row, Table, value_at

FORMATS = "benchmarks/formats.py --text FILE --write"
KV = "benchmarks/kv_choices.py PROMPTS --write"
MODELS = {"smollm2": "SmolLM2", "gemma3-270m": "Gemma 3 270M"}
NAMES = (
    "int8", "eetq", "Q8_0", "Q8_0, float32", "fp8", "Q6_K", "Q5_K_M", "Q5_0", "Q4_K_M", "Q4_1", "Q4_0",
    "IQ4_NL", "IQ4_XS", "int4", "nf4", "Q3_K_M", "Q2_K",
)  # fmt: skip
"""As formats.py names them, which says how each is made; float32 and f16 are what they are held against."""
MOST = {"int8": 1.001, "Q8_0": 1.001}


def over(name: str, result: Result) -> float | None:
    """Its perplexity over that of float32 of the 16-bit file."""
    ours, plain = (value_at(result, f"forms/{each}/perplexity") for each in (name, "float32"))
    return None if None in (ours, plain) else float(ours / plain)


def lost(model: str, name: str) -> Row:
    path = f"forms/{name}"
    return Row(
        f"{MODELS[model]}, {name}", "formats",
        (partial(over, name), f"{path}/bits", f"{path}/weights_mb", f"{path}/kl", f"{path}/agreement"),
        ("{1:.2f}", "{2:.0f} MB", "{3:.4f}", "{4:.1%}", "{0:.4f}"), most=MOST.get(name), bound="{:g}",
        only={"settings/model": model},
    )  # fmt: skip


def pages(rounds: str, kind: str) -> str:
    return f"pages/{rounds}/{kind}/equal"


def same(result: Result) -> Any:
    """First choices with int8 pages as with 16-bit ones."""
    return value_at(result, pages("auto", "int8"))


TABLES = {
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
