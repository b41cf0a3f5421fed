"""From speculative_config to runners that have drafts proposed, and verify them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.assembly.engine import limits_of

if TYPE_CHECKING:
    from octavo.assembly.drafting import Drafter
    from octavo.assembly.pages import Cache
    from octavo.config import EngineConfig, SchedulerConfig
    from octavo.config.speculation import Speculative
    from octavo.kernels.ops import Backend, KVSpec
    from octavo.models.registry import Model
    from octavo.runtime.model_drafts import ModelDrafts
    from octavo.runtime.model_runner import ModelRunner
    from octavo.runtime.speculation import Speculation
    from octavo.spec.base import Wanted

Kinds = tuple[Callable[..., "ModelRunner"], Callable[..., "ModelRunner"]]


def speculation_of(
    user: EngineConfig,
    config: SchedulerConfig,
    model: Model,
    backend: Backend,
    drafter: Drafter,
    cache: Cache,
) -> Speculation | None:
    """Who proposes drafts for this model; None: nobody was asked for."""
    if (found := _asked(user, config)) is None:
        return None
    from octavo.runtime.model_speculation import ModelSpeculation
    from octavo.runtime.speculation import Speculation
    from octavo.spec.policy import Fixed

    asked, wanted = found
    if (drafts := drafts_of(drafter, config, backend, cache)) is not None:
        return ModelSpeculation(drafts, Fixed(), asked.most, model.vocab_size, asked.rejecting)
    return Speculation(asked.proposer.make(wanted), Fixed(), asked.most, model.vocab_size, asked.rejecting)


def drafts_of(
    drafter: Drafter, config: SchedulerConfig, backend: Backend, cache: Cache
) -> ModelDrafts | None:
    """The proposer whose drafts a model draws; None: no model does."""
    if drafter.drafting is None:
        return None
    from octavo.kernels.split_kv import SplitKVCache
    from octavo.runtime.draft_pages import DrafterWrites, LoosePages, TargetWrites, Written
    from octavo.runtime.model_drafts import ModelDrafts

    kv, first = cache.kv, cache.first_loose
    firsts = (first, config.num_sliding_pages) if isinstance(kv, SplitKVCache) else (first,)
    written: Written = TargetWrites()
    if not drafter.drafting.shares_kv:
        written = DrafterWrites(
            cache.first_block + config.num_swap_pages, config.page_size, cache.first_block
        )
    limits = replace(limits_of(config), max_sampled=config.max_num_seqs)
    program = backend.capture(drafter.drafting.forward(kv), limits)
    loose = LoosePages(firsts, drafter.loose)
    return ModelDrafts(
        drafter.drafting, program, backend, loose=loose, written=written, max_tokens=limits.max_tokens
    )


def kinds_of(speculation: Speculation | None) -> Kinds:
    """The runners to choose from, on a host and on a device (make_runner)."""
    from octavo.runtime.model_runner import ModelRunner
    from octavo.runtime.overlap import OverlappedRunner
    from octavo.runtime.speculation import speculating

    return (ModelRunner, OverlappedRunner) if speculation is None else speculating(speculation)


def choose_policy(
    user: EngineConfig, config: SchedulerConfig, speculation: Speculation, runner: ModelRunner
) -> bool:
    """Measure what steps cost, where the policy asks for it. False: it does not."""
    from octavo.runtime.model_speculation import DraftCosts, ModelSpeculation
    from octavo.runtime.step_costs import StepCosts
    from octavo.spec.ahead import Ahead
    from octavo.spec.policy import new_auto

    found = _asked(user, config)
    if found is None or not found[0].auto:
        return False
    most = min(config.max_sampled_rows, config.max_num_batched_tokens)
    costs = StepCosts(
        runner, page_size=config.page_size, num_pages=config.num_pages, most=most,
        max_model_len=config.max_model_len, num_sliding_pages=config.num_sliding_pages,
    )  # fmt: skip
    policy = new_auto(table := costs.table())
    if isinstance(speculation, ModelSpeculation):
        drafting = DraftCosts(speculation.drafts, config.max_num_seqs, config.page_size)
        policy = Ahead(table, drafting.table(), drafting.lack_s(), speculation.drafts.max_tokens)
    speculation.policy = policy
    return True


def proposer_bytes(
    user: EngineConfig, config: SchedulerConfig, drafter: Drafter, specs: Sequence[KVSpec]
) -> int:
    """Bytes that the proposer's tables never exceed, and of pages that are no request's.

    Args:
        specs: of all layers of the cache.
    """
    if (found := _asked(user, config)) is None:
        return 0
    asked, wanted = found
    loose = drafter.pages(config.max_num_seqs)
    page = config.page_size * sum(spec.bytes_per_token for spec in specs)
    counts = 4 * (config.num_pages + loose + config.num_swap_pages) if drafter.specs else 0
    return asked.proposer.bound(wanted) + loose * page + counts


def _asked(user: EngineConfig, config: SchedulerConfig) -> tuple[Speculative, Wanted] | None:
    """What speculative_config asks for, and what its proposer has to be; None: there is no such config."""
    if user.speculative_config is None:
        return None
    from octavo.config.speculation import read_speculation
    from octavo.spec.base import Wanted

    asked = read_speculation(user.speculative_config)
    wanted = Wanted(config.max_num_seqs, config.max_model_len, True, asked.options, asked.rejecting)
    return asked, wanted
