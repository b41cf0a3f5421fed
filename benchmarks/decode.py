"""Tokens per second of one stream, prompt and decode, beside llama.cpp where it can be imported.

    .venv/bin/python benchmarks/decode.py [--peer-python .venv-oracle/bin/python] [--json] [--write]

Each engine lives in its own process; runs alternate, so that a noisy machine hits both. Printed are
medians over the repetitions, and the ratio of Octavo's to the peer's in the same run. `make bench`
makes the peer's environment first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from asked import at_least_one, json_object, tells
from engines.base import Timing
from harness import Worker, python_with, report, usable_cores, write

from octavo.checkpoints.sources import resolve
from octavo.errors import OctavoError

SMALLEST_VOCABULARY = 32_000
PAUSE_S = 0.2  # between turns: the other engine's idle threads stop spinning


def speeds(timings: Sequence[Timing]) -> dict[str, float]:
    """Medians in tok/s, and the spread of the decode speed (highest / lowest)."""
    decode = [t.decode_rate for t in timings]
    return {
        "prompt_tok_s": round(statistics.median(t.prompt_rate for t in timings), 1),
        "decode_tok_s": round(statistics.median(decode), 1),
        "decode_spread": round(max(decode) / min(decode), 2),
    }


def ratios_of(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    """Our speeds over theirs."""
    return {kind: round(ours[f"{kind}_tok_s"] / theirs[f"{kind}_tok_s"], 2) for kind in ("prompt", "decode")}


def measure(options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """engine name -> its description and speeds."""
    path = str(resolve(options.model))
    choice = random.Random(0)
    engines = [("octavo", path, sys.executable, options.options)]
    peer = python_with("llama_cpp", options.peer_python)
    if peer is not None:
        engines.append(("llama_cpp", options.peer_model or path, peer, {}))
    timings: dict[str, list[Timing]] = {name: [] for name, *_ in engines}
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(name, model, options.threads, python, extra))
            for name, model, python, extra in engines
        }
        for repetition in range(-1, options.repeat):  # the first round warms up
            prompt = [choice.randrange(100, SMALLEST_VOCABULARY) for _ in range(options.prompt_tokens)]
            for name, worker in workers.items():
                time.sleep(PAUSE_S)
                timing = worker.run([prompt], options.new_tokens)
                if repetition >= 0:
                    timings[name].append(timing)
        return {name: {**worker.about, **speeds(timings[name])} for name, worker in workers.items()}


def table(engines: dict[str, dict[str, object]], ratios: dict[str, float]) -> str:
    lines = [f"{'engine':<12}{'prompt tok/s':>14}{'decode tok/s':>14}{'spread':>8}"]
    for name, figures in engines.items():
        lines.append(
            f"{name:<12}{figures['prompt_tok_s']:>14}{figures['decode_tok_s']:>14}{figures['decode_spread']:>8}"
        )
    if ratios:
        lines.append(f"{'ratio':<12}{ratios['prompt']:>14}{ratios['decode']:>14}")
    else:
        lines.append("llama.cpp is not installed here: make bench installs it")
    return "\n".join(lines)


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="decode")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--peer-python", help="a Python that has llama_cpp; else one is looked for")
    parser.add_argument("--peer-model", help="another file for the peer (its best format)")
    parser.add_argument("--prompt-tokens", type=at_least_one, default=128)
    parser.add_argument("--new-tokens", type=at_least_one, default=128)
    parser.add_argument("--repeat", type=at_least_one, default=5)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument(
        "--options", type=json_object, default={}, help='for LLM(...), such as {"isa": "avx2"}'
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/*.json")
    options = parser.parse_args(arguments)
    engines = measure(options)
    ratios: dict[str, float] = {}
    if "llama_cpp" in engines:
        ratios = ratios_of(engines["octavo"], engines["llama_cpp"])
    settings = {
        key: getattr(options, key) for key in ("model", "prompt_tokens", "new_tokens", "repeat", "threads")
    }
    result = report("decode", sys.argv, {"settings": settings, "engines": engines, "ratios": ratios})
    print(json.dumps(result, indent=2) if options.json else table(engines, ratios))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
