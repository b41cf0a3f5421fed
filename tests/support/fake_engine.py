"""A scripted engine with the server's seam: bytes are tokens, answers are known beforehand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from octavo.engine.request import EngineRequest, Namespace
from octavo.engine.stats import DraftCounts
from octavo.errors import InvalidRequestError
from octavo.params import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)
from octavo.structured import ConstraintCompiler, GrammarStats
from octavo.tokenizer.messages import plain_messages

EOS = 256


class FakeTokenizer:
    """Token i is the byte i; 256 is the special end of text."""

    vocab_size = 257
    longest_token = 5
    strips_leading_space = False
    stop_token_ids = (EOS,)
    special_tokens = {"eos_token": "<eos>"}  # noqa: RUF012 (nobody writes to it)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text = b"".join(self.token_bytes(i) for i in ids if i != EOS or not skip_special_tokens)
        return text.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"<eos>" if token_id == EOS else bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS


@dataclass
class FakeStats:
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.25
    preemptions: int = 3
    prefix_queries: int = 40
    prefix_hits: int = 10
    external_prefix_queries: int = 30
    external_prefix_hits: int = 5
    prompt_tokens: int = 0
    generated_tokens: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)


@dataclass
class Call:
    """One request as it arrived."""

    request_id: str | None
    prompt: list[int]
    params: SamplingParams
    priority: int
    cache_salt: str | None


class FakeOutputs:
    """What a request brings (server.engine.ServedOutputs)."""

    def __init__(self, stream: AsyncGenerator[RequestOutput, None], gate: asyncio.Event | None) -> None:
        self._stream, self._gate = stream, gate

    def __aiter__(self) -> AsyncGenerator[RequestOutput, None]:
        return self._stream

    async def begun(self) -> None:
        if self._gate is not None:
            await self._gate.wait()

    async def aclose(self) -> None:
        await self._stream.aclose()


@dataclass
class FakeEngine:
    """Answers `reply` (its index appended for sample 1 and on), a token a step, then the end of text.

    Attributes:
        refuse: raised before the first output.
        fail_after: (outputs, error) raised in the middle.
        delay: seconds before each token.
        hold: if set, no token after the first comes until the event is set.
        gate: if set, requests wait and do not begin until the event is set.
        full: raised where a request is submitted.
        calls, ended, aborted: what happened, by request id.
    """

    reply: str = "Hello"
    refuse: Exception | None = None
    fail_after: tuple[int, Exception] | None = None
    finish_reason: str | None = None
    hold: asyncio.Event | None = None
    gate: asyncio.Event | None = None
    full: Exception | None = None
    delay: float = 0.0
    healthy: bool = True
    failure: str | None = None
    stalled: bool = False
    max_model_len: int = 128
    max_encoder_len: int = 0
    max_sequences: int = 512
    max_waiting: int = 256
    phases: dict[str, float] = field(default_factory=lambda: {"weights": 0.5})
    facts: dict[str, str] = field(default_factory=lambda: {"device": "cpu: a stand-in"})
    device_memory: dict[str, int] = field(default_factory=dict)
    watermark_lists: dict[str, int] = field(default_factory=dict)
    embedding_size: int | None = 4
    served_model_name: str = "fake/model"
    more_names: tuple[str, ...] = ()
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    calls: list[Call] = field(default_factory=list)
    ended: list[str | None] = field(default_factory=list)
    aborted: list[str | None] = field(default_factory=list)
    rendered: list[dict[str, Any]] = field(default_factory=list)
    template: str | None = "fake"
    drafted: tuple[int, int] = (0, 0)  # accepted and rejected tokens of each request
    template_is_plain: bool = True
    draining: bool = False
    shut: bool = False
    prepared: bool = False
    most_at_once: int = 0
    counts: FakeStats = field(default_factory=FakeStats)
    compiler: ConstraintCompiler = field(default_factory=lambda: ConstraintCompiler(FakeTokenizer()))

    @property
    def served_model_names(self) -> tuple[str, ...]:
        return (self.served_model_name, *self.more_names)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def render_chat(
        self,
        messages: Any,
        *,
        tools: Any = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        plain = plain_messages(messages)
        self.rendered.append(
            {
                "add": add_generation_prompt,
                "continue": continue_final_message,
                "kwargs": kwargs,
                **({"tools": tools} if tools else {}),
            }
        )
        text = "".join(f"{message['role']}:{message['content']}\n" for message in plain)
        return self.encode(text + ("assistant:" if add_generation_prompt else ""))

    def prepare(self) -> None:
        self.prepared = True

    @property
    def grammars(self) -> GrammarStats:
        return self.compiler.stats()

    def watch(self, stall_s: float) -> None:
        pass

    def stats(self) -> FakeStats:
        return self.counts

    async def drain(self, timeout_s: float) -> None:
        """Those that still run end as aborted."""
        self.draining = True
        self.compiler.close()
        if self.hold is not None:
            self.hold.set()

    def shutdown(self) -> None:
        self.shut = True

    def request(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> EngineRequest:
        return EngineRequest(request_id, prompt, sampling_params, priority, namespace=Namespace(cache_salt))

    async def outputs(self, request: EngineRequest) -> FakeOutputs:
        if self.full is not None:
            raise self.full
        return FakeOutputs(self._answer(request), self.gate)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """AsyncLLM's door for programs, which the commands use."""
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt["prompt_token_ids"])
        request = self.request(ids, sampling_params, request_id or "r")
        async with aclosing(await self.outputs(request)) as stream:
            async for output in stream:
                yield output

    async def _answer(self, request: EngineRequest) -> AsyncGenerator[RequestOutput, None]:
        ids, sampling_params, request_id = request.prompt_token_ids, request.params, request.request_id
        salt = request.namespace.salt
        self.calls.append(Call(request_id, ids, sampling_params, request.priority, salt))
        if self.refuse is not None:
            raise self.refuse
        await self.compiler.compile_async(sampling_params)
        if not ids:
            raise InvalidRequestError("the prompt is empty", "prompt")
        if sampling_params.pooling is not None:
            vector = [3.0 * len(ids), 4.0 * len(ids), 0.0, 1.0]
            end = CompletionOutput(0, finish_reason="length")
            yield RequestOutput(request_id or "r", None, ids, [end], True, embedding=vector)
            self.ended.append(request_id)
            return
        done = False
        self.most_at_once = max(self.most_at_once, len(self.calls) - len(self.ended) - len(self.aborted))
        try:
            async for output in self._outputs(request_id, ids, sampling_params):
                yield output
            done = True
        finally:
            (self.ended if done else self.aborted).append(request_id)

    async def _outputs(
        self, request_id: str | None, prompt: list[int], params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        rows = [_Row(self, params, index) for index in range(params.n)]
        times = RequestMetrics(time.monotonic(), first_scheduled_time=time.monotonic())
        times.accepted_prediction_tokens, times.rejected_prediction_tokens = self.drafted
        delta = params.output_kind is RequestOutputKind.DELTA
        sent = 0
        while not all(row.output.finished for row in rows):
            await asyncio.sleep(self.delay)
            if sent > 0 and self.hold is not None:
                await self.hold.wait()
            if self.draining:
                for row in rows:
                    row.output.finish_reason = "abort"
                yield RequestOutput(request_id or "r", None, prompt, [row.output for row in rows], True)
                return
            if self.fail_after is not None and sent >= self.fail_after[0]:
                raise self.fail_after[1]
            for row in rows:
                row.step(delta)
            now = time.monotonic()
            times.first_token_time = times.first_token_time or now
            times.last_token_time = times.finished_time = now
            finished = all(row.output.finished for row in rows)
            scores = None
            if params.prompt_logprobs is not None:
                scores = [None, *({token: Logprob(-0.25, 1, "p")} for token in prompt[1:])]
            if delta or finished:
                outputs = [row.output for row in rows if row.output.token_ids or not delta]
                seed = 77 if params.seed is None else params.seed
                yield RequestOutput(
                    request_id or "r", None, prompt, outputs, finished, scores, times, len(prompt) // 2, seed
                )
            sent += 1


class _Row:
    """One of the n completions; its output is renewed at each step when deltas are asked for."""

    def __init__(self, engine: FakeEngine, params: SamplingParams, index: int) -> None:
        self.engine, self.params = engine, params
        text = engine.reply + (str(index) if index else "")
        self.script = [*engine.tokenizer.encode(text), EOS]
        self.tokens: list[int] = []
        self.sent = ""
        self.output = CompletionOutput(index)

    def step(self, delta: bool) -> None:
        if delta:
            self.output = CompletionOutput(self.output.index, finish_reason=self.output.finish_reason)
        if self.output.finished:
            return
        token = self.script[len(self.tokens)]
        self.tokens.append(token)
        self.output.token_ids.append(token)
        if self.params.logprobs is not None:
            entry = {token: Logprob(-0.5, 1, "x")}
            for other in range(self.params.logprobs):
                entry.setdefault(other + 97, Logprob(-1.5 - other, other + 2))
            self.output.logprobs = [*(self.output.logprobs or []), entry]
        if token == EOS:
            self.output.finish_reason = "stop"
        elif len(self.tokens) == self.params.max_tokens:
            self.output.finish_reason = "length"
        if self.output.finished and self.engine.finish_reason is not None:
            self.output.finish_reason = self.engine.finish_reason
        self._text(delta)

    def _text(self, delta: bool) -> None:
        data = b"".join(bytes([t]) for t in self.tokens if t != EOS)
        whole = data.decode("utf-8", errors="ignore")  # half a character is held back
        self.output.text = whole[len(self.sent) :] if delta else whole
        self.sent = whole
