"""How often pages of fewer bits change a first choice: int8 KV beside 16-bit KV on the text of 16-bit KV.

    .venv/bin/python benchmarks/kv_choices.py PROMPTS.jsonl [--model smollm2] [--answer 64] [--write]

PROMPTS is a file of MT-bench's form: a line a question, its first turn is asked. With KV of 16 bits the
model answers greedily; then each kind of page is given prompt and answer as they are (teacher-forced), and
the first choice at each position of the answer is compared with what 16-bit pages choose there.

It is done twice. With "auto" activations are rounded as they always are: whatever the pages change, be it in
the last bit, is rounded to another integer somewhere, and grows by that from layer to layer. int16 and
float32 pages say how often that alone changes a choice. With "float32" nothing is rounded but the pages.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from asked import at_least_one, from_zero
from harness import report, usable_cores, write

from octavo import LLM, SamplingParams
from octavo.cli._progress import count_progress
from octavo.config import EngineConfig
from octavo.errors import OctavoError
from octavo.kernels.ops import F32
from octavo.lab.quality import NEAR_TIE, WindowScorer

PLAIN, OTHERS = "float16", ("int8", "int16", "float32")
DTYPES = ("auto", "float32")
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


def compare(chosen: F32, plain: F32) -> tuple[int, int]:
    """(equal first choices, of the others those that lead by less than a near tie) of logits [n, vocab]."""
    two = np.sort(plain, axis=1)[:, -2:]
    same = chosen.argmax(axis=1) == plain.argmax(axis=1)
    return int(same.sum()), int((two[:, 1] - two[:, 0] < NEAR_TIE)[~same].sum())


def counted(
    options: argparse.Namespace, texts: Sequence[tuple[list[int], list[int]]], dtype: str
) -> dict[str, dict[str, float]]:
    """By the kind of page: the share of equal choices, how many changed, and how many of these near ties."""
    longest = max(len(prompt) + len(answer) for prompt, answer in texts)
    config = EngineConfig(options.model, threads=options.threads, dtype=dtype)
    scorers = {kind: WindowScorer(replace(config, kv_cache_dtype=kind), longest) for kind in (PLAIN, *OTHERS)}
    found = dict.fromkeys(OTHERS, (0, 0))
    positions = sum(len(answer) for _, answer in texts)
    with count_progress(f"answers, {dtype}") as progress:
        for number, (prompt, answer) in enumerate(texts, 1):
            ids = [*prompt, *answer[:-1]]
            plain = scorers[PLAIN].logits(ids, len(prompt) - 1)
            for kind in OTHERS:
                equal, near = compare(scorers[kind].logits(ids, len(prompt) - 1), plain)
                found[kind] = found[kind][0] + equal, found[kind][1] + near
            progress(number, len(texts))
    return {
        kind: {
            "equal": round(equal / positions, 6),
            "changed": positions - equal,
            "near_ties": near,
        }
        for kind, (equal, near) in found.items()
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    texts = [each for each in answered(options, questions(options.prompts, options.prompts_count)) if each[1]]
    return {
        "prompts": len(texts),
        "positions": sum(len(answer) for _, answer in texts),
        "pages": {dtype: counted(options, texts, dtype) for dtype in DTYPES},
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="kv_choices")
    parser.add_argument("prompts", type=Path, help="lines of JSON with turns, as MT-bench's questions")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--answer", type=at_least_one, default=64, help="tokens of an answer, at most")
    parser.add_argument("--prompts-count", type=from_zero, default=0, help="so many of the file; 0: all")
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
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
    for dtype, kinds in found["pages"].items():
        for kind, each in kinds.items():
            print(
                f"{dtype:<8} {kind:<8} {each['equal']:.2%} of first choices as with {PLAIN} pages; of "
                f"{each['changed']:,} that changed {each['near_ties']:,} are near ties"
            )
    print(f"int8 wants {LEAST:.0%}")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
