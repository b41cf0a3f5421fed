"""The load generator against a server whose delays are known: it must read them, exactly.

Time is virtual (support/virtual_time.py), so there is no machine that could be busy.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from octavo.bench.serving.apis import api_of
from octavo.bench.serving.arrivals import drawn
from octavo.bench.serving.client import Client
from octavo.bench.serving.exchange import Asked, LoadRequest
from octavo.bench.serving.figures import Figures, figures
from octavo.bench.serving.generator import LoadRecord, Pace, generate
from octavo.bench.wire import CUT, Wire
from octavo.errors import InvalidRequestError
from support.virtual_time import HEAD, Act, Scripted, chunk, completion, event, run

EXACT = pytest.approx


def put(
    script: Callable[[int, str, Any], Iterable[Act]],
    due: Sequence[float],
    users: int | None = None,
    **options: Any,
) -> tuple[LoadRecord, Scripted]:
    """Put a load on a scripted server; options: of Client, timeout_s of Pace as all_s, and stop_s."""
    server = Scripted(script)
    stop_s, all_s = options.pop("stop_s", None), options.pop("all_s", float("inf"))
    api = api_of(options.pop("backend", "openai"))

    async def main() -> LoadRecord:
        client = Client(Wire("http://h:1", connect=server.connect), api, Asked("m"), **options)
        stop = asyncio.Event()
        if stop_s is not None:
            asyncio.get_running_loop().call_later(stop_s, stop.set)
        calls = [LoadRequest(f"prompt {n}", 8) for n in range(len(due))]
        return await generate(client, calls, Pace(due, users, all_s), stop)

    return run(main()), server


def figures_of(recorded: LoadRecord, **options: Any) -> Figures:
    return figures(recorded, percentiles=(50.0, 99.0), **options)


def test_known_delays_are_read_exactly() -> None:
    recorded, _ = put(lambda n, path, body: completion(0.25, [0.05] * 7), [0.0])
    found = figures_of(recorded)
    assert {name: spread and spread.mean for name, spread in found.spreads.items()} == {
        "ttft": EXACT(250.0), "tpot": EXACT(50.0), "itl": EXACT(50.0), "e2el": EXACT(600.0),
    }  # fmt: skip
    assert (found.output_tokens, found.input_tokens, found.counted) == (8, 7, "usage")
    assert found.seconds == EXACT(0.6)
    assert found.output_rate == EXACT(8 / 0.6)
    assert found.request_rate == EXACT(1 / 0.6)
    assert found.total_rate == EXACT(15 / 0.6)


def test_percentiles_are_those_of_the_delays() -> None:
    delays = [0.1 * (n + 1) for n in range(10)]
    recorded, _ = put(lambda n, path, body: completion(delays[n], []), [float(n) for n in range(10)])
    spread = figures_of(recorded).spreads["ttft"]
    assert spread is not None
    assert spread.percentiles == {50.0: EXACT(500.0), 99.0: EXACT(1000.0)}
    assert figures_of(recorded).spreads["tpot"] is None, "answers of one token have no second one"
    assert figures_of(recorded).spreads["itl"] is None


def test_pieces_of_several_tokens_count_in_tpot_alone() -> None:
    """Ten tokens in five pieces: between arrivals 0.2 s, a token 0.8 / 9."""
    body = event({"choices": [{"text": "two words"}]})
    usage = event({"choices": [], "usage": {"completion_tokens": 10, "prompt_tokens": 1}})
    acts = [
        (0.0, HEAD),
        *[(0.2, body)] * 5,
        (0.0, usage),
        (0.0, chunk(b"data: [DONE]\n\n")),
        (0.0, chunk(b"")),
    ]
    found = figures_of(put(lambda n, path, body: acts, [0.0])[0])
    itl, tpot = found.spreads["itl"], found.spreads["tpot"]
    assert itl is not None
    assert tpot is not None
    assert itl.mean == EXACT(200.0)
    assert tpot.mean == EXACT(800 / 9)


def test_an_open_load_waits_for_nobody() -> None:
    """Answers take 10 s, requests come every second: all are sent when due, and ten are on the way."""
    due = [float(n) for n in range(30)]
    recorded, server = put(lambda n, path, body: completion(10.0 - 1e-6, []), due)
    assert [came - 100 for came, _, _ in server.seen] == EXACT(due)
    assert server.most == recorded.most_at_once == 10
    assert [reply.ttft for reply in recorded.replies] == EXACT([10.0] * 30, abs=1e-5)
    assert figures_of(recorded).late_ms == EXACT(0.0, abs=1e-6)
    assert recorded.seconds == EXACT(39.0, abs=1e-5)


def test_a_closed_load_has_so_many_on_the_way() -> None:
    recorded, server = put(lambda n, path, body: completion(1.0, []), [0.0] * 9, users=3)
    assert server.most == recorded.most_at_once == 3
    assert [came - 100 for came, _, _ in server.seen] == EXACT([0.0] * 3 + [1.0] * 3 + [2.0] * 3)
    assert recorded.seconds == EXACT(3.0)
    ttft = figures_of(recorded).spreads["ttft"]
    assert ttft is not None
    assert ttft.mean == EXACT(1000.0), "from sending, not from when it was due"
    assert figures_of(recorded, held_back=True).late_ms is None


def test_throughput_is_over_the_whole_load() -> None:
    """20 requests every half second, each answered within it: 2 requests and 8 tokens a second."""
    recorded, _ = put(lambda n, path, body: completion(0.2, [0.1] * 3), [0.5 * n for n in range(20)])
    found = figures_of(recorded)
    assert found.seconds == EXACT(19 * 0.5 + 0.5)
    assert found.request_rate == EXACT(2.0)
    assert found.output_rate == EXACT(8.0)


def test_goodput_counts_those_within_all_limits() -> None:
    def script(n: int, path: str, body: Any) -> list[Act]:
        return completion(0.1 if n % 2 else 0.9, [0.02 if n % 4 < 2 else 0.2] * 3)

    recorded, _ = put(script, [2.0 * n for n in range(8)])
    seconds = recorded.seconds
    assert figures_of(recorded, slo={"ttft": 500.0}).goodput == EXACT(4 / seconds)
    assert figures_of(recorded, slo={"ttft": 500.0, "tpot": 50.0}).goodput == EXACT(2 / seconds)
    assert figures_of(recorded).goodput is None


@pytest.mark.parametrize("cut", range(1, 400, 23))
def test_chunks_may_end_anywhere(cut: int) -> None:
    whole = b"".join(data for _, data in completion(0.0, [0.0] * 3) if data and data != HEAD)
    stream = _unchunked(whole)
    parts = [chunk(stream[i : i + cut]) for i in range(0, len(stream), cut)]
    acts: list[Act] = [(0.0, HEAD), *((0.0, part) for part in parts), (0.0, chunk(b""))]
    found = figures_of(put(lambda n, path, body: acts, [0.0])[0])
    assert (found.completed, found.output_tokens, found.errors) == (1, 4, {})


def _unchunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        found, data = found + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return found


def test_the_role_of_a_chat_is_no_token() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    text = event({"choices": [{"delta": {"content": "x"}}]})
    thought = event({"choices": [{"delta": {"reasoning_content": "x"}}]})
    acts = [(0.0, HEAD), (0.1, role), (0.4, thought), (0.25, text), (0.0, chunk(b"data: [DONE]\n\n"))]
    recorded, server = put(lambda n, path, body: [*acts, (0.0, chunk(b""))], [0.0], backend="openai-chat")
    assert recorded.replies[0].ttft == EXACT(0.5)
    assert recorded.replies[0].itl == EXACT([0.25])
    found = figures_of(recorded)
    assert (found.output_tokens, found.counted, found.input_tokens, found.total_rate) == (
        2,
        "pieces",
        None,
        None,
    )
    assert server.seen[0][1] == "/v1/chat/completions"
    assert server.seen[0][2]["messages"] == [{"role": "user", "content": "prompt 0"}]


def test_tgi() -> None:
    token = {"token": {"id": 5, "text": " x"}, "generated_text": None, "details": None}
    last = token | {"generated_text": "x x x", "details": {"generated_tokens": 3, "finish_reason": "length"}}
    acts = [(0.0, HEAD), (0.3, event(token)), (0.1, event(token)), (0.1, event(last)), (0.0, chunk(b""))]
    recorded, server = put(lambda n, path, body: acts, [0.0], backend="tgi")
    reply = recorded.replies[0]
    assert (reply.ttft, reply.tpot, reply.tokens, reply.error) == (EXACT(0.3), EXACT(0.1), 3, None)
    assert server.seen[0][1] == "/generate_stream"
    assert server.seen[0][2]["parameters"]["max_new_tokens"] == 8


def test_stopping_keeps_what_was_measured() -> None:
    """Ctrl-C at 3.5 s: three answers are there, one is on the way, the rest was never sent."""
    recorded, server = put(lambda n, path, body: completion(1.0, []), [0.0] * 9, users=1, stop_s=3.5)
    found = figures_of(recorded)
    assert (found.completed, found.unfinished, found.unsent, found.failed) == (3, 1, 5, 0)
    assert (found.cut, found.seconds) == ("interrupted", EXACT(3.5))
    assert found.request_rate == EXACT(3 / 3.5)
    assert len(server.seen) == 4


def test_the_whole_load_ends_in_time() -> None:
    recorded, _ = put(lambda n, path, body: [(1e6, None)], [0.0] * 3, all_s=2.0)
    found = figures_of(recorded)
    assert (found.cut, found.unfinished, found.seconds) == ("out of time", 3, EXACT(2.0))


def test_what_was_not_measured_is_no_figure() -> None:
    """A server that dies after three answers: they are kept, and the others are named."""

    def script(n: int, path: str, body: Any) -> list[Act]:
        return completion(0.5, [0.1]) if n < 3 else [(0.0, HEAD), (0.1, None)]

    found = figures_of(put(script, [1.0 * n for n in range(6)])[0])
    assert (found.completed, found.failed) == (3, 3)
    assert found.errors == {CUT: 3}
    assert found.output_tokens == 6
    nothing = figures_of(put(lambda n, path, body: [(0.1, None)], [0.0] * 2)[0])
    assert nothing.errors == {"no HTTP answer": 2}
    assert set(nothing.spreads.values()) == {None}
    rates = (nothing.request_rate, nothing.output_rate, nothing.total_rate, nothing.counted)
    assert rates == (None, None, None, None)
    said = nothing.summary()
    assert said.pop("max_late_ms") == 0.0, "measured: they were sent in time"
    assert not any(value == 0.0 and isinstance(value, float) for value in said.values())


@pytest.mark.parametrize("count", ["NaN", "-1", "1e5", "true", '"7"', "null", "9" * 400])
def test_a_count_that_is_none_is_not_believed(count: str) -> None:
    """Tokens are counted by the pieces that came, where a server's usage has no number of them."""
    *answer, done, last = completion(0.5, [0.1] * 3, usage=False)
    usage = chunk(b'data: {"choices": [], "usage": {"completion_tokens": %s}}\n\n' % count.encode())
    found = figures_of(put(lambda n, path, body: [*answer, (0.0, usage), done, last], [0.0])[0])
    assert (found.completed, found.output_tokens, found.counted) == (1, 4, "pieces")


def test_a_slow_answer_is_given_up() -> None:
    recorded, _ = put(lambda n, path, body: completion(5.0, []), [0.0], timeout_s=1.0)
    assert figures_of(recorded).errors == {"timed out": 1}


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (
            b"HTTP/1.1 400 Bad\r\ncontent-length: 30\r\n\r\n" + b'{"error": {"message": "no m"}}',
            "HTTP 400: no m",
        ),
        (b"HTTP/1.1 429 Busy\r\ncontent-length: 16\r\n\r\n" + b'{"error": "busy"}'[:16], "HTTP 429"),
        (HEAD + event({"error": {"message": "went wrong"}}), "the stream ended with an error: went wrong"),
        (HEAD + event([1]), "broken answer: ValueError"),
        (HEAD + event({"choices": [5]}), "broken answer: ValueError"),
        (HEAD + event({"choices": [{"text": "x"}]}) + chunk(b""), "the stream ended early"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * ((1 << 20) + 1), "a line of the answer is longer than 1 MiB"),
    ],
)
def test_failures_are_named(sent: bytes, error: str) -> None:
    found = figures_of(put(lambda n, path, body: [(0.0, sent), (0.0, None)], [0.0])[0])
    assert found.errors == {error: 1}


def test_times_of_arrival() -> None:
    """Gaps of the mean 1 / rate; their spread is what burstiness says: 1 / sqrt of it."""
    for burstiness, spread in ((1.0, 1.0), (0.25, 2.0), (16.0, 0.25)):
        times = drawn(20_000, 4.0, burstiness, seed=1)
        gaps = [b - a for a, b in itertools.pairwise(times)]
        assert statistics.mean(gaps) == EXACT(0.25, rel=0.05)
        assert statistics.stdev(gaps) / statistics.mean(gaps) == EXACT(spread, rel=0.05)
    assert drawn(3, float("inf")) == [0.0, 0.0, 0.0]
    assert drawn(5, 2.0, seed=1) == drawn(5, 2.0, seed=1) != drawn(5, 2.0, seed=2)


@pytest.mark.parametrize(("rate", "burstiness"), [(float("nan"), 1.0), (0.0, 1.0), (-1.0, 1.0), (1.0, 0.0)])
def test_no_rate(rate: float, burstiness: float) -> None:
    with pytest.raises(InvalidRequestError, match="must be above 0"):
        drawn(3, rate, burstiness)


def test_a_prompt_that_the_api_has_not_is_refused_before_anything_is_sent() -> None:
    server = Scripted(lambda n, path, body: completion(0.1, []))

    async def main() -> None:
        client = Client(Wire("http://h:1", connect=server.connect), api_of("tgi"), Asked("m"))
        await generate(client, [LoadRequest("text", 1), LoadRequest([1, 2], 1)], Pace([0.0, 0.0]))

    with pytest.raises(InvalidRequestError, match="TGI takes texts"):
        run(main())
    assert server.seen == []


@pytest.mark.parametrize("name", ["openai", "openai-chat"])
@pytest.mark.parametrize(
    ("details", "cached"),
    [
        ({"cached_tokens": 5}, 5),
        ({"cached_tokens": 0}, 0),
        ({"cached_tokens": None}, None),
        ({"cached_tokens": -1}, None),
        ({"cached_tokens": "5"}, None),
        ({}, None),
        (None, None),
        ("5", None),
    ],
)
def test_what_a_usage_says_of_the_cache(name: str, details: Any, cached: int | None) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": details}
    piece = api_of(name).read({"choices": [], "usage": usage})
    assert (piece.prompt_tokens, piece.cached_tokens) == (7, cached)


def test_the_cache_counts_where_every_answer_tells_of_it() -> None:
    def found(*told: int | None) -> tuple[int | None, float | None]:
        answer = [completion(0.1, [0.1], cached=cached) for cached in told]
        figures = figures_of(put(lambda n, path, body: answer[n], [0.0, 1.0])[0])
        return figures.cached_tokens, figures.cached_share

    assert found(7, 0) == (7, 0.5)
    assert found(0, 0) == (0, 0.0)
    assert found(7, 9) == (14, 1.0), "no more than the prompt has"
    assert found(7, None) == (None, None)
