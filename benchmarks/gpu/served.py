"""Checks of `octavo serve` on a device, over HTTP, where the web stack is installed.

Each takes a Place and yields checks; each starts a server of its own.
"""

from __future__ import annotations

import http.client
import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from itertools import islice
from typing import Any

from gpu import bare
from gpu.engine import NEEDS as ENGINE_NEEDS
from gpu.engine import SCHEMA, fits
from gpu.http import Server, running
from gpu.place import Check, Place, different

ServedCheck = Callable[[Place], Iterator[Check]]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
NEEDS = ("fastapi", "uvicorn", "prometheus_client", "typer", "rich", *ENGINE_NEEDS)


def served(place: Place, *words: str, lose: int | None = None) -> AbstractContextManager[Server]:
    """A server of the tiny model, whose device is lost after so many steps; words are further flags."""
    flags = []
    for name, value in place.options().items():
        flag = f"--{name.replace('_', '-')}"
        flags += [flag] if value is True else [flag, str(value)]
    before = [] if lose is None else ["--lose", str(lose)]
    return running([place.model, *flags, *words], place.folder / "server.log", before)


def chat(number: int, count: int, **more: Any) -> dict[str, Any]:
    """A body: greedy for every third number."""
    return {
        "model": "served", "messages": [{"role": "user", "content": f"Say {number}"}], "max_tokens": count,
        "temperature": 0 if number % 3 == 0 else 0.8, "seed": number, "ignore_eos": True, **more,
    }  # fmt: skip


def said(events: Sequence[str]) -> tuple[str, str | None, int]:
    """Of a chat's stream: the text, why it ended, and the tokens that its usage tells."""
    text, reason, tokens = "", None, -1
    for event in events:
        value = {} if event == "[DONE]" else json.loads(event)
        for choice in value.get("choices", ()):
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
        tokens = (value.get("usage") or {}).get("completion_tokens", tokens)
    return text, reason, tokens


def tokens_of(events: Iterable[str]) -> int:
    """The tokens that a stream's usage tells.

    Raises:
        RuntimeError: it told none, or did not come to its end.
    """
    tokens, last = -1, ""
    for last in events:
        if '"usage":{' in last.replace(" ", ""):
            tokens = json.loads(last)["usage"]["completion_tokens"]
    if last != "[DONE]" or tokens < 0:
        raise RuntimeError(f"a stream ended with {last[:200]!r}")
    return tokens


def conformance(place: Place) -> Iterator[Check]:
    """Chats whole and in parts, completions, n, log-probabilities, the list of models, wrong requests."""
    count = 5 if place.small else 24
    with served(place) as server:
        wholes, parts = [], []
        for number in range(3):
            status, value, _ = server.ask(CHAT, chat(number, count))
            choice = value["choices"][0] if status == 200 else {}
            text = choice.get("message", {}).get("content")
            tokens = value.get("usage", {}).get("completion_tokens")
            wholes.append((text, choice.get("finish_reason"), tokens))
            wish = chat(number, count, stream_options={"include_usage": True})
            events = list(server.stream(CHAT, wish))
            parts.append(said(events) if events[-1] == "[DONE]" else None)
        yield "served: chats whose stream is not the whole", different(parts, wholes), 0.0
        short = sum(each[1:] != ("length", count) for each in wholes)
        yield "served: chats of another length or end", float(short), 0.0
        wish = {"model": "served", "prompt": "one two", "max_tokens": count, "n": 2, "logprobs": 1, "seed": 1}
        _, value, _ = server.ask(TEXT, {**wish, "ignore_eos": True})
        lengths = [len(each["logprobs"]["token_logprobs"]) for each in value["choices"]]
        yield "served: completions of n=2 without log-probabilities", different(lengths, [count] * 2), 0.0
        _, value, _ = server.ask("/v1/models")
        yield "served: models", different([each["id"] for each in value["data"]], ["served"]), 0.0
        wrong = (chat(1, 1, temperature=-1), chat(1, 1, model="another"))
        found = [server.ask(CHAT, body) for body in wrong]
        told = [status for status, value, _ in found if value["error"]["message"]]
        yield "served: wrong requests that are not told so", different(told, [400, 404]), 0.0
        yield "served: status of the end", float(abs(server.end())), 0.0


def structured(place: Place) -> Iterator[Check]:
    """response_format with a schema, several at once."""
    shape = {"type": "json_schema", "json_schema": {"name": "item", "strict": True, "schema": SCHEMA}}
    bodies = [
        chat(3 * n + 1, 200, response_format=shape, ignore_eos=False) for n in range(2 if place.small else 8)
    ]
    with served(place) as server, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda body: server.ask(CHAT, body), bodies))
    texts = [value["choices"][0]["message"]["content"] for status, value, _ in found if status == 200]
    wrong = len(bodies) - sum(fits(text) for text in texts)
    yield "served: structured answers that do not fit", float(wrong), 0.0


def disconnects(place: Place) -> Iterator[Check]:
    """Clients that leave in mid-stream: their rows and pages are given back."""
    with served(place, "--no-enable-prefix-caching") as server:
        whole = server.ask(CHAT, chat(1, 20))[1]["choices"][0]["message"]["content"]

        def leave(number: int) -> None:
            with closing(server.stream(CHAT, chat(number, 200))) as events:
                list(islice(events, number))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(leave, range(2, 10)))
        yield "served: requests of clients that left, or their pages", float(not server.idle()), 0.0
        again = server.ask(CHAT, chat(1, 20))[1]["choices"][0]["message"]["content"]
        yield "served: another answer after they left", different([again], [whole]), 0.0


def overload(place: Place) -> Iterator[Check]:
    """More at once than may run and wait: 200 or 429, which says when to come again."""
    count = 200
    words = ("--max-waiting", "2", "--max-num-seqs", "2")
    with served(place, *words) as server, ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda n: server.ask(CHAT, chat(n, count)), range(12)))
        refused = [headers for status, _, headers in found if status == 429]
        others = [status for status, _, _ in found if status != 429]
        yield "served: overload answered by neither 200 nor 429", different(others, [200] * len(others)), 0.0
        silent = sum(headers.get("Retry-After") is None for headers in refused)
        yield "served: overload without a 429, or 429 without Retry-After", float(silent + (not refused)), 0.0
        yield "served: health after overload is not 200", float(server.ask("/health")[0] != 200), 0.0


def drain(place: Place) -> Iterator[Check]:
    """SIGTERM in mid-stream: streams come to their end, and the status is 0."""
    count = 60 if place.small else 200
    with served(place) as server, ThreadPoolExecutor(4) as pool:
        streams = [server.stream(CHAT, chat(n, count)) for n in range(4)]
        begun = [next(stream) for stream in streams]
        server.process.send_signal(signal.SIGTERM)
        rest: list[list[str]] = list(pool.map(list, streams))
        ends = [said([first, *more])[1] for first, more in zip(begun, rest, strict=True)]
        whole = [more[-1:] == ["[DONE]"] and end == "length" for more, end in zip(rest, ends, strict=True)]
        yield "served: streams that a SIGTERM cut", float(4 - sum(whole)), 0.0
        yield "served: status after SIGTERM", float(abs(server.end(None))), 0.0


def device_lost(place: Place) -> Iterator[Check]:
    """The device fails in mid-stream: streams end with an error, later ones are refused, the process exits
    with 1 and says why."""
    with served(place, lose=60) as server, ThreadPoolExecutor(4) as pool:

        def end(number: int) -> str:
            try:
                events = list(server.stream(CHAT, chat(number, 200)))
            except (
                OSError,
                RuntimeError,
                http.client.HTTPException,
            ) as error:  # it came too late, or was torn
                return "refused" if isinstance(error, OSError) or "with 503" in str(error) else str(error)
            return (
                "cut" if any("error" in json.loads(each) for each in events if each != "[DONE]") else "whole"
            )

        ends = list(pool.map(end, range(4)))
        odd = sum(each not in ("cut", "refused") for each in ends) + ("cut" not in ends)
        yield "served: streams on a lost device without an error", float(odd), 0.0
        yield "served: status after the device was lost, less 1", float(abs(server.end(None) - 1)), 0.0
    told = "the GPU can no longer be used" in (place.folder / "server.log").read_text()
    yield "served: why the device was lost is not told", float(not told), 0.0


def traffic(place: Place, seconds: float | None = None) -> Iterator[Check]:
    """Mixed requests from 16 clients, some of which leave: every answer is right, and no memory is lost."""
    seconds = seconds or (2.0 if place.small else 45.0)
    used: list[float] = []
    with served(place) as server, ThreadPoolExecutor(16) as pool:
        want = {n: server.ask(CHAT, chat(n, 10 + n))[1]["choices"][0]["message"]["content"] for n in range(8)}

        def client(number: int) -> int:
            wrong, until, turn = 0, time.monotonic() + seconds, 0
            while time.monotonic() < until:
                n, turn = (number + turn) % 8, turn + 1
                body = chat(n, 10 + n)
                if turn % 5 == 4:
                    with closing(server.stream(CHAT, body)) as events:
                        list(islice(events, 3))
                elif turn % 2:
                    wrong += said(list(server.stream(CHAT, body)))[0] != want[n]
                else:
                    status, value, _ = server.ask(CHAT, body)
                    wrong += status != 200 or value["choices"][0]["message"]["content"] != want[n]
            return wrong

        for _ in range(2):
            wrong = sum(pool.map(client, range(16)))
            yield "served: mixed traffic, answers that are wrong", float(wrong), 0.0
            yield "served: mixed traffic, requests or pages that stay", float(not server.idle()), 0.0
            used.append(server.gauge("octavo_device_memory_used_bytes"))
    yield "served: MiB of the device that the second half took", (used[1] - used[0]) / 2**20, 64.0


CHECKS: dict[str, ServedCheck] = {
    "conformance": conformance, "structured": structured, "disconnects": disconnects, "overload": overload,
    "drain": drain, "device lost": device_lost, "traffic": traffic,
}  # fmt: skip


def lacks(name: str) -> str | None:
    """Why a check cannot run here; None: it can."""
    return bare.lacks((*NEEDS, "llguidance") if name == "structured" else NEEDS)


def run(name: str, place: Place) -> list[Check]:
    """All that one of CHECKS finds."""
    place.folder.mkdir(parents=True, exist_ok=True)
    return list(CHECKS[name](place))
