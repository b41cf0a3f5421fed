"""`octavo bench serve` beside an independent client, guidellm: do both read what is there?

    .venv/bin/python benchmarks/bench_beside.py [--guidellm PATH] [--rounds 7] [--json] [--write]

First a scripted server, whose delays are known: both read TTFT, ITL and output tokens a second, and printed
is how far each is off. Then `octavo serve`, in turns: ours, theirs, ours again, and this in two places.

own_cores     the server computes on one core with one thread, whichever client asks runs on the others. A
              user at a time, so that no client's core is the limit: both see the same server.
shared_cores  the server has every core, and so have the clients, with more users: what a client computes for
              each token is taken from the server.

Both ask for greedy answers. guidellm by itself names no temperature, and a server of OpenAI's API then draws
at 1, for which it computes more: on own_cores that is a fourth turn, which is compared with ours too.

Printed are the medians, the median of theirs over ours of the same round, and the control, which is the same
of ours again over ours: the difference is none where it lies within the farthest that the control goes either
way. Beside them stand the CPU seconds of each client, its start included, and for how long the server's
threads waited for a core meanwhile (/proc/PID/task/*/schedstat).

Both send the same prompts, in a closed load of so many users, with answers of one length. guidellm is found
in .venv-guidellm (`make guidellm-env`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asked import at_least_one, not_negative
from harness import ROOT, Server, conclude, in_rounds, report

from octavo.bench.serving.synthetic_prompts import WORDS

FIGURES = ("ttft_ms", "itl_ms", "output_rate")
COSTS = ("cpu_s", "waited_s")
MOST_OFF = 0.02
PAUSE_S = 0.5  # between turns: the server's idle threads stop spinning
OURS, THEIRS, AGAIN, DRAWN = "octavo", "guidellm", "again", "drawn"
GREEDY = {"temperature": 0.0}
OWN, SHARED = "own_cores", "shared_cores"
Reading = dict[str, float]


@dataclass(frozen=True, slots=True)
class Load:
    """A closed one: so many users, each with one request after the other.

    Attributes:
        requests: of all users. tokens: of each answer.
    """

    users: int
    requests: int
    tokens: int


def truth(load: Load, ttft_ms: float, itl_ms: float) -> Reading:
    """What a closed load sees of the scripted server: users whose every request takes as long."""
    whole_s = (ttft_ms + (load.tokens - 1) * itl_ms) / 1e3
    turns = -(-load.requests // load.users)
    rate = load.requests * load.tokens / (turns * whole_s)
    return {"ttft_ms": ttft_ms, "itl_ms": itl_ms, "output_rate": rate}


def prompts_file(folder: Path, load: Load, words: int) -> Path:
    """JSON lines that both clients read, with prompts of so many words."""
    draw, path = random.Random(0), folder / f"prompts-{load.users}.jsonl"
    lines = (" ".join(draw.choices(WORDS, k=words)) for _ in range(load.requests))
    fields = {"output_tokens_count": load.tokens}
    path.write_text("".join(json.dumps({"prompt": line, **fields}) + "\n" for line in lines), "utf-8")
    return path


@contextlib.contextmanager
def on(cores: Set[int]) -> Iterator[None]:
    """Programs that are started meanwhile run on these cores alone; none: wherever this one does."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def waited_s(pid: int) -> float:
    """Seconds so far that threads of a process could have run, and no core was free for them."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[1]) for path in tasks) / 1e9


def children_cpu_s() -> float:
    """CPU seconds of every program that this one has started and seen end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def costed(read: Callable[[], Reading], pid: int) -> Reading:
    """A client's reading, and what it took: CPU seconds of its own, and the server's waiting."""
    cpu, waited = children_cpu_s(), waited_s(pid)
    found = read()
    return {**found, "cpu_s": children_cpu_s() - cpu, "waited_s": waited_s(pid) - waited}


def run(command: Sequence[str]) -> str:
    """What a client prints.

    Raises:
        RuntimeError: it failed; the message is the last line of what it wrote.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise RuntimeError(f"{Path(command[0]).name}: {said[-1]}")
    return done.stdout


def ours(url: str, prompts: Path, load: Load) -> Reading:
    """As `octavo bench serve` reads it."""
    found = json.loads(
        run(
            [
                sys.executable, "-m", "octavo", "bench", "serve", url, "--dataset-name", "custom",
                "--dataset-path", str(prompts), "--custom-output-len", str(load.tokens),
                "--num-prompts", str(load.requests), "--max-concurrency", str(load.users),
                "--num-warmups", "0", "--ignore-eos", "--json",
            ]
        )
    )  # fmt: skip
    if found["completed"] != load.requests:
        raise RuntimeError(f"octavo bench serve: {found['completed']} of {load.requests} were answered")
    return {
        "ttft_ms": found["mean_ttft_ms"],
        "itl_ms": found["mean_itl_ms"],
        "output_rate": found["output_throughput"],
    }


def theirs(
    guidellm: str, url: str, prompts: Path, load: Load, fields: Mapping[str, float] = GREEDY
) -> Reading:
    """As guidellm reads it, with these fields in each request."""
    backend = {"kind": "openai_http", "target": url, "request_format": "/v1/completions"}
    with tempfile.TemporaryDirectory(prefix="octavo-guidellm-") as folder:
        run(
            [
                guidellm, "run",
                "--backend", json.dumps({**backend, "extras": {"body": dict(fields)}}),
                "--profile", f"kind=concurrent,streams={load.users}",
                "--constraint", f"kind=max_requests,count={load.requests}",
                "--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={folder}/found.json",
                "--disable-console",
            ]
        )  # fmt: skip
        (path,) = Path(folder).glob("*.json")
        return read_guidellm(json.loads(path.read_text("utf-8")), load.requests)


def read_guidellm(found: Mapping[str, Any], requests: int) -> Reading:
    """Means of its report.

    Raises:
        RuntimeError: not all requests were answered.
    """
    (benchmark,) = found["benchmarks"]
    metrics = benchmark["metrics"]
    answered = metrics["request_totals"]["successful"]
    if answered != requests:
        raise RuntimeError(f"guidellm: {answered} of {requests} were answered")

    def mean(name: str) -> float:
        return float(metrics[name]["successful"]["mean"])

    return {
        "ttft_ms": mean("time_to_first_token_ms"),
        "itl_ms": mean("inter_token_latency_ms"),
        "output_rate": mean("output_tokens_per_second"),
    }


@contextlib.contextmanager
def scripted(asked: argparse.Namespace) -> Iterator[str]:
    """The URL of a server with known delays, while it runs."""
    words = ["--ttft-ms", str(asked.ttft_ms), "--itl-ms", str(asked.itl_ms)]
    command = [sys.executable, str(ROOT / "benchmarks" / "scripted_server.py"), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["url"])
        process.communicate("")


def in_turns(turns: Mapping[str, Callable[[], Reading]], rounds: int) -> list[dict[str, Reading]]:
    """Every client once a round, after one that warms up; who begins changes."""
    return in_rounds(turns, rounds + 1, PAUSE_S)[1:]


def off(found: Sequence[Mapping[str, Reading]], known: Reading) -> dict[str, dict[str, float]]:
    """client -> figure -> how far the median of its rounds is from the truth, as a part of that."""
    return {
        name: {
            figure: round(abs(statistics.median(each[name][figure] for each in found) / known[figure] - 1), 5)
            for figure in FIGURES
        }
        for name in found[0]
    }


def beside(found: Sequence[Mapping[str, Reading]]) -> dict[str, dict[str, Any]]:
    """Each figure of a real server: medians, theirs over ours, and how far the control goes."""
    lines = {}
    for figure in FIGURES:
        ratios = [each[THEIRS][figure] / each[OURS][figure] for each in found]
        control = [each[AGAIN][figure] / each[OURS][figure] for each in found]
        ratio, far = statistics.median(ratios), max(max(each, 1 / each) for each in control)
        lines[figure] = {
            OURS: round(statistics.median(each[OURS][figure] for each in found), 2),
            THEIRS: round(statistics.median(each[THEIRS][figure] for each in found), 2),
            "ratio": round(ratio, 4), "control": [round(min(control), 4), round(max(control), 4)],
            "within": 1 / far <= ratio <= far,
        }  # fmt: skip
    return lines


def over_ours(found: Sequence[Mapping[str, Reading]]) -> dict[str, float]:
    """Of guidellm's drawn answers, over ours of the same round, which are greedy; medians."""
    return {
        figure: round(statistics.median(each[DRAWN][figure] / each[OURS][figure] for each in found), 4)
        for figure in FIGURES
    }


def costs(found: Sequence[Mapping[str, Reading]]) -> dict[str, dict[str, float]]:
    """Medians of what the clients took."""
    return {
        cost: {
            name: round(statistics.median(each[name][cost] for each in found), 2) for name in (OURS, THEIRS)
        }
        for cost in COSTS
    }


def served(asked: argparse.Namespace, load: Load, cores: Sequence[int]) -> dict[str, Any]:
    """`octavo serve` as both clients read it; on the first of these cores, and they on the others, or where
    none is named wherever there is room.
    """
    flags = ["--max-num-seqs", str(load.users), "--no-enable-prefix-caching"]
    flags += ["--threads", "1"] if cores else []
    with tempfile.TemporaryDirectory(prefix="octavo-beside-") as folder:
        prompts = prompts_file(Path(folder), load, asked.prompt_words)
        with on(set(cores[:1])):
            server = Server(asked.model, *flags)
        with server, on(set(cores[1:])):
            url, pid = server.url, server.pid
            turns = {
                OURS: lambda: costed(lambda: ours(url, prompts, load), pid),
                THEIRS: lambda: costed(lambda: theirs(asked.guidellm, url, prompts, load), pid),
            }
            turns[AGAIN] = turns[OURS]
            if cores:
                turns[DRAWN] = lambda: theirs(asked.guidellm, url, prompts, load, {})
            found = in_turns(turns, asked.rounds)
    settings = {"users": load.users, "requests": load.requests, "max_tokens": load.tokens}
    told = {**settings, "cores": list(cores), **beside(found), **costs(found), "rounds": found}
    return {**told, DRAWN: over_ours(found)} if cores else told


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Both servers, octavo's in both places.

    Raises:
        SystemExit: there are not two cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: one for the server, and one for its clients")
    load = Load(asked.users, asked.requests, asked.max_tokens)
    known = truth(load, asked.ttft_ms, asked.itl_ms)
    with tempfile.TemporaryDirectory(prefix="octavo-beside-") as folder, scripted(asked) as url:
        prompts = prompts_file(Path(folder), load, asked.prompt_words)
        turns = {
            OURS: lambda: ours(url, prompts, load),
            THEIRS: lambda: theirs(asked.guidellm, url, prompts, load),
        }
        found = in_turns(turns, asked.scripted_rounds)
    errors = off(found, known)
    return {
        "truth": known, "scripted": found, "off": errors,
        "most_off": {name: max(each.values()) for name, each in errors.items()},
        OWN: served(asked, Load(asked.own_users, asked.own_requests, asked.own_tokens), cores),
        SHARED: served(asked, load, ()),
    }  # fmt: skip


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_beside", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--guidellm", default=str(ROOT / ".venv-guidellm" / "bin" / "guidellm"), metavar="PATH"
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--users", type=at_least_one, default=4)
    parser.add_argument("--requests", type=at_least_one, default=24)
    parser.add_argument("--prompt-words", type=at_least_one, default=100)
    parser.add_argument("--max-tokens", type=at_least_one, default=32)
    parser.add_argument(
        "--own-users", type=at_least_one, default=1, help="where the server has a core of its own"
    )
    parser.add_argument("--own-requests", type=at_least_one, default=8, help="there")
    parser.add_argument("--own-tokens", type=at_least_one, default=96, help="of an answer there")
    parser.add_argument("--ttft-ms", type=not_negative, default=200.0, help="of the scripted server")
    parser.add_argument("--itl-ms", type=not_negative, default=40.0, help="of the scripted server")
    parser.add_argument("--scripted-rounds", type=at_least_one, default=3)
    parser.add_argument("--rounds", type=at_least_one, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/bench_beside-*.json")
    return parser.parse_args(arguments)


def lines_of(place: str, found: Mapping[str, Any]) -> list[str]:
    """What was read of `octavo serve` in one place, and what the clients took."""
    title = f"octavo serve, {place.replace('_', ' ')}, users: {found['users']}"
    lines = [f"\n{title:<40}{OURS:>12}{THEIRS:>12}{'ratio':>9}{'control':>18}"]
    for figure in FIGURES:
        each = found[figure]
        control = "{} to {}".format(*each["control"])
        within = "" if each["within"] else "  apart"
        lines.append(f"{figure:<40}{each[OURS]:>12}{each[THEIRS]:>12}{each['ratio']:>9}{control:>18}{within}")
    if DRAWN in found:
        said = ", ".join(f"{figure} {ratio}" for figure, ratio in found[DRAWN].items())
        lines.append(f"guidellm's drawn answers over ours: {said}")
    for cost, said in zip(COSTS, ("CPU seconds of the client", "seconds the server waited"), strict=True):
        lines.append(f"{said:<40}{found[cost][OURS]:>12}{found[cost][THEIRS]:>12}")
    return lines


def main(arguments: Sequence[str]) -> int:
    asked = parse(arguments)
    try:
        version = run([asked.guidellm, "--version"]).split()[-1]
    except OSError:
        raise SystemExit(f"{asked.guidellm} cannot be run: make guidellm-env, or --guidellm PATH") from None
    settings = {name: value for name, value in vars(asked).items() if name not in ("json", "write")}
    result = report("bench_beside", sys.argv, {"settings": settings, "guidellm": version, **measure(asked)})
    lines = [f"{'a scripted server, off by':<40}" + "".join(f"{figure:>14}" for figure in FIGURES)]
    for name, errors in result["off"].items():
        lines.append(f"{name:<40}" + "".join(f"{errors[figure]:>14.2%}" for figure in FIGURES))
    lines += [line for place in (OWN, SHARED) for line in lines_of(place, result[place])]
    apart = not all(result[OWN][figure]["within"] for figure in FIGURES)
    failed = apart or max(result["most_off"].values()) > MOST_OFF
    return conclude(result, lines, failed, asked.json, asked.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
