"""EngineConfig: what the user asked for, checked as far as that needs neither model nor machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from octavo.checks import one_of, positive
from octavo.config.parallel import check_parallel
from octavo.config.quantization import check_quantization
from octavo.config.scheduler import POLICIES
from octavo.config.speculation import check_speculation
from octavo.errors import InvalidRequestError
from octavo.kernels.select import registered

KV_DTYPES = {
    "auto": "f16",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "int8",
    "int16": "int16",
}

MAX_THREADS = 1024
MAX_NUM_SEQS = 65_536
"""Far beyond what a machine computes at once; each row takes memory for a whole context."""

DISK_SPACE = 4.0
"""GiB that the prefix cache may take in its folder when nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the user asked for. None means: decided by assembly.memory.resolve from the model and the machine.

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
        num_pages, num_sliding_pages: of the KV pool, and of layers with a window where others see everything;
            None: as many as fit and are of use.
        threads: CPU threads; None is min(cores, affinity, cgroup quota).
        isa: CPU instruction set: "auto", or a name that `octavo env` lists.
        backend: "auto", or one of kernels.select.registered(): "cpu" (native kernels), "reference" (NumPy).
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
        served_model_name: what clients call the model: one name or several, the first of which is reported;
            None or "" is the model's own.
        seed: base of the seeds of requests that bring none; None draws each at random.
        chat_template: a Jinja template, or the path of a file that holds one.
    """

    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    tensor_parallel_size: int = 1
    speculative_config: Mapping[str, Any] | None = None
    trust_remote_code: bool = False
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    num_sliding_pages: int | None = None
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
    served_model_name: str | Sequence[str] | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        one_of("dtype", self.dtype, ("auto", "float32", "float16", "bfloat16"))
        one_of("kv_cache_dtype", self.kv_cache_dtype, tuple(KV_DTYPES))
        one_of("scheduling_policy", self.scheduling_policy, POLICIES)
        one_of("backend", self.backend, ("auto", *registered()))
        self._check_names()
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
        check_quantization(self.quantization)
        check_parallel(self.tensor_parallel_size)
        check_speculation(self.speculative_config)
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
            positive(name, getattr(self, name))
        if self.max_num_seqs > MAX_NUM_SEQS:
            raise InvalidRequestError(
                f"max_num_seqs must be at most {MAX_NUM_SEQS}, not {self.max_num_seqs}", "max_num_seqs"
            )
        for name in ("max_model_len", "max_num_batched_tokens", "num_pages", "num_sliding_pages", "threads"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if not 0.0 <= self.step_target_ms < float("inf"):
            raise InvalidRequestError("step_target_ms must be 0 or a positive number", "step_target_ms")

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names in served_model_name; none: the model's own is taken, as where an empty one is given."""
        given = self.served_model_name or ()
        names = (given,) if isinstance(given, str) else tuple(given)
        return () if names == ("",) else names

    def _check_names(self) -> None:
        given = self.served_model_name
        if given is not None and not isinstance(given, Sequence):
            raise InvalidRequestError(
                f"served_model_name must be a name or a list of names, not {type(given).__name__}",
                "served_model_name",
            )
        if not all(isinstance(name, str) and name for name in self.served_names):
            raise InvalidRequestError("served_model_name must hold non-empty names", "served_model_name")

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
        """The pages' dtype as kernels name it, where Backend.kv_dtype is None or the user named one."""
        if self.kv_cache_dtype == "auto" and self.dtype == "float32":
            return "f32"
        return KV_DTYPES[self.kv_cache_dtype]
