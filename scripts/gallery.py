"""The plots of README.md and docs/how-to/measure.md, drawn from benchmarks/results: `make gallery`.

    gallery.py            exit 1 where a plot or a page differs from the files, each of them printed
    gallery.py --write    draw docs/gallery/*.svg, and write what the pages say of them

Between `<!-- plot NAME -->` and `<!-- end -->` of a page stands a plot with its origin: the newest result
that has everything that the plot shows; beside peers, of the slowest machine that has such a result. They are
drawn by what draws `octavo bench --plot`.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from figure_runs import Result, Run, read
from figure_tables import group
from figures import kinds
from result_files import ResultError, naming

from octavo.bench.grid import Cell, Curve, Grid
from octavo.bench.report.chart import Bars, Chart, Lines, Series
from octavo.bench.report.writers.svg import svg
from octavo.cli._bench.sweep import throughput_latency

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/how-to/measure.md")
FOLDER = Path("docs/gallery")
BLOCK = re.compile(r"(<!-- plot ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
WIDTH = 140
"""Characters of a line of the pages."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A file of docs/gallery.

    Attributes:
        benchmark: whose results have its figures.
        draw: a result's charts; none where it lacks something that is to be seen.
        lacks: what was not measured that a reader would look for.
        slowest: of several machines the slowest, by status's order; else whichever ran last.
        told: what else a reader has to know of a result.
    """

    title: str
    benchmark: str
    draw: Callable[[Result], list[Chart]]
    lacks: Callable[[Result], list[str]] = lambda result: []
    slowest: bool = False
    told: Callable[[Run], str] = lambda run: ""


# --- what is drawn ----------------------------------------------------------------------------------------

ENGINES = {
    "octavo": "Octavo",
    "llama.cpp": "llama.cpp",
    "openvino-genai": "OpenVINO GenAI",
    "transformers": "transformers",
    "vllm": "vLLM",
}
"""Groups of benchmarks/peers, as they are shown; vLLM's may be missing."""
PANELS = {
    "short": ("decode", "1 stream, decoding"),
    "batch-8": ("decode", "8 streams, decoding"),
    "batch-32": ("decode", "32 streams, decoding"),
    "prompt-512": ("prompt", "a prompt of 512 tokens"),
}
"""Shapes of benchmarks/peers: which rate, and what it is of."""


def fastest(result: Result, shape: str, figure: str) -> dict[str, float]:
    """Each engine's rate in a shape, of its fastest file and settings."""
    found: dict[str, float] = {}
    for name, rates in result["shapes"].get(shape, {}).get("engines", {}).items():
        if group(name) in ENGINES:
            found[group(name)] = max(found.get(group(name), 0.0), float(rates[figure]))
    return found


def beside_peers(result: Result) -> list[Chart]:
    """A panel for each shape; every engine of ENGINES but vLLM has to be in it."""
    panels: list[Chart] = []
    for shape, (figure, title) in PANELS.items():
        rates = fastest(result, shape, figure)
        if not set(ENGINES) - {"vllm"} <= set(rates):
            return []
        bars = tuple((name, rates[each]) for each, name in ENGINES.items() if each in rates)
        panels.append(Bars(title, "tokens a second (more is better)", bars))
    return panels


def peers_missing(result: Result) -> list[str]:
    measured = {each for shape, (figure, _) in PANELS.items() for each in fastest(result, shape, figure)}
    return [name for each, name in ENGINES.items() if each not in measured]


def held(run: Run) -> str:
    """Who else than the machine's kind says could use more of it."""
    if run.kind.endswith(", avx2") and "avx512f" in run.result["machine"]["flags"]:
        return " Nothing holds OpenVINO GenAI and transformers to avx2 there."
    return ""


def roofline(result: Result) -> list[Chart]:
    """Decoding after short prompts by streams, and of one stream by context: measured, and the bound."""
    lines = [line for line in result["result"]["lines"] if line["work"] == "decode"]
    by_size = [(line["size"], line) for line in lines if line["context"] < SHORT]
    by_context = [(line["context"], line) for line in lines if line["size"] == 1]
    if len(by_size) < 2 or len(by_context) < 2:
        return []
    return [
        Lines(title, x, "tokens a second", tuple(
            Series(name, tuple((float(at), float(line[field])) for at, line in sorted(rows, key=place)))
            for name, field in (("measured", "rate"), ("what memory and arithmetic allow", "bound_rate"))
        ), log="x")
        for title, x, rows in (
            ("Decoding after short prompts", "streams", by_size),
            ("One stream by its context", "tokens of context", by_context),
        )
    ]  # fmt: skip


SHORT = 64
"""Tokens of context below which weights are what a step reads."""


def place(row: tuple[int, Mapping[str, object]]) -> int:
    """Where a row lies on the x axis."""
    return row[0]


def techniques(result: Result) -> list[Chart]:
    """How many times better with each technique that was measured."""
    found = result.get("result", result)
    gains = tuple((row["name"], float(row["gain"])) for row in found.get("rows", ()) if "gain" in row)
    unit = "times better with it than without (time, rate or memory: each row says which)"
    return [Bars("What each technique is worth", unit, gains)] if gains else []


def techniques_missing(result: Result) -> list[str]:
    rows = result.get("result", result).get("rows", ())
    return [f"{row['name']} ({row['not_measured']})" for row in rows if row["not_measured"]]


def sweep(result: Result) -> list[Chart]:
    """As `octavo bench sweep --plot` draws it."""
    found = result["result"]
    curves = [
        Curve(
            each["context"], tuple(Cell(**cell) for cell in each["cells"]), each["knee"], each["memory_ends"]
        )
        for each in found["curves"]
    ]
    return [throughput_latency(Grid(found["new_tokens"], tuple(curves), found["memory"], found["cut"]))]


def planned(result: Result) -> list[Chart]:
    """Decoding of each model by batch: as `octavo plan --measure` predicts it, and as it was."""
    return [
        Lines(f"{name}: decoding after {result['settings']['prompt_tokens']} tokens", "sequences at once",
              "tokens a second", tuple(
                  Series(word, tuple((float(row["batch"]), float(row[field])) for row in rows))
                  for word, field in (("predicted", "predicted"), ("measured", "measured"))
              ), log="x")
        for name, rows in result["models"].items()
    ]  # fmt: skip


PLOTS = {
    "peers": Plot("SmolLM2-135M on two cores", "peers", beside_peers, peers_missing, True, held),
    "roofline": Plot("SmolLM2-135M beside what the machine allows", "roofline-smollm2", roofline),
    "sweep": Plot("Where a larger batch stops being worth it", "sweep", sweep),
    "techniques": Plot("SmolLM2-135M", "ablate", techniques, techniques_missing),
    "plan": Plot("What octavo plan predicts", "plan_beside", planned),
}
"""By the names of their files and of the pages' marks."""

# --- files and pages --------------------------------------------------------------------------------------


def newest(plot: Plot, runs: Sequence[Run]) -> tuple[Run, list[Chart]] | None:
    """The latest result that has all of a plot, perhaps of the slowest machine, and its charts."""
    found: dict[str, tuple[Run, list[Chart]]] = {}
    for run in reversed(runs):
        if run.benchmark != plot.benchmark or run.kind in found:
            continue
        with naming(run.path):
            if charts := plot.draw(run.result):
                found[run.kind] = run, charts
    order = kinds(runs) if plot.slowest else list(found)
    return next((found[kind] for kind in order if kind in found), None)


def for_a_shell(command: str) -> str:
    """A result's command, its JSON in quotes, which results before 2026-12 lack."""
    return re.sub(r"(?<!')\{.*?\}(?!')", lambda found: f"'{found[0]}'", command)


def origin(plot: Plot, run: Run) -> str:
    """Where a plot is from, in words."""
    command = for_a_shell(run.result.get("command", ""))
    noisy = ", **a noisy machine**" if run.result.get("noisy") else ""
    lacking = "; ".join(plot.lacks(run.result))
    return (
        f"{run.kind}, commit {run.commit}, {run.date[:10]}{noisy}: `benchmarks/results/{run.path.name}`, "
        f"made by `{command}`." + (f" Not measured: {lacking}." if lacking else "") + plot.told(run)
    )


def drawn(runs: Sequence[Run]) -> dict[str, tuple[str, str]]:
    """name -> (the plot's file, the words below it) of all that was measured."""
    found = {}
    for name, plot in PLOTS.items():
        if (taken := newest(plot, runs)) is not None:
            run, charts = taken
            with naming(run.path):
                found[name] = (svg(charts, plot.title), origin(plot, run))
    return found


def page(name: str, text: str, plots: Mapping[str, tuple[str, str]]) -> str:
    """A page as it should be.

    Raises:
        SystemExit: it asks for a plot that nobody declares.
    """
    up = "../" * (len(Path(name).parts) - 2) if name.startswith("docs/") else "docs/"

    def body(match: re.Match[str]) -> str:
        if match[2] not in PLOTS:
            raise SystemExit(f"{name} asks for the plot {match[2]}, and gallery.py has none")
        if match[2] not in plots:
            return f"{match[1]}Not measured yet: {PLOTS[match[2]].title}.\n{match[4]}"
        words = textwrap.fill(plots[match[2]][1], WIDTH, break_long_words=False, break_on_hyphens=False)
        image = f"![{PLOTS[match[2]].title}]({up}{FOLDER.name}/{match[2]}.svg)"
        return f"{match[1]}{image}\n\n{words}\n{match[4]}"

    return BLOCK.sub(body, text)


def files(root: Path) -> Iterator[tuple[Path, str | None]]:
    """Every file of the gallery and every page: what is to stand in it; None: it is to go."""
    plots = drawn(read(root / "benchmarks" / "results"))
    for name, (text, _) in plots.items():
        yield root / FOLDER / f"{name}.svg", text
    for path in sorted((root / FOLDER).glob("*")):
        if path.suffix != ".svg" or path.stem not in plots:
            yield path, None
    for name in PAGES:
        yield root / name, page(name, (root / name).read_text("utf-8"), plots)


def check(root: Path, write: bool = False) -> list[str]:
    """What differs from the result files; with write it is mended first."""
    wrong = []
    for path, wanted in files(root):
        found = path.read_text("utf-8") if path.exists() else None
        if found == wanted:
            continue
        if not write:
            wrong.append(f"{path.relative_to(root)} is not what the files of results say: make gallery")
        elif wanted is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted, "utf-8")
    shown = "".join((root / name).read_text("utf-8") for name in PAGES)
    return [
        *wrong,
        *(f"no page has the plot {name}" for name in PLOTS if f"<!-- plot {name} -->" not in shown),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gallery.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="draw the plots and write the pages")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    options = parser.parse_args(arguments)
    try:
        wrong = check(options.root, options.write)
    except ResultError as error:
        print(f"gallery: {error}", file=sys.stderr)
        return 2
    print("\n".join(wrong), end="\n" * bool(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
