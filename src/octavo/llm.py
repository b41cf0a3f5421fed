"""LLM: a model, its engine and its tokenizer behind vLLM's names, driven by the caller's thread."""

from __future__ import annotations

import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from octavo.assembly import Loaded, Progress, core_of, load, reset_prefix_cache, restart
from octavo.async_llm import AsyncLLM, AsyncLLMEngine
from octavo.beam_search import BeamSearchOutput, output_of
from octavo.beam_search import sampling_params as beam_sampling_params
from octavo.engine.output import OutputProcessor, TextStream
from octavo.engine.request import EngineRequest
from octavo.engine.retries import FAILED, said
from octavo.engine.stats import EngineStats
from octavo.engine_args import AsyncEngineArgs, EngineArgs, asks_for_nothing
from octavo.errors import InvalidRequestError, OctavoError
from octavo.params import (
    BeamSearchParams,
    RequestOutput,
    SamplingParams,
)
from octavo.pooling import EmbeddingOutput, EmbeddingRequestOutput, PoolingParams
from octavo.prompts import Prompt, PromptReader, chat_ids, output_processor, refuse_chat, wrong_prompt
from octavo.structured import ConstraintCompiler, compiled
from octavo.tokenizer.callable import CallableTokenizer

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.engine.core import EngineCore

__all__ = ["LLM", "AsyncEngineArgs", "AsyncLLM", "AsyncLLMEngine", "EngineArgs"]

Messages = Sequence[Mapping[str, Any]]
T = TypeVar("T")


class LLM:
    """Text generation, many prompts at once; embeddings too.

    It serves one call at a time: calls from other threads wait their turn, and a call from inside another
    one (by a signal handler) is refused with an InvalidRequestError. The first Ctrl-C ends a call between
    two steps, the second one at once. The next call works after any exception, also one that a signal
    handler has raised; where it struck inside a step, counters and the prefixes cached in memory begin anew.

    Args:
        model: alias ("smollm2"), .gguf file, or folder with config.json.
        options: EngineArgs' names, which are vLLM's (max_model_len, seed, dtype, ...).
        progress: called with (phase, seconds) while loading.

    Raises:
        OctavoError: one line that says what is wrong with the model or an option.
    """

    def __init__(self, model: str, *, progress: Progress | None = None, **options: Any) -> None:
        self._loaded: Loaded = load(EngineArgs(model, **options).config, progress)
        loaded = self._loaded
        self._core = core_of(loaded)
        # What is cached goes to disk, if there is a place for it, when nobody has the LLM any more.
        self._close = weakref.finalize(self, self._core.close)
        self._prompts = PromptReader(loaded.tokenizer, loaded.decoder_prompt)
        self._texts: OutputProcessor = output_processor(loaded.tokenizer, loaded.decoder_prompt)
        self._compiler = ConstraintCompiler(loaded.tokenizer)
        self._next_id = 0
        self._lock, self._caller = threading.Lock(), 0  # the thread whose call has the lock
        self._sound = True  # False while the core is at work, and after an exception from its midst

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        priority: Sequence[int] | None = None,
        **peers: object,
    ) -> list[RequestOutput]:
        """Complete each prompt; the outputs stand in the order of the prompts.

        Args:
            prompts: text, token ids, {"prompt_token_ids": ids}, or a list of these. An object may hold a
                "cache_salt": cached prefixes are shared only under the same one; "generated_token_ids":
                the answer has begun with these and goes on as if never cut, with its "seed" in
                sampling_params and, of n completions, its "index". For an
                encoder-decoder model these are the encoder's; {"encoder_prompt": prompt,
                "decoder_prompt": prompt} says also how the answer begins.
            sampling_params: for all, or one for each.
            use_tqdm: a progress bar on a terminal, when there is more than one prompt.
            priority: of each prompt; lower is served first.
            peers: what vLLM knows beside, such as lora_request, as None.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; nothing was generated.
        """
        asks_for_nothing(peers)
        return self._run(as_list(prompts), sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **peers: object,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, under the model's chat template.

        Args:
            tools: functions that the model may call, as OpenAI spells them. Its calls are part of the
                text, in the model's own format.
            peers: what vLLM knows beside, such as chat_template, as None.
        """
        asks_for_nothing(peers)
        if not messages:
            raise InvalidRequestError("messages is empty", "messages")
        several = not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if several else [messages]
        options = {
            "tools": tools,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "continue_final_message": continue_final_message,
        }
        extra = options | dict(chat_template_kwargs or {})
        rendered = [self._chat_ids(c, extra) for c in conversations]
        every = [{"prompt": text, "prompt_token_ids": ids} for text, ids in rendered]
        return self._run(every, sampling_params, use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        use_tqdm: bool = True,
        *,
        sampling_params: SamplingParams | None = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest completions of each prompt that a beam search finds, best first.

        Beams run side by side and share their pages; scores and ids are those of transformers.

        Args:
            sampling_params: what else is asked: structured_outputs, bad_words, allowed_token_ids, logit_bias,
                min_tokens, penalties, stop_token_ids. Limits may leave fewer than beam_width completions.

        Raises:
            InvalidRequestError: a prompt is wrong, so many beams need more rows or pages than there are, or
                sampling_params asks for what a search cannot do.
        """
        outputs = self._run(as_list(prompts), beam_sampling_params(params, sampling_params), use_tqdm)
        return [output_of(output, params) for output in outputs]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        use_tqdm: bool = True,
        *,
        pooling_params: PoolingParams | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Each prompt as a vector, in the order of the prompts.

        Raises:
            InvalidRequestError, UnsupportedError: a prompt is wrong, or the model gives no embeddings.
        """
        wanted = pooling_params or PoolingParams()
        wanted.check(self._loaded.embedding_size)
        outputs = self._run(as_list(prompts), wanted.sampling(), use_tqdm)
        return [
            EmbeddingRequestOutput(
                output.request_id,
                EmbeddingOutput(wanted.finish(output.embedding or ())),
                output.prompt_token_ids,
            )
            for output in outputs
        ]

    def render_chat(self, messages: Messages, **options: Any) -> list[int]:
        """Token ids of a conversation under the model's chat template (ChatTemplate.render's options)."""
        return self._chat_ids(messages, options)[1]

    def _chat_ids(self, messages: Any, options: dict[str, Any]) -> tuple[str | None, list[int]]:
        refuse_chat(self._loaded.config.max_encoder_len)
        return chat_ids(self._loaded.template, self._loaded.tokenizer, messages, **options)

    def _run(
        self,
        prompts: Sequence[Prompt],
        given: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        if given is None or isinstance(given, SamplingParams):
            params = [given or SamplingParams()] * len(prompts)
        else:
            params = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        for wish in params:
            if not isinstance(wish, SamplingParams):
                kind = type(wish).__name__
                raise InvalidRequestError(
                    f"sampling_params must be SamplingParams, not {kind}", "sampling_params"
                )
        if len(params) != len(prompts):
            raise InvalidRequestError(
                f"{len(prompts)} prompts came with {len(params)} sampling_params", "sampling_params"
            )
        priorities = _priorities(priority, len(prompts))
        return self._alone(lambda: self._answer(prompts, params, priorities, use_tqdm))

    def _alone(self, call: Callable[[], T]) -> T:
        """Make a call of the core when no other one is being made, on a core that is sound."""
        thread = threading.get_ident()
        if self._lock.locked() and self._caller == thread:
            raise InvalidRequestError(
                "this LLM is in the midst of a call of the same thread: what that calls, such as a signal "
                "handler, cannot call it again"
            )
        with self._lock:
            try:
                self._caller = thread
                if not self._sound:
                    self._restart()
                return call()
            finally:
                self._caller = 0

    def _restart(self) -> None:
        self._sound = False
        restart(self._core, self._loaded)
        self._sound = True

    def _answer(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        priorities: Sequence[int],
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        requests: list[EngineRequest] = []
        for prompt, wish, urgency in zip(prompts, params, priorities, strict=True):
            name = str(self._next_id + len(requests))
            request = self._prompts.request(name, prompt, wish, priority=urgency)
            self._core.check_continuation(request)
            requests.append(compiled(request, self._compiler.compile(wish)))
        for request in requests:
            self._core.check(request)
            if request.generated:
                self._texts.open(request)  # which sees whether its text has ended
        self._next_id += len(requests)
        try:
            with _HeldInterrupt() as interrupt, _Bar(len(requests) if use_tqdm else 0) as bar:
                done = self._run_all(requests, bar, interrupt)
        except BaseException:
            if self._sound:
                self._sound = False
                for request in requests:
                    self._core.abort(request.request_id)
                self._sound = True
            else:
                self._restart()
            raise
        return [done[request.request_id] for request in requests]

    def _run_all(
        self, requests: Iterable[EngineRequest], bar: _Bar, interrupt: _HeldInterrupt
    ) -> dict[str, RequestOutput]:
        """Feed the engine as it has room, step it until all have ended."""
        done: dict[str, RequestOutput] = {}
        texts: dict[str, TextStream] = {}
        # The engine holds only a few of them, so those that are served first must come first.
        waiting = sorted(requests, key=lambda request: request.priority)
        waiting.reverse()
        while waiting or self._core.has_unfinished():
            self._sound = False
            while waiting and self._wants(waiting[-1]):
                request = waiting.pop()
                seed = self._core.add(request, time.monotonic())
                text = texts[request.request_id] = self._texts.open(request)
                text.begin(seed)
            updates = self._core.step()
            failed = next((u for u in updates if u.finish_reason == "error"), None)
            if failed is not None:
                self._sound = True
                message = f"request {failed.request_id} failed: {failed.stop_reason}"
                if failed.stop_reason == FAILED and self._core.failure is not None:  # who calls may read why
                    message += f": {said(self._core.failure)}"
                raise OctavoError(message) from self._core.failure
            for update in updates:
                if texts[update.request_id].take(update):
                    self._core.abort(update.request_id, update.index)
            self._sound = True
            interrupt.check()
            for request_id in dict.fromkeys(u.request_id for u in updates if u.tokens or u.finish_reason):
                output = texts[request_id].output()
                if output is not None and output.finished:
                    del texts[request_id]
                    done[request_id] = output
                    bar.advance()
        return done

    def _wants(self, request: EngineRequest) -> bool:
        """Whether the engine should get another request now: it has something waiting, but little."""
        core = self._core
        return core.num_waiting < core.config.max_num_seqs and core.has_room(request.num_sequences)

    @property
    def max_encoder_len(self) -> int:
        """Tokens of a prompt that an encoder reads; 0: the model has none, the prompt is gone on from."""
        return self._loaded.config.max_encoder_len

    @property
    def decoder_prompt(self) -> tuple[int, ...]:
        """What the decoder of an encoder-decoder model begins with; () for other models."""
        return self._loaded.decoder_prompt

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """generation_config.json over config.json, where the model is a folder."""
        return self._loaded.generation

    @property
    def max_model_len(self) -> int:
        """Tokens of a sequence, prompt and answer together."""
        return self._loaded.config.max_model_len

    @property
    def engine_config(self) -> EngineConfig:
        """What was asked for when it was made."""
        return self._loaded.user

    @property
    def core(self) -> EngineCore:
        """The engine itself, for who steps it (batcher.ContinuousBatcher): beside no call of this LLM."""
        return self._core

    @property
    def device_memory(self) -> Mapping[str, int]:
        """Bytes of a GPU: total, used and peak by this process; empty on a CPU."""
        return self._loaded.backend.device_memory()

    def get_tokenizer(self) -> CallableTokenizer:
        """The model's tokenizer, which may be called and renders chats, as transformers' do."""
        return CallableTokenizer(self._loaded.tokenizer, self._loaded.template)

    def get_default_sampling_params(self) -> SamplingParams:
        """What generate() and chat() take where none are given."""
        return SamplingParams()

    def shutdown(self) -> None:
        """Save the prefix cache to prefix_cache_dir, if there is one, and let go of it. Nothing may follow.

        It happens by itself when the LLM is gone, or the process ends.
        """
        self._alone(self._close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def get_metrics(self) -> EngineStats:
        """Counters since start and the state of now."""
        return self._core.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes. True: none is left."""
        return self._alone(lambda: reset_prefix_cache(self._loaded, self._core))


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list: [1, 2] is one prompt of two ids, [[1, 2]] a list of one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, (bytes, bytearray)):
        raise wrong_prompt(prompts)
    try:
        every: list[Any] = list(prompts)
    except TypeError:
        raise wrong_prompt(prompts) from None
    if every and all(isinstance(p, Integral) for p in every):
        return [every]
    return every


def _priorities(given: Sequence[int] | None, count: int) -> Sequence[int]:
    """Of each prompt."""
    if given is None:
        return [0] * count
    if not isinstance(given, Sequence) or len(given) != count:
        raise InvalidRequestError(f"priority must be a list of {count} integers, one a prompt", "priority")
    return given


class _HeldInterrupt:
    """Holds the first Ctrl-C back until check(), or the end of the block; the second one acts at once.

    So that it does not strike inside a step. What it then does is what it did before: raise
    KeyboardInterrupt, or whatever handler somebody has set. Elsewhere than on the main thread, where
    signals never come, nothing is held.
    """

    def __init__(self) -> None:
        self._former: Callable[[int, FrameType | None], Any] | None = None
        self._held: tuple[int, FrameType | None] | None = None
        self._inside = False

    def __enter__(self) -> _HeldInterrupt:
        if threading.current_thread() is threading.main_thread():
            former = signal.getsignal(signal.SIGINT)
            if callable(former):  # and not ignored, the system's, or another language's
                self._former, self._inside = former, True
                signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._inside and self._held is None:
            self._held = number, frame
        elif self._former is not None:
            self._former(number, frame)

    def check(self) -> None:
        """Let it act now, if it has come."""
        held, self._held = self._held, None
        if held is not None and self._former is not None:
            self._former(*held)

    def __exit__(self, *_: object) -> None:
        self._inside = False
        if self._former is not None:
            if signal.getsignal(signal.SIGINT) == self._handle:  # and nobody has set another one meanwhile
                signal.signal(signal.SIGINT, self._former)
            self.check()


class _Bar:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total if total > 1 and sys.stderr.isatty() else 0
        self._progress: Any = None

    def __enter__(self) -> _Bar:
        if self._total:
            from rich.console import Console
            from rich.progress import Progress as RichProgress

            self._progress = RichProgress(console=Console(stderr=True), transient=True)
            self._progress.start()
            self._task = self._progress.add_task("generating", total=self._total)
        return self

    def advance(self) -> None:
        if self._progress is not None:
            self._progress.advance(self._task)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
