"""From what is free to pages, and from pages to the engine's numbers. The code that plans is what allocates.

Shape       what a model is, as far as memory counts: from its layers' KVSpecs and lengths
Pages       what pages a user wants of it, in tokens, sequences and bytes
FreeMemory  what is free, on the machine or a device
Budget      what is given to weights, pages and swap space; resolve() makes a SchedulerConfig of it
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.config import MAX_IN_FLIGHT, EngineConfig, SchedulerConfig, pages_at_a_time
from octavo.errors import CapacityError, InvalidRequestError
from octavo.kernels.ops import Backend, KVSpec
from octavo.models.registry import EncoderDecoder, Model
from octavo.runtime.free_memory import available_memory

CPU_BATCHED_TOKENS = 512
"""Tokens of a step on a CPU: enough to amortize the weights, small enough for the buffers."""

DRAFTED_ROWS = 256
"""Rows of logits of a step that verifies drafts, as far as it has tokens: more than a machine gains by."""

CPU_SHARE = 0.25
"""Share of free memory that pages may take on a CPU when nobody says otherwise."""
MOST_CPU_SHARE = 0.5
"""What they may take at most, unless num_pages says how many they are."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as far as memory counts.

    Attributes:
        specs: what each layer's pages hold.
        max_position: the longest sequence it was made for. max_source: the longest input of its encoder; 0:
            it has none.
        step_tokens: tokens of a step that keep the backend busy; None: CPU_BATCHED_TOKENS.
    """

    specs: Sequence[KVSpec]
    max_position: int
    max_source: int = 0
    step_tokens: int | None = None

    @staticmethod
    def of(model: Model, backend: Backend, specs: Sequence[KVSpec]) -> Shape:
        source = model.max_source if isinstance(model, EncoderDecoder) else 0
        return Shape(specs, model.max_position, source, backend.step_tokens)

    @property
    def window(self) -> int | None:
        """Tokens that the widest of the layers' windows sees; None: one of them sees everything, or there is
        none."""
        windows = [spec.window for spec in self.specs if spec.window is not None]
        return max(windows) if windows and len(windows) == len(self.specs) else None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens to plan for.

    Attributes:
        sequence: of the longest sequence.
        encoder: of an encoder's longest input; 0: there is none. It is computed in one step, so
            max_num_batched_tokens bounds it, as max_model_len does.
        step: of all sequences in a step; an encoder's input fits into it.
    """

    sequence: int
    encoder: int
    step: int

    @staticmethod
    def of(user: EngineConfig, shape: Shape) -> Lengths:
        """
        Raises:
            InvalidRequestError: max_model_len is above what the model was made for.
        """
        longest, batched = user.max_model_len, user.max_num_batched_tokens
        if longest is not None and longest > shape.max_position:
            raise InvalidRequestError(
                f"max_model_len {longest} is above the model's {shape.max_position}", "max_model_len"
            )
        source = shape.max_source
        encoder = min(source, longest or source, batched or source)
        step = batched or max(shape.step_tokens or CPU_BATCHED_TOKENS, encoder)
        return Lengths(longest or shape.max_position, encoder, step)


@dataclass(frozen=True, slots=True)
class SlidingNeed:
    """Pages that the sliding-window layers of a model need (engine.groups.sliding_pages).

    Attributes:
        window: tokens that the widest window of its layers sees.
        most: that one sequence needs at a time. enough: for as many sequences as may run, of any length.
        bytes_per_token: of the layers with a window.
    """

    window: int
    most: int
    enough: int
    bytes_per_token: int

    def exactly(self, count: int | None) -> SlidingNeed:
        """The same where somebody has said how many there are to be."""
        return self if count is None else replace(self, most=count, enough=count)


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages that are wanted: for max_num_seqs sequences of max_len tokens.

    Attributes:
        num_pages, num_sliding_pages: exactly so many, if given.
        sliding: what layers with a window need, where they have pages of their own.
        swap_gib: GiB of the swap space.
    """

    specs: Sequence[KVSpec]
    max_len: int
    max_num_seqs: int
    page_size: int
    num_pages: int | None = None
    sliding: SlidingNeed | None = None
    num_sliding_pages: int | None = None
    swap_gib: float = 0.0

    @property
    def bytes_per_token(self) -> int:
        """Of all layers."""
        return sum(spec.bytes_per_token for spec in self.specs)

    @property
    def longest(self) -> int:
        """Pages of the longest sequence."""
        return -(-self.max_len // self.page_size)


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that are free, weights loaded already.

    Attributes:
        share: 0..1 of them that pages may take; None is CPU_SHARE.
        system: free bytes of the system's memory, where pages lie in another one; the swap space is there.
    """

    free: int
    share: float | None = None
    system: int | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What will be allocated, in bytes, and how many pages that is.

    Attributes:
        bytes_per_token: of all layers. sliding: what those with a window need, where they have pages of their
            own: num_sliding_pages, of which pages own one each while it is seen.
    """

    weights: int
    kv_cache: int
    free: int
    num_pages: int
    page_size: int
    bytes_per_token: int
    num_swap_pages: int = 0
    num_sliding_pages: int = 0
    sliding: SlidingNeed | None = None

    @property
    def swap_space(self) -> int:
        return self.num_swap_pages * self.page_size * self.bytes_per_token

    @property
    def num_tokens(self) -> int:
        return self.num_pages * self.page_size


def budget_of(
    user: EngineConfig, shape: Shape, weights: int, memory: FreeMemory
) -> tuple[Budget, SchedulerConfig]:
    """The pages that fit, and the engine's numbers with them.

    Args:
        weights: bytes of them.

    Raises:
        CapacityError: not even one page fits, or not one sequence as long as was asked for.
        InvalidRequestError: a number contradicts the model.
    """
    lengths = Lengths.of(user, shape)
    length = lengths.sequence + -(-lengths.encoder // user.page_size) * user.page_size
    sliding = sliding_need(shape.specs, length, user.max_num_seqs, user.page_size, lengths.step)
    if sliding is None and user.num_sliding_pages is not None:
        raise InvalidRequestError(
            f"num_sliding_pages has no use here: all layers share one pool of pages, since "
            f"{_why_shared(shape.specs, length, lengths.step)}",
            "num_sliding_pages",
        )
    wanted = Pages(
        shape.specs, length, user.max_num_seqs, user.page_size,
        num_pages=user.num_pages, sliding=sliding, num_sliding_pages=user.num_sliding_pages,
        swap_gib=user.swap_space,
    )  # fmt: skip
    budget = plan_pages(wanted, memory, weights)
    return budget, resolve(user, shape, budget)


def free_memory_of(user: EngineConfig, model: Model, backend: Backend, free: int | None = None) -> FreeMemory:
    """What pages may take: of a device's memory where the backend has one, else of the machine's.

    Args:
        free: bytes that the machine has left; None asks it.
    """
    share = user.gpu_memory_utilization
    tokens = user.max_num_batched_tokens or backend.step_tokens or CPU_BATCHED_TOKENS
    sampled = sampled_rows(user, tokens)
    own = backend.page_budget(share, activation_reserve(sampled, model.vocab_size))
    free = available_memory() if free is None else free
    return FreeMemory(free, _shared(share)) if own is None else FreeMemory(own, 1.0, free)


def _shared(share: float | None) -> float | None:
    """What pages may take of a CPU's memory. A lesson's 0.9 is meant for a card that serves nothing else."""
    if share is None or share <= MOST_CPU_SHARE:
        return share
    warnings.warn(
        f"gpu_memory_utilization {share} is taken as {MOST_CPU_SHARE} on a CPU, whose memory others use too: "
        "num_pages says how many pages there are, whatever they take",
        RuntimeWarning,
        stacklevel=2,
    )
    return MOST_CPU_SHARE


def plan_pages(wanted: Pages, free_memory: FreeMemory, weights: int = 0) -> Budget:
    """Pages for as many sequences as are wanted, if these fit in the share of what is free.

    Raises:
        CapacityError: not even one page fits.
    """
    free, per_token = free_memory.free, wanted.bytes_per_token
    page = wanted.page_size * per_token
    swap = _swapped_pages(wanted.swap_gib, page, free if free_memory.system is None else free_memory.system)
    if free_memory.system is None:  # a CPU: the swap space is taken from the same memory
        free -= swap * page
    sliding, sliding_page, sliding_pages = wanted.sliding, 0, 0
    share = CPU_SHARE if free_memory.share is None else free_memory.share
    # A number that the user names may take all that is free: the share bounds what is chosen here.
    budget = free if wanted.num_pages is not None else int(free * share)
    if sliding is None:  # all layers share pages
        most = wanted.max_num_seqs * wanted.longest
        pages = min(most, budget // page) if wanted.num_pages is None else wanted.num_pages
    else:  # a page then holds what the other layers store, and a sliding page the rest
        sliding_page = wanted.page_size * sliding.bytes_per_token
        pages, sliding_pages = divide(budget, page - sliding_page, sliding_page, wanted)
    size = pages * (page - sliding_page) + sliding_pages * sliding_page
    if wanted.num_pages is not None and size > free:  # the user's number does not fit
        raise CapacityError(
            f"num_pages {wanted.num_pages} needs {size} bytes; {free} are free, enough for "
            f"{free // page} pages"
        )
    if pages < 1:
        raise CapacityError(
            f"a page of {wanted.page_size} tokens needs {page} bytes; "
            f"{free} are free: raise --gpu-memory-utilization or free memory"
        )
    if wanted.num_sliding_pages not in (None, sliding_pages):
        raise CapacityError(
            f"num_sliding_pages {wanted.num_sliding_pages}: {pages} pages fit beside them, and a page owns "
            "at most one of them"
        )
    sliding = None if sliding is None else sliding.exactly(wanted.num_sliding_pages)
    return Budget(weights, size, free, pages, wanted.page_size, per_token, swap, sliding_pages, sliding)


def divide(room: int, page: int, sliding_page: int, wanted: Pages) -> tuple[int, int]:
    """How many pages, and how many sliding pages, a model gets some of whose layers have a window.

    Everything, if there is room. Otherwise first one sequence of the greatest length, then sliding pages for
    all sequences, and as many pages as room is left for.

    Args:
        room: bytes. page, sliding_page: bytes of each.
    """
    assert wanted.sliding is not None
    need, longest = wanted.sliding.exactly(wanted.num_sliding_pages), wanted.longest
    first = longest if wanted.num_pages is None else wanted.num_pages
    sliding = max(min((room - page * first) // sliding_page, need.enough), need.most)
    if wanted.num_pages is not None:  # a sliding page belongs to a page: more of them are of no use
        return wanted.num_pages, min(sliding, wanted.num_pages)
    most = wanted.max_num_seqs * longest
    pages = min((room - sliding_page * sliding) // page, most)
    if pages >= sliding:
        return pages, sliding
    # So little room that sliding pages are as many as pages: each page has one.
    both = min(room // (page + sliding_page), most)
    return both, both


def _swapped_pages(swap_gib: float, page: int, free: int) -> int:
    """Pages of so many bytes that the swap space holds. CapacityError where it exceeds what is free."""
    pages = int(swap_gib * 2**30) // page
    if pages * page > free:
        raise CapacityError(
            f"swap_space {swap_gib:g} GiB is more than the {free / 2**30:.1f} GiB that are free"
        )
    return pages


def page_specs(model: Model, backend: Backend, user: EngineConfig) -> list[KVSpec]:
    """What a model's layers store: of the user's kv_cache_dtype, or where that is auto of the backend's type.

    A latent that nobody chose a type for keeps float16 where others keep int16: its one scale is that of a
    key of several hundred dimensions, by which its values would lose more than float16 does.
    """
    if user.kv_cache_dtype != "auto" or backend.kv_dtype is None:
        return list(model.kv_specs(user.kv_dtype))
    specs = model.kv_specs(backend.kv_dtype)
    return [replace(s, dtype="f16") if s.latent and s.dtype == "int16" else s for s in specs]


def free_after(weights: int, available: int | None = None) -> int:
    """Bytes that will be free once the weights are loaded.

    Args:
        available: bytes that are free before; None asks the system.

    Raises:
        CapacityError: the weights do not fit.
    """
    available = available_memory() if available is None else available
    if weights > available:
        raise CapacityError(f"the weights need {_size(weights)}, {_size(available)} are available")
    return available - weights


def _size(number: int) -> str:
    """Bytes as people read them, of 10^6 and 10^9."""
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number} bytes"


def sampled_rows(user: EngineConfig, step_tokens: int) -> int:
    """Rows of logits that a step may draw from: one for each sequence, and drafts where any are verified."""
    if user.speculative_config is None:
        return user.max_num_seqs
    return max(min(DRAFTED_ROWS, step_tokens), user.max_num_seqs)


def activation_reserve(max_sampled: int, vocab_size: int) -> int:
    """Bytes of a device's memory that pages leave: 1 GiB, and the sampled rows' logits four times (as
    computed, where draws find them, edited, and as weights)."""
    return 2**30 + 4 * 4 * max_sampled * vocab_size


def sliding_need(
    specs: Sequence[KVSpec], length: int, max_num_seqs: int, page_size: int, step_tokens: int
) -> SlidingNeed | None:
    """What layers with a window need for themselves; None: they share pages with the others.

    They do where all layers have a window or none has, and where a sequence is not longer than what it
    needs at a time anyway.

    Args:
        length: of the longest sequence.
        step_tokens: of all sequences in a step.
    """
    windows = [spec.window for spec in specs if spec.window is not None]
    if not windows or len(windows) == len(specs):
        return None
    window = max(windows)
    most = pages_at_a_time(length, page_size, window, step_tokens)
    if most >= -(-length // page_size):
        return None
    # Steps in flight write so many tokens in all; beyond them each sequence sees what one token sees.
    each, written = (
        pages_at_a_time(length, page_size, window, 1),
        -(-MAX_IN_FLIGHT * step_tokens // page_size),
    )
    size = sum(spec.bytes_per_token for spec in specs if spec.window is not None)
    return SlidingNeed(window, most, max(most, max_num_seqs * each + written), size)


def _why_shared(specs: Sequence[KVSpec], length: int, step_tokens: int) -> str:
    """Why sliding_need() is None, for an error message."""
    windows = [spec.window for spec in specs if spec.window is not None]
    if not windows:
        return "no layer of this model has a sliding window"
    if len(windows) == len(specs):
        return "every layer of this model has a sliding window"
    return (
        f"a context of {length} tokens is no longer than the window ({max(windows)}) and two steps of "
        f"max_num_batched_tokens ({step_tokens})"
    )


def resolve(user: EngineConfig, shape: Shape, budget: Budget) -> SchedulerConfig:
    """The engine's numbers from the user's wishes, the model and the pages that fit.

    A length the user did not name shrinks to the pool, so that a lone request always ends.

    Raises:
        CapacityError: the pool cannot hold one sequence of the max_model_len that was asked for.
    """
    lengths, size = Lengths.of(user, shape), user.page_size
    length, encoder = lengths.sequence, lengths.encoder
    needed = pages_at_a_time(length, size, shape.window, lengths.step) + -(-encoder // size)
    if needed > budget.num_pages:  # such a request would wait for pages for ever
        if user.max_model_len is not None or (encoder and budget.num_pages < 2):  # asked for: not shortened
            both = " and an encoder's input of as many tokens" if encoder else ""
            raise CapacityError(
                f"max_model_len {length}{both} needs {needed} pages of {size} "
                f"tokens, {budget.num_pages} fit: lower it or raise gpu_memory_utilization"
            )
        # The decoder needs pages too: an encoder gets half of them at most.
        encoder = min(encoder, budget.num_pages // 2 * size)
        length = min(length, (budget.num_pages - -(-encoder // size)) * size)
    return SchedulerConfig(
        num_pages=budget.num_pages,
        page_size=user.page_size,
        max_model_len=length,
        max_num_seqs=user.max_num_seqs,
        max_num_batched_tokens=lengths.step,
        step_target_s=user.step_target_ms / 1000 or None,
        enable_prefix_caching=user.enable_prefix_caching,
        max_waiting=user.max_waiting,
        scheduling_policy=user.scheduling_policy,
        max_encoder_len=encoder,
        window=shape.window,
        sliding_window=None if budget.sliding is None else budget.sliding.window,
        num_sliding_pages=budget.num_sliding_pages,
        max_sampled_rows=sampled_rows(user, lengths.step),
    )


def shortened(user: EngineConfig, shape: Shape, config: SchedulerConfig) -> dict[str, str]:
    """What a start should say where the pages hold less than a context that nobody has named."""
    longest = Lengths.of(user, shape).sequence
    if config.max_model_len >= longest:
        return {}
    few = "what fits in memory" if user.num_pages is None else f"num_pages {user.num_pages}"
    return {"context": f"{config.max_model_len} tokens, not the model's {longest}: {few} holds no more"}
