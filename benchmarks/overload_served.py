"""Ten times as many requests as a server can answer, over HTTP, for three minutes.

    python benchmarks/overload_served.py [--seconds 180] [--factor 10] [--json] [--write]

First the peak: as many users as keep every place taken and the queue filled, in several windows, some
before and some after. Then requests arrive evenly at ten times the rate at which such requests were
answered, whatever becomes of them, over connections that are kept as SDKs keep theirs; --fresh: each on a
connection of its own. Wanted: the server lives; of those it
admits at least 99 % end within --deadline; output is at least 95 % of the peak; memory is flat over the
second half; every other request is a 429 whose Retry-After is a number of seconds, at most a minute.

Output is what the server itself counts (octavo_generation_tokens_total) between two looks. Prompts have 64
to 192 random tokens, answers as many. The load generator shares the machine's cores with the server, and a
thousand refusals cost it more than a hundred answers; so output is also told over (1 - its share of the
machine), as in serving.py, and that is what is compared. Both are printed.

What a machine of few cores allows is measured beside: the same arrivals against a listener of a dozen lines
(hostile/bare.py), which refuses all, while the server is kept full as in the peak. No server can refuse for
less than accept, read, write and close; bare_of_peak is what that leaves of the peak, and of_bare is the
server's own output over it.
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
from hostile.process import Process
from hostile.wire import Target, more_files

ARRIVALS, BARE = (Path(__file__).parent / "hostile" / name for name in ("arrivals.py", "bare.py"))
LEAST = {"rate_of_peak": 0.95, "in_time": 0.99}
MOST = {"grown": 0.01, "unusable": 0, "failed": 0, "crashed": 0}
NOISY = 1.10
"""Above this spread (highest over lowest) of the windows of the peak the machine did other things too."""


class Window:
    """A stretch of time in which the server is loaded, and what it did meanwhile."""

    def __init__(self, process: Process, flags: Sequence[str], ramp_s: float) -> None:
        self._process, self._flags, self._ramp_s = process, list(flags), ramp_s

    def run(self, seconds: float, seed: int) -> dict[str, Any]:
        """What came of the requests (see arrivals.py), and the server's output and memory meanwhile.

        The first seconds are left out, until the queue is as it will be.
        """
        target = Target.of(self._process.url)
        load = arrivals(self._process.url, seconds + self._ramp_s, seed, self._flags)
        time.sleep(self._ramp_s)
        begin, before = time.perf_counter(), generated(target)
        memory = []
        while (now := time.perf_counter() - begin) < seconds and load.poll() is None:
            memory.append((now, self._process.rss_mb()))
            time.sleep(min(1.0, seconds - now))
        rate = (generated(target) - before) / (time.perf_counter() - begin)
        found = told(load)
        alone = rate / (1 - found["cpu_share"])
        return {"rate": round(rate, 2), "alone": round(alone, 2), "grown": growth(memory), **found}

    def beside_bare(self, seconds: float, seed: int, rate: float, fresh: Sequence[str]) -> dict[str, Any]:
        """The same while a listener that does nothing else refuses so many requests a second."""
        with subprocess.Popen(
            [sys.executable, str(BARE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as bare:
            assert bare.stdin is not None
            assert bare.stdout is not None
            url = f"http://127.0.0.1:{int(bare.stdout.readline())}"
            refused = arrivals(url, seconds + self._ramp_s, seed, ["--rate", f"{rate:.3f}", *fresh])
            found, others = self.run(seconds, seed), told(refused)
            bare.stdin.close()
        share = found["cpu_share"] + others["cpu_share"]
        return {**found, "alone": round(found["rate"] / (1 - share), 2), "refused": others["refused"]}


def arrivals(url: str, seconds: float, seed: int, flags: Sequence[str]) -> subprocess.Popen[str]:
    """The load generator, in a process of its own."""
    words = [sys.executable, str(ARRIVALS), url, "--seconds", str(seconds), "--seed", str(seed)]
    words += ["--cores", str(usable_cores()), *flags]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def told(load: subprocess.Popen[str]) -> dict[str, Any]:
    """What it says at its end."""
    text, _ = load.communicate()
    if load.returncode:
        raise RuntimeError(f"the load generator ended with {load.returncode}")
    found: dict[str, Any] = json.loads(text)
    return found


def generated(target: Target) -> float:
    """Output tokens that the server has counted."""
    return target.metrics().get("octavo_generation_tokens_total", 0.0)


def growth(memory: Sequence[tuple[float, float]]) -> float:
    """By what share memory grew over the second half: its last quarter's mean over its third one's.

    Args:
        memory: (second, MB), in order.
    """
    last = memory[-1][0] if memory else 0.0
    quarters = [
        [mb for at, mb in memory if start * last <= at < end * last]
        for start, end in ((0.5, 0.75), (0.75, 1))
    ]
    if not all(quarters):
        return 0.0
    third, fourth = map(statistics.fmean, quarters)
    return round(fourth / third - 1, 4)


def capacity(peaks: Sequence[Mapping[str, Any]]) -> float:
    """Requests that were answered in a second while the server was full."""
    rates: list[float] = [found["admitted"] / found["seconds"] for found in peaks]
    return statistics.median(rates)


def facts_of(
    peaks: Sequence[Mapping[str, Any]],
    bare: Mapping[str, Any],
    over: Mapping[str, Any],
    status: int,
    alive: bool,
) -> dict[str, Any]:
    """What is asked of a server under more than it can do."""
    rates = [found["alone"] for found in peaks]
    ended = over["admitted"]
    return {
        "rate_of_peak": round(over["alone"] / statistics.median(rates), 4),
        "bare_of_peak": round(bare["alone"] / statistics.median(rates), 4),
        "of_bare": round(over["rate"] / bare["rate"], 4),
        "as_counted": round(over["rate"] / statistics.median(found["rate"] for found in peaks), 4),
        "peak_spread": round(max(rates) / min(rates), 3),
        "in_time": round((ended - over["late"]) / ended, 4) if ended else 0.0,
        "offered_over_answered": round(over["arrived"] / max(ended, 1), 2),
        "refused": over["refused"],
        "unusable": over["unusable"],
        "failed": sum(over["failed"].values()),
        "crashed": int(not alive or status != 0),
        "grown": over["grown"],
    }


def missed(facts: Mapping[str, Any]) -> list[str]:
    """The bars that were not reached."""
    low = [
        f"{name} {facts[name]:g}, at least {least:g}" for name, least in LEAST.items() if facts[name] < least
    ]
    return low + [
        f"{name} {facts[name]:g}, at most {most:g}" for name, most in MOST.items() if facts[name] > most
    ]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The windows of the peak, the overload, and what speaks against the server."""
    flags = ("--max-num-seqs", str(options.seats), "--max-waiting", str(options.max_waiting),
             "--num-pages", str(options.num_pages),
             *(["--threads", str(options.threads)] if options.threads else []))  # fmt: skip
    shape = ["--deadline", str(options.deadline), "--longest", str(options.longest)]
    users = ["--users", str(options.seats + options.seats // 2), *shape]
    with Process(options.model, *flags) as process:
        full = Window(process, users, options.seconds / 30)
        full.run(options.seconds / 12, 0)  # writes to every page
        peaks = [full.run(options.seconds / 6, seed) for seed in (1, 2)]
        rate = options.factor * capacity(peaks)
        fresh = ["--fresh"] * options.fresh
        bare = full.beside_bare(options.seconds / 3, 6, rate, fresh)
        over = Window(process, ["--rate", f"{rate:.3f}", *shape, *fresh], options.seconds / 30).run(
            options.seconds, 3
        )
        peaks += [full.run(options.seconds / 6, seed) for seed in (4, 5)]
        alive = process.alive and Target.of(process.url).ask("GET", "/health").status == 200
        status = process.end()
    facts = facts_of(peaks, bare, over, status, alive)
    return {"offered": round(rate, 2), "peaks": peaks, "bare": bare, "over": over, **facts}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="overload_served", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--seconds", type=above_zero, default=180.0, help="of the overload; a window of the peak has a sixth"
    )
    parser.add_argument("--factor", type=above_zero, default=10.0, help="times what can be answered")
    parser.add_argument(
        "--deadline", type=above_zero, default=60.0, help="seconds in which an answer is in time"
    )
    parser.add_argument(
        "--longest", type=at_least_one, default=192, help="tokens of a prompt, and of an answer"
    )
    parser.add_argument("--seats", type=at_least_one, default=32, help="the server's --max-num-seqs")
    parser.add_argument("--max-waiting", type=at_least_one, default=64)
    parser.add_argument("--num-pages", type=at_least_one, default=768)
    parser.add_argument(
        "--threads",
        type=at_least_one,
        default=0,
        help="of the server's engine; fewer than cores leave it one",
    )
    parser.add_argument("--fresh", action="store_true", help="a connection of its own for each request")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="put a file under results/")
    options = parser.parse_args(arguments)
    more_files()
    busy = os.getloadavg()[0] > 0.3 * usable_cores()
    found = measure(options)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    body = {"settings": settings, "noisy": busy or found["peak_spread"] > NOISY, **found}
    result = report("overload_served", ["benchmarks/overload_served.py", *arguments], body)
    rates = ", ".join(f"{peak['rate']:.0f}" for peak in found["peaks"])
    shown = (
        "rate_of_peak",
        "bare_of_peak",
        "of_bare",
        "as_counted",
        "peak_spread",
        "in_time",
        "refused",
        *MOST,
    )
    lines = [
        f"{found['offered']:.1f} requests/s offered; peak {rates} tok/s",
        *(f"{name:<14} {found[name]:g}" for name in shown),
        *([f"MISSED: {what}" for what in missed(found)] or ["every bar is reached"]),
    ]
    return conclude(result, lines, bool(missed(found)), options.json, options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
