"""AsyncLLM: a model behind asyncio, one engine thread, any number of callers."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.assembly import Loaded, Progress, core_of, load, reset_prefix_cache
from octavo.config import EngineConfig, SchedulerConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.output import Outputs
from octavo.engine.request import EngineRequest
from octavo.engine.snapshot import Snapshot, snapshot_of
from octavo.engine.stats import EngineStats
from octavo.engine_args import EngineArgs
from octavo.params import RequestOutput, SamplingParams
from octavo.prompts import Prompt, PromptReader, chat_ids, check_length, output_processor, refuse_chat
from octavo.structured import ConstraintCompiler, GrammarStats, compiled
from octavo.tokenizer.stop import prepared

if TYPE_CHECKING:
    from octavo.tokenizer import Tokenizer
    from octavo.tokenizer.chat import ChatTemplate

IDLE_POLL_S = 0.05
LONG_STOPS = 500
"""Characters of stop strings above which another thread makes their automaton: it takes 2 us for each."""


class AsyncLLM:
    """Streams completions. vLLM's AsyncLLMEngine is an alias.

    Attributes:
        tokenizer, chat_template: the model's.
        model: what the user named; served_model_names: what clients may call it; served_model_name: the first
            of them, which answers report.
        max_model_len: tokens of a sequence, prompt and answer together.
        max_sequences: completions that may run and wait together: max_num_seqs + max_waiting.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.user: EngineConfig = loaded.user
        self.config: SchedulerConfig = loaded.config
        self.tokenizer: Tokenizer = loaded.tokenizer
        self.chat_template: ChatTemplate = loaded.template
        self.model = loaded.user.model
        self.served_model_names = loaded.user.served_names or (_short_name(loaded.user.model),)
        self.served_model_name = self.served_model_names[0]
        self.max_model_len = loaded.config.max_model_len
        self.max_sequences = loaded.config.max_sequences
        self._prompts = PromptReader(loaded.tokenizer, loaded.decoder_prompt)
        self._texts = output_processor(loaded.tokenizer, loaded.decoder_prompt)
        core = core_of(loaded)
        self._check_continuation = core.check_continuation
        self._engine = AsyncEngine(core)
        self._compiler = ConstraintCompiler(loaded.tokenizer)
        self._preparing: threading.Thread | None = None
        self._stopped = threading.Event()
        self._engine.start()

    @classmethod
    def from_engine_args(cls, args: EngineArgs, *, progress: Progress | None = None) -> AsyncLLM:
        """Load the model that args name and start its engine thread.

        Raises:
            OctavoError: one line that says what is wrong.
        """
        return cls(load(args.config, progress))

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of each phase of the start, and of what was recorded since (a copy)."""
        return dict(self._loaded.phases)

    @property
    def facts(self) -> Mapping[str, str]:
        """What the lines of a start should say: the device, and why it is no GPU."""
        return self._loaded.facts

    @property
    def device_memory(self) -> Mapping[str, int]:
        """Bytes of a GPU: total, used and peak by this process; empty on a CPU."""
        return self._loaded.backend.device_memory()

    @property
    def watermark_lists(self) -> Mapping[str, int]:
        """Green lists of watermarks: those that were kept (hit), and those that were made."""
        return self._loaded.runner.green.counts

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one prompt until one is finished; closing the generator aborts the request.

        A prompt object may hold generated_token_ids, and index: see LLM.generate.

        Raises (at the first output):
            InvalidRequestError: the prompt or a parameter is wrong.
            OverloadedError: too many requests are waiting.
        """
        request = self.request(prompt, sampling_params, request_id, priority=priority, cache_salt=cache_salt)
        async with aclosing(await self.outputs(request)) as stream:
            async for output in stream:
                yield output

    def request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> EngineRequest:
        """A prompt as the engine takes it, for outputs().

        Raises:
            InvalidRequestError: the prompt is neither text nor token ids, or longer than any context.
        """
        if isinstance(prompt, str):
            check_length(prompt, self.tokenizer, self.max_encoder_len or self.max_model_len)
        name, params = request_id or uuid.uuid4().hex, sampling_params or SamplingParams()
        return self._prompts.request(name, prompt, params, priority=priority, cache_salt=cache_salt)

    async def outputs(self, request: EngineRequest) -> Outputs:
        """Begin to serve a request; its outputs until one is finished. Closing the stream aborts it.

        Raises:
            InvalidRequestError, OverloadedError: as generate().
        """
        self._check_continuation(request)
        params = request.params
        if params.needs_compiling:
            request = compiled(request, await self._compiler.compile_async(params, request.namespace.salt))
        if sum(map(len, params.stop)) > LONG_STOPS:  # what is made here is found by open()
            stops = await asyncio.to_thread(prepared, params.stop)
            assert stops, "kept until then"
        return Outputs(self._engine, self._texts.open(request))

    async def abort(self, request_id: str) -> None:
        """End a request within one step."""
        await self._engine.abort(request_id)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, special tokens included; the event loop waits, so its length is bounded.

        Raises:
            InvalidRequestError: the text is longer than any max_model_len tokens.
        """
        check_length(text, self.tokenizer, self.max_encoder_len or self.max_model_len)
        return self.tokenizer.encode(text)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation under the model's chat template."""
        refuse_chat(self.max_encoder_len)
        return chat_ids(
            self.chat_template,
            self.tokenizer,
            messages,
            tools=tools,
            max_tokens=self.max_model_len,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            continue_final_message=continue_final_message,
            **kwargs,
        )[1]

    @property
    def max_encoder_len(self) -> int:
        """Tokens of a prompt that an encoder reads; 0: the model has none, the prompt is gone on from."""
        return self.config.max_encoder_len

    @property
    def template(self) -> str | None:
        """The chat template's source, or None."""
        return self.chat_template.source

    @property
    def template_is_plain(self) -> bool:
        """Whether render_chat() takes no longer than a chat's length says; else it belongs on a thread."""
        return self.chat_template.is_plain

    @property
    def grammars(self) -> GrammarStats:
        """What became of the grammars that were to be compiled."""
        return self._compiler.stats()

    def stats(self) -> EngineStats:
        """Counters since start and the state of now."""
        return self._engine.stats()

    async def snapshot(self) -> Snapshot:
        """What pages and rows hold between two steps; looked up on the engine's thread, O(pages)."""
        return await self._engine.call(snapshot_of)

    @property
    def embedding_size(self) -> int | None:
        """Members of an embedding; None: the model gives none."""
        return self._loaded.embedding_size

    @property
    def max_waiting(self) -> int:
        """Of those, so many may wait before others are refused."""
        return self.config.max_waiting

    @property
    def healthy(self) -> bool:
        """The engine thread lives and, while there is work, moves."""
        return self._engine.healthy

    @property
    def failure(self) -> str | None:
        """Why the engine died, if it did: nothing can be served any more."""
        return self._engine.failure

    @property
    def stalled(self) -> bool:
        """The engine was given up, because a step of it did not end: only a new process helps."""
        return self._engine.stalled

    def watch(self, stall_s: float) -> None:
        """From now on give the engine up when it has work and makes no progress for so many seconds. Once.

        Its requests end with EngineStalledError, and `failure` says why; what follows is the caller's.
        """
        self._engine.watch(stall_s)

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes that no running request uses. True: none is left."""
        return await self._engine.call(partial(reset_prefix_cache, self._loaded))

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let the running ones end for at most timeout_s, then stop."""
        self._compiler.close()
        await self._engine.drain(timeout_s)

    def prepare(self) -> None:
        """Make in the background, while nothing runs, what the first structured output would wait for."""
        if self._preparing is None:
            self._preparing = threading.Thread(
                target=self._compiler.prepare, args=(self._wait_idle,), name="prepare", daemon=True
            )
            self._preparing.start()

    def _wait_idle(self) -> bool:
        """Wait until no request is in the engine. False: it has been stopped."""
        while not self._stopped.is_set():
            stats = self.stats()
            if not stats.running and not stats.waiting:
                return True
            self._stopped.wait(IDLE_POLL_S)
        return False

    def shutdown(self) -> None:
        """Stop the engine thread; requests that run end with EngineDeadError."""
        self._stopped.set()
        self._compiler.close()
        if self._preparing is not None:
            self._preparing.join()
        self._engine.stop()


AsyncLLMEngine = AsyncLLM


def _short_name(model: str) -> str:
    """What clients call a model that nobody named: its alias or hub id, a path's last part."""
    path = Path(model)
    return path.stem if path.suffix == ".gguf" else path.name if path.is_dir() else model
