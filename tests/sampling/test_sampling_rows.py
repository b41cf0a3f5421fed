"""Permanent rows and the batches gathered from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams
from octavo.sampling import SamplingRows
from octavo.sampling.sampling_batch import ROW, U32
from octavo.sampling.wishes import TokenCounts

VOCAB = 40
TOKENS = st.lists(st.integers(0, VOCAB + 5), max_size=120)
PENALIZED = SamplingParams(frequency_penalty=0.5)


@settings(max_examples=200, deadline=None)
@given(TOKENS, TOKENS, st.lists(TOKENS, max_size=4), TOKENS)
def test_counts_are_those_of_the_whole_sequence(
    prompt: list[int], output: list[int], appended: list[list[int]], ahead: list[int]
) -> None:
    counts = TokenCounts(prompt, output, VOCAB)
    for tokens in appended:
        counts.append(tokens)
    written = output + [token for tokens in appended for token in tokens]
    for drafts in (ahead, []):  # looking ahead leaves no trace
        tokens, values = counts.lists(drafts)
        expected = Counter(written + drafts)
        assert len(set(tokens.tolist())) == len(tokens)
        assert dict(zip(tokens.tolist(), values.tolist(), strict=True)) == {
            token: expected[token] for token in {*prompt, *written, *drafts} if token < VOCAB
        }


def test_counts_grow_beyond_their_first_room() -> None:
    counts = TokenCounts([], [], 1000)
    for token in range(500):
        counts.append([token, 0])
    tokens, values = counts.lists()
    assert tokens.tolist() == list(range(500))
    assert values.tolist() == [501.0] + [1.0] * 499


def test_a_batch_holds_each_rows_own_numbers_in_the_asked_order() -> None:
    rows = SamplingRows(4, VOCAB)
    for row in range(4):
        params = SamplingParams(
            temperature=0.5 + row, top_k=row, top_p=0.9 - row / 10, min_p=row / 10, logprobs=row or None
        )
        rows.add(row, params, seed=2**63 + row, sample_index=row * 2, token_ids=[1] * 9, num_prompt_tokens=5)
    batch = rows.batch([3, 0, 3], [9, 7, 10])
    assert len(batch) == 3
    assert batch.positions.tolist() == [9, 7, 10]
    assert batch.rows["seed"].tolist() == [2**63 + 3, 2**63, 2**63 + 3]
    assert batch.rows["sample_index"].tolist() == [6, 0, 6]
    assert batch.rows["temperature"].tolist() == [3.5, 0.5, 3.5]
    assert batch.rows["top_k"].tolist() == [3, 0, 3]
    assert batch.rows["top_p"].tolist() == [0.9 - 3 / 10, 0.9, 0.9 - 3 / 10]
    assert batch.rows["num_logprobs"].tolist() == [3, -1, 3]
    assert not batch.edits


def test_every_number_of_a_record_comes_from_its_request() -> None:
    """A number that is new to the record needs a value here, and the field of its name in SamplingParams."""
    values: dict[str, float] = {
        "top_p": 0.75, "typical_p": 0.625, "temperature": 0.5, "min_p": 0.25, "repetition_penalty": 1.5,
        "frequency_penalty": -0.5, "presence_penalty": 1.25, "top_k": 7,
    }  # fmt: skip
    own = {"seed": 2**63 + 5, "sample_index": 3, "num_logprobs": 4, "min_position": 2 + 6}
    rows = SamplingRows(1, VOCAB)
    rows.add(0, SamplingParams(**values, logprobs=4, min_tokens=6, max_tokens=9), 2**63 + 5, 3, [1, 2, 3], 2)
    assert {name: rows.records[0][name].item() for name in ROW.names or ()} == values | own
    plain = SamplingParams()
    assert all(getattr(plain, name) != value for name, value in values.items())


def test_what_a_request_began_with_is_output() -> None:
    """Behind num_prompt_tokens stands what was generated before: counted, banned and matched like it."""
    prompt, output = [8, 9, 9], [4, 9, 4]
    params = SamplingParams(min_tokens=5, max_tokens=9, frequency_penalty=0.5, stop_token_ids=[30])
    params = params.replace(constraints=(BannedAfter(4, 6),))
    begun, whole = SamplingRows(1, VOCAB), SamplingRows(1, VOCAB)
    begun.add(0, params, 5, 0, prompt + output, len(prompt))
    whole.add(0, params, 5, 0, prompt, len(prompt))
    for token in output:
        whole.append(0, [token])
    for more in range(4):
        at = len(prompt) + len(output) + more
        a, b = begun.batch([0], [at]), whole.batch([0], [at])
        assert a.rows.tolist() == b.rows.tolist()
        assert dict(zip(*map(np.ndarray.tolist, a.seen.row(0)), strict=True)) == {8: 0, 9: 1, 4: 2 + more}
        assert sorted(zip(*map(np.ndarray.tolist, b.seen.row(0)), strict=True)) == sorted(
            zip(*map(np.ndarray.tolist, a.seen.row(0)), strict=True)
        )
        assert a.banned.row(0)[0].tolist() == b.banned.row(0)[0].tolist() == ([30] if more < 2 else [])
        np.testing.assert_array_equal(a.mask, b.mask)
        assert a.mask is not None
        assert not a.mask[0, 0] >> np.uint32(6) & 1  # the output, not the prompt, ends with 4
        begun.append(0, [4])
        whole.append(0, [4])


class BannedAfter:
    """Constraint and matcher: after one token of the output another must not come."""

    def __init__(self, token: int, banned: int, last: int | None = None) -> None:
        self.token, self.banned, self.last = token, banned, last

    def start(self, output: Sequence[int]) -> BannedAfter:
        return BannedAfter(self.token, self.banned, output[-1] if output else None)

    def fork(self) -> BannedAfter:
        return BannedAfter(self.token, self.banned, self.last)

    def append(self, token_ids: Sequence[int]) -> None:
        self.last = token_ids[-1]

    def allows(self, token_id: int) -> bool:
        return self.last != self.token or token_id != self.banned

    def restrict(self, mask: U32, ahead: Sequence[int] = ()) -> None:
        if (ahead[-1] if ahead else self.last) == self.token:
            mask[self.banned // 32] &= ~np.uint32(1 << self.banned % 32)


def test_a_batch_is_a_snapshot() -> None:
    rows = SamplingRows(1, VOCAB)
    rows.add(0, PENALIZED, 1, 0, [3, 4], 1)
    before = rows.batch([0], [2])
    rows.append(0, [4, 4])
    assert before.seen.values.tolist() == [0.0, 1.0]
    assert rows.batch([0], [4]).seen.values.tolist() == [0.0, 3.0]


def test_stop_ids_are_banned_until_min_tokens_came() -> None:
    rows = SamplingRows(2, VOCAB, eos_token_ids=[2, 7, 10_000])
    params = SamplingParams(min_tokens=3, stop_token_ids=[9, 2, 99])
    rows.add(0, params, 1, 0, [5, 5, 5, 5], 4)
    rows.add(1, params.replace(ignore_eos=True), 1, 0, [5, 5, 5, 5], 4)
    batch = rows.batch([0, 0, 0, 0, 1, 1], [4, 5, 6, 7, 6, 7])
    assert [batch.banned.row(i)[0].tolist() for i in range(6)] == [[2, 7, 9]] * 3 + [[], [2, 9], []]


def test_a_row_that_is_given_again_forgets_its_past() -> None:
    rows = SamplingRows(1, VOCAB, eos_token_ids=[2])
    rows.add(0, SamplingParams(min_tokens=3, logit_bias={1: 1.0}, presence_penalty=1.0), 1, 0, [1], 1)
    assert rows.batch([0], [1]).edits
    rows.remove(0)
    rows.remove(0)
    rows.add(0, SamplingParams(min_tokens=3, ignore_eos=True), 1, 0, [1], 1)
    assert not rows.batch([0], [1]).edits


def test_a_preempted_row_comes_back_as_it_was() -> None:
    stayed, returned = SamplingRows(1, VOCAB, [2]), SamplingRows(1, VOCAB, [2])
    params = SamplingParams(min_tokens=4, repetition_penalty=1.3, logit_bias={4: -2.0}, seed=5)
    stayed.add(0, params, 5, 1, [8, 9], 2)
    stayed.append(0, [9, 3])
    returned.add(0, params, 5, 1, [8, 9, 9, 3], 2)
    a, b = stayed.batch([0], [4]), returned.batch([0], [4])
    assert a.rows.tolist() == b.rows.tolist()
    for lists in ("bias", "banned", "seen"):
        left, right = (getattr(batch, lists).row(0) for batch in (a, b))
        assert dict(zip(*map(np.ndarray.tolist, left), strict=True)) == dict(
            zip(*map(np.ndarray.tolist, right), strict=True)
        )


def test_bias_beyond_the_vocabulary_is_refused_by_name() -> None:
    rows = SamplingRows(1, VOCAB)
    with pytest.raises(InvalidRequestError, match="logit_bias names token 40, the vocabulary has 40"):
        rows.add(0, SamplingParams(logit_bias={1: 1.0, 40: 1.0}), 1, 0, [1], 1)
    assert not rows.batch([0], [1]).edits


def test_negative_seeds_are_their_64_bits() -> None:
    rows = SamplingRows(1, VOCAB)
    rows.add(0, SamplingParams(), -1, 0, [1], 1)
    assert rows.batch([0], [1]).rows["seed"].tolist() == [2**64 - 1]


def test_rows_that_come_again_are_gathered_anew_only_when_one_has_changed() -> None:
    rows = SamplingRows(3, VOCAB)
    for row in range(3):
        rows.add(row, SamplingParams(top_k=row + 1), 0, 0, [1], 1)
    first, second = rows.batch([0, 2], [1, 1]), rows.batch([0, 2], [2, 2])
    assert second.rows is first.rows
    assert (first.positions.tolist(), second.positions.tolist()) == ([1, 1], [2, 2])
    assert rows.batch([2, 0], [3, 3]).rows["top_k"].tolist() == [3, 1]
    assert rows.batch([0, 2], [3, 3]).rows["top_k"].tolist() == [1, 3]
    rows.add(2, SamplingParams(top_k=9, frequency_penalty=1.0), 0, 0, [1], 1)
    changed = rows.batch([0, 2], [3, 3])
    assert changed.rows["top_k"].tolist() == [1, 9]
    assert first.rows["top_k"].tolist() == [1, 3]
    assert changed.seen.row(1)[0].tolist() == [1]
