"""What speculative decoding gains over plain decoding, and that it never loses.

    .venv/bin/python benchmarks/speculation.py FOLDER [--batch-sizes 1,2,4,8,16,32] [--json] [--write]

FOLDER holds sum.jsonl, humaneval.jsonl and mt_bench.jsonl, whose lines have `turns` and, for humaneval,
`reference` (SafeAILab/EAGLE, eagle/data). Whole sets, nothing chosen:

sum    summaries of sum.jsonl's texts
edits  humaneval's functions with their solutions; the answer is the same code with a name changed (rename())
loop   eight turns over each of humaneval's functions; after each answer a tool says something new of it
chat   mt_bench's first turns

Two engines take turns on the same prompts, one plain, one with a policy of "auto". Their answers are compared
token by token. A cell is a workload at a number of streams; each group of as many prompts is a pair, and the
cell's figure is the median of the pairs' ratios of decoding time, with its bootstrap interval (paired.py).
"total" is with the prompts. "unrepeated" leaves out groups in which an answer loops: easy to predict.
"drafting" is the share of steps that verify drafts, tau how many plain steps one step stands for. A cell
loses where its whole interval is below 0.98. Exits 1 where one loses or an aim is not met. Give it the
machine alone.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import report, usable_cores, write
from paired import Ratio, ratio_of

from octavo.bench.speculate import Answering, Answers, repeats
from octavo.params import SamplingParams

WORKLOADS = ("sum", "edits", "loop", "chat")
FILES = {"sum": "sum.jsonl", "edits": "humaneval.jsonl", "loop": "humaneval.jsonl", "chat": "mt_bench.jsonl"}
TURNS = 8
AIMS = {("sum", "ngram"): 1.8, ("edits", "ngram"): 1.8, ("loop", "suffix"): 1.5}
"""(workload, method) -> least gain of one stream, over answers that do not loop."""
NEVER_BELOW = 0.98
LEAST_PAIRS = 9
Messages = list[dict[str, str]]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def function_of(problem: Mapping[str, Any]) -> str:
    """A function of humaneval with its solution; the first line asks for the solution, and goes."""
    return str(problem["turns"][0].split("\n", 1)[1].strip("\n") + "\n" + problem["reference"][0].rstrip())


def rename(code: str) -> tuple[str, str]:
    """(name of the first function, what it is to be called)."""
    found = re.search(r"def (\w+)", code)
    name = found.group(1) if found else "solution"
    return name, f"{name}_of_input"


def edit(problem: Mapping[str, Any]) -> Messages:
    code = function_of(problem)
    old, new = rename(code)
    asked = f"Rename the function {old} to {new} in this code. Answer with the whole code.\n\n```python\n"
    return [{"role": "user", "content": f"{asked}{code}\n```"}]


def tool_says(turn: int) -> str:
    """What comes back after each answer of a loop: another line each time."""
    return (
        f"Test {turn} of {TURNS} failed: assertion {7 * turn + 3} does not hold for input {turn * turn + 1}. "
        "Answer with the whole corrected function again."
    )


def opening(workload: str, problem: Mapping[str, Any]) -> Messages:
    """The messages that a conversation begins with."""
    if workload == "edits":
        return edit(problem)
    return [{"role": "user", "content": str(problem["turns"][0])}]


@dataclass(frozen=True)
class Pair:
    """One group of prompts, answered by both engines. loops: an answer repeats itself."""

    plain: Answers
    drafted: Answers
    loops: bool

    def decoding(self, drafted: bool) -> float:
        return sum(step.seconds for step in (self.drafted if drafted else self.plain).steps)


class Arms:
    """A plain engine and one that speculates."""

    def __init__(self, model: str, method: str, options: Mapping[str, Any], streams: int) -> None:
        shared = {"max_num_seqs": streams, **options}
        self.plain = Answering(model, **shared)
        self.drafted = Answering(model, **shared, speculative_config={"method": method})
        self.turn = 0

    def reset(self) -> None:
        for engine in (self.plain, self.drafted):
            engine.reset_prefix_cache()

    def both(self, conversations: Sequence[Messages], params: SamplingParams) -> Pair:
        """Answer them with both, the other first each time.

        Raises:
            RuntimeError: the answers differ.
        """
        prompts = [self.plain.render_chat(messages) for messages in conversations]
        engines = (self.plain, self.drafted) if self.turn % 2 == 0 else (self.drafted, self.plain)
        self.turn += 1
        found = {id(engine): engine.answer(prompts, params) for engine in engines}
        plain, drafted = found[id(self.plain)], found[id(self.drafted)]
        if plain.token_ids != drafted.token_ids:
            raise RuntimeError("an answer with drafts is not the one without")
        return Pair(plain, drafted, any(repeats(answer) for answer in plain.token_ids))


def pairs_of(
    arms: Arms, workload: str, problems: Sequence[Mapping[str, Any]], streams: int, params: SamplingParams
) -> Iterator[Pair]:
    """The set once, in groups of so many streams; a loop goes through its turns side by side."""
    arms.reset()
    for start in range(0, len(problems), streams):
        talks = [opening(workload, problem) for problem in problems[start : start + streams]]
        for turn in range(TURNS if workload == "loop" else 1):
            pair = arms.both(talks, params)
            yield pair
            for talk, answer in zip(talks, pair.plain.token_ids, strict=True):
                text = arms.plain.get_tokenizer().decode(list(answer))
                talk += [
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": tool_says(turn + 1)},
                ]


def cell_of(pairs: Sequence[Pair], aim: float | None) -> dict[str, Any]:
    """Figures of one workload at one number of streams."""
    usable = [pair for pair in pairs if pair.plain.steps and pair.drafted.steps]
    fresh = [pair for pair in usable if not pair.loops]
    gain = gain_of(usable)
    unrepeated = gain_of(fresh) if fresh else None
    steps = [step for pair in usable for step in pair.drafted.steps]
    alone = [step for pair in usable for step in pair.plain.steps]
    drafting = [step for step in steps if step.drafted]
    total = sum(pair.plain.seconds for pair in usable) / sum(pair.drafted.seconds for pair in usable)
    decides = unrepeated or gain
    return {
        "pairs": len(usable),
        "gain": [round(value, 4) for value in gain],
        "unrepeated": [round(value, 4) for value in unrepeated] if unrepeated else None,
        "unrepeated_pairs": len(fresh),
        "total": round(total, 4),
        "drafting_steps": round(len(drafting) / len(steps), 4),
        "tau": round(len(alone) / len(steps), 3),  # both have drawn the same tokens
        "loses": gain.high < NEVER_BELOW,
        "aim": aim,
        "met": aim is None or decides.median >= aim,
    }


def gain_of(pairs: Sequence[Pair]) -> Ratio:
    """Decoding time of plain over that with drafts, pair by pair."""
    return ratio_of([pair.decoding(True) for pair in pairs], [pair.decoding(False) for pair in pairs])


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    cells = []
    sizes = [int(size) for size in options.batch_sizes.split(",")]
    for method in options.methods.split(","):
        arms = Arms(options.model, method, options.options | {"threads": options.threads}, max(sizes))
        for workload in options.workloads.split(","):
            problems = read(options.folder / FILES[workload])[: options.limit]
            for temperature in options.temperatures:
                for streams in sizes:
                    pairs: list[Pair] = []
                    for seed in range(
                        LEAST_PAIRS
                    ):  # large groups are few, so they come again with other seeds
                        params = SamplingParams(
                            temperature=temperature,
                            seed=seed,
                            max_tokens=options.max_tokens,
                            detokenize=False,
                        )
                        pairs += pairs_of(arms, workload, problems, streams, params)
                        if len(pairs) >= LEAST_PAIRS or options.once:
                            break
                    aim = AIMS.get((workload, method)) if streams == 1 else None
                    about = {"method": method, "workload": workload, "streams": streams}
                    cells.append({**about, "temperature": temperature, **cell_of(pairs, aim)})
                    print(line_of(cells[-1]), file=sys.stderr, flush=True)
        del arms
    return cells


HEADER = (
    f"{'method':8}{'work':7}{'streams':>8}{'temp':>6}{'gain':>24}{'unrepeated':>24}{'total':>8}"
    f"{'drafting':>10}{'tau':>7}"
)


def line_of(cell: Mapping[str, Any]) -> str:
    both = [
        "{:.3f} ({:.3f}-{:.3f})".format(*cell[name]) if cell[name] else "-" for name in ("gain", "unrepeated")
    ]
    said = "LOSES" if cell["loses"] else ""
    if cell["aim"] is not None:
        said += f" aim {cell['aim']}: {'met' if cell['met'] else 'NOT MET'}"
    return (
        f"{cell['method']:8}{cell['workload']:7}{cell['streams']:>8}{cell['temperature']:>6}"
        f"{both[0]:>24}{both[1]:>24}{cell['total']:>8.3f}{cell['drafting_steps']:>10.1%}"
        f"{cell['tau']:>7.2f}  {said}"
    )


def arguments_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="speculation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="with the .jsonl files")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--methods", default="ngram,suffix")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--batch-sizes", default="1,2,4,8,16,32")
    parser.add_argument(
        "--temperatures", type=lambda text: [float(t) for t in text.split(",")], default=[0.0, 0.7]
    )
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--limit", type=int, help="the first so many lines: shows that everything works")
    parser.add_argument("--once", action="store_true", help="each set once, however few groups it makes")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--options", type=json.loads, default={}, help="engine options, as JSON")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/speculation-*.json")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = arguments_of(arguments)
    missing = {
        FILES[name] for name in options.workloads.split(",") if not (options.folder / FILES[name]).is_file()
    }
    if missing:
        sys.exit(f"speculation: {options.folder} has no {', '.join(sorted(missing))}")
    cells = measure(options)
    settings = {
        name: value for name, value in vars(options).items() if name not in ("json", "write", "folder")
    }
    result = report("speculation", sys.argv, {"settings": settings, "cells": cells})
    print(json.dumps(result, indent=2) if options.json else "\n".join([HEADER, *map(line_of, cells)]))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return int(any(cell["loses"] or not cell["met"] for cell in cells))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
