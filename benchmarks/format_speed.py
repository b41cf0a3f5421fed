"""How fast one stream decodes in each number format, beside how fast its bytes could be read.

    .venv/bin/python benchmarks/format_speed.py [--peer-python PYTHON] [--rounds 3] [--write]
    .venv/bin/python benchmarks/format_speed.py --folder FOLDER --keep [--rounds 0]

A model of TinyLlama's shape with random weights (peers/synthetic.py) comes into each format as formats.py
brings models there. Each decodes in a process of its own, all of them once a round; a figure is the median
over the rounds of the median step's. bytes are what a greedy step reads: the weights as they are held, of an
8-bit head five bits, and the KV. A format's bandwidth is bytes x tok/s, and its share that of the fastest
format's. cache is what its loop reaches on weights that stay in a cache, in tok/s. Integer formats should
have a share of 85 %; NF4 and FP8, whose loops look codes up, that or 80 % of cache, whichever is less.

Making the files takes longer than measuring, and needs one core: with --keep they stay in --folder, and those
that lie there are taken; --rounds 0 makes them and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asked import at_least_one, from_zero
from formats import BASE, Form, made
from harness import conclude, report, usable_cores
from peers.files import shipped
from peers.rows import TINYLLAMA

from octavo.assembly.memory import page_specs
from octavo.bench.calibrate import tile
from octavo.bench.driver import Driver
from octavo.bench.roofline import cost_of
from octavo.bench.workload import random_prompts, spread
from octavo.cli._progress import count_progress
from octavo.errors import OctavoError
from octavo.kernels.weight import Layout

PROMPT, DECODED, WARM = 16, 64, 8
LEAST_SHARE, LEAST_OF_CACHE = 0.85, 0.80


def one(path: str, method: str | None, threads: int) -> dict[str, Any]:
    """This process's format: tok/s, bytes a step, the layout of most weights, and its rate in a cache."""
    driver = Driver(path, threads=threads, max_num_seqs=1, quantization=method)
    (prompt,) = random_prompts(1, PROMPT, driver.vocab_size, 0)
    driver.run([prompt], WARM)
    run = driver.run([prompt], DECODED)
    loaded = driver.loaded
    pages = page_specs(loaded.model, loaded.backend, loaded.user)
    cost = cost_of(loaded.model, loaded.backend, None, pages[0].dtype)
    layout = Layout(cost.layout)
    macs = cost.linear_macs + cost.head_macs
    return {
        "tok_s": 1 / statistics.median(step.seconds for step in run.decode),
        "bytes": cost.decode_bytes(1, PROMPT + DECODED // 2),
        "bits": cost.bits, "layout": layout.value, "coded": layout.coded,
        "cache_tok_s": tile(loaded.backend, layout, 1).rate(0.5) / macs,
    }  # fmt: skip


def in_a_process(form: Form, threads: int) -> dict[str, Any]:
    """The same in a process of its own.

    Raises:
        RuntimeError: it failed.
    """
    words = [
        "--one",
        str(form.path),
        "--threads",
        str(threads),
        *(["--method", form.method] if form.method else []),
    ]
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{form.name}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return dict(json.loads(done.stdout))


def judged(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Medians of each format's runs, beside what it should reach; nothing is asked of 16 bits."""
    forms: dict[str, dict[str, Any]] = {}
    for name, each in runs.items():
        rates = [run["tok_s"] for run in each]
        tok_s = statistics.median(rates)
        forms[name] = {
            "tok_s": tok_s, "spread": spread(rates), "bandwidth": tok_s * each[0]["bytes"],
            "cache_tok_s": statistics.median(run["cache_tok_s"] for run in each),
            **{key: each[0][key] for key in ("bytes", "bits", "layout", "coded")},
        }  # fmt: skip
    best = max(form["bandwidth"] for form in forms.values())
    for name, form in forms.items():
        form["share"] = form["bandwidth"] / best
        form["of_cache"] = form["tok_s"] / form["cache_tok_s"]
        form["over_f16"] = form["tok_s"] / forms[BASE]["tok_s"]
        if name == BASE:
            continue
        wanted = LEAST_SHARE * best / form["bytes"]
        form["wanted_tok_s"] = min(wanted, LEAST_OF_CACHE * form["cache_tok_s"]) if form["coded"] else wanted
        form["over_wanted"] = form["tok_s"] / form["wanted_tok_s"]
    return forms


@contextmanager
def kept_in(folder: Path | None, keep: bool) -> Iterator[Path]:
    """Where the files lie: the folder itself, or one in it that goes."""
    if keep and folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="octavo-formats-", dir=folder) as temporary:
        yield Path(temporary)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every format's figures and runs; of no rounds nothing."""
    with kept_in(options.folder, options.keep) as folder:
        every = made(str(shipped(TINYLLAMA)), folder, options.peer_python)
        forms = [form for form in every if form.dtype == "auto"]
        runs: dict[str, list[dict[str, Any]]] = {form.name: [] for form in forms}
        with count_progress("formats decoding") as progress:
            for place in range(options.rounds * len(forms)):
                form = forms[place % len(forms)]
                runs[form.name].append(in_a_process(form, options.threads))
                progress(place + 1, options.rounds * len(forms))
    return {
        "forms": judged(runs) if options.rounds else {},
        "runs": {name: [run["tok_s"] for run in each] for name, each in runs.items()},
    }


def table(result: Mapping[str, Any]) -> list[str]:
    lines = [f"{'format':<9}{'layout':>8}{'bits':>7}{'MB':>8}{'tok/s':>8}{'spread':>8}{'GB/s':>7}{'share':>7}"
             f"{'cache':>8}{'of it':>7}{'/f16':>6}"]  # fmt: skip
    for name, form in result["forms"].items():
        lines.append(
            f"{name:<9}{form['layout']:>8}{form['bits']:>7.2f}{form['bytes'] / 1e6:>8.0f}"
            f"{form['tok_s']:>8.1f}{form['spread']:>8.2f}{form['bandwidth'] / 1e9:>7.1f}{form['share']:>7.0%}"
            f"{form['cache_tok_s']:>8.1f}{form['of_cache']:>7.0%}{form['over_f16']:>6.2f}"
            f"{'  below' if form.get('over_wanted', 1.0) < 1 else ''}"
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="format_speed")
    parser.add_argument("--rounds", type=from_zero, default=3)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--folder", type=Path, help="where files of the model may lie meanwhile (12 GB)")
    parser.add_argument("--keep", action="store_true", help="leave them there, and take those that lie there")
    parser.add_argument("--peer-python", help="a Python that has llama_cpp; else one is looked for")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/format_speed-*.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.keep and options.folder is None:
        parser.error("--keep needs a --folder")
    if options.write and not options.rounds:
        parser.error("no rounds measure nothing to write")
    if options.one:
        print(json.dumps(one(options.one, options.method, options.threads)))
        return 0
    settings = {name: getattr(options, name) for name in ("rounds", "threads")}
    try:
        found = measure(options)
    except (OctavoError, RuntimeError) as error:
        print(f"format_speed: {error}", file=sys.stderr)
        return 1
    if not options.rounds:
        return 0
    result = report("format_speed", sys.argv, {"settings": settings, **found})
    return conclude(result, table(result), False, options.json, options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
