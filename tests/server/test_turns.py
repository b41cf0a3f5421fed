"""openai/body.py, let_turn(): between the long calls of a large body the event loop goes round."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from typing import Any

import pydantic_core
import pytest

from octavo.server.openai.body import LONG_TEXT, alone, let_turn, parse
from octavo.server.openai.tokens import DetokenizeRequest

BODY = json.dumps({"tokens": [1] * LONG_TEXT}).encode()


class Turns:
    """Counts how often the loop goes round."""

    def __init__(self) -> None:
        self.count, self.over = 0, False

    async def run(self) -> None:
        while not self.over:
            self.count += 1
            await asyncio.sleep(0)


def test_the_loop_goes_round_between_reading_and_checking_and_between_bodies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Turns while a call lasts do not count: a call that held the interpreter would let none come."""
    turns = Turns()
    calls: list[tuple[str, int, int]] = []  # (which, turns when it began, and when it had ended)
    read, check = pydantic_core.from_json, DetokenizeRequest.model_validate

    def noted(name: str, call: Any) -> Any:
        def wrapped(*args: Any, **more: Any) -> Any:
            begun = turns.count
            found = call(*args, **more)
            calls.append((name, begun, turns.count))
            return found

        return wrapped

    monkeypatch.setattr(pydantic_core, "from_json", noted("read", read))
    monkeypatch.setattr(DetokenizeRequest, "model_validate", noted("check", check))

    async def work() -> list[Any]:
        counting = asyncio.create_task(turns.run())
        found = await asyncio.gather(*[alone(len(BODY), parse, DetokenizeRequest, BODY) for _ in range(3)])
        turns.over = True
        await counting
        return found

    assert [len(model.tokens) for model in asyncio.run(work())] == [LONG_TEXT] * 3
    assert [name for name, _, _ in calls] == ["read", "check"] * 3
    for (_, _, end), (_, begin, _) in itertools.pairwise(calls):
        assert begin - end >= 2


def test_nobody_waits_on_the_loops_own_thread_or_for_a_loop_that_has_ended() -> None:
    parse(DetokenizeRequest, b'{"tokens": [1]}')
    begun, gone = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        gone.wait()
        let_turn()

    async def work() -> None:
        task = asyncio.create_task(alone(len(BODY), slow))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(work())
    gone.set()  # its loop is closed: the thread must be free for the next one
    assert asyncio.run(alone(len(BODY), parse, DetokenizeRequest, BODY)).tokens[:2] == [1, 1]
