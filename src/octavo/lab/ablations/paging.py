"""KV in pages taken as tokens come, beside a slab for the longest possible sequence."""

from __future__ import annotations

from collections.abc import Callable

from octavo.engine.scheduler import Scheduler
from octavo.errors import UnsupportedError
from octavo.lab.ablations import Found, Setting, Technique
from octavo.lab.ablations.continuous_batching import LONG, PROMPT_TOKENS, mix_config, rates, wanted_of
from octavo.lab.baselines import ContiguousKV


def measure(setting: Setting) -> Found:
    """The same mix on the same memory, in pages and in slabs."""
    loaded, wanted = setting.loaded, wanted_of(setting)
    config = mix_config(loaded, wanted)
    makers: dict[str, Callable[[], Scheduler]] = {
        "paged": lambda: Scheduler(config),
        "contiguous": lambda: Scheduler(config, ContiguousKV(config)),
    }
    medians, _ = rates(loaded, makers, wanted, setting.rounds)
    rows = min(wanted.rows, config.num_pages // ContiguousKV(config).slab_pages)
    return Found(
        "tokens/s",
        (("paged", medians["paged"]), ("contiguous", medians["contiguous"])),
        True,
        f"slabs of {config.max_model_len} tokens leave room for {rows} at once, pages for {wanted.rows}",
        {"batching": {"contiguous": medians["contiguous"], "contiguous_rows": rows}, "paging": medians},
        {"paged over contiguous": medians["paged"] / medians["contiguous"]},
    )


def needs(setting: Setting) -> None:
    setting.need(LONG + PROMPT_TOKENS)
    if setting.loaded.config.sliding_window is not None:
        raise UnsupportedError("slabs are for models whose layers share pages")


TECHNIQUE = Technique(
    "paging",
    "pages waste less than one page a sequence, slabs most of what they reserve: more run at once",
    "Kwon et al. 2023, PagedAttention, section 3",
    measure,
    needs,
)
