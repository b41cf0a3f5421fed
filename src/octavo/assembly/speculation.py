"""From speculative_config to runners that have drafts proposed, and verify them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.errors import UnsupportedError

if TYPE_CHECKING:
    from octavo.config import EngineConfig, SchedulerConfig
    from octavo.config.speculation import Speculative
    from octavo.models.registry import Model
    from octavo.runtime.model_runner import ModelRunner
    from octavo.runtime.speculation import Speculation
    from octavo.spec.base import Wanted

Kinds = tuple[Callable[..., "ModelRunner"], Callable[..., "ModelRunner"]]


def speculation_of(user: EngineConfig, config: SchedulerConfig, model: Model) -> Speculation | None:
    """Who proposes drafts for this model; None: nobody was asked for.

    Raises:
        UnsupportedError: the model has an encoder.
    """
    if (found := _asked(user, config)) is None:
        return None
    from octavo.config.speculation import NAME
    from octavo.models.registry import EncoderDecoder
    from octavo.runtime.speculation import Speculation
    from octavo.spec.policy import Fixed

    if isinstance(model, EncoderDecoder):
        raise UnsupportedError("speculative_config: a model with an encoder is not drafted for", NAME)
    asked, wanted = found
    return Speculation(asked.proposer.make(wanted), Fixed(), asked.most, model.vocab_size)


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
    from octavo.runtime.step_costs import StepCosts
    from octavo.spec.policy import Auto

    found = _asked(user, config)
    if found is None or not found[0].auto:
        return False
    most = min(config.max_sampled_rows, config.max_num_batched_tokens)
    costs = StepCosts(
        runner, page_size=config.page_size, num_pages=config.num_pages, most=most,
        max_model_len=config.max_model_len, num_sliding_pages=config.num_sliding_pages,
    )  # fmt: skip
    speculation.policy = Auto(costs.table())
    return True


def proposer_bytes(user: EngineConfig, config: SchedulerConfig) -> int:
    """Bytes that the proposer's tables never exceed."""
    if (found := _asked(user, config)) is None:
        return 0
    asked, wanted = found
    return asked.proposer.bound(wanted)


def _asked(user: EngineConfig, config: SchedulerConfig) -> tuple[Speculative, Wanted] | None:
    """What speculative_config asks for, and what its proposer has to be; None: there is no such config."""
    if user.speculative_config is None:
        return None
    from octavo.config.speculation import read_speculation
    from octavo.spec.base import Wanted

    asked = read_speculation(user.speculative_config)
    return asked, Wanted(config.max_num_seqs, config.max_model_len, trees=True, options=asked.options)
