"""A long time of 64 mixed clients, hostile ones among them, and an honest one beside: bits, times and memory.

    python benchmarks/soak.py [--minutes 30] [--clients 64] [--json] [--write]

First the honest client is alone: what its completion says then is right. Then, for a tenth of the time, it
is beside as many clients that are all honest: its p99 there is what others' use of the machine costs it
anyway. Then the soak: every API, schemas, tools, clients that leave, and hostile ones
(benchmarks/hostile/crowd.py), of one key, and the honest client of another. Wanted: all it is told is right
and nothing of it fails; its p99 below 3 times that beside honest clients; resident memory grows by less
than 1 % over the last two thirds of the soak; nobody gets an error of the server's; pages and places are
free at the end. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asked import above_zero, at_least_one
from harness import conclude, report, usable_cores
from hostile.honest import Honest, at
from hostile.process import Process
from hostile.wire import Target, more_files, wait_until
from probes import warm

CROWD = Path(__file__).parent / "hostile" / "crowd.py"
CLIENTS, HONEST = "crowd", "honest"
"""API keys: of the crowd, and of the honest client."""
FLAGS = (
    "--max-num-seqs", "32", "--num-pages", "1024", "--header-timeout", "3", "--write-timeout", "10",
    "--max-waiting", "256", "--api-key", CLIENTS, "--api-key", HONEST,
)  # fmt: skip
MOST = {"wrong": 0, "failed": 0, "faults": 0, "p99_ratio": 3.0, "grown": 0.01, "kept": 0, "crashed": 0}
EVERY_S, BACK_S = 5.0, 120.0


class Crowd:
    """hostile/crowd.py in a process of its own."""

    def __init__(self, url: str, clients: int, seconds: float, hostile: bool) -> None:
        words = [sys.executable, str(CROWD), url, "--clients", str(clients), "--seconds", str(seconds)]
        words += ["--key", CLIENTS, *["--hostile"] * hostile]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    @property
    def there(self) -> bool:
        return self._process.poll() is None

    def told(self) -> dict[str, Any]:
        """What it did, when it has ended."""
        text, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"the crowd ended with {self._process.returncode}")
        found: dict[str, Any] = json.loads(text)
        return found


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """By what share memory grew from the first to the last of samples (second, MB), by least squares."""
    if len(samples) < 2:
        return 0.0
    line = statistics.linear_regression([at for at, _ in samples], [mb for _, mb in samples])
    grown: float = line.slope * (samples[-1][0] - samples[0][0])
    return round(grown / statistics.fmean(mb for _, mb in samples), 5)


def last(samples: Sequence[tuple[float, float]], share: float) -> list[tuple[float, float]]:
    """Those of the last share of the time."""
    end = samples[-1][0] if samples else 0.0
    return [each for each in samples if each[0] >= (1 - share) * end]


def soak(
    process: Process, crowd: Crowd, honest: Honest
) -> tuple[list[tuple[float, float]], list[dict[str, Any]]]:
    """(memory, what the honest client saw in each minute) while the crowd is there."""
    begin, memory, minutes = time.monotonic(), list[tuple[float, float]](), list[dict[str, Any]]()
    while crowd.there and process.alive:
        time.sleep(EVERY_S)
        now = time.monotonic() - begin
        memory.append((now, process.rss_mb()))
        if now >= 60 * (len(minutes) + 1):
            minutes.append(honest.seen())
            seen = minutes[-1]
            print(
                f"minute {len(minutes)}: {memory[-1][1]:.0f} MB, honest {seen['answers']} answers, "
                f"p99 {seen['whole_p99_ms']:.0f} ms, /health at most {seen['health_worst_ms']:.0f} ms"
                + (f", FAILED {seen['failed']}" if seen["failed"] else ""),
                file=sys.stderr, flush=True,
            )  # fmt: skip
    return memory, [*minutes, honest.seen()]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All three parts, and what speaks against the server."""
    seconds = 60 * options.minutes
    with Process(options.model, *FLAGS) as process:
        target = Target.of(process.url, HONEST)
        warm(target)
        with Honest(process.url, HONEST) as honest:
            wait_until(lambda: honest.seen()["answers"] > 0, 60, 1.0)
            time.sleep(min(20.0, seconds / 10))
            quiet = honest.seen()
            (text,) = quiet["texts"]  # what is said now is right
            beside = Crowd(process.url, options.clients, seconds / 10, hostile=False)
            beside_told = beside.told()
            usual = honest.seen()
            crowd = Crowd(process.url, options.clients, seconds, hostile=True)
            memory, minutes = soak(process, crowd, honest)
            told = crowd.told()
        idle = wait_until(lambda: not busy(target), BACK_S, 1.0) if process.alive else False
        left = {} if idle else busy(target)
        alive = process.alive
        status, traces = process.end(), process.log().count("Traceback")
    facts = facts_of((quiet, usual), minutes, text, memory)
    for seen in (quiet, usual, *minutes):  # thousands of times are no result
        del seen["wholes_ms"], seen["texts"]
    return {
        "quiet": quiet, "beside_honest": {"seen": usual, **beside_told}, "crowd": told, "minutes": minutes,
        "memory": [(round(second), round(mb, 1)) for second, mb in memory], "left": left,
        **facts,
        "faults": sum(told["faults"].values()) + sum(beside_told["faults"].values()) + traces,
        "kept": len(left), "crashed": int(not alive or status != 0),
    }  # fmt: skip


def busy(target: Target) -> dict[str, float]:
    """What requests hold that should hold nothing."""
    metrics = target.metrics()
    names = ("octavo_num_requests_running", "octavo_num_requests_waiting", "octavo_http_requests_in_flight",
             "octavo_http_buffered_bytes", "octavo_kv_cache_usage_perc")  # fmt: skip
    return {name: metrics[name] for name in names if metrics.get(name)}


def facts_of(
    controls: tuple[Mapping[str, Any], Mapping[str, Any]],
    minutes: Sequence[Mapping[str, Any]],
    text: str,
    memory: Sequence[tuple[float, float]],
) -> dict[str, Any]:
    """What is asked, of what the honest client saw.

    Args:
        controls: alone, and beside honest clients. text: what is right.
    """
    seen = [controls[1], *minutes]
    p99 = at([ms for each in minutes for ms in each["wholes_ms"]], 0.99)
    alone, usual = (at(each["wholes_ms"], 0.99) for each in controls)
    return {
        "answers": sum(each["answers"] for each in minutes),
        "wrong": sum(count for each in seen for said, count in each["texts"].items() if said != text),
        "failed": sum(sum(each["failed"].values()) + sum(each["unhealthy"].values()) for each in seen),
        "p99_ms": p99,
        "p99_beside_honest_ms": usual,
        "p99_ratio": round(p99 / usual, 3) if usual else 0.0,
        "p99_over_alone": round(p99 / alone, 2) if alone else 0.0,
        "held_ms": max((float(each["health_worst_ms"]) for each in minutes), default=0.0),
        "grown": slope(last(memory, 2 / 3)),
        "last_mb": round(memory[-1][1], 1) if memory else 0.0,
    }


def missed(facts: Mapping[str, Any]) -> list[str]:
    """The bars that were not reached; no answer at all reaches none."""
    return ["no honest answer"] * (not facts["answers"]) + [
        f"{name} {facts[name]:g}, at most {most:g}" for name, most in MOST.items() if facts[name] > most
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--minutes", type=above_zero, default=30.0)
    parser.add_argument("--clients", type=at_least_one, default=64)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="put a file under results/")
    options = parser.parse_args(arguments)
    more_files()
    noisy = os.getloadavg()[0] > 0.3 * usable_cores()
    found = measure(options)
    settings = {
        "model": options.model,
        "minutes": options.minutes,
        "clients": options.clients,
        "flags": list(FLAGS),
    }
    result = report(
        "soak", ["benchmarks/soak.py", *arguments], {"settings": settings, "noisy": noisy, **found}
    )
    shown = ("answers", "p99_ms", "p99_beside_honest_ms", "p99_over_alone", "held_ms", "last_mb", *MOST)
    kinds = [*found["crowd"]["faults"].items(), *found["beside_honest"]["faults"].items()]
    lines = [
        *(f"{name:<20} {found[name]:g}" for name in shown),
        *(f"FAULT {count} x {kind}" for kind, count in kinds),
        *([f"MISSED: {what}" for what in missed(found)] or ["every bar is reached"]),
    ]
    return conclude(result, lines, bool(missed(found)), options.json, options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
