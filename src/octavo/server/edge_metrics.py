"""Metrics of what is no request of the engine: connections, limits, event loop, process, build."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import octavo
from octavo.server.metric_names import family, histogram_family
from octavo.server.metrics import Histogram
from octavo.server.state import ServerState

TICK_S = 0.1


class EdgeCollector(Collector):
    """Asked when /metrics is scraped. Every label is of a set that the code fixes.

    Attributes:
        closed: connections that were refused or given up, by reason.
        lag: seconds that the event loop was late for its own timer.
        lines_dropped: log lines that were not written.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._process = ProcessCollector(registry=None)
        self.closed: Counter[str] = Counter()
        self.lines_dropped: Callable[[], int] = lambda: 0
        self.lag = Histogram("event_loop_lag_seconds")

    def close(self, reason: str) -> None:
        """A connection was refused or given up."""
        self.closed[reason] += 1

    async def watch_loop(self) -> None:
        """Measure the loop's lag until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.lag.observe(max(0.0, loop.time() - due))

    def collect(self) -> Iterable[Metric]:
        state, engine = self._state, self._state.engine
        numbers: dict[str, float] = {
            "http_requests_in_flight": state.in_flight,
            "http_buffered_bytes": state.buffered,
            "healthy": int(engine is not None and engine.healthy),
            "draining": int(state.leaving or state.draining),
            "log_lines_dropped": self.lines_dropped(),
        }
        for name, value in numbers.items():
            yield family(name, [((), value)])
        for name, counts in (("http_rejections", state.rejections), ("connections_closed", self.closed)):
            yield family(name, [((reason,), count) for reason, count in sorted(counts.items())])
        yield family("build_info", [((octavo.__version__, platform.python_version()), 1)])
        yield histogram_family(self.lag.name, self.lag.numbers[:])
        yield from self._process.collect()
        if (count := num_threads()) is not None:
            yield family("process_threads", [((), count)])


def num_threads() -> int | None:
    """Threads of this process, native ones included; None: the system has no /proc."""
    try:
        stat = Path("/proc/self/stat").read_bytes()
    except OSError:
        return None
    # The name of the program comes before, in brackets, and may itself hold brackets and spaces.
    return int(stat.rpartition(b")")[2].split()[17])
