"""Half as many requests again as the engine can serve: is the queue bounded, the rate kept, nothing leaked?

    python benchmarks/overload.py [--seconds 120] [--write]

First the peak: as many requests as fit, in two windows of an eighth of the time. Then 1.5 times that rate
arrives, evenly, for all of it; what the queue has no room for is refused (a server answers 429). Then two
more windows of the peak: a machine that is shared gets slower and faster by a quarter within minutes, which
a peak taken only before would be told as a gain of the overload. No two windows have the same prompts.
Wanted: the queue never above --max-waiting, output within 5 % of the peak, every page free at the end, and
no growth of memory over the second half. The simulated version is in tests/lab/test_simulate.py; the same
over HTTP, at ten times the load, is overload_served.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import harness
from asked import above_zero, at_least_one, tells

from octavo.bench.driver import Driver
from octavo.bench.resident import resident_bytes
from octavo.config import SchedulerConfig
from octavo.engine.admission import Admission
from octavo.engine.core import EngineCore
from octavo.errors import OctavoError, OverloadedError
from octavo.params import SamplingParams

PROMPT, OUTPUT = (16, 96), (8, 64)


@dataclass
class Offered:
    """What came of a stream of requests. served: ended while they arrived; ended: afterwards too."""

    seconds: float = 0.0
    arrived: int = 0
    refused: int = 0
    served: int = 0
    ended: int = 0
    tokens: int = 0
    most_waiting: int = 0
    grown_mb: float = 0.0

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return self.tokens / self.seconds


def offer(core: EngineCore, vocab_size: int, rate: float, seconds: float, seed: int = 0) -> Offered:
    """Requests of random lengths for so many seconds, `rate` a second (infinite: as many as fit)."""
    draw, found = random.Random(seed), Offered()
    begin = time.perf_counter()
    half = 0
    while (now := time.perf_counter() - begin) < seconds:
        due = found.arrived + 1 if rate == float("inf") else int(now * rate)
        while found.arrived < due:
            _add(core, found, draw, vocab_size)
        if not core.has_unfinished():
            time.sleep(0.001)
            continue
        for update in core.step():
            found.tokens += len(update.tokens)
            found.ended += update.finish_reason is not None
        found.most_waiting = max(found.most_waiting, core.num_waiting)
        if not half and now > seconds / 2:
            gc.collect()
            half = resident_bytes()
    found.seconds, found.served = time.perf_counter() - begin, found.ended
    gc.collect()
    found.grown_mb = round((resident_bytes() - half) / 1e6, 2)
    while core.has_unfinished():
        found.ended += sum(update.finish_reason is not None for update in core.step())
    return found


def _add(core: EngineCore, found: Offered, draw: random.Random, vocab_size: int) -> None:
    prompt = [draw.randrange(256, min(vocab_size, 32_000)) for _ in range(draw.randint(*PROMPT))]
    params = SamplingParams(temperature=0.0, max_tokens=draw.randint(*OUTPUT), ignore_eos=True, seed=0)
    found.arrived += 1
    try:
        core.add_request(str(found.arrived), prompt, params)
    except OverloadedError:
        found.refused += 1


def joined(windows: Sequence[Offered]) -> Offered:
    """Several windows as one."""
    sums = {
        name: sum(getattr(each, name) for each in windows)
        for name in ("seconds", "arrived", "refused", "served", "ended", "tokens")
    }
    return Offered(**sums, most_waiting=max(each.most_waiting for each in windows))


def spread(windows: Sequence[Offered]) -> float:
    """The highest rate of the windows over the lowest: what the machine itself differs by."""
    rates = [each.rate for each in windows]
    return round(max(rates) / min(rates), 4)


def overloading(peak: Offered) -> float:
    """Requests a second: half as many again as were served."""
    return 1.5 * peak.served / peak.seconds


def facts_of(peak: Offered, over: Offered, max_waiting: int, pages_leaked: int) -> dict[str, Any]:
    """What is asked of an engine under more than it can do."""
    return {
        "bounded": over.most_waiting <= max_waiting,
        "rate_of_peak": round(over.rate / peak.rate, 4),
        "refused_share": round(over.refused / over.arrived, 4),
        "pages_leaked": pages_leaked,
        "grown_mb": over.grown_mb,
    }


def good(facts: Mapping[str, Any]) -> bool:
    """Whether the rate kept within 5 % of the peak, the queue within its bounds, and every page came back."""
    return bool(facts["bounded"] and not facts["pages_leaked"] and abs(facts["rate_of_peak"] - 1) <= 0.05)


@tells(OctavoError)
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=above_zero, default=120.0)
    parser.add_argument("--max-waiting", type=at_least_one, default=64)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="put a file under results/")
    args = parser.parse_args()
    driver = Driver(
        args.model, max_num_seqs=32, max_model_len=512, max_waiting=args.max_waiting, num_pages=768
    )
    config: SchedulerConfig = driver.loaded.config
    core = EngineCore(Admission(config), driver.loaded.runner)
    offer(core, driver.vocab_size, float("inf"), args.seconds / 20)  # warms up

    def window(seed: int) -> Offered:
        return offer(core, driver.vocab_size, float("inf"), args.seconds / 8, seed)

    peaks = [window(1), window(2)]
    over = offer(core, driver.vocab_size, overloading(joined(peaks)), args.seconds, seed=3)
    peaks += [window(4), window(5)]
    peak = joined(peaks)
    core.check_integrity()
    core.reset_prefix_cache()
    kv = core.scheduler.kv
    facts = facts_of(peak, over, args.max_waiting, config.num_pages - kv.pool.num_free)
    told = {"peak": asdict(peak), "over": asdict(over), "peak_spread": spread(peaks), **facts}
    result = harness.report("overload", sys.argv, told)
    if args.json:
        print(json.dumps(result))
    else:
        requests = peak.served / peak.seconds
        print(f"peak {peak.rate:.0f} tok/s, {requests:.1f} requests/s; at 1.5 x {over.rate:.0f} tok/s")
        for name, value in facts.items():
            print(f"{name:<14} {value}")
    if args.write:
        print(harness.write(result), file=sys.stderr)
    return 0 if good(facts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
