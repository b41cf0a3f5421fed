"""EngineConfig: what the user asked for; resolved once, then frozen."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The numbers the engine room needs, all resolved.

    Attributes:
        num_pages: pages in the pool, each of page_size KV slots.
        max_num_batched_tokens: token budget of one step.
        step_target_s: while anything decodes, a step should take no longer than this: the budget
            is then also bounded by the measured rate (at least 16 tokens). None: tokens only.
        max_waiting: waiting requests above this many are refused (OverloadedError).
    """

    num_pages: int
    page_size: int = 16
    max_model_len: int = 8192
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    step_target_s: float | None = None
    enable_prefix_caching: bool = True
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        for name in ("num_pages", "page_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name} must be at least 1, not {getattr(self, name)}", name)
        if self.max_model_len > self.num_pages * self.page_size:
            raise InvalidRequestError(
                f"max_model_len {self.max_model_len} needs {-(-self.max_model_len // self.page_size)} pages, "
                f"the pool has {self.num_pages}",
                "max_model_len",
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the user asked for. None means: decided by resolve() from the model and the machine.

    Field names are vLLM's where vLLM has the thing.

    Attributes:
        model: alias, .gguf file, folder with config.json, or hub id.
        dtype: "auto" keeps quantized weights and quantizes activations; "float32" dequantizes
            everything and computes in fp32.
        gpu_memory_utilization: share of what is free that KV pages may take; None is 0.25 on a CPU.
        threads: CPU threads; None is min(cores, affinity, cgroup quota).
        isa: CPU instruction set: "auto", or a name that `octavo env` lists.
        backend: "auto", "cpu" (native kernels) or "reference" (NumPy).
    """

    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool = True
    step_target_ms: float | None = 100.0
    max_waiting: int = 1024
    seed: int | None = None
    threads: int | None = None
    isa: str = "auto"
    backend: str = "auto"
    served_model_name: str | None = None
    chat_template: str | None = None
    extra: dict[str, object] = field(default_factory=dict)
