"""FreedMemory: gives memory that large requests have used back to the system.

A body of four megabytes may take hundreds of megabytes while the server reads and encodes it. The C library
keeps freed memory for later, in pieces that a request of another kind cannot use. So a server would stay as
large as the sum of the largest requests that it ever served.

Objects that refer to each other are freed by Python's cyclic collector alone. A whole pass of it stops every
thread. Over the modules, models and routes of a loaded server it takes 40 ms and more, and finds nothing: a
process that serves leaves them out (leave_out) once the model is there. Over the 150 objects of each of
1,500 requests that wait it takes 140 ms, and finds nothing either; and when they have ended nothing new
comes that would make Python pass again. So a process that serves says itself when to pass over everything
(FreedMemory.collects): among few requests, and when they have ended.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from dataclasses import dataclass

from octavo.runtime.heaps import return_freed
from octavo.server.state import ServerState

LOOK_S = 1.0
GROWN = 4 << 20
"""Bytes of growth that are worth the milliseconds of giving back."""
LATER = (2, 4, 8, 16, 32)
"""After so many more looks each: what a request, or a storm of them, has freed since then goes back too."""
CROWD = 192
"""Requests in flight above which a whole pass of the collector waits: with fewer it takes 20 ms at most."""
LOST = 64 << 20
"""Bytes of growth for which it waits no longer."""
PASSES = 10
"""Passes over young objects, of 7,000 that were made and kept each, before a whole one; Python's count."""
MANY = 1000
"""Objects that a pass has freed: so many may be worth the milliseconds of giving back."""
NEVER = (1 << 31) - 1
LARGE = 1 << 20
"""Bytes of bodies that are read or encoded now: what they use is not free yet."""


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@dataclass(slots=True)
class FreedMemory:
    """Returns freed memory to the system once large requests have ended.

    Attributes:
        floor: the fewest resident bytes seen since memory was last returned.
        due: a large body was seen since then, or memory has grown.
        since, later: looks since memory was last returned, and how many of LATER have come.
        collected: resident bytes after the collector's last whole pass.
    """

    give_back: Callable[[], None] = return_freed
    resident: Callable[[], int] = resident
    floor: int = 0
    due: bool = False
    since: int = 0
    later: int = len(LATER)
    collected: int = 0

    def look(self, buffered: int) -> bool:
        """Whether to give back now.

        Args:
            buffered: bytes of bodies whose answers have not begun.
        """
        now = self.resident()
        self.floor = min(self.floor or now, now)
        self.since += 1
        if buffered > LARGE or now > self.floor + GROWN:
            self.due, self.later = True, 0
        elif self.later < len(LATER) and self.since >= LATER[self.later]:
            self.due, self.later = True, self.later + 1
        return self.due and buffered <= LARGE

    def work(self) -> None:
        """Give back; it takes some milliseconds, without the interpreter's lock."""
        self.give_back()
        self.floor, self.due, self.since = self.resident(), False, 0

    def collects(self, in_flight: int, young: int) -> bool:
        """Whether the collector should pass over everything now.

        Args:
            in_flight: requests.
            young: its passes over young objects since the last whole one.
        """
        self.collected = self.collected or self.resident()
        if in_flight > CROWD:
            return self.resident() > self.collected + LOST
        return young >= PASSES or (in_flight == 0 and young > 0)

    def collect(self) -> None:
        """Pass over everything; what it frees goes back at the next look, if it is much."""
        if gc.collect() >= MANY:
            self.due, self.later = True, 0
        self.collected = self.resident()

    async def follow(self, state: ServerState) -> None:
        """Look once a second until cancelled. Nothing is done before the model is loaded."""
        while True:
            await asyncio.sleep(LOOK_S)
            if state.engine is None:
                continue
            if self.collects(state.in_flight, gc.get_count()[2]):
                self.collect()
            if self.look(state.buffered):
                await asyncio.to_thread(self.work)


def leave_out() -> None:
    """Free what loading has left behind, and leave all that there is now out of the collector's passes.

    Whole passes are FreedMemory's from now on.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], NEVER)
    gc.collect()  # begins the count of passes over young objects
