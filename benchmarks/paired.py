"""Two commits side by side: is the second one within 1 % of the first, in every figure?

    .venv/bin/python benchmarks/paired.py A B [--pairs 9] [--json] [--out FILE] [--write]

A and B are folders of checkouts, or commits (then a worktree is made for the time of the run). They take
turns, A B B A ..., each turn in processes of its own, and each pair gives a ratio B / A: medians with 95 %
bootstrap intervals. A control arm, a second worktree of A's commit, takes its turns between them in the
same order; what it shows is what the machine does.

decode 1, decode 32   milliseconds of a step with so many streams
prompt                milliseconds of a prompt of 512 tokens, computed alone
host                  microseconds of a step of 32 streams with a model that costs next to nothing
start-up              seconds from the process's start until a server is ready
resident              megabytes of that server
http 32, ttft         milliseconds of a token of each of 32 streams from that server, prompts included, and
                      to the first token of one short prompt alone

All are better when smaller. A figure is "within" where the interval of its ratio reaches into 0.99 to 1.01
and its median is no further from 1 than the widest end of the control's interval; "better" where it is not
and the median is below 1 with the interval ending below 1.01; else "apart". A wide interval makes "within"
easy to reach, and a wide control as well: where one of both is wider than 0.10, the figure is marked "noisy"
beside its verdict, and so is the table. Pairs are added up to --max-pairs while a figure is apart or noisy.
Exits 1 where a figure stays apart. Give it the machine alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from asked import at_least_one
from harness import ROOT, report, usable_cores, write
from paired_http import over_http

sys.path.insert(0, str(ROOT / "scripts"))
import golden_models

TURN = Path(__file__).resolve().parent / "paired_turn.py"
FIGURES = (
    "decode_1_ms",
    "decode_32_ms",
    "prompt_ms",
    "host_us",
    "start_up_s",
    "resident_mb",
    "http_32_ms",
    "ttft_ms",
)
LOW, HIGH = 0.99, 1.01
WIDEST = 0.10
RESAMPLES, CONFIDENCE = 10_000, 0.95
WITHIN, BETTER, APART = "within", "better", "apart"
Figures = dict[str, float]


class Ratio(NamedTuple):
    """Median of the pairs' ratios, and its bootstrap interval."""

    median: float
    low: float
    high: float


def ratio_of(before: Sequence[float], after: Sequence[float], resamples: int = RESAMPLES) -> Ratio:
    """after / before, pair by pair. The interval is of percentiles; the resampling is the same each time."""
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(resamples))
    cut = (1 - CONFIDENCE) / 2
    low, high = medians[round(cut * (resamples - 1))], medians[round((1 - cut) * (resamples - 1))]
    return Ratio(statistics.median(ratios), low, high)


def verdict(ratio: Ratio, control: Ratio) -> str:
    """The rule that stands above."""
    widest = max(abs(control.low - 1), abs(control.high - 1))
    reaches = ratio.low <= HIGH and ratio.high >= LOW
    if reaches and abs(ratio.median - 1) <= widest:
        return WITHIN
    return BETTER if ratio.median < 1 and ratio.high < HIGH else APART


def is_noisy(*ratios: Ratio) -> bool:
    """One of the intervals is so wide that "within" says little."""
    return any(round(ratio.high - ratio.low, 4) > WIDEST for ratio in ratios)


def noisy_of(judged: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of the noisy figures."""
    return [name for name, found in judged.items() if found["noisy"]]


def schedule(pair: int) -> tuple[str, ...]:
    """Turns of a pair: A B and A C, where C is the control, the other way round in every second pair."""
    turns = ("A", "B", "A'", "C")
    return turns if pair % 2 == 0 else ("B", "A", "C", "A'")


@dataclass
class Arms:
    """Figures of every turn so far, by turn. A' is A once more, beside the control."""

    turns: dict[str, list[Figures]] = field(default_factory=lambda: {name: [] for name in schedule(0)})

    def ratios(self, before: str, after: str) -> dict[str, Ratio]:
        left, right = self.turns[before], self.turns[after]
        return {
            name: ratio_of([turn[name] for turn in left], [turn[name] for turn in right]) for name in FIGURES
        }

    def judged(self) -> dict[str, dict[str, Any]]:
        """Every figure: both medians, ratio, control, verdict, whether it is noisy."""
        ours, control = self.ratios("A", "B"), self.ratios("A'", "C")
        return {
            name: {
                "a": round(statistics.median(turn[name] for turn in self.turns["A"]), 4),
                "b": round(statistics.median(turn[name] for turn in self.turns["B"]), 4),
                "ratio": [round(value, 4) for value in ours[name]],
                "control": [round(value, 4) for value in control[name]],
                "verdict": verdict(ours[name], control[name]),
                "noisy": is_noisy(ours[name], control[name]),
            }
            for name in FIGURES
        }


@dataclass(frozen=True)
class Tree:
    """A checkout that is measured: its folder and its commit."""

    folder: Path
    commit: str

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process import this tree, also where an editable installation names another."""
        return {**os.environ, "PYTHONPATH": f"{self.folder}/tests/support/checkout:{self.folder}/src"}

    def check(self, origin: Mapping[str, str]) -> None:
        """Raise unless the process imported this tree's package and extension."""
        for what, path in origin.items():
            if not Path(path).resolve().is_relative_to(self.folder.resolve()):
                raise RuntimeError(f"{what} came from {path}, not from {self.folder}")


def run_turn(tree: Tree, python: str, model: str, tiny: str, options: Mapping[str, Any]) -> Figures:
    """One turn: a process that decodes, and a server that starts and answers."""
    command = [python, str(TURN), model, tiny, json.dumps(dict(options))]
    done = subprocess.run(command, env=tree.environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{tree.folder}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    said = json.loads(done.stdout.splitlines()[-1])
    tree.check(said["origin"])
    figures: Figures = said["figures"]
    return figures | start_up(tree, python, model, options)


def start_up(tree: Tree, python: str, model: str, options: Mapping[str, Any]) -> Figures:
    """Seconds until a server is ready, its resident megabytes then, and how it answers over HTTP."""
    flags = [f"--threads={options['threads']}", "--port=0", "--json"]
    began, url = time.perf_counter(), ""
    command = [python, "-m", "octavo", "serve", model, *flags]
    with subprocess.Popen(command, env=tree.environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            for line in server.stdout:
                event = json.loads(line)
                url = event.get("url") or url
                if event["event"] == "ready":
                    figures = {
                        "start_up_s": time.perf_counter() - began, "resident_mb": resident(server.pid)
                    }  # fmt: skip
                    return figures | over_http(url, options["quick"])
        finally:
            server.terminate()
            server.stdout.close()
    raise RuntimeError(f"{tree.folder}: the server ended with status {server.returncode}")


def resident(pid: int, proc: Path = Path("/proc")) -> float:
    """Megabytes."""
    fields = dict(line.split(":", 1) for line in (proc / str(pid) / "status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024 / 1e6


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def tree_of(name: str) -> Iterator[Tree]:
    """The checkout in a folder, or a worktree of a commit for a while; with a native extension."""
    folder = Path(name)
    if folder.is_dir():
        changed = "+" if git(folder, "status", "--porcelain", "-uno") else ""
        yield built(Tree(folder.resolve(), git(folder, "rev-parse", "--short=12", "HEAD") + changed), [])
        return
    with TemporaryDirectory() as temporary:
        made = Path(temporary) / "tree"
        git(ROOT, "worktree", "add", "--detach", str(made), name)
        try:
            yield built(Tree(made, git(made, "rev-parse", "--short=12", "HEAD")), [ROOT])
        finally:
            git(ROOT, "worktree", "remove", "--force", str(made))


@contextmanager
def copy_of(tree: Tree) -> Iterator[Tree]:
    """A second worktree of the tree's commit, with the tree's extension."""
    if tree.commit.endswith("+"):
        raise RuntimeError(f"{tree.folder} has changes: the control arm needs a commit")
    with TemporaryDirectory() as temporary:
        made = Path(temporary) / "tree"
        git(tree.folder, "worktree", "add", "--detach", str(made), tree.commit)
        try:
            yield built(Tree(made, tree.commit), [tree.folder])
        finally:
            git(tree.folder, "worktree", "remove", "--force", str(made))


def built(tree: Tree, others: Sequence[Path]) -> Tree:
    """The tree with its extension: its own, another's of the same csrc, or a new one (minutes)."""
    kernels = "src/octavo/kernels"
    if any((tree.folder / kernels).glob("_native*.so")):
        return tree
    for other in others:
        same = git(tree.folder, "rev-parse", "HEAD:csrc") == git(other, "rev-parse", "HEAD:csrc")
        clean = not git(other, "status", "--porcelain", "--", "csrc")
        for library in (other / kernels).glob("_native*.so") if same and clean else ():
            shutil.copy(library, tree.folder / kernels)
            return tree
    print(f"building the extension of {tree.commit}", file=sys.stderr)
    subprocess.run(["make", "-C", str(tree.folder), "ext"], check=True, stdout=sys.stderr)
    return tree


def compare(options: argparse.Namespace, arms: Arms, trees: Mapping[str, Tree], tiny: str) -> int:
    """Take turns until no figure is apart or noisy, or until there were enough. Returns the pairs' number."""
    done, wanted = 0, int(options.pairs)
    settings = {"threads": options.threads, "quick": options.quick}
    while True:
        for pair in range(done, wanted):
            for turn in schedule(pair):
                figures = run_turn(trees[turn], options.python, options.model, tiny, settings)
                arms.turns[turn].append(figures)
                shown = "  ".join(f"{name} {figures[name]:.4g}" for name in FIGURES)
                print(f"pair {pair + 1:2d} {turn:2s} {shown}", file=sys.stderr, flush=True)
        done = wanted
        judged = arms.judged()
        unsure = [name for name, found in judged.items() if found["verdict"] == APART or found["noisy"]]
        if not unsure or wanted >= options.max_pairs:
            return done
        wanted = min(wanted + options.more, options.max_pairs)
        print(f"{', '.join(unsure)}: more pairs, up to {wanted}", file=sys.stderr)


def table(judged: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """One line a figure, and one for the whole where figures are noisy."""
    yield f"{'figure':14}{'A':>10}{'B':>10}   {'B / A':26}{'control':26}"
    for name, found in judged.items():
        both = ["{:.4f} ({:.4f}-{:.4f})".format(*found[arm]) for arm in ("ratio", "control")]
        figures = f"{found['a']:>10.4g}{found['b']:>10.4g}"
        marked = f"{found['verdict']}{', noisy' if found['noisy'] else ''}"
        yield f"{name:14}{figures}   {both[0]:26}{both[1]:26}{marked}"
    if noisy := noisy_of(judged):
        yield f"NOISY: wider than {WIDEST:.2f} in {', '.join(noisy)}: an idle machine must say it again"


def arguments_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="paired", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("a", metavar="A", help="folder of a checkout, or a commit")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--control", help="another checkout of A's commit (made if not given)")
    parser.add_argument("--pairs", type=at_least_one, default=9)
    parser.add_argument("--max-pairs", type=at_least_one, default=27)
    parser.add_argument("--more", type=at_least_one, default=6, help="pairs that are added at a time")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--python", default=sys.executable, help="with what octavo needs installed")
    parser.add_argument("--quick", action="store_true", help="short turns: shows that everything works")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/paired-*.json")
    options = parser.parse_args(arguments)
    options.max_pairs = max(options.pairs, options.max_pairs) if options.pairs >= 9 else options.pairs
    return options


def main(arguments: Sequence[str]) -> int:
    options, arms = arguments_of(arguments), Arms()
    with ExitStack() as stack:
        a, b = (stack.enter_context(tree_of(name)) for name in (options.a, options.b))
        given = options.control
        control = stack.enter_context(tree_of(given) if given else copy_of(a))
        if control.commit != a.commit:
            raise RuntimeError(f"the control is {control.commit}, not {a.commit}")
        tiny = stack.enter_context(TemporaryDirectory())
        golden_models.save("llama", Path(tiny))
        trees = {"A": a, "B": b, "A'": a, "C": control}
        pairs = compare(options, arms, trees, tiny)
        judged = arms.judged()
        about = {"a": a.commit, "b": b.commit, "pairs": pairs, "noisy": noisy_of(judged)}
        body = {**about, "figures": judged, "turns": arms.turns}
    settings = {"model": options.model, "threads": options.threads, "quick": options.quick}
    result = report("paired", sys.argv, {"settings": settings, **body})
    print(json.dumps(result, indent=2) if options.json else "\n".join(table(judged)))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return int(any(found["verdict"] == APART for found in judged.values()))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RuntimeError as failure:
        sys.exit(f"paired: {failure}")
