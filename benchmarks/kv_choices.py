"""How often pages of fewer bits change a first choice: int8 KV beside 16-bit KV on the text of 16-bit KV.

    .venv/bin/python benchmarks/kv_choices.py PROMPTS.jsonl [--model smollm2] [--answer 64] [--write]

PROMPTS is a file of MT-bench's form: a line a question, its first turn is asked. With KV of 16 bits the
model answers greedily; then each kind of page is given prompt and answer as they are (teacher-forced), and
the first choice at each position of the answer is compared with what 16-bit pages choose there.
Weights and activations are rounded alike. Octavo's own default on a CPU, int16, stands beside.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import report, usable_cores, write

from octavo import LLM, SamplingParams
from octavo.cli._progress import count_progress
from octavo.config import EngineConfig
from octavo.errors import OctavoError
from octavo.lab.quality import WindowScorer

PLAIN, OTHERS = "float16", ("int8", "int16")
LEAST = 0.98


def questions(path: Path, count: int) -> list[str]:
    """The first turns.

    Raises:
        SystemExit: the file has none.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line)["turns"][0] for line in lines if line.strip()]
    if not found:
        raise SystemExit(f"kv_choices: {path.name} has no question")
    return found[:count] if count else found


def answered(options: argparse.Namespace, asked: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) as token ids, greedily, with pages of 16 bits."""
    params = SamplingParams(temperature=0.0, max_tokens=options.answer)
    with LLM(options.model, kv_cache_dtype=PLAIN, threads=options.threads) as llm:
        outputs = llm.chat([[{"role": "user", "content": each}] for each in asked], params)
    return [(list(each.prompt_token_ids), list(each.outputs[0].token_ids)) for each in outputs]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    texts = answered(options, questions(options.prompts, options.prompts_count))
    longest = max(len(prompt) + len(answer) for prompt, answer in texts)
    scorers = {
        kind: WindowScorer(EngineConfig(options.model, threads=options.threads, kv_cache_dtype=kind), longest)
        for kind in (PLAIN, *OTHERS)
    }
    equal, positions = dict.fromkeys(OTHERS, 0), 0
    with count_progress("answers") as progress:
        for number, (prompt, answer) in enumerate(texts, 1):
            if answer:
                ids = [*prompt, *answer[:-1]]
                chosen = {
                    kind: each.logits(ids, len(prompt) - 1).argmax(axis=1) for kind, each in scorers.items()
                }
                positions += len(answer)
                for kind in OTHERS:
                    equal[kind] += int((chosen[kind] == chosen[PLAIN]).sum())
            progress(number, len(texts))
    return {
        "prompts": len(texts),
        "positions": positions,
        "equal": {kind: round(count / positions, 6) for kind, count in equal.items()},
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="kv_choices")
    parser.add_argument("prompts", type=Path, help="lines of JSON with turns, as MT-bench's questions")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer, at most")
    parser.add_argument("--prompts-count", type=int, default=0, help="so many of the file; 0: all")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/kv_choices-*.json")
    options = parser.parse_args(arguments)
    settings = {name: getattr(options, name) for name in ("model", "answer", "threads")}
    settings["text"] = options.prompts.name
    try:
        found = measure(options)
    except OctavoError as error:
        print(f"kv_choices: {error}", file=sys.stderr)
        return 1
    result = report("kv_choices", sys.argv, {"settings": settings, **found})
    print(f"{found['positions']} positions of {found['prompts']} answers")
    for kind, share in found["equal"].items():
        print(f"{kind}: {share:.2%} of first choices as with {PLAIN} (int8 wants {LEAST:.0%})")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
