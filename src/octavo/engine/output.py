"""OutputProcessor: from updates (token ids) to RequestOutput (text, logprobs, n completions)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.engine.request import ABORT, ABSENT, STOP, RequestUpdate
from octavo.params import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
    SampledToken,
    SamplingParams,
)


class Detokenizer(Protocol):
    """Token ids to text while they arrive."""

    def push(self, token_id: int) -> str:
        """The text that this token completes."""
        ...

    def flush(self) -> str:
        """What is still open at the end."""
        ...


class StopMatcher(Protocol):
    """Finds stop strings in a stream of text."""

    def feed(self, delta: str, /) -> tuple[str, str | None]:
        """(text that is safe to emit, the stop string found or None)."""
        ...

    def flush(self) -> str:
        """The text ended: what was held back."""
        ...


DetokenizerFactory = Callable[[Sequence[int], SamplingParams], Detokenizer]
"""(prompt token ids, params) -> a detokenizer for one completion."""
StopMatcherFactory = Callable[[SamplingParams], StopMatcher]
TokenDecoder = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Stopped:
    """A completion that ended by its text: the engine does not know yet and must abort it."""

    request_id: str
    index: int


class Completion:
    """One of n completions while it grows."""

    def __init__(self, index: int, params: SamplingParams, detokenizer: Detokenizer | None) -> None:
        self.index = index
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self.cumulative_logprob = 0.0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.metrics: RequestMetrics | None = None
        self.matcher: StopMatcher | None = None
        self._params = params
        self._detokenizer = detokenizer
        self._taken = (0, 0)  # characters and tokens that a DELTA output has carried away
        self._news = False

    def add(self, update: RequestUpdate, decode: TokenDecoder | None) -> bool:
        """Take an update. True: its text ended the completion, though the engine goes on."""
        self._news = True
        self.metrics = update.metrics
        last = len(update.tokens) - 1
        for position, token in enumerate(update.tokens):
            self._add_token(token, decode)
            # The token that stopped it is part of the ids, but not of the text.
            hidden = position == last and update.finish_reason == STOP
            if hidden and not self._params.include_stop_str_in_output:
                continue
            if self._detokenizer is not None and self._add_text(self._detokenizer.push(token.token_id)):
                return update.finish_reason is None
        if update.finish_reason is not None:
            self.finish(update.finish_reason, update.stop_reason)
        return False

    def finish(self, reason: str, stop_reason: int | str | None = None) -> None:
        """End it, unless it has ended; text that was held back appears."""
        if self.finish_reason is not None:
            return
        self._news = True
        if self._detokenizer is not None and self._add_text(self._detokenizer.flush()):
            return
        if self.matcher is not None:
            self.text += self.matcher.flush()
        self.finish_reason, self.stop_reason = reason, stop_reason

    def _add_token(self, token: SampledToken, decode: TokenDecoder | None) -> None:
        self.token_ids.append(token.token_id)
        if self.logprobs is None or token.logprob is None:
            return
        self.cumulative_logprob += token.logprob
        self.logprobs.append(entries_of(token, decode))

    def _add_text(self, delta: str) -> bool:
        """True: a stop string ended the completion."""
        if self.matcher is None or len(self.token_ids) <= self._params.min_tokens:
            self.text += delta
            return False
        safe, matched = self.matcher.feed(delta)
        self.text += safe
        if matched is None:
            return False
        self.finish_reason, self.stop_reason = STOP, matched
        return True

    @property
    def has_news(self) -> bool:
        return self._news

    def take(self, delta: bool) -> CompletionOutput:
        """A snapshot, or with delta what is new since the last one."""
        chars, tokens = self._taken if delta else (0, 0)
        self._taken, self._news = (len(self.text), len(self.token_ids)), False
        return CompletionOutput(
            index=self.index,
            text=self.text[chars:],
            token_ids=self.token_ids[tokens:],
            cumulative_logprob=None if self.logprobs is None else self.cumulative_logprob,
            logprobs=None if self.logprobs is None else self.logprobs[tokens:],
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


def entries_of(token: SampledToken, decode: TokenDecoder | None) -> dict[int, Logprob]:
    """A token's logprob and the likeliest ones', by id; the token itself comes first."""

    def entry(token_id: int, logprob: float, rank: int) -> Logprob:
        return Logprob(logprob, rank, None if decode is None else decode(token_id))

    entries = {token.token_id: entry(token.token_id, token.logprob or 0.0, token.rank)}
    for rank, (token_id, logprob) in enumerate(token.top, 1):
        if token_id != token.token_id:
            entries[token_id] = entry(token_id, logprob, rank)
    return entries


class RequestRecord:
    """What is known about one request id: its prompt and its n completions."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        completions: list[Completion],
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = list(prompt_token_ids)
        self.params = params
        self.completions = completions
        self.seed = 0
        self.num_cached_tokens = 0
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self.embedding: list[float] | None = None
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * len(self.prompt_token_ids)

    def add_prompt(self, start: int, tokens: Sequence[SampledToken], decode: TokenDecoder | None) -> None:
        """Logprobs of the prompt's tokens from position start on."""
        if self.prompt_logprobs is not None:
            for position, token in enumerate(tokens, start):
                self.prompt_logprobs[position] = entries_of(token, decode)

    @property
    def finished(self) -> bool:
        return all(completion.finish_reason is not None for completion in self.completions)

    def take(self) -> RequestOutput | None:
        """The output that is due by the request's output_kind, or None."""
        kind, finished = self.params.output_kind, self.finished
        if kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        delta = kind is RequestOutputKind.DELTA
        chosen = [c for c in self.completions if c.finish_reason != ABSENT and (c.has_news or not delta)]
        if not any(c.has_news for c in chosen):
            return None
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[completion.take(delta) for completion in chosen],
            finished=finished,
            metrics=self._metrics(),
            num_cached_tokens=self.num_cached_tokens,
            seed=self.seed,
            prompt_logprobs=self.prompt_logprobs,
            embedding=self.embedding,
        )

    def _metrics(self) -> RequestMetrics | None:
        """Those of the request as a whole: the first of its firsts, the last of its lasts."""
        known = [c.metrics for c in self.completions if c.metrics is not None]
        if not known:
            return None
        ends = [m.finished_time for m in known]
        return RequestMetrics(
            arrival_time=known[0].arrival_time,
            first_scheduled_time=min(_times(m.first_scheduled_time for m in known), default=None),
            first_token_time=min(_times(m.first_token_time for m in known), default=None),
            last_token_time=max(_times(m.last_token_time for m in known), default=None),
            finished_time=max(_times(ends), default=None) if self.finished else None,
            num_preemptions=sum(m.num_preemptions for m in known),
        )


class OutputProcessor:
    """Keeps the text of unfinished requests. Owned by the thread that reads outputs.

    1. process() takes a step's updates: detokenizes, looks for stop strings, collects logprobs.
    2. take() gives a request's output: everything so far (CUMULATIVE), what is new since the last
       take() (DELTA), or nothing before the end (FINAL_ONLY). News that nobody takes merge, so a
       slow reader costs no queue.
    3. A stop string ends its completion with the token that completed it: the text is cut before
       it (or after, with include_stop_str_in_output), later tokens are dropped, and process()
       names the completion so that the engine can abort it. Until min_tokens nothing is matched.
    4. The stop token that ended a completion counts as a token, but gives no text (unless included).

    Args:
        make_detokenizer: None gives no text at all.
        make_stop_matcher: called for requests with stop strings.
        decode_token: fills Logprob.decoded_token.
    """

    def __init__(
        self,
        make_detokenizer: DetokenizerFactory | None = None,
        make_stop_matcher: StopMatcherFactory | None = None,
        decode_token: TokenDecoder | None = None,
    ) -> None:
        self._make_detokenizer = make_detokenizer
        self._make_stop_matcher = make_stop_matcher
        self._decode_token = decode_token
        self._records: dict[str, RequestRecord] = {}

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._records

    def __len__(self) -> int:
        return len(self._records)

    def add(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        seed: int | None = None,
    ) -> None:
        """Expect updates of this request. A seed that is drawn only later: set_seed()."""
        completions = [self._completion(i, prompt_token_ids, params) for i in range(params.n)]
        record = RequestRecord(request_id, prompt, prompt_token_ids, params, completions)
        self._records[request_id] = record
        if seed is not None:
            record.seed = seed

    def _completion(self, index: int, prompt_token_ids: Sequence[int], params: SamplingParams) -> Completion:
        detokenizer = None
        if params.detokenize and self._make_detokenizer is not None:
            detokenizer = self._make_detokenizer(prompt_token_ids, params)
        completion = Completion(index, params, detokenizer)
        if params.stop and detokenizer is not None and self._make_stop_matcher is not None:
            completion.matcher = self._make_stop_matcher(params)
        return completion

    def set_seed(self, request_id: str, seed: int) -> None:
        """The seed that the request uses."""
        record = self._records.get(request_id)
        if record is not None:
            record.seed = seed

    def process(self, updates: Iterable[RequestUpdate]) -> list[Stopped]:
        """Take a step's updates; those of unknown requests and ended completions are ignored.

        Returns the completions that their text ended, for the engine to abort.
        """
        stopped: list[Stopped] = []
        for update in updates:
            record = self._records.get(update.request_id)
            if record is None:
                continue
            if update.prompt_logprobs is not None:
                record.add_prompt(*update.prompt_logprobs, self._decode_token)
                continue
            if update.vector is not None:
                record.embedding = list(update.vector)
            completion = record.completions[update.index]
            if completion.finish_reason is not None:
                continue
            # Siblings share the first one's prompt pages; what counts is what was cached before.
            if update.index == 0:
                record.num_cached_tokens = update.num_cached_tokens
            if completion.add(update, self._decode_token):
                stopped.append(Stopped(update.request_id, update.index))
        return stopped

    def take(self, request_id: str) -> RequestOutput | None:
        """The output that is due for a request, or None. With the last one it is forgotten."""
        record = self._records.get(request_id)
        if record is None:
            return None
        output = record.take()
        if output is not None and output.finished:
            del self._records[request_id]
        return output

    def abort(self, request_id: str) -> None:
        """End what has not ended of a request; take() gives its last output."""
        record = self._records.get(request_id)
        for completion in record.completions if record is not None else ():
            completion.finish(ABORT)

    def discard(self, request_id: str) -> None:
        """Forget a request that nobody reads any more."""
        self._records.pop(request_id, None)


def _times(times: Iterable[float | None]) -> list[float]:
    return [time for time in times if time is not None]
