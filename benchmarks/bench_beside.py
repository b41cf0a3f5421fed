"""`octavo bench serve` beside an independent client, guidellm: do both read what is there?

    .venv/bin/python benchmarks/bench_beside.py [--guidellm PATH] [--rounds 7] [--json] [--write]

First a scripted server, whose delays are known: both read TTFT, ITL and output tokens a second, and printed
is how far each is off. Then `octavo serve`, in turns: ours, theirs, ours again. Printed are the medians, the
median of theirs over ours of the same round, and the control, which is the same of ours again over ours: the
difference is none where it lies within the farthest that the control goes either way.

Both send the same prompts, in a closed load of so many users, with answers of one length. guidellm is found
in .venv-guidellm (`make guidellm-env`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import ROOT, Server, conclude, in_rounds, report

from octavo.bench.serving.synthetic_prompts import WORDS

FIGURES = ("ttft_ms", "itl_ms", "output_rate")
MOST_OFF = 0.02
PAUSE_S = 0.5  # between turns: the server's idle threads stop spinning
OURS, THEIRS, AGAIN = "octavo", "guidellm", "again"
Reading = dict[str, float]


def truth(asked: argparse.Namespace) -> Reading:
    """What a closed load sees of the scripted server: users whose every request takes as long."""
    whole_s = (asked.ttft_ms + (asked.max_tokens - 1) * asked.itl_ms) / 1e3
    turns = -(-asked.requests // asked.users)
    return {
        "ttft_ms": asked.ttft_ms,
        "itl_ms": asked.itl_ms,
        "output_rate": asked.requests * asked.max_tokens / (turns * whole_s),
    }


def prompts_file(folder: Path, asked: argparse.Namespace) -> Path:
    """JSON lines that both clients read."""
    draw, path = random.Random(0), folder / "prompts.jsonl"
    lines = (" ".join(draw.choices(WORDS, k=asked.prompt_words)) for _ in range(asked.requests))
    fields = {"output_tokens_count": asked.max_tokens}
    path.write_text("".join(json.dumps({"prompt": line, **fields}) + "\n" for line in lines), "utf-8")
    return path


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


def ours(url: str, prompts: Path, asked: argparse.Namespace) -> Reading:
    """As `octavo bench serve` reads it."""
    found = json.loads(
        run(
            [
                sys.executable, "-m", "octavo", "bench", "serve", url, "--dataset-name", "custom",
                "--dataset-path", str(prompts), "--custom-output-len", str(asked.max_tokens),
                "--num-prompts", str(asked.requests), "--max-concurrency", str(asked.users),
                "--num-warmups", "0", "--ignore-eos", "--json",
            ]
        )
    )  # fmt: skip
    if found["completed"] != asked.requests:
        raise RuntimeError(f"octavo bench serve: {found['completed']} of {asked.requests} were answered")
    return {
        "ttft_ms": found["mean_ttft_ms"],
        "itl_ms": found["mean_itl_ms"],
        "output_rate": found["output_throughput"],
    }


def theirs(url: str, prompts: Path, asked: argparse.Namespace) -> Reading:
    """As guidellm reads it."""
    with tempfile.TemporaryDirectory(prefix="octavo-guidellm-") as folder:
        run(
            [
                asked.guidellm, "run",
                "--backend", f"kind=openai_http,target={url},request_format=/v1/completions",
                "--profile", f"kind=concurrent,streams={asked.users}",
                "--constraint", f"kind=max_requests,count={asked.requests}",
                "--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={folder}/found.json",
                "--disable-console",
            ]
        )  # fmt: skip
        (path,) = Path(folder).glob("*.json")
        return read_guidellm(json.loads(path.read_text("utf-8")), asked.requests)


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


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Both servers."""
    with tempfile.TemporaryDirectory(prefix="octavo-beside-") as folder:
        prompts = prompts_file(Path(folder), asked)

        def clients(url: str) -> dict[str, Callable[[], Reading]]:
            return {OURS: lambda: ours(url, prompts, asked), THEIRS: lambda: theirs(url, prompts, asked)}

        with scripted(asked) as url:
            known = in_turns(clients(url), asked.scripted_rounds)
        with Server(asked.model, "--max-num-seqs", str(asked.users), "--no-enable-prefix-caching") as server:
            turns = clients(server.url)
            served = in_turns({**turns, AGAIN: turns[OURS]}, asked.rounds)
    errors = off(known, truth(asked))
    return {
        "truth": truth(asked), "scripted": known, "off": errors,
        "most_off": {name: max(each.values()) for name, each in errors.items()},
        "served": beside(served), "rounds": served,
    }  # fmt: skip


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_beside", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--guidellm", default=str(ROOT / ".venv-guidellm" / "bin" / "guidellm"), metavar="PATH"
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--ttft-ms", type=float, default=200.0, help="of the scripted server")
    parser.add_argument("--itl-ms", type=float, default=40.0, help="of the scripted server")
    parser.add_argument("--scripted-rounds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/bench_beside-*.json")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    asked = parse(arguments)
    try:
        version = run([asked.guidellm, "--version"]).split()[-1]
    except OSError:
        raise SystemExit(f"{asked.guidellm} cannot be run: make guidellm-env, or --guidellm PATH") from None
    settings = {name: value for name, value in vars(asked).items() if name not in ("json", "write")}
    result = report("bench_beside", sys.argv, {"settings": settings, "guidellm": version, **measure(asked)})
    lines = [f"{'a scripted server, off by':<28}" + "".join(f"{figure:>14}" for figure in FIGURES)]
    for name, errors in result["off"].items():
        lines.append(f"{name:<28}" + "".join(f"{errors[figure]:>14.2%}" for figure in FIGURES))
    lines.append(f"\n{'octavo serve':<14}{OURS:>12}{THEIRS:>12}{'ratio':>9}{'control':>18}")
    for figure, each in result["served"].items():
        control = "{} to {}".format(*each["control"])
        within = "" if each["within"] else "  apart"
        lines.append(f"{figure:<14}{each[OURS]:>12}{each[THEIRS]:>12}{each['ratio']:>9}{control:>18}{within}")
    apart = not all(each["within"] for each in result["served"].values())
    failed = apart or max(result["most_off"].values()) > MOST_OFF
    return conclude(result, lines, failed, asked.json, asked.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
