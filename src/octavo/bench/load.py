"""The load generator: users over HTTP who stream completions from an OpenAI-compatible server.

What it costs is taken from the engine beside it, so it counts that too.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from octavo.bench.wire import RefusedError, Wire
from octavo.bench.workload import percentile
from octavo.errors import InvalidRequestError, OctavoError


@dataclass(slots=True)
class Reply:
    """One request's answer; times in seconds from its sending.

    Attributes:
        tokens: completion tokens, as the server counts them.
        gaps: between one arrival of text and the next.
        error: why it failed, or None.
    """

    tokens: int = 0
    first_s: float = 0.0
    total_s: float = 0.0
    gaps: list[float] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load saw. Rates are tokens a second, times milliseconds; None: there was nothing to measure.

    Attributes:
        seconds: from the first request's sending to the last one's end.
        cpu_seconds: of this process meanwhile; cpu_share: of the machine's usable cores.
        errors: what went wrong, and how often.
    """

    users: int
    requests: int
    failed: int
    output_tokens: int
    seconds: float
    output_rate: float
    ttft_p50: float | None
    ttft_p99: float | None
    gap_p50: float | None
    gap_p99: float | None
    latency_p50: float | None
    latency_p99: float | None
    cpu_seconds: float
    cpu_share: float
    errors: dict[str, int]


@dataclass(frozen=True, slots=True)
class Target:
    """The server that a load is put on.

    Attributes:
        url: http://host:port, without /v1.
        model: None asks the server which one it has.
        request_timeout_s: for one answer. timeout_s: for all; after it nothing is sent any more and what runs
            is given up.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    request_timeout_s: float = 300.0
    timeout_s: float = 1800.0


async def load(
    target: Target,
    prompts: Sequence[Sequence[int]],
    users: int,
    max_tokens: int,
    cores: int,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> LoadResult:
    """Send each prompt once; every user sends its next one when the last has been answered.

    Args:
        cores: that cpu_share counts against.
        progress: called with (requests answered, all of them).

    Raises:
        InvalidRequestError: the URL is none, or there is nothing to send.
        OctavoError: the server does not answer.
    """
    if users < 1 or not prompts:
        raise InvalidRequestError("a load needs at least one user and one prompt")
    client = Client(target.url, target.api_key)
    name = target.model or await client.first_model()
    waiting = list(reversed(prompts))
    replies: list[Reply] = []

    async def user() -> None:
        while waiting:
            replies.append(await client.complete(name, waiting.pop(), max_tokens, target.request_timeout_s))
            progress(len(replies), len(prompts))

    before, start = _cpu_seconds(), time.perf_counter()
    tasks = [asyncio.create_task(user()) for _ in range(min(users, len(prompts)))]
    _, late = await asyncio.wait(tasks, timeout=target.timeout_s)
    for task in late:  # what they asked counts as unanswered below
        task.cancel()
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(answer, Exception):  # no server, no load; a cancelled task is no Exception
            raise answer
    seconds = time.perf_counter() - start
    unanswered = [Reply(error="not answered in time") for _ in range(len(prompts) - len(replies))]
    return summary(users, replies + unanswered, seconds, _cpu_seconds() - before, cores)


def summary(
    users: int, replies: Sequence[Reply], seconds: float, cpu_seconds: float, cores: int
) -> LoadResult:
    """The figures of some replies."""
    good = [reply for reply in replies if reply.error is None]
    errors: dict[str, int] = {}
    for reply in replies:
        if reply.error is not None:
            errors[reply.error] = errors.get(reply.error, 0) + 1
    tokens = sum(reply.tokens for reply in good)

    def ms(values: Sequence[float], share: float) -> float | None:
        return round(1e3 * percentile(values, share), 2) if values else None

    first, total = [r.first_s for r in good], [r.total_s for r in good]
    gaps = [gap for reply in good for gap in reply.gaps]
    return LoadResult(
        users=users,
        requests=len(replies),
        failed=len(replies) - len(good),
        output_tokens=tokens,
        seconds=round(seconds, 4),
        output_rate=round(tokens / seconds, 2),
        ttft_p50=ms(first, 0.5),
        ttft_p99=ms(first, 0.99),
        gap_p50=ms(gaps, 0.5),
        gap_p99=ms(gaps, 0.99),
        latency_p50=ms(total, 0.5),
        latency_p99=ms(total, 0.99),
        cpu_seconds=round(cpu_seconds, 4),
        cpu_share=round(cpu_seconds / seconds / cores, 4),
        errors=errors,
    )


class Client:
    """What a load asks of one server."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._wire = Wire(url, api_key)

    async def first_model(self) -> str:
        """The name of the model that the server lists first."""
        return await first_model(self._wire)

    async def complete(self, model: str, prompt: Sequence[int], max_tokens: int, timeout_s: float) -> Reply:
        """Stream one completion of exactly max_tokens; whatever fails is the reply's error."""
        body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reply = Reply()
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream(json.dumps(body).encode(), reply)
        except TimeoutError:
            reply.error = "timed out"
        except OctavoError as error:
            reply.error = str(error)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            reply.error = f"broken answer: {type(error).__name__}"
        return reply

    async def _stream(self, body: bytes, reply: Reply) -> None:
        start = last = time.perf_counter()
        ended = False
        async with aclosing(self._wire.lines("POST", "/v1/completions", body)) as lines:
            async for line in lines:
                if not line.startswith(b"data: "):
                    continue
                if line.startswith(b"data: [DONE]"):
                    ended = True
                    break
                if b'"usage":{' in line or b'"usage": {' in line:
                    reply.tokens = int(json.loads(line[6:])["usage"]["completion_tokens"])
                    continue
                if line.startswith(b'data: {"error"'):
                    raise RefusedError("the stream ended with an error")
                now = time.perf_counter()
                if reply.first_s:
                    reply.gaps.append(now - last)
                else:
                    reply.first_s = now - start
                last = now
        if not ended:
            raise RefusedError("the stream ended early")
        reply.total_s = last - start


async def first_model(wire: Wire) -> str:
    """The name of the model that a server lists first.

    Raises:
        OctavoError: it lists none, or does not answer.
    """
    answer = await wire.whole("GET", "/v1/models")
    try:
        return str(json.loads(answer)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise OctavoError("the server lists no models: name one") from None


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
