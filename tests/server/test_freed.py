"""server/freed.py: what large requests have freed goes back when they are through, and not before."""

from __future__ import annotations

import asyncio
import mmap
import subprocess
import sys

import pytest

from octavo.server import freed
from octavo.server.app import create_app
from octavo.server.freed import CROWD, GROWN, LARGE, LATER, LOST, PASSES, FreedMemory
from support.fake_engine import FakeEngine
from support.live import run, running, until

MB = 1 << 20


class Machine:
    """Memory that is used, and freed memory that the C library keeps."""

    def __init__(self) -> None:
        self.used, self.freed, self.calls = 100 * MB, 0, 0
        self._memory = FreedMemory(self.give_back, self.resident)

    def look(self, *buffered: int) -> None:
        """Once a second, with so many bytes of bodies."""
        for size in buffered:
            if self._memory.look(size):
                self._memory.work()

    def resident(self) -> int:
        return self.used + self.freed

    def give_back(self) -> None:
        self.freed, self.calls = 0, self.calls + 1


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_quiet_server_is_left_alone(machine: Machine) -> None:
    machine.look(*[0] * 20)
    machine.used += GROWN - 1
    machine.look(*[LARGE] * 20)
    assert machine.calls == 0


def test_after_a_large_body_what_it_freed_goes_back(machine: Machine) -> None:
    machine.look(0, LARGE + 1)
    machine.freed = 300 * MB
    machine.look(LARGE + 1, LARGE + 1)
    assert machine.calls == 0, "it is still at work"
    machine.look(0)
    assert machine.calls == 1
    assert machine.resident() == 100 * MB


def test_growth_without_a_large_body_counts_too(machine: Machine) -> None:
    machine.look(0)
    machine.freed = GROWN + 1
    machine.look(0)
    assert machine.calls == 1


def test_memory_that_stays_in_use_is_asked_about_ever_more_rarely(machine: Machine) -> None:
    machine.look(0)
    machine.used += 500 * MB
    machine.look(*[0] * 10)
    assert machine.calls == 3
    machine.look(*[0] * 1000)
    assert machine.calls == 1 + len(LATER)


def test_what_a_storm_frees_later_goes_back_later(machine: Machine) -> None:
    """It was given back once while the storm went on: what is freed since is below what there was then."""
    machine.look(0)
    machine.used += 100 * MB
    machine.look(0)
    machine.used, machine.freed = 100 * MB, 100 * MB
    machine.look(*[0] * LATER[0])
    assert machine.resident() == 100 * MB


@pytest.mark.parametrize(
    ("in_flight", "young", "due"),
    [
        (0, 0, False),
        (0, 1, True),
        (1, PASSES - 1, False),
        (CROWD, PASSES, True),
        (CROWD + 1, 1000, False),
    ],
)
def test_the_collector_passes_over_everything_when_few_wait(in_flight: int, young: int, due: bool) -> None:
    assert FreedMemory(resident=lambda: MB).collects(in_flight, young) is due


def test_among_many_requests_it_passes_for_every_64_mb_of_growth() -> None:
    used = [MB]
    memory = FreedMemory(resident=lambda: used[0])
    assert not memory.collects(CROWD + 1, 1000)
    used[0] += LOST + 1
    assert memory.collects(CROWD + 1, 1000)
    memory.collect()
    assert not memory.collects(CROWD + 1, 1000), "what is in use does not make it pass again"


def test_what_many_connections_leave_is_given_back(machine: Machine) -> None:
    """They hold themselves: nothing goes until the collector has passed, and then at the next look."""

    class Ring:
        def __init__(self) -> None:
            self.ring = self

    memory = FreedMemory(machine.give_back, machine.resident)
    assert not memory.look(0)
    rings = [Ring() for _ in range(2000)]
    del rings
    memory.collect()
    assert memory.look(0)


def test_what_shrinks_by_itself_is_the_new_floor(machine: Machine) -> None:
    machine.look(0)
    machine.used -= 50 * MB
    machine.look(0)
    machine.freed = GROWN + 1
    machine.look(0)
    assert machine.calls == 1


def test_what_was_loaded_is_left_out_of_the_collectors_passes() -> None:
    """And what was garbage by then is gone; of what comes later none is looked at as a whole unasked."""
    run = subprocess.run([sys.executable, "-c", PASSES], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False", "False", "True", "True"]


PASSES = """
import gc, weakref
from octavo.server.freed import leave_out
class Ring:
    def __init__(self):
        self.ring = self
ring = weakref.ref(Ring())
kept = Ring()
leave_out()
print(ring() is None, any(each is kept for each in gc.get_objects()))
old = Ring()
gc.collect()
ring = weakref.ref(old)
del old
for _ in range(3):
    many = [[] for _ in range(200_000)]
print(ring() is None, gc.get_count()[2] > 10)
gc.collect()
print(ring() is None)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_this_process_has_memory() -> None:
    before = freed.resident()
    with mmap.mmap(-1, 64 * MB) as held:  # new pages, where bytes might get what the heap still has
        held.write(b"x" * (64 * MB))
        assert freed.resident() - before > 32 * MB


def test_a_server_looks_as_long_as_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside requests, on a thread of its own."""
    looks: list[int] = []
    given: list[bool] = []
    monkeypatch.setattr(freed, "LOOK_S", 0.01)
    monkeypatch.setattr(FreedMemory, "look", lambda self, buffered: bool(looks.append(buffered)) or True)

    def work(self: FreedMemory) -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        given.append(True)

    monkeypatch.setattr(FreedMemory, "work", work)

    async def test() -> None:
        async with running(FakeEngine(), app=create_app(None)):
            await until(lambda: len(given) > 2)
        count = len(looks)
        await asyncio.sleep(0.1)
        assert len(looks) == count

    run(test)
