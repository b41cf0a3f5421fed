"""bench_beside.py, plan_beside.py, compare_twice.py: what they conclude; the server of known delays."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from typing import Any

import pytest

from support.virtual_time import run


def script(name: str) -> Any:
    """A module of benchmarks/ (conftest.py has put the folder on the path)."""
    return importlib.import_module(name)


class Written:
    """Stands in for a connection: what is written, and when."""

    def __init__(self) -> None:
        self.at: list[tuple[float, bytes]] = []

    def write(self, data: bytes) -> None:
        self.at.append((asyncio.get_running_loop().time(), data))

    async def drain(self) -> None:
        """Nothing is held back."""


@pytest.mark.parametrize("chat", [False, True])
def test_the_scripted_server_keeps_its_delays(chat: bool) -> None:
    server, out = script("scripted_server"), Written()

    async def main() -> float:
        came = asyncio.get_running_loop().time()
        await asyncio.sleep(0.05)  # it was late: nothing that follows is
        await server.answer({"max_tokens": 4}, chat, came, server.Delays(0.2, 0.04), out)
        return came

    came = run(main())
    tokens = [at - came for at, data in out.at if b'" x"' in data]
    assert tokens == pytest.approx([0.2, 0.24, 0.28, 0.32])
    assert b'"completion_tokens": 4' in out.at[-1][1]
    assert out.at[-1][1].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_it_answers_requests_one_after_the_other() -> None:
    server = script("scripted_server")

    async def main() -> list[str]:
        ended = asyncio.Event()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.connection(reader, writer, server.Delays(0.0, 0.0))
            ended.set()

        async with await asyncio.start_server(connected, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            heads = []
            for path, body in (
                ("/v1/models", b""),
                ("/v1/completions", b'{"max_tokens": 2}'),
                ("/health", b""),
            ):
                writer.write(f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                if "chunked" in heads[-1]:
                    await reader.readuntil(b"0\r\n\r\n")
                else:
                    await reader.readexactly(int(heads[-1].split("content-length: ")[1].split("\r")[0]))
            writer.close()
            await writer.wait_closed()
            await ended.wait()
            return heads

    assert [head.split("\r\n")[0] for head in asyncio.run(main())] == ["HTTP/1.1 200 OK"] * 3


def test_the_truth_of_a_closed_load() -> None:
    """Nine requests of two users: five turns of 0.2 + 9 x 0.1 s."""
    beside = script("bench_beside")
    known = beside.truth(beside.Load(users=2, requests=9, tokens=10), 200.0, 100.0)
    assert known == {"ttft_ms": 200.0, "itl_ms": 100.0, "output_rate": pytest.approx(90 / 5.5)}


def test_a_program_runs_on_the_cores_that_it_is_given() -> None:
    beside, mine = script("bench_beside"), os.sched_getaffinity(0)
    say = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
    for cores in ({min(mine)}, {max(mine)}, set()):
        with beside.on(cores):
            assert json.loads(beside.run(say)) == sorted(cores or mine)
    with pytest.raises(RuntimeError), beside.on({min(mine)}):
        raise RuntimeError
    assert os.sched_getaffinity(0) == mine


def test_what_a_client_takes_is_its_own() -> None:
    """CPU seconds are of the programs that it runs; a program that computes is one."""
    beside = script("bench_beside")
    spend = "import time\nwhile time.process_time() < 0.3: pass"

    def client(code: str) -> Any:
        return lambda: {"itl_ms": float(not beside.run([sys.executable, "-c", code]))}

    busy, idle = (beside.costed(client(code), os.getpid()) for code in (spend, "pass"))
    assert busy["itl_ms"] == idle["itl_ms"] == 1.0
    assert busy["cpu_s"] - idle["cpu_s"] > 0.1
    assert idle["cpu_s"] > 0
    assert min(busy["waited_s"], idle["waited_s"]) >= 0


def reading(ttft: float, itl: float, rate: float) -> dict[str, float]:
    return {"ttft_ms": ttft, "itl_ms": itl, "output_rate": rate}


def test_how_far_a_client_is_off() -> None:
    beside = script("bench_beside")
    known = reading(200.0, 40.0, 100.0)
    found = [{"octavo": reading(t, 40.0, 99.0)} for t in (202.0, 204.0, 260.0)]
    assert beside.off(found, known) == {"octavo": {"ttft_ms": 0.02, "itl_ms": 0.0, "output_rate": 0.01}}


@pytest.mark.parametrize(("theirs", "within"), [(1.02, True), (0.98, True), (1.06, False), (0.94, False)])
def test_a_difference_is_none_within_the_control(theirs: float, within: bool) -> None:
    """Two readings of ours lie apart by 5 %, in either direction."""
    beside = script("bench_beside")
    found = [
        {
            "octavo": reading(100.0, 10.0, 50.0),
            "guidellm": reading(100.0 * theirs, 10.0, 50.0),
            "again": reading(100.0 * again, 10.0, 50.0),
        }
        for again in (1.0, 1.05, 0.99)
    ]
    lines = beside.beside(found)
    assert lines["ttft_ms"]["ratio"] == pytest.approx(theirs)
    assert lines["ttft_ms"]["control"] == [0.99, 1.05]
    assert lines["ttft_ms"]["within"] is within
    assert lines["itl_ms"]["within"], "equal, and the control too"


def test_drawn_answers_are_beside_ours_of_the_same_round() -> None:
    beside = script("bench_beside")
    found = [
        {"octavo": reading(100.0, 10.0 * n, 50.0), "drawn": reading(100.0, 12.0 * n, 40.0)} for n in (1, 3, 2)
    ]
    assert beside.over_ours(found) == {"ttft_ms": 1.0, "itl_ms": 1.2, "output_rate": 0.8}


def test_costs_are_medians() -> None:
    beside = script("bench_beside")
    found = [
        {name: {"cpu_s": cpu * n, "waited_s": 0.5 * n} for name, cpu in (("octavo", 1.0), ("guidellm", 3.0))}
        for n in (1, 2, 9)
    ]
    assert beside.costs(found) == {
        "cpu_s": {"octavo": 2.0, "guidellm": 6.0}, "waited_s": {"octavo": 1.0, "guidellm": 1.0}
    }  # fmt: skip


def test_what_guidellm_says() -> None:
    def mean(value: float) -> dict[str, Any]:
        return {"successful": {"mean": value}}

    metrics = {
        "request_totals": {"successful": 24}, "time_to_first_token_ms": mean(200.0),
        "inter_token_latency_ms": mean(40.0), "output_tokens_per_second": mean(80.0),
    }  # fmt: skip
    found = {"benchmarks": [{"metrics": metrics}]}
    assert script("bench_beside").read_guidellm(found, 24) == reading(200.0, 40.0, 80.0)
    with pytest.raises(RuntimeError, match="24 of 25 were answered"):
        script("bench_beside").read_guidellm(found, 25)


def test_in_turns_who_begins_changes_and_the_first_round_warms_up() -> None:
    order: list[str] = []

    def turn(name: str) -> Any:
        def run() -> dict[str, float]:
            order.append(name)
            return reading(1.0, 1.0, float(len(order)))

        return run

    beside = script("bench_beside")
    beside.PAUSE_S = 0.0
    found = beside.in_turns({"octavo": turn("a"), "guidellm": turn("b")}, 2)
    assert "".join(order) == "abbaab"
    assert [each["octavo"]["output_rate"] for each in found] == [4.0, 5.0]


def rounds(predicted: float, *pairs: tuple[float, float]) -> list[dict[str, dict[int, float]]]:
    return [{"predicted": {8: predicted}, "measured": {8: a}, "again": {8: b}} for a, b in pairs]


@pytest.mark.parametrize(
    ("predicted", "again", "within", "forbidden"),
    [
        (119.0, 100.0, True, False),
        (125.0, 100.0, False, False),
        (75.0, 100.0, False, False),
        (150.0, 130.0, False, True),
    ],
)
def test_a_prediction_beside_what_was_measured(
    predicted: float, again: float, within: bool, forbidden: bool
) -> None:
    (row,) = script("plan_beside").rows(rounds(predicted, (100.0, 100.0), (100.0, again), (100.0, 100.0)))
    assert (row["batch"], row["measured"], row["within"], row["forbidden"]) == (8, 100.0, within, forbidden)
    assert row["off"] == pytest.approx(abs(predicted / 100 - 1), abs=1e-3)
    assert row["control"] == pytest.approx(again / 100 - 1, abs=1e-3)


def compared(*medians: tuple[float, float] | None, noise: float = 1.05) -> dict[str, Any]:
    """What `octavo bench compare --json` says of servers: (value, spread) of the one figure."""
    servers = [
        {
            "name": f"s{n}",
            "medians": {"rate": None if each is None else {"value": each[0], "spread": each[1]}},
        }
        for n, each in enumerate(medians)
    ]
    return {"servers": servers, "noise": noise}


def test_two_runs_of_compare() -> None:
    twice = script("compare_twice")
    first, second = (
        compared((100.0, 1.10), (50.0, 1.01), None),
        compared((108.0, 1.02), (52.0, 1.03), (9.0, 1.0)),
    )
    one, other = twice.figures(first, second)
    assert (one["server"], one["figure"], one["apart"], one["agree"]) == ("s0", "rate", 1.08, True)
    assert (other["server"], other["apart"], other["agree"]) == ("s1", 1.04, False)


def place(theirs: float) -> dict[str, Any]:
    """What bench_beside.py writes of a place, guidellm's readings so many times ours."""
    beside, cost = script("bench_beside"), {"cpu_s": 2.0, "waited_s": 0.25}
    client = {**reading(100.0, 10.0, 50.0), **cost}
    found = [{"octavo": client, "guidellm": {**reading(100.0, 10.0 * theirs, 50.0), **cost}, "again": client}]
    return {"users": 1, **beside.beside(found), **beside.costs(found)}


@pytest.mark.parametrize(("name", "said"), [("own_cores", "**apart**"), ("shared_cores", "apart")])
def test_the_places_of_a_server_are_printed_and_shown(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference is bold only where the server has cores of its own."""
    monkeypatch.syspath_prepend("scripts")
    measuring = importlib.import_module("figure_measuring")
    result = {name: place(1.5)}
    lines = script("bench_beside").lines_of(name, result[name])
    assert [line.endswith("  apart") for line in lines[1:4]] == [False, True, False]
    assert [line.split()[-2:] for line in lines[4:]] == [["2.0", "2.0"], ["0.25", "0.25"]]
    assert measuring.verdict(name, "itl_ms", result) == said
    assert measuring.verdict(name, "ttft_ms", result) == "within the control"
    older = {"served": place(1.5)}
    assert measuring.verdict(name, "itl_ms", older) == ("apart" if name == "shared_cores" else None)
    values = [measuring.value_at(result, at) for at in measuring.taken(name).at]
    assert values == [2.0, 2.0, 0.25, 0.25]


def test_the_lines_of_the_clients_and_the_figures_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tables of scripts/ read is what the scripts write."""
    result = {"models": {"smollm2": script("plan_beside").rows(rounds(110.0, (100.0, 102.0)))}}
    monkeypatch.syspath_prepend("scripts")
    measuring = importlib.import_module("figure_measuring")
    assert measuring.of_row("smollm2", 8, "off", result) == pytest.approx(110 / 101 - 1, abs=1e-3)
    assert measuring.of_row("smollm2", 1, "off", result) is None
    json.dumps(result)
