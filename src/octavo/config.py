"""EngineConfig: what the user asked for. resolve() turns it into the engine's numbers, once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from os import PathLike

from octavo.errors import CapacityError, InvalidRequestError, UnsupportedError

CPU_BATCHED_TOKENS = 512
"""Tokens of a step on a CPU: enough to amortize the weights, small enough for the buffers."""

KV_DTYPES = {
    "auto": "f16",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "int8",
    "int16": "int16",
}

MAX_THREADS = 1024
MAX_IN_FLIGHT = 2
"""Steps that may be planned before the first one's result."""
DISK_SPACE = 4.0
"""GiB that the prefix cache may take in its folder when nobody says otherwise."""

POLICIES = ("fcfs", "priority", "lpm")
"""How requests of equal priority enter: in order of arrival (vLLM's "fcfs" and "priority" are the same
here, where priorities are always obeyed), or the longest cached prefix first (SGLang's name)."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The numbers the engine room needs, all resolved.

    Attributes:
        num_pages: pages in the pool, each of page_size KV slots.
        max_num_batched_tokens: token budget of one step.
        step_target_s: while anything decodes, a step should take no longer than this: the budget
            is then also bounded by the measured rate (at least 16 tokens). None: tokens only.
        max_waiting: waiting sequences above this many are refused (OverloadedError); each of n is one.
        num_swap_pages: slots of the swap space, for pages of preempted requests; swap_page_s: seconds
            that copying a page takes, measured when the model was loaded.
        scheduling_policy, fair_share: who enters next, see engine.entry_order.
        max_encoder_len: tokens of an encoder's input, computed in one step; 0: the model has no encoder.
        window: tokens that the model's widest sliding window sees; None: some layer sees all.
        local_window: the same of those layers that have one, where some see all and they have pages of their
            own: num_local_pages, at most num_pages. None: all layers share pages.
    """

    num_pages: int
    page_size: int = 16
    max_model_len: int = 8192
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    step_target_s: float | None = None
    enable_prefix_caching: bool = True
    max_waiting: int = 1024
    num_swap_pages: int = 0
    swap_page_s: float = 0.0
    scheduling_policy: str = "fcfs"
    fair_share: int = 16
    max_encoder_len: int = 0
    window: int | None = None
    local_window: int | None = None
    num_local_pages: int = 0

    @property
    def pages_at_a_time(self) -> int:
        """Pages that the longest sequence needs at a time, its encoder's input included."""
        own = pages_at_a_time(self.max_model_len, self.page_size, self.window, self.max_num_batched_tokens)
        return own + -(-self.max_encoder_len // self.page_size)

    @property
    def local_pages_at_a_time(self) -> int:
        """Local pages that the longest sequence needs at a time."""
        return pages_at_a_time(
            self.max_model_len, self.page_size, self.local_window, self.max_num_batched_tokens
        )

    @property
    def max_sequences(self) -> int:
        """Most sequences in the house: those that run and those that wait."""
        return self.max_num_seqs + self.max_waiting

    def __post_init__(self) -> None:
        _one_of("scheduling_policy", self.scheduling_policy, POLICIES)
        for name in (
            "num_pages",
            "page_size",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "fair_share",
        ):
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name} must be at least 1, not {getattr(self, name)}", name)
        if self.window is not None and self.window < 1:
            raise InvalidRequestError(f"window must be at least 1, not {self.window}", "window")
        if (needed := self.pages_at_a_time) > self.num_pages:
            encoder = f" and max_encoder_len {self.max_encoder_len}" if self.max_encoder_len else ""
            window = f" with a window of {self.window}" if self.window else ""
            raise InvalidRequestError(
                f"max_model_len {self.max_model_len}{window}{encoder} needs {needed} pages, "
                f"the pool has {self.num_pages}",
                "max_model_len",
            )
        if self.local_window is not None:
            self._check_local(self.local_window)
        if not 0 <= self.max_encoder_len <= self.max_num_batched_tokens:
            raise InvalidRequestError(
                f"an encoder input of {self.max_encoder_len} tokens is computed in one step: "
                f"max_num_batched_tokens {self.max_num_batched_tokens} must hold it",
                "max_num_batched_tokens",
            )

    def _check_local(self, window: int) -> None:
        if window < 1 or self.window is not None:
            raise InvalidRequestError(
                f"local_window must be at least 1, of a model without a window everywhere, not {window}",
                "local_window",
            )
        if not self.local_pages_at_a_time <= self.num_local_pages <= self.num_pages:
            raise InvalidRequestError(
                f"max_model_len {self.max_model_len} with a window of {window} in some layers needs "
                f"{self.local_pages_at_a_time} local pages, and there are {self.num_local_pages} to "
                f"{self.num_pages} pages",
                "num_local_pages",
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the user asked for. None means: decided by resolve() from the model and the machine.

    Field names are vLLM's where vLLM has the thing.

    Attributes:
        model: alias, .gguf file, or folder with config.json.
        tokenizer: where the tokenizer comes from; None is the model itself.
        dtype: "auto" keeps weights as stored and rounds activations to int8 where weights are
            quantized; "float32" dequantizes everything and computes in fp32.
        kv_cache_dtype: one of KV_DTYPES. "auto" is float32 where dtype is; on a GPU the activations'
            type; on a CPU int16 where dtype is "auto" (of a latent float16), else float16.
        gpu_memory_utilization: on a CPU the share of what is free that KV pages may take (None:
            0.25); on a GPU the share of its memory that everything together may take (None: 0.9).
        num_pages, num_local_pages: of the KV pool, and of layers with a window where others see everything;
            None: as many as fit and are of use.
        threads: CPU threads; None is min(cores, affinity, cgroup quota).
        isa: CPU instruction set: "auto", or a name that `octavo env` lists.
        backend: "auto", "cpu" (native kernels) or "reference" (NumPy).
        device: "auto" (a GPU, if one can be used), "cpu", "cuda" or "cuda:N".
        bit_exact: on a GPU: bits that do not depend on the batch, at a price. A CPU's never do.
        round_activations: on a GPU too they meet quantized integers as int8 (W8A8, W4A8), as on a CPU.
        enforce_eager: on a GPU: no CUDA graphs are recorded. A CPU has none.
        step_target_ms: SchedulerConfig.step_target_s; 0 is none.
        swap_space: GiB of memory, beyond the pages, in which those of preempted requests may wait. They
            do where copying them takes less time than computing them again. vLLM's default is 4.
        prefix_cache_dir: a folder in which pages that the prefix cache evicts, and all that it holds at the
            end, wait for later, a restart included. prefix_cache_disk_space: GiB they may take there; None
            is DISK_SPACE.
        scheduling_policy: one of POLICIES.
        seed: base of the seeds of requests that bring none; None draws each at random.
        chat_template: a Jinja template, or the path of a file that holds one.
    """

    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    tensor_parallel_size: int = 1
    speculative_config: object = None
    trust_remote_code: bool = False
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    num_local_pages: int | None = None
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool = True
    step_target_ms: float = 100.0
    max_waiting: int = 1024
    swap_space: float = 0.0
    prefix_cache_dir: str | None = None
    prefix_cache_disk_space: float | None = None
    scheduling_policy: str = "fcfs"
    seed: int | None = None
    threads: int | None = None
    isa: str = "auto"
    backend: str = "auto"
    device: str = "auto"
    bit_exact: bool = False
    round_activations: bool = False
    enforce_eager: bool = False
    served_model_name: str | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, ("auto", "float32", "float16", "bfloat16"))
        _one_of("kv_cache_dtype", self.kv_cache_dtype, tuple(KV_DTYPES))
        _one_of("scheduling_policy", self.scheduling_policy, POLICIES)
        _one_of("backend", self.backend, ("auto", "cpu", "reference"))
        if not 0.0 <= self.swap_space < float("inf"):
            raise InvalidRequestError("swap_space must be 0 or a positive number of GiB", "swap_space")
        self._check_disk()
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device):
            raise InvalidRequestError(
                f"device must be auto, cpu, cuda or cuda:N, not {self.device!r}", "device"
            )
        if self.round_activations and self.dtype == "float32":
            raise InvalidRequestError(
                "round_activations and dtype float32 contradict each other: float32 rounds nothing",
                "round_activations",
            )
        if self.quantization not in (None, "gguf"):
            raise UnsupportedError(f"quantization {self.quantization!r} is not supported yet", "quantization")
        if self.tensor_parallel_size != 1:
            raise UnsupportedError(
                "tensor_parallel_size above 1 is not supported yet", "tensor_parallel_size"
            )
        if self.speculative_config is not None:
            raise UnsupportedError("speculative_config is not supported yet", "speculative_config")
        share = self.gpu_memory_utilization
        if share is not None and not 0.0 < share <= 1.0:
            raise InvalidRequestError(
                f"gpu_memory_utilization must be above 0 and at most 1, not {share!r}",
                "gpu_memory_utilization",
            )
        if not self.model:
            raise InvalidRequestError("model is empty: name an alias, file, folder or hub id", "model")
        if (self.threads or 0) > MAX_THREADS:
            raise InvalidRequestError(f"threads must be at most {MAX_THREADS}, not {self.threads}", "threads")
        for name in ("max_num_seqs", "page_size", "max_waiting"):
            _positive(name, getattr(self, name))
        for name in ("max_model_len", "max_num_batched_tokens", "num_pages", "num_local_pages", "threads"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if not 0.0 <= self.step_target_ms < float("inf"):
            raise InvalidRequestError("step_target_ms must be 0 or a positive number", "step_target_ms")

    def _check_disk(self) -> None:
        space = self.prefix_cache_disk_space
        number = isinstance(space, (int, float)) and not isinstance(space, bool)
        if space is not None and not (number and 0.0 < space < float("inf")):
            raise InvalidRequestError(
                f"prefix_cache_disk_space must be a positive number of GiB, not {space!r}",
                "prefix_cache_disk_space",
            )
        if space is not None and self.prefix_cache_dir is None:
            raise InvalidRequestError(
                "prefix_cache_disk_space needs prefix_cache_dir", "prefix_cache_disk_space"
            )
        if self.prefix_cache_dir is not None and not self.enable_prefix_caching:
            raise InvalidRequestError("prefix_cache_dir needs enable_prefix_caching", "prefix_cache_dir")
        if not isinstance(self.prefix_cache_dir, (str, PathLike, type(None))):
            kind = type(self.prefix_cache_dir).__name__
            raise InvalidRequestError(
                f"prefix_cache_dir must be a folder's path, not {kind}", "prefix_cache_dir"
            )
        if self.prefix_cache_dir == "":
            raise InvalidRequestError("prefix_cache_dir is empty: it must name a folder", "prefix_cache_dir")

    @property
    def kv_dtype(self) -> str:
        """The pages' dtype as kernels name it, where the backend has no choice of its own (page_dtype)."""
        if self.kv_cache_dtype == "auto" and self.dtype == "float32":
            return "f32"
        return KV_DTYPES[self.kv_cache_dtype]


def context_length(user: EngineConfig, max_position: int) -> int:
    """The longest sequence to plan for.

    Raises:
        InvalidRequestError: max_model_len is above what the model was made for.
    """
    if user.max_model_len is not None and user.max_model_len > max_position:
        raise InvalidRequestError(
            f"max_model_len {user.max_model_len} is above the model's {max_position}", "max_model_len"
        )
    return user.max_model_len or max_position


def encoder_length(user: EngineConfig, max_source: int) -> int:
    """The longest input of an encoder to plan for; 0 where max_source says that there is none.

    It is computed in one step, so max_num_batched_tokens bounds it, as max_model_len does.
    """
    return min(max_source, user.max_model_len or max_source, user.max_num_batched_tokens or max_source)


def tokens_of_a_step(user: EngineConfig, encoder: int, step_tokens: int | None) -> int:
    """max_num_batched_tokens, where an encoder reads up to so many and a backend wants step_tokens."""
    return user.max_num_batched_tokens or max(step_tokens or CPU_BATCHED_TOKENS, encoder)


def pages_at_a_time(length: int, page_size: int, window: int | None, step_tokens: int) -> int:
    """Pages that a sequence of this length needs at a time.

    With a window that is what the next token sees and what the steps in flight write.
    """
    whole = -(-length // page_size)
    if window is None:
        return whole
    return min(whole, -(-(window + MAX_IN_FLIGHT * step_tokens - 2) // page_size) + 1)


def resolve(
    user: EngineConfig,
    max_position: int,
    num_pages: int,
    max_source: int = 0,
    step_tokens: int | None = None,
    window: int | None = None,
    local_window: int | None = None,
    num_local_pages: int = 0,
) -> SchedulerConfig:
    """The engine's numbers from the user's wishes, the model and the pages that fit.

    A length the user did not name shrinks to the pool, so that a lone request always ends.

    Args:
        max_source: the longest input of the model's encoder; 0: it has none.
        step_tokens: tokens of a step that keep the backend busy; None: CPU_BATCHED_TOKENS.
        window: of all the model's layers; a sequence then needs no more pages than that at a time.
        local_window, num_local_pages: of layers that have one, and pages of their own.

    Raises:
        CapacityError: the pool cannot hold one sequence of the max_model_len that was asked for.
    """
    length, size = context_length(user, max_position), user.page_size
    encoder = encoder_length(user, max_source)
    tokens = tokens_of_a_step(user, encoder, step_tokens)
    needed = pages_at_a_time(length, size, window, tokens) + -(-encoder // size)
    if needed > num_pages:
        if user.max_model_len is not None or (encoder and num_pages < 2):
            both = " and an encoder's input of as many tokens" if encoder else ""
            raise CapacityError(
                f"max_model_len {length}{both} needs {needed} pages of {size} "
                f"tokens, {num_pages} fit: lower it or raise gpu_memory_utilization"
            )
        encoder = min(encoder, num_pages // 2 * size)
        length = min(length, (num_pages - -(-encoder // size)) * size)
    return SchedulerConfig(
        num_pages=num_pages,
        page_size=user.page_size,
        max_model_len=length,
        max_num_seqs=user.max_num_seqs,
        max_num_batched_tokens=tokens,
        step_target_s=user.step_target_ms / 1000 or None,
        enable_prefix_caching=user.enable_prefix_caching,
        max_waiting=user.max_waiting,
        scheduling_policy=user.scheduling_policy,
        max_encoder_len=encoder,
        window=window,
        local_window=local_window,
        num_local_pages=num_local_pages,
    )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequestError(f"{name} must be one of {', '.join(allowed)}, not {value!r}", name)


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequestError(f"{name} must be a positive integer, not {value!r}", name)
