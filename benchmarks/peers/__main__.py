"""Octavo beside its peers: the same prompts, engines in processes of their own, in turns.

    .venv/bin/python benchmarks/peers --tune-peer [--shapes short,batch-32] [--write]

Engines are found in .venv-oracle, .venv-test and this Python, or named: --python llama.cpp=PATH. What cannot
be imported is left out, and said; no ratio is printed without it. --tune-peer first looks for the file (as
shipped, or requantized to Q4_0) and the settings that suit each engine in each shape, for prompts and for
decoding apart, and writes them into the result; --tuned RESULT takes them from there. Without either
llama.cpp runs with flash attention on and off. Figures are medians over the repetitions, after one that warms
up; decode figures hold no prompt's time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from asked import ScriptError, at_least_one, json_object, refuse, tells
from engines.base import Timing
from harness import Worker, python_with, report, usable_cores, write

from octavo.bench.workload import COMMON_IDS, random_prompts, spread
from octavo.errors import OctavoError
from peers.entries import MODULES, Entry, entries, group_of, wanted
from peers.files import where_requantized
from peers.rows import GROUPS, ROWS, SHAPES, THEIRS, Shape
from peers.tuning import Tuner, found_before

PAUSE_S = 0.3  # between turns: the other engines' idle threads stop spinning
NOISY = 1.10
"""Where Octavo's own runs of a shape differ by more the machine does other things: the table is marked."""


def figures(timings: Sequence[Timing]) -> dict[str, Any]:
    """Medians in tok/s, spreads (highest / lowest), and the rate of every repetition."""
    prompt, decode = [t.prompt_rate for t in timings], [t.decode_rate for t in timings]
    return {
        "prompt": round(statistics.median(prompt), 1),
        "prompt_spread": round(spread(prompt), 2),
        "decode": round(statistics.median(decode), 1),
        "decode_spread": round(spread(decode), 2),
        "prompt_rates": [round(rate, 1) for rate in prompt],
        "decode_rates": [round(rate, 1) for rate in decode],
    }


@contextlib.contextmanager
def started(chosen: Sequence[Entry], threads: int) -> Iterator[dict[str, Worker]]:
    """Workers by entry name; an engine that does not start is left out, and said."""
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for entry in chosen:
            print(f"loading {entry.name}", file=sys.stderr)
            options = entry.options
            try:
                mine = options.pop("threads", threads)
                worker = Worker(entry.engine, str(entry.model), mine, entry.python, options)
            except RuntimeError as error:
                print(f"{entry.name} does not start: {error}", file=sys.stderr)
                continue
            workers[entry.name] = stack.enter_context(worker)
        yield workers


def interleave(workers: Mapping[str, Worker], shape: Shape, repeat: int) -> dict[str, list[Timing]]:
    """Every engine once a round, the first round not counted. One that fails is left out, and said."""
    timings: dict[str, list[Timing]] = {name: [] for name in workers}
    for repetition in range(repeat + 1):
        prompts = random_prompts(shape.streams, shape.prompt, COMMON_IDS, seed=repetition)
        for name, worker in workers.items():
            if name not in timings:
                continue
            time.sleep(PAUSE_S)
            try:
                timing = worker.run(prompts, shape.new)
            except RuntimeError as error:
                print(f"{name} fails at {shape.name}: {error}", file=sys.stderr)
                del timings[name]
                continue
            if repetition:
                timings[name].append(timing)
    return timings


def chosen(
    forms: Sequence[Entry], key: str, shape: Shape, options: argparse.Namespace, tuner: Tuner
) -> dict[str, dict[str, Entry]]:
    """group -> figure -> the entry that stands for the group; "" for entries of every figure."""
    rows = [row for row in ROWS if row.shape == key]
    found: dict[str, dict[str, Entry]] = {}
    for group in dict.fromkeys(entry.group for entry in forms if wanted(entry, shape, rows)):
        mine = [entry for entry in forms if entry.group == group]
        if options.tuned:
            stored = options.tuned.get(key, {}).get(group, {})
            taken = {figure: stored_entry(mine, each, shape.model) for figure, each in stored.items()}
            found[group] = {figure: entry for figure, entry in taken.items() if entry is not None}
        elif options.tune_peer:
            asked = {row.figure for row in rows if group in (row.ours, row.over)} or {"prompt", "decode"}
            found[group] = {figure: tuner.best(mine, shape, figure) for figure in sorted(asked)}
        else:
            settings = [{"flash_attn": 1}, {"flash_attn": 0}] if group == THEIRS else [{}]
            every = [entry.with_settings(each) for entry in mine for each in settings]
            found[group] = {entry.name: entry for entry in every}
    return found


def stored_entry(forms: Sequence[Entry], stored: Mapping[str, Any], model: str) -> Entry | None:
    """The entry that an earlier result has chosen; None, and said: nobody here makes its file."""
    for entry in forms:
        if entry.form == stored["form"]:
            return entry.with_settings(stored["settings"])
    print(
        f"{forms[0].group} is left out where --tuned names {model} as {stored['form']}: llama.cpp makes that"
        f" file, {where_requantized(model)}, and takes no part here (--engines, --python llama.cpp=PATH)",
        file=sys.stderr,
    )
    return None


def measure(options: argparse.Namespace, pythons: Mapping[str, str]) -> dict[str, Any]:
    """Figures of every shape's engines, what the engines say of themselves, and what was tuned."""
    shapes = {key: SHAPES[key].quick() if options.quick else SHAPES[key] for key in options.shapes}
    found: dict[str, Any] = {"engines": {}, "shapes": {}, "tuned": {}}
    tuner = Tuner(options.threads)
    for key, shape in shapes.items():
        best = chosen(entries(shape.model, pythons, options.options), key, shape, options, tuner)
        taking = {entry.name: entry for figures in best.values() for entry in figures.values()}
        with started(list(taking.values()), options.threads) as workers:
            found["engines"] |= {f"{name}, {shape.model}": worker.about for name, worker in workers.items()}
            print(f"measuring {shape.name}", file=sys.stderr)
            timings = interleave(workers, shape, options.repeat)
        engines = {name: figures(each) for name, each in timings.items()}
        asked = options.tuned.get(key, {}) if options.tuned else {}
        lost = {
            f"{group}: {asked[group][figure]['form']}"
            for group, figures in best.items()
            for figure in set(asked.get(group, {})) - set(figures)
        }
        missing = sorted((set(taking) | lost) - set(engines))
        found["shapes"][key] = {"shape": shape.name, "engines": engines, "missing": missing}
        if options.tune_peer or options.tuned:
            found["tuned"][key] = {
                group: {figure: {"form": e.form, "settings": dict(e.chosen)} for figure, e in each.items()}
                for group, each in best.items()
            }
    if options.tune_peer:
        found["tried"] = tuner.tried
    return found


def ratios(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows that could be computed; of the others, why not."""
    out: list[dict[str, Any]] = []
    for row in ROWS:
        if row.shape not in measured:
            continue
        engines = measured[row.shape]["engines"]
        sides = [
            {name: float(each[row.figure]) for name, each in engines.items() if group_of(name) == group}
            for group in (row.ours, row.over)
        ]
        if not all(sides):
            lacking = row.over if sides[0] else row.ours
            out.append({"row": row.name, "ratio": None, "why": f"{lacking} is missing or failed"})
            continue
        (mine, ours), (best, theirs) = (max(side.items(), key=lambda each: each[1]) for side in sides)
        ratio = round(ours / theirs, 2)
        out.append(
            {
                "row": row.name, "with": mine, "ours": ours, "over": best, "theirs": theirs,
                "what": f"{GROUPS[row.ours]}; over: {GROUPS[row.over]}",
                "ratio": ratio, "least": row.least, "aim": row.aim, "reached": ratio >= row.least,
            }
        )  # fmt: skip
    return out


def noisy(measured: Mapping[str, Any]) -> list[str]:
    """Shapes in which runs of one engine differ by more than a tenth, the first of Octavo's group."""
    return [
        key
        for key, each in measured.items()
        if any(
            figure[f"{kind}_spread"] > NOISY
            for name, figure in each["engines"].items()
            if group_of(name).startswith("octavo")
            for kind in {row.figure for row in ROWS if row.shape == key}
        )
    ]


def table(result: Mapping[str, Any]) -> str:
    lines = [f"{'tok/s':<70}{'prompt':>10}{'spread':>8}{'decode':>10}{'spread':>8}"]
    for each in result["shapes"].values():
        lines.append(each["shape"])
        for name, f in each["engines"].items():
            lines.append(
                f"  {name:<68}{f['prompt']:>10}{f['prompt_spread']:>8}"
                f"{f['decode']:>10}{f['decode_spread']:>8}"
            )
        lines += [f"  {name}: does not start, or failed" for name in each["missing"]]
    lines.append(f"\n{'ratio':<42}{'ours':>9}{'theirs':>9}{'ratio':>7}{'least':>7}{'aim':>6}")
    for row in result["ratios"]:
        if row["ratio"] is None:
            lines.append(f"{row['row']:<42}  no ratio: {row['why']}")
            continue
        mark = "" if row["reached"] else "  below"
        lines.append(
            f"{row['row']:<42}{row['ours']:>9}{row['theirs']:>9}{row['ratio']:>7}{row['least']:>7}"
            f"{row['aim'] or '':>6}{mark}"
        )
    if result["noisy"]:
        lines.append(f"NOISY: Octavo's own runs differ by more than a tenth at {', '.join(result['noisy'])}")
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="peers", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="of: %(default)s")
    parser.add_argument("--engines", default=",".join(MODULES), help="of: %(default)s")
    parser.add_argument("--repeat", type=at_least_one, default=5)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--quick", action="store_true", help="an eighth of the lengths, once: does it run?")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--options", type=json_object, default={}, help='for Octavo, such as {"isa": "avx2"}')
    parser.add_argument("--tune-peer", action="store_true", help="find each engine's best settings first")
    parser.add_argument("--tuned", metavar="RESULT", help="settings that an earlier result has found")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/peers-*.json")
    options = parser.parse_args(arguments)
    for name, known in (("shapes", SHAPES), ("engines", MODULES)):
        given = getattr(options, name).split(",")
        setattr(options, name, given)
        if not set(given) <= set(known):
            parser.error(f"--{name}: there is no {', '.join(sorted(set(given) - set(known)))}")
    if any(word.partition("=")[0] not in MODULES or "=" not in word for word in options.python):
        parser.error(f"--python takes ENGINE=PATH, an engine of {', '.join(MODULES)}")
    if options.tuned and options.tune_peer:
        parser.error("--tuned takes settings that --tune-peer would look for: give one of them")
    if options.tuned:
        try:
            options.tuned = found_before(Path(options.tuned))
        except ScriptError as error:
            parser.error(f"--tuned: {options.tuned} is no result of --tune-peer: {error}")
    options.repeat = 1 if options.quick else options.repeat
    return options


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    wished = {"octavo": sys.executable, **dict(word.split("=", 1) for word in options.python)}
    pythons = {}
    for engine in options.engines:
        try:
            python = python_with(MODULES[engine], wished.get(engine))
        except RuntimeError as error:
            refuse("peers", f"--python {engine}: {error}")
        if python is None:
            print(f"{engine} is not installed here: left out", file=sys.stderr)
        else:
            pythons[engine] = python
    measured = measure(options, pythons)
    settings = {name: getattr(options, name) for name in ("repeat", "threads", "quick", "options")}
    settings["temperature"] = 0
    shapes = measured["shapes"]
    body = {"settings": settings, **measured, "ratios": ratios(shapes), "noisy": noisy(shapes)}
    result = report("peers", sys.argv, body)
    print(json.dumps(result, indent=2) if options.json else table(result))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 1 if any(each["missing"] for each in shapes.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
