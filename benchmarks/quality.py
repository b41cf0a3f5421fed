"""Perplexity and KL divergence on a text, for Octavo and llama.cpp on the same file and windows.

    .venv/bin/python benchmarks/quality.py TEXT [--windows 40] [--json] [--write]

The text's token ids are cut into windows of 512; the second half of each is scored, every prediction
from the window alone. KL is of the model in float32 (weights dequantized, nothing rounded; what
transformers computes) from each engine, in nats a position. A flip is a position whose top token is
not float32's, and more than 0.15 logits below it there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import Worker, python_with, report, usable_cores, write

from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.sources import resolve
from octavo.config import EngineConfig
from octavo.kernels.ops import F32
from octavo.lab.quality import NEAR_TIE, Quality, WindowScorer, windows
from octavo.tokenizer.folder import from_folder
from octavo.tokenizer.gguf import from_gguf

PERPLEXITY_LIMIT, KL_LIMIT = 1.001, 1.02
OURS, PEER, EXACT = "octavo", "llama.cpp", "float32"


def token_ids(model: Path, text: str) -> tuple[list[int], int | None]:
    """The text's ids, and the id that the model wants before every text, if it does."""
    tokenizer = from_folder(model) if model.is_dir() else None
    if tokenizer is None:
        checkpoint = open_checkpoint(model)
        tokenizer = from_gguf(checkpoint.config)
    before = tokenizer.encode("", add_special_tokens=True)
    return tokenizer.encode(text, add_special_tokens=False), before[0] if before else None


class Peer:
    """llama.cpp's logits, through a file."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        self._worker, self._out = worker, folder / "logits.npy"

    def logits(self, ids: list[int], first: int) -> F32:
        self._worker.logits(ids, first, self._out)
        found: F32 = np.load(self._out)
        return found


@contextlib.contextmanager
def scorers(options: argparse.Namespace, path: Path) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """name -> who gives logits, float32 apart; and what llama.cpp says of itself."""
    ours = {"threads": options.threads, **options.options}
    found: dict[str, Any] = {OURS: WindowScorer(EngineConfig(str(path), **ours), options.window)}
    found[EXACT] = WindowScorer(EngineConfig(str(path), **ours, dtype="float32"), options.window)
    python = python_with("llama_cpp", options.peer_python)
    with contextlib.ExitStack() as stack:
        about = {OURS: f"isa={found[OURS].backend.isa}"}
        if python is None:
            print("llama.cpp is not installed here: left out (make oracle-env)", file=sys.stderr)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="octavo-quality-"))
            worker = stack.enter_context(Worker("llama_cpp", str(path), options.threads, python))
            found[PEER] = Peer(worker, Path(folder))
            about[PEER] = f"{worker.about['version']} {worker.about['notes']}"
        yield found, about


def given_and_scored(window: list[int], first: int, before: int | None) -> tuple[list[int], list[int]]:
    """The ids that a model is given, and those that its rows from position first on are scored by.

    Row i predicts the id after position first + i; the last position predicts nothing known.

    Args:
        before: stands for the window's first id, where the model wants it before every text.
    """
    given = window if before is None else [before, *window[1:]]
    return given[:-1], given[first + 1 :]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    path = resolve(options.model)
    ids, before = token_ids(path, options.text.read_text(encoding="utf-8"))
    first = options.window // 2
    cut = list(windows(ids, options.window, options.windows))
    if not cut:
        raise SystemExit(f"quality: {options.text} has no {options.window} tokens")
    with scorers(options, path) as (found, about):
        sums = {name: Quality() for name in found}
        for number, window in enumerate(cut):
            inputs, targets = given_and_scored(window, first, before)
            exact = found[EXACT].logits(inputs, first)
            for name, scorer in found.items():
                logits = exact if name == EXACT else scorer.logits(inputs, first)
                sums[name].add(logits, exact, targets)
            if sys.stderr.isatty():
                print(f"\rwindow {number + 1}", end="", file=sys.stderr)
    engines = {
        name: {
            "perplexity": round(each.perplexity, 4),
            "kl": round(each.mean_kl, 8),
            "flips": each.flips,
            "flip_share": round(each.flip_share, 6),
        }
        for name, each in sums.items()
    }
    return {"positions": sums[OURS].positions, "about": about, "engines": engines, "ratios": ratios(sums)}


def ratios(sums: dict[str, Quality]) -> dict[str, float]:
    """Octavo over llama.cpp."""
    if PEER not in sums:
        return {}
    ours, theirs = sums[OURS], sums[PEER]
    return {
        "perplexity": round(ours.perplexity / theirs.perplexity, 5),
        "kl": round(ours.mean_kl / theirs.mean_kl, 4),
    }


def table(result: dict[str, Any]) -> str:
    lines = [f"{result['positions']} positions", f"{'engine':<12}{'perplexity':>12}{'KL':>12}{'flips':>8}"]
    for name, each in result["engines"].items():
        lines.append(f"{name:<12}{each['perplexity']:>12}{each['kl']:>12.6f}{each['flips']:>8}")
    if result["ratios"]:
        found = result["ratios"]
        lines.append(f"ratio       {found['perplexity']:>12}{found['kl']:>12}")
        lines.append(f"limit       {PERPLEXITY_LIMIT:>12}{KL_LIMIT:>12}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="quality", description=f"flips: further apart than {NEAR_TIE}")
    parser.add_argument("text", type=Path, help="a UTF-8 file, such as WikiText-2's test split")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=40, help="so many from the text's beginning")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--peer-python", help="a Python that has llama_cpp; else one is looked for")
    parser.add_argument("--options", type=json.loads, default={}, help='for Octavo, such as {"isa": "avx2"}')
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/quality-*.json")
    options = parser.parse_args(arguments)
    settings = {name: getattr(options, name) for name in ("model", "window", "windows", "threads", "options")}
    settings["text"] = options.text.name
    result = report("quality", sys.argv, {"settings": settings, **measure(options)})
    print(json.dumps(result, indent=2) if options.json else table(result))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
