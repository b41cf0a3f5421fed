"""The native sampler against the reference: tokens, ranks, log-probabilities and errors are equal.

Not close: both round every step alike (sampling/elementary.py), so results are compared with ==.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels import _native
from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.draws import RowLogprobs
from octavo.params import SampledToken, SamplingParams
from octavo.sampling import Sampler, SamplingBatch, TokenLists
from octavo.sampling.native import NativeSampler, make_sampler
from octavo.sampling.sampling_batch import ROW, Boost
from support.draws import lists, random_boost, random_logits, random_mask, random_params

BACKENDS = {(isa, 1): CpuBackend(1, isa) for isa in instruction_sets()} | {
    ("auto", threads): CpuBackend(threads) for threads in (2, 3)
}
REFERENCE = Sampler()
VOCABS = (1, 2, 15, 16, 17, 255, 256, 257, 1000, 4096, 5003, 49_152)


def native(vocab: int, isa: str = "auto", threads: int = 2) -> Sampler:
    return make_sampler(BACKENDS[isa, threads], vocab)


def random_case(seed: int, rows: int, vocab: int, plain: bool) -> tuple[np.ndarray, SamplingBatch]:
    """plain: nothing but temperature, top_k, top_p and min_p."""
    rng = np.random.default_rng(seed)
    empty = TokenLists.of([None] * rows)
    batch = SamplingBatch(
        rows=random_params(rng, rows, vocab, not plain),
        positions=rng.integers(0, 2**40, rows),
        bias=empty if plain else lists(rng, rows, vocab, lambda n: rng.normal(0, 5, n)),
        banned=empty if plain else lists(rng, rows, vocab, np.zeros),
        seen=empty if plain else lists(rng, rows, vocab, lambda n: rng.integers(0, 4, n)),
        mask=None if plain or rng.random() < 0.5 else random_mask(rng, rows, vocab),
        boost=None if plain or rng.random() < 0.5 else random_boost(rng, rows, vocab),
        errors={0: "no more"} if not plain and rng.random() < 0.1 else {},
    )
    return random_logits(rng, rows, vocab), batch


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 7),
    vocab=st.one_of(st.sampled_from(VOCABS[:-1]), st.integers(1, 3000)),
    where=st.sampled_from(list(BACKENDS)),
)
def test_anything_gives_what_the_reference_gives(
    seed: int, rows: int, vocab: int, where: tuple[str, int]
) -> None:
    logits, batch = random_case(seed, rows, vocab, plain=False)
    before = logits.copy()
    assert native(vocab, *where).sample(logits, batch) == REFERENCE.sample(logits, batch)
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("plain", [True, False])
def test_thousands_of_rows_without_one_disagreement(vocab: int, plain: bool) -> None:
    """Fixed seeds: 64 rows at a time; a draw that differs once in 10,000 rows would be seen."""
    rows = 64
    for seed in range(2 if vocab > 10_000 else 12):
        logits, batch = random_case(seed, rows, vocab, plain)
        ours, expected = native(vocab).sample(logits, batch), REFERENCE.sample(logits, batch)
        assert [i for i in range(rows) if ours[i] != expected[i]] == []


@pytest.mark.parametrize("lead", [8.0, 11.5, 12.0])
def test_top_p_reaches_into_a_long_flat_tail(lead: float) -> None:
    """One token leads 49,151 nearly equal ones, so that the mass is reached deep among the light."""
    rows, vocab = 40, 49_152
    logits, batch = random_case(1, rows, vocab, plain=True)
    logits[:] = np.random.default_rng(2).standard_normal((rows, vocab)) * 0.1
    logits[np.arange(rows), np.arange(rows) * 997] += lead
    for name, value in (("temperature", 1), ("top_k", 0), ("min_p", 0), ("typical_p", 1), ("top_p", 0.95)):
        batch.rows[name] = value
    drawn = native(vocab).sample(logits, batch)
    assert drawn == REFERENCE.sample(logits, batch)
    leaders = [row * 997 for row in range(rows)]
    assert sum(isinstance(t, SampledToken) and t.token_id not in leaders for t in drawn) > 3


@pytest.mark.parametrize("where", BACKENDS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_rows_of_a_real_size_on_every_instruction_set(where: tuple[str, int], rows: int) -> None:
    for seed in range(4):
        logits, batch = random_case(100 + seed, rows, 49_152, plain=bool(seed % 2))
        assert native(49_152, *where).sample(logits, batch) == REFERENCE.sample(logits, batch)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("count", [0, 7])
def test_given_tokens_have_the_scores_that_the_reference_gives_them(vocab: int, count: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal((9, vocab)) * 4).astype(np.float32)
    logits[:, rng.random(vocab) < 0.2] = -np.inf
    logits[:, 0] = 1.0
    logits[4] = -np.inf  # nothing there to draw, and yet the prompt has a token
    logits[4, vocab // 2] = 0.0
    tokens = rng.integers(0, vocab, 9).tolist()
    assert native(vocab).score(logits, tokens, count) == REFERENCE.score(logits, tokens, count)


def test_a_row_alone_and_among_others_at_any_alignment() -> None:
    vocab, rows = 5003, 9
    logits, batch = random_case(7, rows, vocab, plain=False)
    together = native(vocab).sample(logits, batch)
    for row in range(rows):
        padded = np.zeros(vocab + row, np.float32)
        padded[row:] = logits[row]
        alone = SamplingBatch(
            rows=batch.rows[row : row + 1],
            positions=batch.positions[row : row + 1],
            bias=TokenLists.of([batch.bias.row(row)]),
            banned=TokenLists.of([batch.banned.row(row)]),
            seen=TokenLists.of([batch.seen.row(row)]),
            mask=None if batch.mask is None else batch.mask[row : row + 1],
            boost=boost_of(batch, [row]),
        )
        assert native(vocab).sample(padded[row:][None], alone) == [together[row]]


def boost_of(batch: SamplingBatch, rows: list[int]) -> Boost | None:
    return batch.boost and Boost(batch.boost.bits[rows], batch.boost.deltas[rows])


@pytest.mark.parametrize("where", BACKENDS, ids=str)
def test_rows_of_logits_that_others_share(where: tuple[str, int]) -> None:
    """Any of the logits' rows, in any order, some of them several times."""
    vocab, rng = 5003, np.random.default_rng(5)
    for rows in (1, 2, 5, 9):
        _, batch = random_case(rows, rows, vocab, plain=False)
        others = random_logits(rng, rows + 7, vocab)
        which = rng.integers(0, rows + 7, rows).tolist()
        expected = REFERENCE.sample(np.ascontiguousarray(others[which]), batch)
        assert REFERENCE.sample(others, batch, which) == expected
        assert native(vocab, *where).sample(others, batch, which) == expected


def test_a_boost_is_added_before_bans_masks_and_penalties() -> None:
    """1a: what is banned stays so, penalties see boosted logits, and a delta of 0 is no boost at all."""
    vocab = 40
    logits = np.zeros((3, vocab), np.float32)
    logits[0, 0] = -0.0
    logits[:, 7], logits[:, 9] = 1.0, 2.0
    bits = np.zeros((3, 2), np.uint32)
    bits[:, 0] = 1 << 7 | 1 << 11
    params = np.zeros(3, ROW)
    params["typical_p"] = 1
    params["repetition_penalty"], params["top_p"], params["num_logprobs"] = 4.0, 1, 2
    token = np.array([7], np.int32), np.ones(1, np.float32)
    batch = SamplingBatch(
        params,
        np.zeros(3, np.int64),
        TokenLists.none(3),
        TokenLists.of([None, (np.array([7], np.int32), np.zeros(1, np.float32)), None]),
        TokenLists.of([None, None, token]),
        boost=Boost(bits, np.array([0, 3, 3], np.float32)),
    )
    drawn = native(vocab).sample(logits, batch)
    assert drawn == REFERENCE.sample(logits, batch)
    # Alone 9 is the likeliest; 7 is banned, so 11 at 3; 7 has (1 + 3) / 4, so 11 again.
    assert [t.token_id for t in drawn if isinstance(t, SampledToken)] == [9, 11, 11]
    assert [t.rank for t in drawn if isinstance(t, SampledToken)] == [1, 12, 12]  # of the raw logits


def test_frequencies_follow_the_probabilities() -> None:
    """Its own check, without the reference's draw: chi-square of 20,000 seeds."""
    vocab, trials = 40, 20_000
    rng = np.random.default_rng(0)
    row = (rng.standard_normal((1, vocab)) * 2).astype(np.float32)
    empty = TokenLists.of([None] * trials)
    params = np.zeros(trials, ROW)
    params["typical_p"] = 1
    params["seed"], params["temperature"], params["repetition_penalty"] = np.arange(trials), 1.3, 1
    params["top_p"], params["top_k"], params["num_logprobs"] = 0.9, 20, -1
    batch = SamplingBatch(params, np.full(trials, 3), empty, empty, empty)
    drawn = native(vocab).sample(np.repeat(row, trials, axis=0), batch)
    one = SamplingBatch(params[:1], np.full(1, 3), *[TokenLists.of([None])] * 3)
    expected = REFERENCE.probabilities(row, one)[0][0] * trials
    counts = np.bincount([t.token_id for t in drawn if isinstance(t, SampledToken)], minlength=vocab)
    assert (counts[expected == 0] == 0).all()
    cells = expected > 0
    statistic = ((counts - expected)[cells] ** 2 / expected[cells]).sum()
    degrees = cells.sum() - 1
    assert degrees > 5
    assert (statistic - degrees) / (2 * degrees) ** 0.5 < 4


def test_an_empty_batch_draws_nothing() -> None:
    empty = TokenLists.of([])
    batch = SamplingBatch(np.zeros(0, ROW), np.zeros(0, np.int64), empty, empty, empty)
    assert native(100).sample(np.zeros((0, 100), np.float32), batch) == []


def test_the_reference_backend_has_no_native_sampler() -> None:
    from octavo.kernels.reference import ReferenceBackend

    assert type(make_sampler(ReferenceBackend(), 10)) is Sampler
    assert isinstance(native(10), NativeSampler)


def wrong(**changes: Any) -> None:
    """Call the native sampler by hand with some arguments changed."""
    rows, vocab = 2, 40
    none = TokenLists.none(rows)
    params = np.zeros(rows, ROW)
    params["typical_p"] = 1
    params["repetition_penalty"], params["num_logprobs"] = 1, -1
    edits = {
        name: changes.pop(name) for name in ("bias", "banned", "seen", "mask", "boost") if name in changes
    }
    scores = RowLogprobs.empty(rows, 3)
    scored = {name: changes.pop(name) for name in ("ranks", "logprobs", "top_tokens") if name in changes}
    arguments: dict[str, Any] = {
        "logits": np.zeros((rows, vocab), np.float32),
        "records": params.view(np.uint8),
        "positions": np.zeros(rows, np.int64),
        "edits": SamplingBatch(
            params, np.zeros(rows, np.int64), **{"bias": none, "banned": none, "seen": none, **edits}
        ),
        "scores": replace(scores, **scored),
    }
    BACKENDS["auto", 2].sampler(vocab).sample(**{**arguments, **changes})


def test_arguments_that_would_reach_beyond_an_array_are_refused() -> None:
    wrong()
    starts = np.array([0, 1, 1])

    def token(t: int, starts: np.ndarray = starts) -> TokenLists:
        return TokenLists(starts, np.array([t], np.int32), np.zeros(1, np.float32))

    asking = np.zeros(2, ROW)
    asking["typical_p"] = 1
    asking["num_logprobs"] = 4
    bits, deltas = np.zeros((2, 2), np.uint32), np.zeros(2, np.float32)
    for words, changes in (
        ("beyond the vocabulary", {"bias": token(40)}),
        ("beyond the vocabulary", {"seen": token(-1)}),
        ("do not span", {"bias": token(1, starts[::-1].copy())}),
        ("do not span", {"banned": token(1, starts * 2)}),
        ("differ in length", {"seen": token(1, starts[:2])}),
        ("differ in length", {"positions": np.zeros(1, np.int64)}),
        ("differ in length", {"mask": np.zeros((2, 1), np.uint32)}),
        ("differ in length", {"boost": Boost(bits[:, :1].copy(), deltas)}),
        ("differ in length", {"boost": Boost(bits, deltas[:1])}),
        ("differ in length", {"ranks": np.zeros(1, np.int64)}),
        ("differ in length", {"logprobs": np.zeros(1)}),
        ("differ in length", {"top_tokens": np.zeros((2, 2), np.int32)}),
        ("another vocabulary", {"logits": np.zeros((2, 41), np.float32)}),
        ("another layout", {"records": np.zeros(2 * 48, np.uint8)}),
        ("another layout", {"which": np.array([0], np.int32)}),
        ("has no logits", {"which": np.array([0, 2], np.int32)}),
        ("has no logits", {"which": np.array([-1, 0], np.int32)}),
        ("more logprobs than", {"records": asking.view(np.uint8)}),
        ("more logprobs than", {"records": asking.view(np.uint8), "scores": None}),
    ):
        with pytest.raises(ValueError, match=words):
            wrong(**changes)
    with pytest.raises(ValueError, match="vocabulary"):
        BACKENDS["auto", 2].sampler(0)


def in_other_order(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2, axis=-1)[..., ::2]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ranks", {"ranks": np.zeros(2, np.int32)}),
        ("ranks", {"ranks": in_other_order(np.zeros(2, np.int64))}),
        ("logprobs", {"logprobs": np.zeros(2, np.float32)}),
        ("logprobs", {"logprobs": np.zeros((2, 1))}),
        ("top_tokens", {"top_tokens": np.zeros((2, 3), np.int64)}),
        ("top_tokens", {"top_tokens": in_other_order(np.zeros((2, 3), np.int32))}),
        ("mask", {"mask": np.zeros((2, 2), np.int64)}),
        ("deltas", {"boost": Boost(np.zeros((2, 2), np.uint32), np.zeros(2))}),  # type: ignore[arg-type]
        ("starts", {"bias": replace(TokenLists.none(2), starts=np.zeros(3))}),
        ("tokens", {"seen": replace(TokenLists.none(2), tokens=np.zeros(0, np.int64))}),
    ],
)
def test_arrays_of_other_types_and_orders_are_refused_by_name(name: str, changes: dict[str, Any]) -> None:
    """What would be written to a copy of theirs would be lost."""
    with pytest.raises(ValueError, match=f"{name} is no array"):
        wrong(**changes)


@pytest.mark.parametrize(
    "changes",
    [{"logits": np.zeros((2, 40))}, {"positions": np.zeros(2)}, {"which": np.array([0.9, 1.9])}],
    ids=lambda changes: next(iter(changes)),
)
def test_arguments_of_other_types_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        wrong(**changes)


def test_scores_of_given_tokens_go_to_arrays_of_their_types() -> None:
    sampler, tokens = BACKENDS["auto", 2].sampler(40), np.array([0, 39], np.int32)
    scores = replace(RowLogprobs.empty(2, 1), logprobs=np.zeros(2, np.float32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="logprobs is no array"):
        sampler.score(np.zeros((2, 40), np.float32), tokens, scores)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [([0], "differ in length"), ([0, 40], "to score is beyond"), ([-1, 0], "to score is beyond")],
)
def test_given_tokens_that_are_none_of_the_vocabulary_are_refused(tokens: list[int], words: str) -> None:
    sampler = BACKENDS["auto", 2].sampler(40)
    logits = np.zeros((2, 40), np.float32)
    assert sampler.score(logits, np.array([0, 39], np.int32), RowLogprobs.empty(2, 1)) == [0, 39]
    with pytest.raises(ValueError, match=words):
        sampler.score(logits, np.array(tokens, np.int32), RowLogprobs.empty(2, 1))
    with pytest.raises(ValueError, match="differ in length"):
        sampler.score(logits, np.array([0, 39], np.int32), RowLogprobs.empty(1, 1))


def unlike(record: np.dtype[Any]) -> set[str]:
    """Numbers that stand elsewhere in the native record than here, or in one of both alone."""
    numbers, size = _native.record_layout()
    theirs = {(name, offset, width) for name, offset, width in numbers} | {("size", 0, size)}
    ours = {(name, at[1], at[0].itemsize) for name, at in (record.fields or {}).items()}
    return {name for name, *_ in theirs ^ (ours | {("size", 0, record.itemsize)})}


def test_the_record_has_the_layout_that_native_code_reads() -> None:
    assert unlike(ROW) == set()
    more = np.dtype(
        [*((name, ROW[name]) for name in ROW.names or ()), ("epsilon_cutoff", np.float64)], align=True
    )
    assert unlike(more) == {"epsilon_cutoff", "size"}  # a number that native code has not heard of is named
    fewer = np.dtype([(name, ROW[name]) for name in (ROW.names or ()) if name != "min_p"], align=True)
    assert "min_p" in unlike(fewer)


def test_a_device_gets_every_number_of_a_record() -> None:
    from octavo.kernels.cuda.sample import FIELDS

    assert set(ROW.names or ()) <= set(FIELDS)


def test_params_of_a_request_reach_the_native_record() -> None:
    """ROW has the layout that C++ reads: each field alone changes what is drawn as in the reference."""
    from octavo.sampling import SamplingRows

    vocab = 600
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((1, vocab)) * 2).astype(np.float32)
    seen = 0
    for change in (
        {"temperature": 0.0},
        {"top_k": 2},
        {"top_p": 0.1},
        {"min_p": 0.5},
        {"repetition_penalty": 3.0},
        {"frequency_penalty": 1.9},
        {"presence_penalty": 1.9},
        {"logprobs": 2},
        {"logit_bias": {5: 20.0}},
        {"min_tokens": 4, "stop_token_ids": [int(logits.argmax())]},
    ):
        base = {"temperature": 0.9} | change
        rows = SamplingRows(1, vocab)
        rows.add(0, SamplingParams(**base), 11, 0, [1, 2, int(logits.argmax()), 3], 2)
        batch = rows.batch([0] * 50, range(4, 54))
        repeated = np.repeat(logits, 50, axis=0)
        result = native(vocab).sample(repeated, batch)
        assert result == REFERENCE.sample(repeated, batch)
        rows.add(0, SamplingParams(temperature=0.9), 11, 0, [1], 1)
        seen += result != native(vocab).sample(repeated, rows.batch([0] * 50, range(4, 54)))
    assert seen == 10
