"""Text over tokens: from a request's updates (token ids) to RequestOutput (text, logprobs, n completions)."""

from __future__ import annotations

import asyncio
import functools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from octavo.engine.request import ABSENT, ERROR, STOP, EngineRequest, RequestUpdate
from octavo.engine.token_logprobs import TokenLogprobs
from octavo.engine.token_source import (
    Detokenizer,
    DetokenizerFactory,
    StopMatcher,
    StopMatcherFactory,
    TokenDecoder,
    TokenSource,
)
from octavo.errors import InvalidRequestError, RequestFailedError
from octavo.params import (
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
    SampledToken,
    SamplingParams,
)


class Completion:
    """One of n completions while it grows. What a DELTA output has carried away is here no more."""

    def __init__(
        self, index: int, params: SamplingParams, detokenizer: Detokenizer | None, decode: TokenDecoder
    ) -> None:
        self.index = index
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs = None if params.logprobs is None else TokenLogprobs(decode)
        self.num_tokens = 0
        self.cumulative_logprob = 0.0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.metrics: RequestMetrics | None = None
        self.matcher: StopMatcher | None = None
        self._params = params
        self._detokenizer = detokenizer
        self._decode = decode
        self._taken = 0, 0, 0  # characters, tokens and logprobs that no DELTA output is to carry
        self._news = False

    def add(self, update: RequestUpdate) -> bool:
        """Take an update. True: its text ended the completion, though the engine goes on."""
        self._news = True
        self.metrics = update.metrics
        last = len(update.tokens) - 1
        for position, token in enumerate(update.tokens):
            self._add_token(token)
            # The token that stopped it is part of the ids, but not of the text.
            hidden = position == last and update.finish_reason == STOP
            if hidden and not self._params.include_stop_str_in_output:
                continue
            if self._detokenizer is not None and self._add_text(self._detokenizer.push(token.token_id)):
                return update.finish_reason is None
        if update.finish_reason is not None:
            self.finish(update.finish_reason, update.stop_reason)
        return False

    def add_verified(self, update: RequestUpdate) -> bool:
        """The same of a step that verified a draft. A stop string may end the completion among its tokens."""
        before, ends = self.num_tokens, self.add(update)
        accepted = min(self.num_tokens - before, update.accepted)
        update.metrics.accepted_prediction_tokens += accepted
        update.metrics.rejected_prediction_tokens += update.drafted - accepted
        return ends

    def resume(self, tokens: Sequence[SampledToken]) -> None:
        """Begin after tokens that have been generated (and, as deltas, been given) before.

        Raises:
            InvalidRequestError: a stop string ends the completion among them.
        """
        for token in tokens:
            self._add_token(token)
            if self._detokenizer is not None and self._add_text(self._detokenizer.push(token.token_id)):
                raise InvalidRequestError(
                    f"generated_token_ids hold the stop string {self.stop_reason!r}: the answer has ended",
                    "generated_token_ids",
                )
        self._taken = self._size()

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

    def _add_token(self, token: SampledToken) -> None:
        self.token_ids.append(token.token_id)
        self.num_tokens += 1
        if self.logprobs is None or token.logprob is None:
            return
        self.cumulative_logprob += token.logprob
        self.logprobs.add(token)

    def _add_text(self, delta: str) -> bool:
        """True: a stop string ended the completion."""
        if self.matcher is None or self.num_tokens <= self._params.min_tokens:
            self.text += delta
            return False
        safe, matched = self.matcher.feed(delta)
        self.text += safe
        if matched is None:
            return False
        self.finish_reason, self.stop_reason = STOP, matched
        return True

    def _size(self) -> tuple[int, int, int]:
        return len(self.text), len(self.token_ids), len(self.logprobs or ())

    @property
    def has_news(self) -> bool:
        return self._news

    def take(self, delta: bool) -> CompletionOutput:
        """A snapshot, or with delta what is new since the last one."""
        chars, tokens, scored = self._taken if delta else (0, 0, 0)
        output = CompletionOutput(
            index=self.index,
            text=self.text[chars:],
            token_ids=self.token_ids[tokens:],
            cumulative_logprob=None if self.logprobs is None else self.cumulative_logprob,
            logprobs=None if self.logprobs is None else self.logprobs[scored:],
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
        self._news = False
        if delta:
            self.text, self.token_ids, self._taken = "", [], (0, 0, 0)
            self.logprobs = None if self.logprobs is None else TokenLogprobs(self._decode)
        return output


class TextStream:
    """A request as its caller sees it: a Reader of its tokens, and what outputs they make.

    1. take() is told of new tokens: detokenizes, looks for stop strings, collects logprobs.
    2. output() gives everything so far (CUMULATIVE), what is new since the last output (DELTA), or
       nothing before the end (FINAL_ONLY). News that nobody fetches merge, so a slow reader costs no queue.
    3. A stop string ends its completion with the token that completed it: the text is cut before
       it (or after, with include_stop_str_in_output), later tokens are dropped, and take() says so.
       Until min_tokens nothing is matched.
    4. The stop token that ended a completion counts as a token, but gives no text (unless included).
    5. What was generated before (EngineRequest.generated) is the beginning of the answer: it counts in
       whole outputs, and no delta repeats it.

    Attributes:
        news: set when output() may have something, or error is set.
        error: why nothing more will come.
    """

    def __init__(
        self, request: EngineRequest, completions: dict[int, Completion], decode: TokenDecoder
    ) -> None:
        self.request = request
        self.news = asyncio.Event()
        self.error: Exception | None = None
        # What each output repeats: a copy, as callers may change it, and one for all of them.
        self._empty = RequestOutput(
            request.request_id, request.prompt, [*request.prompt_token_ids], [], False
        )
        self._completions = completions
        self._first = request.indexes[0]
        self._seed = 0
        self._num_cached_tokens = 0
        self._decode = decode
        self._embedding: array[float] | None = None

    def begin(self, seed: int) -> None:
        """The seed that the request uses."""
        self._seed = seed

    def take(self, update: RequestUpdate) -> bool:
        """News of one completion. True: its text ended it, which the engine does not know yet."""
        self.news.set()
        if update.prompt_logprobs is not None:
            self._prompt_logprobs.put(*update.prompt_logprobs)
            return False
        if update.vector is not None:
            self._embedding = array("d", update.vector)
        completion = self._completions[update.index]
        if completion.finish_reason is not None:
            return False
        # Siblings share the first one's prompt pages; what counts is what was cached before.
        if update.index == self._first:
            self._num_cached_tokens = update.num_cached_tokens
        return completion.add_verified(update) if update.drafted else completion.add(update)

    def fail(self, error: Exception) -> None:
        """There will be no more news."""
        self.error = error
        self.news.set()

    @functools.cached_property
    def _prompt_logprobs(self) -> TokenLogprobs:
        return TokenLogprobs(self._decode, len(self.request.prompt_token_ids))

    @property
    def finished(self) -> bool:
        return all(completion.finish_reason is not None for completion in self._completions.values())

    def output(self) -> RequestOutput | None:
        """The output that is due by the request's output_kind, or None."""
        request, finished = self.request, self.finished
        kind = request.params.output_kind
        if kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        delta = kind is RequestOutputKind.DELTA
        known = self._completions.values()
        chosen = [c for c in known if c.finish_reason != ABSENT and (c.has_news or not delta)]
        if not any(c.has_news for c in chosen):
            return None
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=self._empty.prompt_token_ids,
            outputs=[completion.take(delta) for completion in chosen],
            finished=finished,
            metrics=self._metrics(finished),
            num_cached_tokens=self._num_cached_tokens,
            seed=self._seed,
            prompt_logprobs=None if request.params.prompt_logprobs is None else self._prompt_logprobs,
            embedding=self._embedding,
            encoder_prompt=request.encoder_prompt,
            encoder_prompt_token_ids=list(request.encoder_token_ids) or None,
        )

    def _metrics(self, finished: bool) -> RequestMetrics | None:
        """Those of the request as a whole: the first of its firsts, the last of its lasts."""
        known = [c.metrics for c in self._completions.values() if c.metrics is not None]
        if not known:
            return None
        first = known[0]
        if len(known) == 1:  # a copy, since the engine goes on writing
            return replace(first, finished_time=first.finished_time if finished else None)
        return RequestMetrics(
            arrival_time=first.arrival_time,
            first_scheduled_time=min(_times(m.first_scheduled_time for m in known), default=None),
            first_token_time=min(_times(m.first_token_time for m in known), default=None),
            last_token_time=max(_times(m.last_token_time for m in known), default=None),
            finished_time=max(_times(m.finished_time for m in known), default=None) if finished else None,
            num_preemptions=sum(m.num_preemptions for m in known),
            accepted_prediction_tokens=sum(m.accepted_prediction_tokens for m in known),
            rejected_prediction_tokens=sum(m.rejected_prediction_tokens for m in known),
        )


class Outputs:
    """Outputs of a request, as its output_kind wants them, until one is finished.

    Making it submits the request. Whoever iterates must close it (contextlib.aclosing): that aborts what
    still runs. (No generator: each level of these is resumed for every piece of an answer.)

    Raises:
        What TokenSource.submit() does.
    """

    def __init__(self, source: TokenSource, text: TextStream) -> None:
        self._source, self._text = source, text
        self._given = False  # the last output
        source.submit(text.request, text)

    def __aiter__(self) -> Outputs:
        return self

    async def __anext__(self) -> RequestOutput:
        """The next output that is due.

        Raises:
            RequestFailedError: the engine failed at this request, at any of its n completions.
            EngineDeadError: the engine is not running (any more).
        """
        text = self._text
        while not self._given:
            if (output := text.output()) is not None:
                for completion in output.outputs:
                    if completion.finish_reason == ERROR:
                        raise RequestFailedError(str(completion.stop_reason))
                self._given = output.finished
                return output
            if text.error is not None:
                raise text.error
            await text.news.wait()
            text.news.clear()
        raise StopAsyncIteration

    async def begun(self) -> None:
        """Wait until something of the request has been computed, or it has failed."""
        await self._text.news.wait()

    async def aclose(self) -> None:
        """Read no more of it."""
        self._source.leave(self._text.request.request_id, self._text)


@dataclass(frozen=True, slots=True)
class OutputProcessor:
    """Makes the text streams of a model's requests.

    Attributes:
        make_detokenizer: called for requests that are detokenized.
        make_stop_matcher: called for those of them with stop strings.
        decode_token: fills Logprob.decoded_token.
    """

    make_detokenizer: DetokenizerFactory
    make_stop_matcher: StopMatcherFactory
    decode_token: TokenDecoder = lambda token_id: None

    def open(self, request: EngineRequest) -> TextStream:
        """A request's text, from its beginning, or after what was generated before.

        Raises:
            InvalidRequestError: its text has ended before.
        """
        completions = {index: self._completion(index, request) for index in request.indexes}
        return TextStream(request, completions, self.decode_token)

    def _completion(self, index: int, request: EngineRequest) -> Completion:
        detokenizer, params = None, request.params
        if params.detokenize:
            detokenizer = self.make_detokenizer(request.prompt_token_ids, params)
        completion = Completion(index, params, detokenizer, self.decode_token)
        if params.stop and params.detokenize:
            completion.matcher = self.make_stop_matcher(params)
        if request.generated:
            completion.resume(request.generated)
        return completion


def _times(times: Iterable[float | None]) -> list[float]:
    return [time for time in times if time is not None]
