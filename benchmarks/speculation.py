"""What speculative decoding gains over plain decoding, and that it never loses.

    .venv/bin/python benchmarks/speculation.py FOLDER [--cells 'ngram/sum/*/1'] [--state FILE] [--minutes 14]
    .venv/bin/python benchmarks/speculation.py FOLDER --state FILE --list

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

All cells take hours, so they can be had in pieces: METHOD/WORKLOAD/TEMPERATURE/STREAMS names a cell, --cells
takes some by such patterns, --state keeps what is done and goes on from there, and with --minutes no cell is
begun that is not expected to end in time: then the exit status is 75 where cells are left. --list says which
are done and how long the others will take.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from asked import above_zero, at_least_one, checked, json_object, not_negative, several, tells
from harness import commit, report, usable_cores, write
from paired import Ratio, ratio_of

from octavo.bench.speculate import Answering, Answers, repeats
from octavo.errors import OctavoError
from octavo.params import SamplingParams

WORKLOADS = ("sum", "edits", "loop", "chat")
FILES = {"sum": "sum.jsonl", "edits": "humaneval.jsonl", "loop": "humaneval.jsonl", "chat": "mt_bench.jsonl"}
TURNS = 8
AIMS = {("sum", "ngram"): 1.8, ("edits", "ngram"): 1.8, ("loop", "suffix"): 1.5}
"""(workload, method) -> least gain of one stream, over answers that do not loop."""
NEVER_BELOW = 0.98
LEAST_PAIRS = 9
LEFT = 75
"""Exit status where cells are left for another time (EX_TEMPFAIL)."""
ALONE_S = {"sum": 100.0, "edits": 80.0, "loop": 560.0, "chat": 60.0}
"""Seconds of a cell of one stream, both engines, on two cores of a server, before any is known."""
SIDE_BY_SIDE = {1: 1.0, 2: 0.75, 4: 0.55, 8: 0.45, 16: 0.5, 32: 0.9}
"""What share of that a cell of more streams takes: large groups are few, and come several times."""
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


class Cell(NamedTuple):
    """What is measured at a time."""

    method: str
    workload: str
    temperature: float
    streams: int

    @property
    def name(self) -> str:
        return f"{self.method}/{self.workload}/{self.temperature:g}/{self.streams}"

    @property
    def expected_s(self) -> float:
        nearest = min(SIDE_BY_SIDE, key=lambda size: abs(size - self.streams))
        return ALONE_S[self.workload] * SIDE_BY_SIDE[nearest]


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """Those that are asked for, one method after the other.

    Raises:
        SystemExit: a pattern names none.
    """
    every = itertools.product(
        options.methods.split(","), options.workloads.split(","), options.temperatures,
        map(int, options.batch_sizes.split(",")),
    )  # fmt: skip
    cells = [Cell(*each) for each in every]
    for pattern in options.cells:
        if not any(fnmatch(cell.name, pattern) for cell in cells):
            sys.exit(f"speculation: no cell is called {pattern!r}: {cells[0].name} is one")
    return [
        c for c in cells if not options.cells or any(fnmatch(c.name, pattern) for pattern in options.cells)
    ]


class State:
    """Cells that are done, in a file of JSON lines.

    Args:
        path: None: they are only remembered.
        settings: of the run; cells of others are not mixed with these.

    Raises:
        SystemExit: the file holds something else, or cells of other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path, self._settings = path, json.loads(json.dumps(settings))
        self.done: dict[str, dict[str, Any]] = {}
        for line in read(path) if path is not None and path.exists() else ():
            if not isinstance(line, dict) or line.get("settings") != self._settings:
                sys.exit(f"speculation: {path} holds cells of other settings: name another file")
            self.done[line["name"]] = line["cell"]

    def add(self, name: str, cell: dict[str, Any]) -> None:
        self.done[name] = cell
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"settings": self._settings, "name": name, "cell": cell}) + "\n")

    def seconds(self, cell: Cell) -> float:
        """How long a cell took, or will take as far as those that are done say."""
        if cell.name in self.done:
            return float(self.done[cell.name]["seconds"])
        factors = []
        for done in self.done.values():
            known = Cell(done["method"], done["workload"], done["temperature"], done["streams"])
            factors.append((known.workload == cell.workload, done["seconds"] / known.expected_s))
        alike = [factor for same, factor in factors if same] or [factor for _, factor in factors]
        return cell.expected_s * (statistics.median(alike) if alike else 1.0)


def measured(arms: Arms, cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """One cell's figures, and how long it took."""
    began, pairs = time.perf_counter(), list[Pair]()
    problems = read(options.folder / FILES[cell.workload])[: options.limit]
    for seed in range(LEAST_PAIRS):  # large groups are few, so they come again with other seeds
        params = SamplingParams(
            temperature=cell.temperature, seed=seed, max_tokens=options.max_tokens, detokenize=False
        )
        for pair in pairs_of(arms, cell.workload, problems, cell.streams, params):
            pairs.append(pair)
            took = time.perf_counter() - began
            print(f"\r{cell.name}: {len(pairs)} pairs, {took:.0f} s ", end="", file=sys.stderr, flush=True)
        if len(pairs) >= LEAST_PAIRS or options.once:
            break
    print("\r", end="", file=sys.stderr)
    aim = AIMS.get((cell.workload, cell.method)) if cell.streams == 1 else None
    took = round(time.perf_counter() - began, 1)
    return {**cell._asdict(), **cell_of(pairs, aim), "seconds": took, "commit": commit()}


def measure(options: argparse.Namespace, cells: Sequence[Cell], state: State) -> bool:
    """Measure the cells that are not done, as far as there is time. Returns whether none is left."""
    ends = time.perf_counter() + 60 * options.minutes if options.minutes else float("inf")
    sizes = [int(size) for size in options.batch_sizes.split(",")]
    for method, group in itertools.groupby(cells, lambda cell: cell.method):
        left, arms = [cell for cell in group if cell.name not in state.done], None
        for cell in left:
            if time.perf_counter() + state.seconds(cell) > ends:
                continue  # a shorter one may fit
            threads = options.options | {"threads": options.threads}
            arms = arms or Arms(options.model, method, threads, max(sizes))
            state.add(cell.name, measured(arms, cell, options))
            print(line_of(state.done[cell.name]), file=sys.stderr, flush=True)
        del arms
    return all(cell.name in state.done for cell in cells)


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
    parser.add_argument("--batch-sizes", type=checked(several(at_least_one)), default="1,2,4,8,16,32")
    parser.add_argument("--temperatures", type=several(not_negative), default=[0.0, 0.7])
    parser.add_argument("--max-tokens", type=at_least_one, default=128)
    parser.add_argument("--cells", type=lambda text: text.split(","), default=[], help="patterns of names")
    parser.add_argument("--state", type=Path, help="file of what is done, to go on from")
    parser.add_argument("--minutes", type=above_zero, help="begin no cell that is expected to end later")
    parser.add_argument(
        "--list", action="store_true", help="say which cells are done, and what the others take"
    )
    parser.add_argument(
        "--limit", type=at_least_one, help="the first so many lines: shows that everything works"
    )
    parser.add_argument("--once", action="store_true", help="each set once, however few groups it makes")
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--options", type=json_object, default={}, help="engine options, as JSON")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/speculation-*.json")
    return parser.parse_args(arguments)


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    options = arguments_of(arguments)
    missing = {
        FILES[name] for name in options.workloads.split(",") if not (options.folder / FILES[name]).is_file()
    }
    if missing:
        sys.exit(f"speculation: {options.folder} has no {', '.join(sorted(missing))}")
    kept = ("model", "max_tokens", "limit", "once", "threads", "options")
    settings = {name: getattr(options, name) for name in kept}
    cells, state = cells_of(options), State(options.state, settings)
    if options.list:
        print("\n".join(listed(cells, state)))
        return 0
    whole = measure(options, cells, state)
    done = [state.done[cell.name] for cell in cells if cell.name in state.done]
    result = report("speculation", sys.argv, {"settings": settings, "cells": done})
    print(json.dumps(result, indent=2) if options.json else "\n".join([HEADER, *map(line_of, done)]))
    if not whole:
        print("\n".join(listed(cells, state)[-1:]), file=sys.stderr)
        return LEFT
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return int(any(cell["loses"] or not cell["met"] for cell in done))


def listed(cells: Sequence[Cell], state: State) -> list[str]:
    """A line for each cell, and one for those that are left."""
    lines, left = [], 0.0
    for cell in cells:
        done, seconds = cell.name in state.done, state.seconds(cell)
        left += 0 if done else seconds
        lines.append(f"{cell.name:28}{'done in' if done else 'about':>8}{seconds:>8.0f} s")
    count = sum(cell.name not in state.done for cell in cells)
    return [*lines, f"{count} of {len(cells)} cells are left: about {left / 60:.0f} minutes"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
