"""FairQueue: bounds in tokens, a share for each key, a deadline, and when to come again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from octavo.engine.request import EngineRequest
from octavo.errors import OverloadedError
from octavo.server.app import create_app
from octavo.server.many_prompts import Siblings
from octavo.server.overload import LONGEST_RETRY_S, DrainRate
from octavo.server.queueing import FairQueue
from octavo.server.state import ServerSettings
from support.asgi import Reply, call, post
from support.fake_engine import FakeEngine, FakeOutputs

TEXT, RESPONSES = "/v1/completions", "/v1/responses"
A, B, C = ({"authorization": f"Bearer {key}"} for key in "abc")
ASK = {"prompt": "abcd", "max_tokens": 1}


class Crowd:
    """An app whose engine begins nothing until gate is set."""

    def __init__(self, keys: str = "", **settings: Any) -> None:
        self.engine = FakeEngine(max_waiting=8, max_sequences=72)
        self.app = create_app(self.engine, ServerSettings(api_keys=tuple(keys), **settings))
        self.waiting: list[asyncio.Task[Reply]] = []

    async def wait(self, count: int, headers: dict[str, str] | None = None, **fields: Any) -> list[int]:
        """Statuses of those of so many requests that were refused at once; the others wait."""
        new = [
            asyncio.ensure_future(call(self.app, "POST", TEXT, ASK | fields, headers=headers))
            for _ in range(count)
        ]
        for _ in range(50):
            await asyncio.sleep(0)
        self.waiting += [task for task in new if not task.done()]
        return [task.result().status for task in new if task.done()]

    async def end(self) -> list[Reply]:
        assert self.engine.gate is not None
        self.engine.gate.set()
        return await asyncio.gather(*self.waiting)


def in_crowd(scenario: Any, *given: Any, **settings: Any) -> None:
    async def run() -> None:
        crowd = Crowd(*given, **settings)
        crowd.engine.gate = asyncio.Event()
        await scenario(crowd)
        assert all(reply.status == 200 for reply in await crowd.end())
        queue = crowd.app.state.octavo.queue
        assert not queue.sequences
        assert not queue.tokens

    asyncio.run(run())


def test_one_key_fills_half_of_the_queue_and_others_find_room() -> None:
    async def scenario(crowd: Crowd) -> None:
        assert await crowd.wait(10, A) == [429] * 6
        assert len(crowd.waiting) == 4
        assert await crowd.wait(10, B) == [429] * 8
        assert await crowd.wait(1, C) == []

    in_crowd(scenario, "abc")


def test_each_of_n_takes_a_place() -> None:
    async def scenario(crowd: Crowd) -> None:
        assert await crowd.wait(1, A, n=4) == []
        assert await crowd.wait(1, A) == [429]
        assert await crowd.wait(1, B, n=2) == []

    in_crowd(scenario, "ab")


def test_without_keys_nobody_has_a_share() -> None:
    async def scenario(crowd: Crowd) -> None:
        assert await crowd.wait(8) == []  # what the engine itself takes is the engine's matter

    in_crowd(scenario)


def test_a_request_of_many_prompts_is_not_refused_for_its_own() -> None:
    async def scenario(crowd: Crowd) -> None:
        assert await crowd.wait(1, A, prompt=["abcd"] * 40) == []

    in_crowd(scenario, "ab")


def test_a_batch_waits_for_room_that_its_own_prompts_take() -> None:
    """In tokens, and in places where another key's requests wait too."""

    async def tokens(crowd: Crowd) -> None:
        assert await crowd.wait(1, prompt=["abcd"] * 9) == []
        assert crowd.app.state.octavo.queue.tokens.total() == 12

    async def places(crowd: Crowd) -> None:
        assert await crowd.wait(2, B) == []
        assert await crowd.wait(1, A, prompt=["abcd"] * 9) == []
        assert crowd.app.state.octavo.queue.sequences.total() == 5

    in_crowd(tokens, max_waiting_tokens=12)
    in_crowd(places, "ab")


def test_a_batch_is_refused_for_room_that_others_take() -> None:
    async def scenario(crowd: Crowd) -> None:
        assert await crowd.wait(3) == []
        assert await crowd.wait(1, prompt=["abcd"] * 2) == [429]

    in_crowd(scenario, max_waiting_tokens=12)


def test_a_prompt_without_room_asks_again_when_a_sibling_has_left() -> None:
    """And not before: it does not keep the event loop busy."""
    gate, asked, standing = asyncio.Event(), 0, 0

    class Narrow(FairQueue):
        async def begin(self, engine: Any, request: Any) -> Any:
            nonlocal asked, standing
            asked += 1
            if standing == 2:
                raise OverloadedError("full")
            standing += 1
            await gate.wait()
            standing -= 1

    async def run() -> None:
        siblings, nothing = Siblings(Narrow(1)), cast(Any, None)
        tasks = [asyncio.ensure_future(siblings.begin(nothing, nothing)) for _ in range(10)]
        for _ in range(50):
            await asyncio.sleep(0)
        assert (asked, siblings.standing) == (10, 2)
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert asked <= 10 + sum(range(10))


def test_a_batch_does_not_wait_beyond_the_deadline() -> None:
    async def late() -> Reply:
        engine = FakeEngine(gate=asyncio.Event())
        app = create_app(engine, ServerSettings(queue_timeout_s=0.01, max_waiting_tokens=4))
        return await call(app, "POST", TEXT, ASK | {"prompt": ["abcd"] * 3})

    reply = asyncio.run(late())
    assert (reply.status, "0.01 s" in reply.error["message"]) == (429, True)


def test_prompts_that_wait_are_bounded_in_tokens() -> None:
    async def scenario(crowd: Crowd) -> None:
        assert await crowd.wait(5) == [429, 429]  # of four tokens each
        assert await crowd.wait(1, prompt="a") == [429]
        reply = await call(crowd.app, "POST", TEXT, ASK)
        assert "12 tokens are waiting" in reply.error["message"]

    in_crowd(scenario, max_waiting_tokens=12)


def test_a_prompt_longer_than_the_bound_is_served_where_nobody_waits() -> None:
    app = create_app(FakeEngine(), ServerSettings(max_waiting_tokens=2))
    assert post(app, TEXT, ASK).status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [(TEXT, ASK), (RESPONSES, {"input": "a"}), ("/v1/messages", {"max_tokens": 1, "messages": [
        {"role": "user", "content": "a"}]})],
)  # fmt: skip
def test_who_waits_too_long_is_told_when_to_come_again(
    path: str, fields: dict[str, Any], stream: bool
) -> None:
    async def late() -> Reply:
        engine = FakeEngine(gate=asyncio.Event())
        app = create_app(engine, ServerSettings(queue_timeout_s=0.01))
        reply = await call(app, "POST", path, fields | {"stream": stream})
        assert not engine.calls, "nothing of it was computed"
        assert app.state.octavo.in_flight == 0
        return reply

    reply = asyncio.run(late())
    assert (reply.status, reply.headers["retry-after"]) == (429, "1")
    assert b"0.01 s" in reply.body


def test_a_grammar_that_compiles_for_long_counts_as_waiting() -> None:
    class Compiling(FakeEngine):
        async def outputs(self, request: EngineRequest) -> FakeOutputs:
            await asyncio.Event().wait()
            raise AssertionError

    reply = post(create_app(Compiling(), ServerSettings(queue_timeout_s=0.01)), TEXT, ASK)
    assert (reply.status, "0.01 s" in reply.error["message"]) == (429, True)


def test_who_has_begun_in_time_may_take_long() -> None:
    engine = FakeEngine(delay=0.02)
    assert post(create_app(engine, ServerSettings(queue_timeout_s=0.01)), TEXT, ASK).status == 200


@pytest.mark.parametrize("path", [RESPONSES, TEXT])
def test_overload_is_told_before_a_stream_begins(path: str) -> None:
    app = create_app(FakeEngine(full=OverloadedError("the queue is full", 7.0)))
    reply = post(app, path, {"input": "a", "stream": True} if path == RESPONSES else ASK | {"stream": True})
    assert (reply.status, reply.headers["retry-after"]) == (429, "7")
    assert b"created" not in reply.body


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def drained(begun: int, every_s: float, waiting: int, n: int = 1) -> float:
    """What a queue says where requests of n began every so many seconds, and so many wait."""
    clock = Clock()
    queue = FairQueue(1 << 20, rate=DrainRate(clock))
    queue.sequences["x"] += waiting
    for _ in range(begun):
        clock.now += every_s
        queue.rate.begun.append((clock.now, n))
    return queue.retry_after_s


@pytest.mark.parametrize(
    ("begun", "every_s", "waiting", "n", "seconds"),
    [
        (0, 1.0, 100, 1, 1),  # nothing is known
        (1, 1.0, 100, 1, 1),
        (10, 1.0, 20, 1, 20),
        (10, 0.1, 20, 1, 2),
        (100, 0.1, 20, 4, 1),  # four at a time
        (10, 1.0, 0, 1, 1),
        (10, 60.0, 500, 1, LONGEST_RETRY_S),
    ],
)
def test_retry_after_is_what_waits_over_the_rate(
    begun: int, every_s: float, waiting: int, n: int, seconds: int
) -> None:
    assert drained(begun, every_s, waiting, n) == seconds


def test_a_queue_that_stands_still_says_so() -> None:
    clock = Clock()
    queue = FairQueue(1 << 20, rate=DrainRate(clock))
    queue.sequences["x"] += 4
    for clock.now in (1.0, 2.0, 3.0):
        queue.rate.begun.append((clock.now, 1))
    assert queue.retry_after_s == 4
    clock.now = 11.0  # nobody has begun since
    assert queue.retry_after_s == 20


@pytest.mark.parametrize("priority", [-1, 0, 5])
@pytest.mark.parametrize("allowed", [False, True])
def test_who_may_overtake_is_the_servers_choice(priority: int, allowed: bool) -> None:
    app = create_app(FakeEngine(), ServerSettings(takes_priority=allowed))
    reply = post(app, TEXT, ASK | {"priority": priority})
    if priority < 0 and not allowed:
        assert (reply.status, reply.error["param"]) == (400, "priority")
        assert "--scheduling-policy priority" in reply.error["message"]
    else:
        assert reply.status == 200


SECRETS = ("/home/operator/private/model.gguf", "OSError", "ValueError", "Errno")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 2])
def test_internal_errors_say_nothing_of_the_machine(
    stream: bool, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    from octavo.errors import EngineDeadError, RequestFailedError

    text = f"OSError: [Errno 2] no such file: {SECRETS[0]!r}"
    for error in (RequestFailedError(text), EngineDeadError(text), OSError(2, "gone", SECRETS[0])):
        caplog.clear()
        for path, fields in ((TEXT, {"prompt": "a"}), (RESPONSES, {"input": "a"})):
            app = create_app(FakeEngine(fail_after=(after, error)))
            reply = post(app, path, fields | {"stream": stream})
            assert not any(secret.encode() in reply.body for secret in SECRETS), reply.body
            said = reply.body.decode().split("internal error (reference ")[1][:8]
            assert said in caplog.text
            assert SECRETS[0] in caplog.text, "whoever runs the server reads it"
