"""The engine of what was loaded, and the sizes of what computes its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.config import SchedulerConfig

if TYPE_CHECKING:
    from octavo.assembly.loading import Loaded
    from octavo.engine.core import EngineCore
    from octavo.engine.scheduler import Scheduler
    from octavo.kernels.ops import Limits
    from octavo.runtime.states import RequestStates


def core_of(loaded: Loaded) -> EngineCore:
    """The engine of what was loaded: the one place that puts its parts together."""
    import random

    from octavo.engine.admission import Admission
    from octavo.engine.beams import BeamSearches
    from octavo.engine.core import EngineCore
    from octavo.engine.retries import StepRetries
    from octavo.sampling.beam import BeamSearch

    config, runner, seed = loaded.config, loaded.runner, loaded.user.seed
    ends = frozenset(loaded.tokenizer.stop_token_ids)
    core = EngineCore(
        Admission(config, ends, loaded.model.vocab_size, BeamSearches(BeamSearch)),
        runner,
        rng=None if seed is None else random.Random(seed),
        steps_in_flight=runner.steps_in_flight,
        scheduler=scheduler_of(loaded),
    )
    core.recovery = StepRetries(core, runner)
    return core


def scheduler_of(loaded: Loaded) -> Scheduler:
    """A new scheduler of what was loaded."""
    from octavo.engine.disk_prefixes import manager_of
    from octavo.engine.drafts import SPARE, Drafts
    from octavo.engine.scheduler import Scheduler

    kv = manager_of(loaded.config, loaded.page_file)
    if loaded.speculation is None:
        return Scheduler(loaded.config, kv)
    kv.spare = min(loaded.config.max_num_seqs, loaded.config.num_pages // SPARE)
    return Scheduler(loaded.config, kv, Drafts())


def reset_prefix_cache(loaded: Loaded, core: EngineCore) -> bool:
    """Forget cached prefixes, and what drafts are proposed from beyond a request's own text.

    Returns:
        Whether none is left: no running request uses any.
    """
    if loaded.speculation is not None:
        loaded.speculation.reset()
    return core.reset_prefix_cache()


def restart(core: EngineCore, loaded: Loaded) -> None:
    """Make the engine of what was loaded sound again, whatever has struck in the midst of a call.

    Requests, steps, counters and the prefixes cached in memory are forgotten; those on disk are kept.
    """

    def make() -> Scheduler:
        if loaded.page_file is not None:
            loaded.page_file.reload()
        return scheduler_of(loaded)

    core.restart(make)


def states_of(config: SchedulerConfig, spare_page: int) -> RequestStates:
    """The runner's memory of its rows.

    Args:
        spare_page: stands in for pages, or sliding ones, that a window has passed.
    """
    from octavo.runtime.states import RequestStates, RowWindow

    sliding = config.sliding_window
    return RequestStates(
        config.max_num_seqs,
        config.max_model_len,
        config.page_size,
        config.max_encoder_len,
        RowWindow(config.window, spare_page)
        if sliding is None
        else RowWindow(sliding, spare_page, sliding=True),
    )


def limits_of(config: SchedulerConfig) -> Limits:
    """Of one batch, the decoder's or the encoder's."""
    from octavo.kernels.ops import Limits

    max_tokens = max(config.max_num_batched_tokens, config.max_num_seqs)
    return Limits(
        max_tokens=max_tokens,
        max_sequences=config.max_num_seqs,
        max_sampled=config.max_sampled_rows or max_tokens,
        max_pages_per_sequence=-(-max(config.max_model_len, config.max_encoder_len) // config.page_size),
        sliding=config.sliding_window is not None,
    )
