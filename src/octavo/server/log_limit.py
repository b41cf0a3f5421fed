"""RateFilter: clients cannot fill the log. Of lines that they can cause it passes a few, then counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from octavo.server.log_lines import ACCESS

LINES = 10
"""Lines of one kind that are written within PERIOD_S."""
PERIOD_S = 10.0
MAX_KINDS = 256


class RateFilter(logging.Filter):
    """Drops what exceeds LINES of a kind in PERIOD_S; the next line that is written says how many there were.

    A kind is the format string of the log call. Access lines pass uncounted, since the user has asked for
    them, except those of requests that were refused for their keys.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}  # of each: since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == ACCESS and not (isinstance(record.args, tuple) and record.args[-1:] == (401,)):
            return True
        now, kind = self._clock(), str(record.msg)
        since, count = self._kinds.get(kind, (now, 0))
        dropped = 0
        if now - since >= PERIOD_S:
            dropped, since, count = max(0, count - LINES), now, 0
        if len(self._kinds) >= MAX_KINDS and kind not in self._kinds:
            self._kinds.clear()
        self._kinds[kind] = (since, count + 1)
        if dropped:
            record.msg = f"{record.msg} (and {dropped} more such lines)"
        return count < LINES


def quieten(*names: str) -> None:
    """Bound the lines of these loggers."""
    for name in names:
        logger = logging.getLogger(name)
        if not any(isinstance(each, RateFilter) for each in logger.filters):
            logger.addFilter(RateFilter())
