"""Drafts leave the distribution as it is: all 125 sequences of a toy model, counted through the whole engine.

Requests stand side by side and preempt each other. Every proposer of the registry
drafts, and two that draw what they draft, as chains and as trees; both ways to verify. And again with the
mistakes that implementations are known for, each of which must be seen in the counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.errors import OctavoError
from octavo.params.drafts import Draft
from octavo.sampling import verify
from octavo.spec import Registration, methods
from support import draft_mutants
from support.chi_square import CHANCE, deviation
from support.toy_sequences import KINDS, SHAPES, Drawing, Expected, counted, save_toy

WAYS = ("strict", "probabilistic")
TRIALS = 2400
DRAFTER = "drafter"
PROPOSERS = (*methods(), *SHAPES)
ROTATED = [
    (name, way, list(KINDS)[(at + turn) % len(KINDS)])
    for at, (name, way) in enumerate(itertools.product(PROPOSERS, WAYS))
    for turn in ((0, 3) if way == "strict" else (0,))
]
"""Each proposer both ways, with one or two of the kinds of requests."""
EVERY = list(itertools.product(PROPOSERS, WAYS, KINDS))
OPTIONS: dict[str, Any] = {
    "max_model_len": 40, "max_num_seqs": 16, "num_pages": 28, "page_size": 4, "threads": 1,
    "kv_cache_dtype": "float32", "enable_prefix_caching": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = save_toy(tmp_path_factory.mktemp("toy"))
    (made / DRAFTER).mkdir()
    save_toy(made / DRAFTER, sharper=1.0)
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> Expected:
    return Expected(LLM(str(folder), **OPTIONS))


def more_of(name: str, folder: Path) -> dict[str, Any]:
    """What a proposer's config holds beside: short lookups, a model that draws nearly the same."""
    known = {"ngram": {"prompt_lookup_min": 1}, "draft": {"model": str(folder / DRAFTER)}}
    return known.get(name, {})


def engine(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, way: str) -> LLM:
    """With this proposer. Each draft is verified whole, and requests enter recklessly, so that some are
    preempted."""
    for shape, make in SHAPES.items():
        made = Registration(shape, lambda _, make=make: make(), lambda _: 0)  # type: ignore[misc]
        monkeypatch.setitem(methods(), shape, made)
    config: dict[str, Any] = {
        "method": name, "num_speculative_tokens": 8, "policy": "fixed", "rejection_sample_method": way,
        **more_of(name, folder),
    }  # fmt: skip
    llm = LLM(str(folder), speculative_config=config, **OPTIONS)
    llm._core.scheduler.growth_pages = 0
    return llm


def off(
    folder: Path,
    expected: Expected,
    patch: pytest.MonkeyPatch,
    case: tuple[str, str, str],
    trials: int = TRIALS,
) -> float:
    """How far the counts are from what is expected."""
    name, way, kind = case
    llm = engine(folder, patch, name, way)
    counts = counted(llm, kind, trials)
    drafts = llm.get_metrics().drafts
    assert drafts.accepted_tokens > trials / 10
    assert len(drafts.accepted_at) >= 2
    assert llm.get_metrics().preemptions > 10
    return deviation(counts, expected.chances(kind))


@pytest.mark.parametrize("case", ROTATED, ids="-".join)
def test_sequences_come_as_often_as_without_drafts(
    folder: Path, expected: Expected, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, str]
) -> None:
    assert off(folder, expected, monkeypatch, case) < CHANCE


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY, ids="-".join)
def test_all_sequences_come_as_often_as_without_drafts(
    folder: Path, expected: Expected, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, str]
) -> None:
    assert off(folder, expected, monkeypatch, case, 20_000) < CHANCE


# --- mistakes, made on purpose ----------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def residual_equal_to_the_target(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verify, "residual", lambda p, q: p)


def shared_noise(patch: pytest.MonkeyPatch) -> None:
    """What decides about a draft also draws what takes its place."""
    noise = verify.noise_of

    def shared(*args: Any) -> Any:
        accept, last = noise(*args)
        accept[:] = last[:, None]
        return accept, last

    patch.setattr(verify, "noise_of", shared)


def duplicate_siblings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Drawing, "again", True)
    patch.setattr(Draft, "__post_init__", lambda self: None)


def one_noise_for_all_positions(patch: pytest.MonkeyPatch) -> None:
    noise = verify.noise_of
    patch.setattr(
        verify, "noise_of", lambda seeds, samples, at, count: noise(seeds, samples, [0] * len(at), count)
    )


MUTANTS: list[tuple[Patch, tuple[str, str, str]]] = [
    (residual_equal_to_the_target, ("ngram", "probabilistic", "cool")),
    (shared_noise, ("suffix", "probabilistic", "top_p")),
    (one_noise_for_all_positions, ("chain", "probabilistic", "hot")),
    (duplicate_siblings, ("tree", "probabilistic", "hot")),
    (draft_mutants.positions_by_index, ("tree", "strict", "cool")),
    (draft_mutants.leave_nodes_where_they_are, ("tree", "strict", "cool")),
    (draft_mutants.noise_of_the_node, ("tree", "strict", "hot")),
    (draft_mutants.advance_along_rejected_drafts, ("chain", "strict", "grammar")),
    (draft_mutants.advance_along_rejected_drafts, ("chain", "strict", "penalties")),
    (draft_mutants.advance_along_rejected_drafts, ("tree", "probabilistic", "penalties")),
    (draft_mutants.go_on_after_any_child, ("chain", "strict", "hot")),
]


@pytest.mark.parametrize(
    ("mutate", "case"), MUTANTS, ids=[f"{mutate.__name__}-{'-'.join(case)}" for mutate, case in MUTANTS]
)
def test_mutants_are_seen_in_the_counts(
    folder: Path,
    expected: Expected,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Patch,
    case: tuple[str, str, str],
) -> None:
    """Or, as trees whose positions are wrong, refused by the engine: then no draft is accepted so far."""
    mutate(monkeypatch)
    draft_mutants.the_long_way(monkeypatch)
    trials = TRIALS * (3 if case[1] == "strict" else 1)
    with pytest.raises((AssertionError, OctavoError)):
        assert off(folder, expected, monkeypatch, case, trials) < CHANCE
