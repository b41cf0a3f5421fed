"""Octavo beside llama.cpp on the very same quantized files: one stream, a prompt, 32 streams.

    .venv/bin/python benchmarks/same_files.py [NAME=FILE.gguf ...] [--types Q6_K,Q2_K,Q3_K_M] [--write]
    .venv/bin/python benchmarks/same_files.py NAME=FILE.gguf --ik ik_llama.cpp/build/bin/llama-batched-bench

Files are the ones named, and of the model of TinyLlama's shape (peers/synthetic.py) those that llama.cpp
makes of each of --types. llama.cpp's settings are found for each figure of each file first (peers/tuning.py).
Octavo's KV is int16, its default, as wide as llama.cpp's; both are greedy. Figures are medians over the
repetitions, the engines in turn, after one that warms up. held is what Octavo's weights take in memory over
what the file's do. --ik adds ik_llama.cpp, a fork with CPU kernels of its own, as a third engine: its ratio
is printed, and nothing is asked of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asked import at_least_one, not_negative
from harness import conclude, python_with, report, usable_cores
from peers import files
from peers.__main__ import NOISY, figures, interleave, started
from peers.entries import Entry
from peers.rows import IK, OURS, THEIRS, TINYLLAMA, Shape
from peers.tuning import Tuner

from octavo.checkpoints import open_checkpoint
from octavo.errors import OctavoError
from octavo.kernels.select import WantedBackend, make_backend
from octavo.models.load import load_model

SHAPES = {"decode, 1 stream": (1, 16, 64), "prompt of 256": (1, 256, 16), "decode, 32 streams": (32, 16, 16)}
"""What is done -> streams, tokens of each prompt, new tokens."""


def files_of(options: argparse.Namespace, python: str) -> dict[str, Path]:
    """Name -> file.

    Raises:
        RuntimeError: llama.cpp cannot make one.
    """
    found = {name: Path(path) for name, path in options.file}
    for kind in options.types:
        found[f"1.1B, {kind}"] = files.requantized(TINYLLAMA, python, kind)
    return found


def held_over_file(path: Path) -> float:
    """Bytes of the packed weights, tables among them, over those of the file's tensors."""
    checkpoint = open_checkpoint(path)
    _, held = load_model(checkpoint, make_backend("cpu", WantedBackend(usable_cores())))
    return held / sum(tensor.data.nbytes for tensor in checkpoint.tensors.values())


def compared(
    path: Path, name: str, what: str, options: argparse.Namespace, python: str, tuner: Tuner
) -> dict[str, Any]:
    """One row: the engines on this file."""
    shape = Shape(name, *SHAPES[what], heavy=True)
    shape = shape.quick() if options.quick else shape
    figure = "prompt" if what.startswith("prompt") else "decode"
    ours = Entry(OURS, "octavo", path, sys.executable, name)
    theirs = tuner.best([Entry(THEIRS, "llama_cpp", path, python, name)], shape, figure)
    chosen = [ours, theirs]
    if options.ik:
        fork = Entry(IK, "ik_llama_cpp", path, sys.executable, name, {"bench": options.ik})
        chosen.append(tuner.best([fork], shape, figure))
    with started(chosen, options.threads) as workers:
        about = {each: worker.about for each, worker in workers.items()}
        timings = interleave(workers, shape, options.repeat)
    engines = {each: figures(runs) for each, runs in timings.items()}
    one_stream = figure == "decode" and shape.streams == 1
    least = options.least if one_stream and name in dict(options.file) else 1.0
    row = {"row": f"{name}, {what}", "figure": figure, "engines": engines, "about": about}
    sides = engines.get(ours.name), engines.get(theirs.name)
    if options.ik:
        found = forked(engines.get(ours.name), engines.get(chosen[-1].name), figure)
        row["ik"] = {"settings": dict(chosen[-1].chosen), **found}
    return {**row, "settings": dict(theirs.chosen), **judged(*sides, figure, least)}


def judged(
    ours: Mapping[str, float] | None, theirs: Mapping[str, float] | None, figure: str, least: float
) -> dict[str, Any]:
    """What a row says of both sides' figures; None: a side does not start, or fails."""
    if ours is None or theirs is None:
        return {"ratio": None, "why": "an engine does not start, or fails"}
    ratio = ours[figure] / theirs[figure]
    return {
        "ours": ours[figure], "spread": ours[f"{figure}_spread"], "theirs": theirs[figure],
        "their_spread": theirs[f"{figure}_spread"], "ratio": round(ratio, 2), "least": least,
        "reached": ratio >= least, "noisy": ours[f"{figure}_spread"] > NOISY,
    }  # fmt: skip


def forked(ours: Mapping[str, float] | None, fork: Mapping[str, float] | None, figure: str) -> dict[str, Any]:
    """ik_llama.cpp's part of a row: its figure, and Octavo's over it."""
    if ours is None or fork is None:
        return {"ratio": None}
    ratio = round(ours[figure] / fork[figure], 2)
    return {"theirs": fork[figure], "their_spread": fork[f"{figure}_spread"], "ratio": ratio}


def measure(options: argparse.Namespace, python: str) -> dict[str, Any]:
    tuner = Tuner(options.threads)
    rows: list[dict[str, Any]] = []
    held: dict[str, float] = {}
    for name, path in files_of(options, python).items():
        held[name] = round(held_over_file(path), 4)
        for what in options.work or SHAPES:
            print(f"measuring {name}, {what}", file=sys.stderr)
            rows.append(compared(path, name, what, options, python, tuner))
    return {"rows": rows, "held": held, "tried": tuner.tried}


def table(result: Mapping[str, Any]) -> list[str]:
    lines = [f"{'tok/s':<48}{'Octavo':>9}{'spread':>8}{'llama.cpp':>11}{'spread':>8}{'ratio':>7}{'least':>7}"]
    for row in result["rows"]:
        if row["ratio"] is None:
            lines.append(f"{row['row']:<48}  no ratio: {row['why']}")
            continue
        marks = ("" if row["reached"] else "  below") + "  noisy" * row["noisy"]
        lines.append(
            f"{row['row']:<48}{row['ours']:>9}{row['spread']:>8}{row['theirs']:>11}{row['their_spread']:>8}"
            f"{row['ratio']:>7}{row['least']:>7}{marks}"
        )
        if row.get("ik", {}).get("ratio"):
            lines.append(
                f"{'':>48}{IK:>17}{row['ik']['theirs']:>11}{row['ik']['their_spread']:>8}"
                f"{row['ik']['ratio']:>7}"
            )
    lines += [f"{name}: {held:.3f} of its file's bytes held" for name, held in result["held"].items()]
    return lines


def named(word: str) -> tuple[str, str]:
    name, equals, path = word.partition("=")
    if not equals or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{word!r} is no NAME=FILE, or there is no such file")
    return name, path


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="same_files")
    parser.add_argument("file", nargs="*", type=named, help="NAME=FILE.gguf")
    parser.add_argument(
        "--types",
        type=lambda text: [each for each in text.split(",") if each],
        default="Q6_K,Q2_K,Q3_K_M",
        help="of the 1.1B shape, as llama.cpp spells them: %(default)s",
    )
    parser.add_argument("--work", action="append", choices=SHAPES, help="only this; may come again")
    parser.add_argument(
        "--least", type=not_negative, default=1.4, help="of one stream on named files (%(default)s)"
    )
    parser.add_argument("--repeat", type=at_least_one, default=5)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--peer-python", help="a Python that has llama_cpp; else one is looked for")
    parser.add_argument("--ik", metavar="PROGRAM", help="ik_llama.cpp's llama-batched-bench: a third engine")
    parser.add_argument("--quick", action="store_true", help="an eighth of the lengths, once: does it run?")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/same_files-*.json")
    options = parser.parse_args(arguments)
    options.repeat = 1 if options.quick else options.repeat
    if options.ik and not Path(options.ik).is_file():
        parser.error(f"--ik: there is no {options.ik}")
    python = python_with("llama_cpp", options.peer_python)
    if python is None:
        print("same_files: llama.cpp is not installed here (make oracle-env)", file=sys.stderr)
        return 1
    try:
        found = measure(options, python)
    except (OctavoError, RuntimeError) as error:
        print(f"same_files: {error}", file=sys.stderr)
        return 1
    settings = {name: getattr(options, name) for name in ("repeat", "threads", "quick", "types", "work")}
    result = report("same_files", sys.argv, {"settings": settings, **found})
    return conclude(result, table(result), False, options.json, options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
