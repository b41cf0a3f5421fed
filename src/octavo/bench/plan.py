"""What a model will take of this machine's memory, before anything is loaded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from octavo.assembly.planning import plan
from octavo.bench.resident import resident_bytes
from octavo.config import EngineConfig, SchedulerConfig
from octavo.runtime.free_memory import available_memory


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """Bytes, by what they are for; the code that counts them is the code that allocates them.

    Attributes:
        weights: packed. kv_cache: all pages; they are touched only as they are used. activations: of
            a step as large as max_num_batched_tokens. rows: of the running requests' tokens and tables.
        process: what this process holds already (interpreter, libraries, tokenizer).
        total: of these. available: what the process may still take, process not counted.
        config: the scheduler's numbers, as start-up would have them.
        sliding_bytes_per_token: of the bytes_per_token, those of sliding-window layers that have
            pages of their own (config.num_sliding_pages).
        cut: (bytes that are there, bytes that the header names) of a model file that ends before its weights
            do: planned by its header, it cannot be loaded. None: it is whole.
    """

    model: str
    weights: int
    kv_cache: int
    activations: int
    rows: int
    process: int
    total: int
    available: int
    bytes_per_token: int
    config: SchedulerConfig
    sliding_bytes_per_token: int = 0
    cut: tuple[int, int] | None = None

    @property
    def fits(self) -> bool:
        return self.total - self.process <= self.available

    @property
    def num_tokens(self) -> int:
        """Tokens that the pages hold."""
        return self.config.num_pages * self.config.page_size

    def summary(self) -> dict[str, object]:
        """For JSON."""
        return dataclasses.asdict(self) | {"fits": self.fits, "num_tokens": self.num_tokens}


def plan_model(user: EngineConfig, free: int | None = None) -> ModelPlan:
    """Plan what load(user) would allocate, from config.json or a GGUF header.

    Args:
        free: bytes that a machine has left, where it is not this one.

    Raises:
        CapacityError: the weights or a page do not fit.
        OctavoError: the model or an option is wrong, as in load().
    """
    available = available_memory() if free is None else free
    planned = plan(user, free)
    memory = planned.budget
    parts = (memory.weights, memory.kv_cache + memory.swap_space, planned.activations, planned.rows)
    process = resident_bytes()
    return ModelPlan(
        user.model, *parts, process, sum(parts) + process, available, memory.bytes_per_token, planned.config,
        0 if memory.sliding is None else memory.sliding.bytes_per_token, planned.cut,
    )  # fmt: skip
