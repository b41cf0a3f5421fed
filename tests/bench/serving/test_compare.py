"""Servers beside each other: in turns, with the truth of scripted ones, and what is missing is said."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.serving.apis import api_of
from octavo.bench.serving.client import Client
from octavo.bench.serving.compare import Compared, Median, Side, compare, reference_seconds, settle
from octavo.bench.serving.exchange import Asked, LoadRequest
from octavo.bench.serving.figures import Figures, figures
from octavo.bench.serving.generator import LoadRecord, Pace, generate
from octavo.bench.serving.peers import command_of, find, free_port, start
from octavo.bench.wire import Wire
from octavo.cli import main
from octavo.cli._bench.compare import Starting, body_of, load_of, named_servers, started_kinds, table_of
from octavo.cli._bench.serve import Asks, Server, Traffic
from octavo.errors import InvalidRequestError, OctavoError
from support.virtual_time import HEAD, Act, Scripted, chunk, completion, run


def load_on(script: Any, stop: asyncio.Event | None = None) -> Any:
    """A load of four requests on a scripted server."""
    server = Scripted(script)

    async def load(_number: int) -> Figures:
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
    assert lines[3].split() == ["dead", *["-"] * 7]
    assert "dead was not measured: no HTTP answer" in lines
    body = body_of(found, {"a": "x", "dead": "y"})
    assert set(body["servers"][1]["medians"].values()) == {None}
    json.dumps(body, allow_nan=False)


def test_a_noisy_machine_is_said() -> None:
    probes = iter([1.0, 1.3, 1.0, 1.0])
    loads = {"a": load_on(answers(0.1, 0.1)), "b": load_on(answers(0.1, 0.1))}
    found = run(compare(loads, 2, lambda: next(probes)))
    assert "took up to 1.30 times as long: noisy: measure again" in table_of(found, "t").text()


@pytest.mark.parametrize(("took", "asked"), [([16, 4, 1, 1, 1, 1], 5), ([1] * 9, 3), ([1, 2] * 30, 31)])
def test_what_servers_still_prepare_is_waited_for(took: list[float], asked: int) -> None:
    probes = iter(took)
    run(settle(lambda: next(probes)))
    assert len(took) - len(list(probes)) == asked


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
    side = Side("a", [figures(LoadRecord([]))])
    assert side.median("output_throughput") is None
    assert Compared([side]).noise is None
    assert reference_seconds() > 0


def test_names() -> None:
    assert named_servers(["a=http://x:1", "http://y:2", "http://z/?q=1"]) == {
        "a": "http://x:1", "http://y:2": "http://y:2", "http://z/?q=1": "http://z/?q=1",
    }  # fmt: skip
    with pytest.raises(InvalidRequestError, match="two servers are named 'a'"):
        named_servers(["a=http://x", "a=http://y"])


def test_two_runs_agree_within_the_spread_that_they_print() -> None:
    """Servers whose speed wanders by a tenth, as that of a shared machine does: a run says how far, and
    another run is no farther from it."""

    def once(seed: int) -> Compared:
        draw = random.Random(seed)

        def wandering(gap: float) -> Any:
            calls = itertools.count()
            speed = [1.0]

            def script(n: int, path: str, body: Any) -> Sequence[Act]:
                if next(calls) % 4 == 0:  # a load of four requests
                    speed[0] = draw.uniform(0.95, 1.05)
                return completion(10 * gap * speed[0], [gap * speed[0]] * 9)

            return script

        return run(compare({"a": load_on(wandering(0.1)), "b": load_on(wandering(0.3))}, 5, lambda: 1.0))

    pairs = 0
    for first, second in itertools.combinations([once(seed) for seed in range(8)], 2):
        for one, other in zip(first.sides, second.sides, strict=True):
            for figure in ("output_throughput", "p50_ttft_ms", "p50_tpot_ms"):
                here, there = one.median(figure), other.median(figure)
                assert here is not None
                assert there is not None
                apart = max(here.value / there.value, there.value / here.value)
                assert 1.0 < apart <= max(here.spread, there.spread)
                pairs += 1
        assert first.differ(first.sides[1], "output_throughput"), "three times as slow is no noise"
    assert pairs == 28 * 2 * 3


def test_what_is_to_be_started() -> None:
    named = named_servers(
        ["octavo:smollm2", "mine=octavo:a.gguf", "llama.cpp:b.gguf", "x=http://h:1", "h:8000"]
    )
    assert list(named) == ["octavo", "mine", "llama.cpp", "x", "h:8000"]
    found = started_kinds(named, Starting(["llama.cpp=/opt/server"], ["mine=--threads 1"]))
    assert {
        name: (each.kind.name, each.model, each.program, list(each.flags)) for name, each in found.items()
    } == {
        "octavo": ("octavo", "smollm2", None, []),
        "mine": ("octavo", "a.gguf", None, ["--threads", "1"]),
        "llama.cpp": ("llama.cpp", "b.gguf", "/opt/server", []),
    }
    for starting, text in (
        (
            Starting(["abacus=/x"]),
            "compare starts llama.cpp, llama-cpp-python, octavo, transformers, vllm, and not",
        ),
        (Starting(["octavo"]), "--program takes KIND=PATH, and not 'octavo'"),
        (Starting(None, ["x=--y"]), "--peer-flags speaks of 'x', which is not started"),
    ):
        with pytest.raises(InvalidRequestError, match=re.escape(text)):
            started_kinds(named, starting)


def test_commands_of_peers(tmp_path: Path) -> None:
    model, folder = tmp_path / "m.gguf", tmp_path / "folder"
    model.write_bytes(b"x")
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    every, python = find(), sys.executable
    for name, peer in every.items():
        for path, reads in ((model, peer.gguf), (folder, peer.folders)):
            if not reads:
                with pytest.raises(OctavoError, match=f"{re.escape(name)} reads"):
                    command_of(peer, str(path), 7, python)
                continue
            words = command_of(peer, str(path), 7, python, ["--more"])
            assert (words[0], words[-1]) == (python, "--more")
            assert {str(path), "7"} <= set(words)
    with pytest.raises(OctavoError, match="no-such-program is not installed here"):
        command_of(every["vllm"], str(model), 7, "no-such-program")


LISTENS = """
import http.server, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"data": [{"id": "m"}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


def test_a_server_is_started_and_ended() -> None:
    async def main() -> int | None:
        port = free_port()
        running = await start([sys.executable, "-c", LISTENS, str(port)], port)
        try:
            await running.ready(60)
        finally:
            await running.close()
        return running._process.returncode

    assert asyncio.run(main()) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("code", "timeout", "text"),
    [
        ("import sys; sys.exit('no such model')", 60.0, "it ended with status 1: no such model"),
        ("import time; time.sleep(60)", 0.3, "it was not ready within 0.3 s: no message"),
    ],
)
def test_a_server_that_does_not_start(code: str, timeout: float, text: str) -> None:
    async def main() -> None:
        port = free_port()
        running = await start([sys.executable, "-c", code], port)
        try:
            await running.ready(timeout)
        finally:
            await running.close()

    with pytest.raises(OctavoError, match=re.escape(text)):
        asyncio.run(main())
    with pytest.raises(OctavoError, match="/no/program cannot be run"):
        asyncio.run(start(["/no/program"], 1))


def test_octavo_is_started_and_what_is_not_installed_is_listed(capfd: pytest.CaptureFixture[str]) -> None:
    words = [
        "bench",
        "compare",
        "octavo:smollm2",
        "llama.cpp:smollm2",
        "--program",
        "llama.cpp=no-such-program",
    ]
    small = ["--rounds", "2", "--num-prompts", "3", "--random-input-len", "8", "--random-output-len", "4"]
    flags = "octavo=--max-model-len 64 --num-pages 16 --max-num-seqs 2 --threads 1"
    assert main([*words, *small, "--peer-flags", flags, "--json"]) == 0
    ours, theirs = json.loads(capfd.readouterr().out)["servers"]
    assert ours["not_measured"] is None
    assert [each["completed"] for each in ours["rounds"]] == [3, 3]
    assert ours["medians"]["output_throughput"]["value"] > 0
    assert theirs["not_measured"] == "no-such-program is not installed here"


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "compare", "a=http://127.0.0.1:1", "b=http://127.0.0.1:1", "--rounds", "1", "--json"]
    assert main(words) == 1
    found = json.loads(capsys.readouterr().out)
    assert all("no answer from 127.0.0.1:1" in each["not_measured"] for each in found["servers"])
    assert main(["bench", "compare", "a=ftp://x"]) == 2
    assert "no http:// address" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("server", "text"),
    [
        (
            "nosuch:smollm2",
            "'nosuch:smollm2' is no http:// address of a server, nor KIND:MODEL of one to start; "
            "kinds: llama.cpp, llama-cpp-python, octavo, transformers, vllm",
        ),
        ("vllm:", "'vllm:' names no model: vllm:MODEL starts a server with one"),
        ("vllm", "'vllm' names no model: vllm:MODEL starts a server with one"),
        ("octavo:smollm2 --random-range-ratio 2", "--random-range-ratio is at least 0 and below 1"),
        ("octavo:smollm2 --extra-body [", "--extra-body is not valid JSON"),
    ],
)
def test_what_is_no_server_is_refused_before_one_is_started(
    server: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "compare", *server.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("octavo: error: ")
    assert err.count("\n") == 1, "nothing was started"
    assert text in err


def test_where_nothing_is_measured_no_noise_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "compare", "llama.cpp:smollm2", "--program", "llama.cpp=no-such-program"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "llama.cpp was not measured: no-such-program is not installed here" in out
    assert out.endswith("nothing was measured\n")
    assert "reference product" not in out
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["noise"] is None


class Caching:
    """A server that remembers its prompts, and says which part of one it has seen before."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.server = Scripted(self.script)

    def script(self, n: int, path: str, body: Any) -> Sequence[Act]:
        if body is None:
            return [(0.0, HEAD), (0.0, chunk(b'{"data": [{"id": "m"}]}')), (0.0, chunk(b""))]
        prompt = json.dumps(body["prompt"])
        cached = 7 if prompt in self.asked else 0
        self.asked.append(prompt)
        return completion(0.1, [0.1], cached=cached)


def asks(server: Caching) -> Asks:
    found = Asks(Server(), "http://h:1")
    found.wire = Wire("http://h:1", connect=server.server.connect)
    return found


def in_rounds(rounds: int, seed: int, servers: Sequence[Caching], traffic: Traffic | None = None) -> Compared:
    """What compare does with servers of this script."""

    async def work() -> Compared:
        given = traffic or Traffic(num_prompts=3, max_concurrency=1, seed=seed)
        stop = asyncio.Event()
        lengths = {"random_input_len": 7} if traffic is None else {}
        loads = {str(n): load_of(asks(each), given, lengths, stop) for n, each in enumerate(servers)}
        return await compare(loads, rounds, lambda: 1.0, stop)

    return run(work())


def test_every_round_has_prompts_of_its_own_and_all_servers_the_same() -> None:
    servers = [Caching(), Caching()]
    found = in_rounds(3, 0, servers)
    for each in servers:
        assert len(each.asked) == len(set(each.asked)) == 3 * 4, "one of four warms up"
    assert servers[0].asked == servers[1].asked, "each round, though who begins it changes"
    assert [side.cached_share for side in found.sides] == [0.0, 0.0]
    assert "cache:" not in table_of(found, "t").text()
    other = [Caching()]
    in_rounds(3, 1, other)
    assert not set(other[0].asked) & set(servers[0].asked), "nor has the next seed any of them"


def test_what_came_from_a_cache_is_said(tmp_path: Path) -> None:
    servers = [Caching()]
    in_rounds(1, 5, servers)
    found = in_rounds(2, 5, servers)  # typed again: the first round's are known
    assert found.sides[0].cached_share == 0.5
    text = table_of(found, "t").text()
    assert "50% of the prompts' tokens came from 0's cache, as if asked before: another --seed" in text
    assert text.splitlines()[2].split()[-2:] == ["50.0%", "1.00"]
    assert "cache," not in table_of(found, "t", shared=0.45).text(), "so much was asked for"
    body = body_of(found, {"0": "x"})["servers"][0]
    assert (body["cached_share"], [each["cached_share"] for each in body["rounds"]]) == (0.5, [1.0, 0.0])
    # A file has no other prompts for the next round: its cache is told of.
    (tmp_path / "own.jsonl").write_text("".join(f'{{"prompt": "p{n}"}}\n' for n in range(4)))
    own = Traffic(dataset_name="custom", dataset_path=tmp_path / "own.jsonl", num_prompts=3)
    assert in_rounds(4, 0, [Caching()], own).sides[0].cached_share == 0.75


def test_a_server_that_does_not_tell_of_its_cache() -> None:
    found = run(compare({"a": load_on(answers(0.1, 0.1))}, 1, lambda: 1.0))
    assert found.sides[0].cached_share is None
    assert table_of(found, "t").text().splitlines()[2].split()[-2:] == ["-", "1.00"]
    assert Side("a").cached_share is None
