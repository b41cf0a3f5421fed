"""EngineConfig: what the user asked for, checked as far as that needs neither model nor machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from octavo.checks import need, one_of, positive
from octavo.config.parallel import check_parallel
from octavo.config.quantization import check_quantization
from octavo.config.scheduler import POLICIES
from octavo.config.speculation import check_speculation
from octavo.kernels.select import registered

KV_DTYPES = {
    "auto": "f16",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "int8",
    "int16": "int16",
}

DTYPE_NAMES = {"half": "float16", "float": "float32"}
"""vLLM's other names."""

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
        speculative_config: who drafts tokens that the model verifies (config.speculation); None: nobody.
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
        if isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", DTYPE_NAMES.get(self.dtype, self.dtype))
        one_of("dtype", self.dtype, ("auto", "float32", "float16", "bfloat16"))
        one_of("kv_cache_dtype", self.kv_cache_dtype, tuple(KV_DTYPES))
        one_of("scheduling_policy", self.scheduling_policy, POLICIES)
        one_of("backend", self.backend, ("auto", *registered()))
        self._check_names()
        need(0.0 <= self.swap_space < float("inf"), "must be 0 or a positive number of GiB", "swap_space")
        self._check_disk()
        known = re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device) is not None
        need(known, f"must be auto, cpu, cuda or cuda:N, not {self.device!r}", "device")
        need(
            not self.round_activations or self.dtype != "float32",
            "and dtype float32 contradict each other: float32 rounds nothing",
            "round_activations",
        )
        check_quantization(self.quantization)
        check_parallel(self.tensor_parallel_size)
        check_speculation(self.speculative_config)
        share = self.gpu_memory_utilization
        fits = share is None or 0.0 < share <= 1.0
        need(fits, f"must be above 0 and at most 1, not {share!r}", "gpu_memory_utilization")
        need(bool(self.model), "is empty: name an alias, file, folder or hub id", "model")
        for name in ("max_num_seqs", "page_size", "max_waiting"):
            positive(name, getattr(self, name))
        for name, most in (("threads", MAX_THREADS), ("max_num_seqs", MAX_NUM_SEQS)):
            value = getattr(self, name)
            need((value or 0) <= most, f"must be at most {most}, not {value}", name)
        for name in ("max_model_len", "max_num_batched_tokens", "num_pages", "num_sliding_pages", "threads"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        need(0.0 <= self.step_target_ms < float("inf"), "must be 0 or a positive number", "step_target_ms")

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names in served_model_name; none: the model's own is taken, as where an empty one is given."""
        given = self.served_model_name or ()
        names = (given,) if isinstance(given, str) else tuple(given)
        return () if names == ("",) else names

    def _check_names(self) -> None:
        given, kind = self.served_model_name, type(self.served_model_name).__name__
        listed = given is None or isinstance(given, Sequence)
        need(listed, f"must be a name or a list of names, not {kind}", "served_model_name")
        names = all(isinstance(name, str) and name for name in self.served_names)
        need(names, "must hold non-empty names", "served_model_name")

    def _check_disk(self) -> None:
        space, folder = self.prefix_cache_disk_space, self.prefix_cache_dir
        if space is not None:
            number = isinstance(space, (int, float)) and not isinstance(space, bool)
            wanted = f"must be a positive number of GiB, not {space!r}"
            need(number and 0.0 < space < float("inf"), wanted, "prefix_cache_disk_space")
            need(folder is not None, "needs prefix_cache_dir", "prefix_cache_disk_space")
        if folder is not None:
            need(self.enable_prefix_caching, "needs enable_prefix_caching", "prefix_cache_dir")
            path = isinstance(folder, (str, PathLike))
            need(path, f"must be a folder's path, not {type(folder).__name__}", "prefix_cache_dir")
            need(folder != "", "is empty: it must name a folder", "prefix_cache_dir")

    @property
    def kv_dtype(self) -> str:
        """The pages' dtype as kernels name it, where Backend.kv_dtype is None or the user named one."""
        if self.kv_cache_dtype == "auto" and self.dtype == "float32":
            return "f32"
        return KV_DTYPES[self.kv_cache_dtype]
