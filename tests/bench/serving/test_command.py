"""octavo bench serve, as it is typed, against a server on a socket. No figure of time is judged here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main
from support.virtual_time import HEAD, chunk, completion

SMALL = ["--random-input-len", "5", "--random-output-len", "3", "--num-prompts", "4"]


class Live:
    """Answers completions on a socket, in a thread of its own."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[Any] = []
        self.heads: list[bytes] = []
        self.hold_from: int | None = None  # requests from this one on are not answered
        self.dies_from: int | None = None  # with this one it is gone
        self.cached: int | None = None  # of each prompt's 7 tokens, as the usage has it
        self.held = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._end, self._loop = asyncio.Event(), asyncio.get_running_loop()
        async with await asyncio.start_server(self._answer, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._server = server
            self._ready.set()
            await self._end.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length)) if length else None
        if body is None:
            listed = b'{"data": [{"id": "tiny"}]}'
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(listed)}\r\n\r\n".encode() + listed)
        else:
            self.bodies.append(body)
            if self.hold_from is not None and len(self.bodies) > self.hold_from:
                writer.write(HEAD + chunk(b"data: "))
                await writer.drain()
                self.held.set()
                await reader.read()  # until the client goes
            elif self.dies_from is not None and len(self.bodies) > self.dies_from:
                self._server.close()
            else:
                writer.write(
                    b"".join(data for _, data in completion(0.0, [0.0] * 2, cached=self.cached) if data)
                )
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    def __enter__(self) -> Live:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)


@pytest.fixture
def live() -> Iterator[Live]:
    with Live() as server:
        yield server


def test_as_json(live: Live, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, saved = tmp_path / "a.html", ["--save-result", "--result-dir", str(tmp_path)]
    words = [live.url, "--json", "--goodput", "ttft:1e9 e2el:1e9", "--plot", str(page), *saved, *SMALL]
    assert main(["bench", "serve", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (4, 0, 12)
    assert found["total_input_tokens"] == 28
    assert found["request_goodput"] == found["request_throughput"] > 0
    assert 0 < found["p50_ttft_ms"] <= found["p99_ttft_ms"]
    assert len(live.bodies) == 5, "one warms up, and counts for nothing"
    assert {body["model"] for body in live.bodies} == {"tiny"}
    assert len({tuple(body["prompt"]) for body in live.bodies}) == 5
    kept = json.loads((tmp_path / "serve.json").read_text())
    assert found.items() <= kept.items()
    assert kept["cpu"]
    assert "Time to the first token" in page.read_text()


def test_as_a_table(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--base-url", live.url, "--max-concurrency", "2", "--metric-percentiles", "50,99.9", *SMALL]
    assert main(["bench", "serve", *words, "--percentile-metrics", "ttft,e2el", "--num-warmups", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("s, 4 requests ended, 0 of them failed")
    assert "milliseconds" in lines[-3]
    assert lines[-3].split()[1:] == ["mean", "p50", "p99.9"]
    assert [line.split("(")[1].split(")")[0] for line in lines[-2:]] == ["TTFT", "E2EL"]


def test_what_came_from_the_servers_cache(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    """Its share is printed, and a line says that the times are not those of new prompts, unless wanted so."""

    def shown(*words: str) -> tuple[str, bool]:
        assert main(["bench", "serve", live.url, *SMALL, *words]) == 0
        out = capsys.readouterr().out
        row = next(
            line for line in out.splitlines() if line.startswith("tokens of prompts from the server's")
        )
        return row.split()[-1], "of the prompts' tokens came from the server's cache, as if asked" in out

    assert shown() == ("-", False), "it does not say"
    live.cached = 0
    assert shown() == ("0.0%", False)
    live.cached = 7
    assert shown() == ("100.0%", True)
    assert shown("--random-prefix-len", "50") == ("100.0%", False)
    live.cached = 3
    assert shown("--random-prefix-len", "1") == ("42.9%", True), "more than the 17 % that were to be shared"
    assert main(["bench", "serve", live.url, *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["total_cached_tokens"], found["cached_share"]) == (12, pytest.approx(3 / 7))


def test_a_server_under_two_names_is_asked_nothing_twice(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "compare", f"a={live.url}", f"b={live.url}/v1", "--rounds", "2", "--json"]
    assert main([*words, "--num-prompts", "3", "--random-input-len", "9"]) == 0
    prompts = [tuple(body["prompt"]) for body in live.bodies]
    assert len(prompts) == len(set(prompts)) == 2 * 2 * 4
    servers = json.loads(capsys.readouterr().out)["servers"]
    assert [len(each["rounds"]) for each in servers] == [2, 2]


def test_ctrl_c_keeps_what_was_measured(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    live.hold_from = 3

    def interrupt() -> None:
        live.held.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert main(["bench", "serve", live.url, "--json", "--max-concurrency", "1", *SMALL]) == 130
    found = json.loads(capsys.readouterr().out)
    assert (found["completed"], found["unfinished"], found["unsent"]) == (2, 1, 1)
    assert found["cut"] == "interrupted"
    assert found["p50_ttft_ms"] > 0


def test_a_server_that_dies_leaves_what_was_measured(
    live: Live, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two of four answers, one cut, one refused: the former are figures, on the screen and in every file."""
    live.dies_from = 3  # with the one that warms up
    page, saved = tmp_path / "a.html", ["--save-result", "--result-dir", str(tmp_path)]
    words = [live.url, "--max-concurrency", "1", "--plot", str(page), *saved, *SMALL]
    assert main(["bench", "serve", *words]) == 0
    out = capsys.readouterr().out
    kept = json.loads((tmp_path / "serve.json").read_text())
    assert (kept["completed"], kept["failed"], kept["total_output_tokens"]) == (2, 2, 6)
    assert kept["p50_ttft_ms"] > 0
    assert sum(kept["errors"].values()) == 2
    assert all(f"{count} x {error}" in out for error, count in kept["errors"].items())
    assert "4 requests ended, 2 of them failed" in out
    assert "Time to the first token" in page.read_text()


def test_a_terminal_of_40_columns(
    live: Live, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.cli._bench.columns", lambda: 40)
    assert main(["bench", "serve", live.url, "--goodput", "ttft:1e9", *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert lines[-1].split()[0] == "p99"


def test_headers_and_fields(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    extra = ["--extra-body", '{"min_p": 0.1}', "--header", "X-Who=me", "--api-key", "k", "--ignore-eos"]
    assert main(["bench", "serve", live.url, "--model", "m", *extra, *SMALL, "--json"]) == 0
    capsys.readouterr()
    body = live.bodies[-1]
    assert (body["model"], body["min_p"], body["ignore_eos"], body["max_tokens"]) == ("m", 0.1, True, 3)
    assert b"X-Who: me\r\n" in live.heads[-1]
    assert b"Authorization: Bearer k\r\n" in live.heads[-1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["http://127.0.0.1:1"], "no answer from 127.0.0.1:1"),
        (["http://127.0.0.1:1", "--model", "m"], "does not answer: no answer from 127.0.0.1:1"),
        (["--request-rate", "nan"], "--request-rate must be above 0, not nan"),
        (["--request-rate", "-1"], "--request-rate must be above 0, not -1.0"),
        (["--burstiness", "0", "--request-rate", "1"], "--burstiness must be above 0"),
        (["--speed", "2"], "this data set has no times of arrival"),
        (["--goodput", "itl:5"], "--goodput takes milliseconds of ttft, tpot, e2el"),
        (["--percentile-metrics", "ttft,x"], "--percentile-metrics knows ttft, tpot, itl, e2el"),
        (["--metric-percentiles", "0"], "--metric-percentiles takes numbers"),
        (["--plot", "a.gif"], "a report is one of"),
        (["--dataset-name", "custom"], "this data set needs --dataset-path"),
        (["--dataset-name", "custom", "--dataset-path", "no/such"], "no such file"),
        (
            ["--dataset-name", "custom", "--random-input-len", "5"],
            "--random-input-len is for another data set",
        ),
        (["--random-range-ratio", "nan"], "--random-range-ratio is a number"),
        (["--timeout", "nan"], "invalid value for '--timeout'"),
        (["--request-timeout", "nan"], "invalid value for '--request-timeout'"),
        (["--temperature", "nan"], "invalid value for '--temperature'"),
        (["--header", "x"], "--header takes NAME=VALUE"),
        (["--header", "x=a\r\nb: c"], "is no header of HTTP"),
        (["--extra-body", "["], "--extra-body is not valid JSON"),
        (["http://a:1", "--base-url", "http://b:1"], "differ: give one"),
    ],
)
def test_errors_are_one_line(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = text.startswith(("no answer", "does not answer", "no such file"))
    assert main(["bench", "serve", *words]) == (1 if elsewhere else 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("octavo: error: ")
    assert err.count("\n") == 1
    assert text.lower() in err.lower()


@pytest.mark.parametrize("words", ["--top-p=nan", "--top-p=inf", '--extra-body={"a": NaN}'])
def test_what_json_has_not_is_not_sent(words: str, live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", live.url, words, *SMALL]) == 2
    err = capsys.readouterr().err
    assert err.startswith("octavo: error: JSON has no NaN and no Infinity: ")
    assert err.count("\n") == 1
    assert live.bodies == []


def test_help_and_json_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    from octavo.cli._bench import find

    for name in find():
        assert main(["bench", name, "--help"]) == 0
        assert "--json" in capsys.readouterr().out
