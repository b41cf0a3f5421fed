"""What the server needs of others, as protocols: an engine (AsyncLLM is one; tests bring a scripted one),
API keys, the queue, and who counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol

from octavo.engine.request import EngineRequest
from octavo.engine.stats import DraftCounts
from octavo.params import RequestOutput, SamplingParams


class ServedStats(Protocol):
    """Counts since start, and the state of now (EngineStats has more)."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def prefix_queries(self) -> int: ...
    @property
    def prefix_hits(self) -> int: ...
    @property
    def external_prefix_queries(self) -> int: ...
    @property
    def external_prefix_hits(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def generated_tokens(self) -> int: ...
    @property
    def drafts(self) -> DraftCounts: ...


class ServedTokenizer(Protocol):
    """Text to ids and back (octavo.tokenizer.Tokenizer)."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def longest_token(self) -> int: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def is_special(self, token_id: int) -> bool: ...


class ServedOutputs(Protocol):
    """What a request brings, until an output is finished. Closing it aborts the request within a step.

    Raises:
        RequestFailedError: in place of an output, where the engine failed at the request.
    """

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...
    async def begun(self) -> None:
        """Wait until something of it has been computed, or it has failed."""

    async def aclose(self) -> None: ...


class Caller(Protocol):
    """Who asks, as far as API keys tell (keys.ApiKey)."""

    @property
    def owner(self) -> str: ...
    def enter(self) -> None: ...
    def leave(self) -> None: ...


class Keys(Protocol):
    """The API keys with which requests are served (keys.ApiKeys)."""

    def __len__(self) -> int: ...
    def require(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller: ...
    async def follow(self) -> None: ...


class Queue(Protocol):
    """Where the requests of all clients wait (queueing.FairQueue)."""

    @property
    def retry_after_s(self) -> float: ...
    async def begin(self, engine: ServedEngine, request: EngineRequest) -> ServedOutputs:
        """The outputs of a request that has begun. Raises OverloadedError where it cannot."""
        ...


class Observer(Protocol):
    """Who counts what is served (metrics.Metrics)."""

    def attach(self, engine: ServedEngine) -> None: ...
    def render(self) -> bytes: ...
    def count_http(self, method: str, path: str, status: int) -> None: ...
    def observe_interval(self, seconds: float, tokens: int) -> None: ...
    def observe_end(
        self, output: RequestOutput | None, num_tokens: list[int], reason: str | None
    ) -> None: ...


class ServedEngine(Protocol):
    """The part of AsyncLLM that serving uses."""

    @property
    def tokenizer(self) -> ServedTokenizer: ...
    @property
    def served_model_name(self) -> str:
        """The name that answers report: the first of served_model_names."""

    @property
    def served_model_names(self) -> Sequence[str]:
        """Names that requests may give for the model."""

    @property
    def template(self) -> str | None:
        """The chat template's source: it tells which tool calls and reasoning the model writes."""
        ...

    @property
    def template_is_plain(self) -> bool:
        """Whether render_chat() takes no longer than a chat's length says; else it belongs on a thread."""

    @property
    def grammars(self) -> Any:
        """What became of the grammars that were to be compiled (structured.GrammarStats)."""

    @property
    def max_model_len(self) -> int: ...
    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds of each phase of the start, and of what was recorded in the background since."""
        ...

    @property
    def facts(self) -> Mapping[str, str]:
        """What the lines of a start should say, by name."""

    @property
    def device_memory(self) -> Mapping[str, int]:
        """Bytes of a GPU: total, used and peak by this process; empty on a CPU (kernels.backend)."""

    @property
    def watermark_lists(self) -> Mapping[str, int]:
        """Green lists of watermarks: those that were kept (hit), and those that were made."""

    @property
    def embedding_size(self) -> int | None:
        """Members of an embedding; None: the model gives none."""
        ...

    @property
    def max_sequences(self) -> int:
        """Completions that may run and wait together."""

    @property
    def max_waiting(self) -> int:
        """Of those, so many may wait before others are refused."""

    @property
    def max_encoder_len(self) -> int:
        """Tokens of a prompt that an encoder reads; 0: the model has none."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the engine died, if it did."""

    @property
    def healthy(self) -> bool: ...

    def request(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> EngineRequest:
        """A prompt (token ids) as the engine takes it."""
        ...

    async def outputs(self, request: EngineRequest) -> ServedOutputs:
        """Begin to serve a request."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def render_chat(
        self,
        messages: Any,
        *,
        tools: Any = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation under the model's chat template."""
        ...

    def prepare(self) -> None:
        """Make in the background what the first use of something would wait for; called when serving."""
        ...

    def stats(self) -> ServedStats: ...
    async def drain(self, timeout_s: float) -> None: ...
    def shutdown(self) -> None: ...
