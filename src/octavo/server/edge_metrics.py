"""Metrics of what is no request of the engine: the door, the event loop, the process, the build."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import octavo
from octavo.server.state import ServerState

TICK_S = 0.1
LAGS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class EdgeCollector(Collector):
    """Asked when /metrics is scraped. Every label is of a set that the code fixes.

    Attributes:
        closed: connections that were refused or given up, by reason.
        lag: seconds that the event loop was late for its own timer.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._process = ProcessCollector(registry=None)
        self.closed: Counter[str] = Counter()
        self.lag = Histogram(
            "octavo_event_loop_lag_seconds",
            "How late the event loop was for a timer of its own: it stood still for so long.",
            buckets=LAGS,
            registry=None,
        )

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
        gauges = {
            "octavo_http_requests_in_flight": ("Requests that hold a place.", state.in_flight),
            "octavo_http_buffered_bytes": ("Bytes of bodies whose answers have not begun.", state.buffered),
            "octavo_healthy": (
                "1 while the engine makes progress.",
                int(engine is not None and engine.healthy),
            ),
            "octavo_draining": ("1 after a signal.", int(state.leaving or state.draining)),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(name, text)
            gauge.add_metric((), value)
            yield gauge
        yield _by_reason("octavo_http_rejections", "Requests refused before an endpoint.", state.rejections)
        yield _by_reason("octavo_connections_closed", "Connections refused or given up.", self.closed)
        build = GaugeMetricFamily("octavo_build_info", "What runs here.", labels=("version", "python"))
        build.add_metric((octavo.__version__, platform.python_version()), 1)
        yield build
        yield from self.lag.collect()
        yield from self._process.collect()


def _by_reason(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=("reason",))
    for reason, count in sorted(counts.items()):
        family.add_metric((reason,), count)
    return family
