"""Servers beside each other: in turns, with the truth of scripted ones, and what is missing is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from octavo.bench.serving.apis import api_of
from octavo.bench.serving.client import Client
from octavo.bench.serving.compare import Compared, Median, Side, compare, reference_seconds
from octavo.bench.serving.exchange import Asked, LoadRequest
from octavo.bench.serving.figures import Figures, figures
from octavo.bench.serving.generator import Pace, Recorded, generate
from octavo.bench.wire import Wire
from octavo.cli import main
from octavo.cli._bench.compare import body_of, named_servers, table_of
from octavo.errors import InvalidRequestError
from support.virtual_time import Act, Scripted, completion, run


def load_on(script: Any, stop: asyncio.Event | None = None) -> Any:
    """A load of four requests on a scripted server."""
    server = Scripted(script)

    async def load() -> Figures:
        client = Client(Wire("http://h:1", connect=server.connect), api_of("openai"), Asked("m"))
        calls = [LoadRequest(f"prompt {n}", 8) for n in range(4)]
        return figures(await generate(client, calls, Pace([0.0] * 4, 1), stop))

    return load


def answers(first: float, gap: float) -> Any:
    def script(n: int, path: str, body: Any) -> Sequence[Act]:
        return completion(first, [gap] * 9)

    return script


def test_the_truth_of_two_servers_in_turns() -> None:
    order: list[str] = []
    probes = iter([1.0, 1.02] * 3)
    loads = {"a": load_on(answers(0.1, 0.1)), "b": load_on(answers(0.2, 0.2))}
    found = run(
        compare(loads, 3, lambda: next(probes), begins=lambda name, number: order.append(f"{name}{number}"))
    )
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2"], "who begins changes"
    a, b = found.sides
    assert a.median("output_throughput") == Median(pytest.approx(10.0), pytest.approx(1.0))
    assert b.median("p50_ttft_ms") == Median(pytest.approx(200.0), pytest.approx(1.0))
    assert found.ratio(b, "output_throughput") == pytest.approx(0.5)
    assert found.ratio(a, "output_throughput") == 1.0
    assert found.differ(b, "output_throughput")
    assert found.noise == pytest.approx(1.02)
    text = table_of(found, "title").text()
    assert "10.0 (1.00)" in text
    assert "quiet" in text


def test_equal_servers_do_not_differ() -> None:
    speeds = iter([0.10, 0.12, 0.10, 0.11, 0.12, 0.11])  # a, b, b, a, a, b: each varies by a fifth
    loads = {name: load_on(lambda n, path, body: completion(0.0, [next_gap()] * 9)) for name in "ab"}
    gaps: dict[int, float] = {}

    def next_gap() -> float:
        # One gap a load of four requests, whichever server it is for.
        calls = gaps.setdefault(-1, 0)
        gaps[-1] = calls + 1
        if calls % 4 == 0:
            gaps[0] = next(speeds)
        return gaps[0]

    found = run(compare(loads, 3, lambda: 1.0))
    assert found.differ(found.sides[1], "output_throughput") is False
    assert "differ by no more than the rounds of one do" in table_of(found, "t").text()


def test_a_server_that_is_not_there_is_listed() -> None:
    loads = {"a": load_on(answers(0.1, 0.1)), "dead": load_on(lambda n, path, body: [(0.1, None)])}
    found = run(compare(loads, 2, lambda: 1.0))
    assert [len(side.rounds) for side in found.sides] == [2, 0]
    assert found.sides[1].not_measured == "no HTTP answer"
    assert found.ratio(found.sides[1], "output_throughput") is None
    assert found.differ(found.sides[1], "output_throughput") is None
    lines = table_of(found, "t").text().splitlines()
    assert lines[3].split() == ["dead", *["-"] * 6]
    assert "dead was not measured: no HTTP answer" in lines
    body = body_of(found, {"a": "x", "dead": "y"})
    assert set(body["servers"][1]["medians"].values()) == {None}
    json.dumps(body, allow_nan=False)


def test_a_noisy_machine_is_said() -> None:
    probes = iter([1.0, 1.3, 1.0, 1.0])
    loads = {"a": load_on(answers(0.1, 0.1)), "b": load_on(answers(0.1, 0.1))}
    found = run(compare(loads, 2, lambda: next(probes)))
    assert "took up to 1.30 times as long: noisy: measure again" in table_of(found, "t").text()


def test_ctrl_c_keeps_whole_rounds() -> None:
    async def work() -> Compared:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(9.0, stop.set)  # a load takes 4 s
        loads = {name: load_on(answers(0.1, 0.1), stop) for name in "ab"}
        return await compare(loads, 5, lambda: 1.0, stop)

    found = run(work())
    assert [len(side.rounds) for side in found.sides] == [1, 1]
    assert found.cut == "interrupted"
    assert "fewer rounds than asked for" in table_of(found, "t").text()


def test_nothing_is_no_figure() -> None:
    assert Median.of([]) is None
    assert Median.of([0.0, 1.0]) is None
    side = Side("a", [figures(Recorded([]))])
    assert side.median("output_throughput") is None
    assert Compared([side]).noise is None
    assert reference_seconds() > 0


def test_names() -> None:
    assert named_servers(["a=http://x:1", "http://y:2", "http://z/?q=1"]) == {
        "a": "http://x:1", "http://y:2": "http://y:2", "http://z/?q=1": "http://z/?q=1",
    }  # fmt: skip
    with pytest.raises(InvalidRequestError, match="two servers are named 'a'"):
        named_servers(["a=http://x", "a=http://y"])


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "compare", "a=http://127.0.0.1:1", "b=http://127.0.0.1:1", "--rounds", "1", "--json"]
    assert main(words) == 1
    found = json.loads(capsys.readouterr().out)
    assert all("no answer from 127.0.0.1:1" in each["not_measured"] for each in found["servers"])
    assert main(["bench", "compare", "a=ftp://x"]) == 1
    assert "no http:// address" in capsys.readouterr().err
