"""ContinuousBatcher: the engine's loop in the shape in which lessons draw it."""

from __future__ import annotations

import itertools
from typing import Any

from octavo.checks import is_int, need, plain_number, positive, token_ids
from octavo.engine.output import TextStream
from octavo.errors import InvalidRequestError, OctavoError
from octavo.llm import LLM
from octavo.params import SamplingParams
from octavo.prompts import PromptReader, output_processor


class ContinuousBatcher:
    """Requests that share a model's steps: whoever ends leaves at once, and the next one enters.

    Args:
        model: a name, as LLM takes it, or an LLM (or what has one as its `llm`), which nobody else calls
            meanwhile.
        tokenizer: has encode(text); None: the model's own. Answers are decoded by the model's own.
        max_batch_size: requests that compute side by side.
        max_seq_len: tokens of prompt and answer, at most.
        options: of LLM(model, **options), for a name.

    Attributes:
        active_requests: id -> the request that computes, in order of arrival. request_queue: those that wait.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        max_batch_size: int = 32,
        max_seq_len: int = 2048,
        **options: Any,
    ) -> None:
        positive("max_batch_size", max_batch_size)
        positive("max_seq_len", max_seq_len)
        if isinstance(model, str):
            options = {"max_num_seqs": max_batch_size, "max_model_len": max_seq_len, **options}
            model = LLM(model, **options)
        elif options:
            raise InvalidRequestError(f"{next(iter(options))} belongs to LLM(...), which is already built")
        self.llm: LLM = getattr(model, "llm", model)
        own = self.llm.get_tokenizer()
        self.tokenizer = own if tokenizer is None else tokenizer
        self.max_batch_size, self.max_seq_len = max_batch_size, max_seq_len
        self._reader = PromptReader(own, self.llm.decoder_prompt)
        self._texts = output_processor(own, self.llm.decoder_prompt)
        self._names = itertools.count()
        self._streams: dict[str, tuple[str, TextStream]] = {}  # engine's name -> (caller's, text so far)
        self._ended: dict[str, str] = {}  # beside a request that failed: not told yet
        self.active_requests: dict[str, SamplingParams] = {}
        self.request_queue: list[tuple[str, Any, SamplingParams]] = []

    def add_request(
        self, request_id: str, prompt: str, max_tokens: int, sampling_params: SamplingParams | None = None
    ) -> None:
        """Queue a request: greedy, unless sampling_params say otherwise.

        Raises:
            InvalidRequestError: the id is in use, a value is wrong, or the prompt and max_tokens are more
                than max_seq_len.
        """
        max_tokens = plain_number(max_tokens)
        positive("max_tokens", max_tokens)
        fits = sampling_params is None or isinstance(sampling_params, SamplingParams)
        need(fits, "must be SamplingParams", "sampling_params")
        if request_id in self.active_requests or any(request_id == name for name, *_ in self.request_queue):
            raise InvalidRequestError(f"request_id {request_id!r} is in use", "request_id")
        given = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        ids = list(token_ids("prompt", given))
        need(all(map(is_int, ids)), "must be a text or token ids", "prompt")
        if len(ids) + max_tokens > self.max_seq_len:
            said = f"{len(ids)} tokens of prompt and {max_tokens} new ones are more than max_seq_len"
            raise InvalidRequestError(f"{said} {self.max_seq_len}", "max_tokens")
        params = (sampling_params or SamplingParams(temperature=0.0)).replace(max_tokens=max_tokens)
        request = self._reader.request(request_id, {"prompt_token_ids": ids}, params)
        self.llm.core.check(request)
        self.request_queue.append((request_id, ids, params))

    def step(self) -> dict[str, str]:
        """Compute one step. Returns the texts of the requests that it has ended, by their ids.

        Raises:
            OctavoError: a request failed; it is gone, and the others go on. What has ended beside it comes
                with the next step.
        """
        core = self.llm.core
        while self.request_queue and len(self.active_requests) < self.max_batch_size:
            if not core.has_room(self.request_queue[0][2].n):
                break
            request_id, ids, params = self.request_queue.pop(0)
            name = f"batcher-{id(self)}-{next(self._names)}"
            request = self._reader.request(name, {"prompt_token_ids": ids}, params)
            seed = core.add(request, core.clock())
            stream = self._texts.open(request)
            stream.begin(seed)
            self._streams[name] = request_id, stream
            self.active_requests[request_id] = params
        updates = core.step() if self.active_requests else ()
        results, self._ended = self._ended, {}
        failed: list[str] = []
        for update in updates:
            if update.request_id not in self._streams:
                continue  # somebody else's
            request_id, stream = self._streams[update.request_id]
            if update.finish_reason == "error":
                self._end(update.request_id)
                failed.append(f"request {request_id} failed: {update.stop_reason}")
                continue
            if stream.take(update):  # its text has met a stop string
                core.abort(update.request_id, update.index)
            output = stream.output()
            if output is not None and output.finished:
                results[request_id] = output.outputs[0].text
                self._end(update.request_id)
        if failed:
            self._ended = results
            raise OctavoError("; ".join(failed))
        return results

    def _end(self, name: str) -> None:
        request_id, _ = self._streams.pop(name)
        del self.active_requests[request_id]
