"""Octavo beside its peers: the same prompts, engines in processes of their own, in turns.

    .venv/bin/python benchmarks/peers [--shapes short,batch-32] [--engines octavo,llama.cpp] [--write]

Engines are found in .venv-oracle, .venv-test and this Python, or named: --python llama.cpp=PATH. What
cannot be imported is left out, and said. llama.cpp (flash attention on) and Octavo run the file as it is and
requantized to Q4_0, threads = cores; a ratio is between the faster one of each. Figures are medians over the
repetitions, after one that warms up; decode figures hold no prompt's time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from engines.base import Timing
from harness import Worker, python_with, report, usable_cores, write

from octavo.bench.stats import spread
from octavo.bench.workload import COMMON_IDS, random_prompts
from peers import files
from peers.rows import OURS, OURS_F16, OURS_INT8, OURS_Q4, ROWS, SHAPES, Row, Shape

PAUSE_S = 0.3  # between turns: the other engines' idle threads stop spinning
MODULES = {
    "octavo": "octavo",
    "llama.cpp": "llama_cpp",
    "transformers": "transformers",
    "openvino-genai": "openvino_genai",
    "vllm": "vllm",
}
SLOW = ("transformers", "openvino-genai", "vllm")


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine on one model's file; name is what tables say."""

    name: str
    engine: str
    model: Path
    python: str
    options: dict[str, Any] = field(default_factory=dict)


def entries(model: str, pythons: Mapping[str, str], ours: dict[str, Any], int8: bool) -> list[Entry]:
    """All engines that are there, each with the model as it reads it."""
    path, found = files.shipped(model), list[Entry]()
    for engine, python in pythons.items():
        if engine == "octavo":
            found.append(Entry(OURS, "octavo", path, python, ours))
            if "llama.cpp" in pythons and (best := files.requantized(model, pythons["llama.cpp"])) != path:
                found.append(Entry(OURS_Q4, "octavo", best, python, ours))
            if int8:
                for name, pages in ((OURS_INT8, "int8"), (OURS_F16, "float16")):
                    found.append(Entry(name, "octavo", path, python, {**ours, "kv_cache_dtype": pages}))
        elif engine == "llama.cpp":
            best = files.requantized(model, python)
            found.append(Entry("llama.cpp Q4_0", "llama_cpp", best, python))
            if best != path:
                found.append(Entry("llama.cpp as shipped", "llama_cpp", path, python))
        elif engine == "vllm":
            folder = files.folder(model, pythons.get("transformers", python))
            found.append(Entry(engine, MODULES[engine], folder, python))
        else:
            found.append(Entry(engine, MODULES[engine], path, python))
            if engine == "openvino-genai" and "llama.cpp" in pythons:
                best = files.requantized(model, pythons["llama.cpp"])
                found += [Entry("openvino-genai Q4_0", MODULES[engine], best, python)] * (best != path)
    return found


def wanted(entry: Entry, shape: Shape, key: str, rows: Sequence[Row]) -> bool:
    """Whether this engine takes part in this shape."""
    if entry.name in (OURS_INT8, OURS_F16):
        return any(row.shape == key and entry.name in (row.ours, row.over) for row in rows)
    return not (shape.heavy and entry.name.removesuffix(" Q4_0") in SLOW)


def figures(timings: Sequence[Timing]) -> dict[str, float]:
    """Medians in tok/s, and spreads (highest / lowest)."""
    prompt, decode = [t.prompt_rate for t in timings], [t.decode_rate for t in timings]
    return {
        "prompt": round(statistics.median(prompt), 1),
        "prompt_spread": round(spread(prompt), 2),
        "decode": round(statistics.median(decode), 1),
        "decode_spread": round(spread(decode), 2),
    }


@contextlib.contextmanager
def started(chosen: Sequence[Entry], threads: int) -> Iterator[dict[str, Worker]]:
    """Workers by entry name; an engine that does not start is left out, and said."""
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for entry in chosen:
            print(f"loading {entry.name}", file=sys.stderr)
            try:
                worker = Worker(entry.engine, str(entry.model), threads, entry.python, entry.options)
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


def measure(options: argparse.Namespace, pythons: Mapping[str, str]) -> dict[str, Any]:
    """shape key -> {"shape", "engines": name -> figures}, and what the engines say of themselves."""
    rows = [row for row in ROWS if row.shape in options.shapes]
    shapes = {key: SHAPES[key].quick() if options.quick else SHAPES[key] for key in options.shapes}
    measured: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for model in dict.fromkeys(shape.model for shape in shapes.values()):
        mine = {key: shape for key, shape in shapes.items() if shape.model == model}
        int8 = any(row.ours == OURS_INT8 and row.shape in mine for row in rows)
        every = entries(model, pythons, options.options, int8)
        chosen = [e for e in every if any(wanted(e, shape, key, rows) for key, shape in mine.items())]
        with started(chosen, options.threads) as workers:
            about |= {f"{name}, {model}": worker.about for name, worker in workers.items()}
            for key, shape in mine.items():
                print(f"measuring {shape.name}", file=sys.stderr)
                taking = {
                    e.name: workers[e.name]
                    for e in chosen
                    if e.name in workers and wanted(e, shape, key, rows)
                }
                timings = interleave(taking, shape, options.repeat)
                measured[key] = {
                    "shape": shape.name,
                    "engines": {name: figures(each) for name, each in timings.items()},
                }
    return {"engines": about, "shapes": measured}


def ratios(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows that could be computed."""
    out = []
    for row in ROWS:
        engines = measured.get(row.shape, {}).get("engines", {})
        rates = {name: float(each[row.figure]) for name, each in engines.items()}
        ours = [name for name in ((OURS, OURS_Q4) if row.ours == OURS else (row.ours,)) if name in rates]
        others = [row.over] if row.over in rates else [n for n in rates if n.startswith(row.over)]
        if not ours or not others:
            continue
        mine, best = max(ours, key=rates.__getitem__), max(others, key=rates.__getitem__)
        ratio = round(rates[mine] / rates[best], 2)
        out.append(
            {
                "row": row.name, "with": mine, "ours": rates[mine], "over": best, "theirs": rates[best],
                "ratio": ratio, "least": row.least, "aim": row.aim, "reached": ratio >= row.least,
            }
        )  # fmt: skip
    return out


def table(result: Mapping[str, Any]) -> str:
    lines = [f"{'tok/s':<24}{'prompt':>10}{'spread':>8}{'decode':>10}{'spread':>8}"]
    for each in result["shapes"].values():
        lines.append(each["shape"])
        for name, f in each["engines"].items():
            lines.append(
                f"  {name:<22}{f['prompt']:>10}{f['prompt_spread']:>8}"
                f"{f['decode']:>10}{f['decode_spread']:>8}"
            )
    lines.append(f"\n{'ratio':<40}{'ours':>9}{'theirs':>9}{'ratio':>7}{'least':>7}{'aim':>6}")
    for row in result["ratios"]:
        mark = "" if row["reached"] else "  below"
        lines.append(
            f"{row['row']:<40}{row['ours']:>9}{row['theirs']:>9}{row['ratio']:>7}{row['least']:>7}"
            f"{row['aim'] or '':>6}{mark}"
        )
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="peers", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="of: %(default)s")
    parser.add_argument("--engines", default=",".join(MODULES), help="of: %(default)s")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--quick", action="store_true", help="an eighth of the lengths, once: does it run?")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--options", type=json.loads, default={}, help='for Octavo, such as {"isa": "avx2"}')
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
    options.repeat = 1 if options.quick else options.repeat
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    wished = {"octavo": sys.executable, **dict(word.split("=", 1) for word in options.python)}
    pythons = {}
    for engine in options.engines:
        python = python_with(MODULES[engine], wished.get(engine))
        if python is None:
            print(f"{engine} is not installed here: left out", file=sys.stderr)
        else:
            pythons[engine] = python
    measured = measure(options, pythons)
    settings = {name: getattr(options, name) for name in ("repeat", "threads", "quick", "options")}
    body = {"settings": settings, **measured, "ratios": ratios(measured["shapes"])}
    result = report("peers", sys.argv, body)
    print(json.dumps(result, indent=2) if options.json else table(result))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
