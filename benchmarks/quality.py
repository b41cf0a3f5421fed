"""Perplexity and KL divergence on a text, for Octavo and llama.cpp on the same file and windows.

    .venv/bin/python benchmarks/quality.py TEXT [--windows 40] [--json] [--write]

The arithmetic is that of `octavo eval perplexity` (octavo/lab/perplexity.py): the text's token ids are cut
into windows of 512; the second half of each is scored, every prediction from the window alone. KL is of the
model in float32 (weights dequantized, nothing rounded; what transformers computes) from each engine, in nats
a position. A flip is a position whose top token is not float32's, and more than 0.15 logits below it there.
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
from asked import at_least_one, json_object, tells
from harness import Worker, python_with, report, usable_cores, write

from octavo.checkpoints.sources import resolve
from octavo.cli._progress import count_progress
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError, OctavoError
from octavo.kernels.ops import F32
from octavo.lab.perplexity import compare, cut
from octavo.lab.quality import NEAR_TIE, Quality, WindowScorer, text_ids

PERPLEXITY_LIMIT, KL_LIMIT = 1.001, 1.02
OURS, PEER, EXACT = "octavo", "llama.cpp", "float32"


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


def words_of(text: Path) -> str:
    """
    Raises:
        InvalidRequestError: it cannot be read, or is no text.
    """
    try:
        return text.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"{text} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{text} is no text: it must be UTF-8") from None


def measure(options: argparse.Namespace) -> dict[str, Any]:
    words, path = words_of(options.text), resolve(options.model)
    text = text_ids(EngineConfig(str(path)), words)
    read = cut(text, options.window, options.windows, options.text.name)
    with scorers(options, path) as (found, about), count_progress("windows") as progress:
        compared = compare(found, EXACT, read, text.before, progress)
    if compared.interrupted:
        raise SystemExit(f"quality: ended after {compared.windows} of {len(read)} windows")
    sums = compared.quality
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


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="quality", description=f"flips: further apart than {NEAR_TIE}")
    parser.add_argument("text", type=Path, help="a UTF-8 file, such as WikiText-2's test split")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--window", type=at_least_one, default=512)
    parser.add_argument("--windows", type=at_least_one, default=40, help="so many from the text's beginning")
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--peer-python", help="a Python that has llama_cpp; else one is looked for")
    parser.add_argument("--options", type=json_object, default={}, help='for Octavo, such as {"isa": "avx2"}')
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/quality-*.json")
    options = parser.parse_args(arguments)
    settings = {name: getattr(options, name) for name in ("model", "window", "windows", "threads", "options")}
    settings["text"] = options.text.name
    measured = measure(options)
    result = report("quality", sys.argv, {"settings": settings, **measured})
    print(json.dumps(result, indent=2) if options.json else table(result))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
