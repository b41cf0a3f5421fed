"""From what is free to pages, and from pages to the engine's numbers: resolve()."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.config import MAX_IN_FLIGHT, EngineConfig, SchedulerConfig, pages_at_a_time
from octavo.errors import CapacityError, InvalidRequestError
from octavo.kernels.ops import Backend, KVSpec
from octavo.models.registry import EncoderDecoder, Model
from octavo.runtime.division import LocalNeed
from octavo.runtime.memory import (
    MemoryPlan,
    activation_reserve,
    available_memory,
    free_after,
    plan_memory,
    window_of,
)

CPU_BATCHED_TOKENS = 512
"""Tokens of a step on a CPU: enough to amortize the weights, small enough for the buffers."""


def memory_of(
    user: EngineConfig,
    model: Model,
    backend: Backend,
    specs: Sequence[KVSpec],
    weight_bytes: int,
    planned: bool,
) -> tuple[MemoryPlan, SchedulerConfig]:
    """The pages that fit, and the engine's numbers with them."""
    source = model.max_source if isinstance(model, EncoderDecoder) else 0
    encoder = encoder_length(user, source)
    of_encoder = -(-encoder // user.page_size) * user.page_size
    length = context_length(user, model.max_position) + of_encoder
    share, free = user.gpu_memory_utilization, free_after(weight_bytes) if planned else None
    own = backend.page_budget(share, activation_reserve(user.max_num_seqs, model.vocab_size))
    system = None
    if own is not None:
        share, free, system = 1.0, own, available_memory()
    tokens = tokens_of_a_step(user, encoder, backend.step_tokens)
    local = local_need(specs, length, user.max_num_seqs, user.page_size, tokens)
    if local is None and user.num_local_pages is not None:
        raise InvalidRequestError(
            "num_local_pages is for models some of whose layers have a window; here all layers share pages, "
            "since all have one, or none, or the context is no longer than the window and two steps of "
            f"max_num_batched_tokens ({tokens})",
            "num_local_pages",
        )
    memory = plan_memory(
        specs, weight_bytes, length, user.max_num_seqs, user.page_size, user.num_pages, share, free,
        user.swap_space, system, local, user.num_local_pages,
    )  # fmt: skip
    return memory, resolve(
        user, model.max_position, memory.num_pages, source, backend.step_tokens, window_of(specs),
        None if local is None else local.window, memory.num_local_pages,
    )  # fmt: skip


def local_need(
    specs: Sequence[KVSpec], length: int, max_num_seqs: int, page_size: int, step_tokens: int
) -> LocalNeed | None:
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
    return LocalNeed(window, most, max(most, max_num_seqs * each + written), size)


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
