"""The native decoder by itself: it draws what a replay and a sampler give, and stays in its arrays."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo.kernels.select import native_available

if not native_available():
    pytest.skip("the extension is not built", allow_module_level=True)

from octavo.kernels import _native
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.draws import Asked, Boost, Lifted, RowLogprobs, Scored
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.green_list import reference_green_list
from octavo.kernels.ops import (
    DecodeRows,
    Inputs,
    Limits,
    Ops,
    Scaling,
    Tensor,
)
from octavo.params import SampledToken
from octavo.sampling.native import make_sampler
from octavo.sampling.native import scored as with_scores
from octavo.sampling.sampler import RowError
from octavo.sampling.sampling_batch import ROW, SamplingBatch, TokenLists
from support.kernels import random_weight

ROWS, LENGTH, PAGE, VOCAB = 5, 23, 4, 64


class Rows:
    """Rows of random tokens, pages and ways to draw, over a model that knows its last token alone."""

    def __init__(self, threads: int, seed: int, vocab: int = VOCAB, isa: str = "auto") -> None:
        rng = np.random.default_rng(seed)
        backend = CpuBackend(threads, isa)
        table = backend.pack([random_weight(rng, "u4-min", vocab, 32)])

        def forward(ops: Ops, inputs: Inputs) -> Tensor:
            return ops.linear(ops.gather_rows(inputs, ops.embed(inputs, table)), table, scaling=Scaling(4.0))

        self.program = backend.capture(forward, Limits(ROWS, ROWS, ROWS, -(-LENGTH // PAGE)))
        self.sampler, self.backend = make_sampler(backend, vocab), backend
        self.tokens = rng.integers(0, vocab, (ROWS, LENGTH + 1)).astype(np.int32)
        self.lengths = rng.integers(1, LENGTH - 8, ROWS)
        self.pages = rng.permutation(ROWS * -(-LENGTH // PAGE)).reshape(ROWS, -1).astype(np.int32)
        self.records = np.zeros(ROWS, ROW)
        self.records["typical_p"] = 1
        self.records["seed"], self.records["num_logprobs"] = rng.integers(0, 99, ROWS), -1
        self.records["temperature"] = [0.0, 0.7, 1.3, 0.0, 1.0]
        self.records["top_p"], self.records["repetition_penalty"] = [1, 1, 0.8, 1, 1], 1.0
        self.records["top_k"] = [0, 5, 0, 0, 0]
        native = self.sampler.native  # type: ignore[attr-defined]
        rows = DecodeRows(self.tokens, self.lengths, self.pages, PAGE, self.records)
        decoder = backend.decoder(self.program, native, rows)
        assert decoder is not None
        self.decoder = decoder

    def wanted(
        self,
        rows: list[int],
        mask: npt.NDArray[np.uint32] | None = None,
        boost: Boost | None = None,
    ) -> SamplingBatch:
        none, positions = TokenLists.none(len(rows)), self.lengths[rows].astype(np.int64)
        return SamplingBatch(self.records[rows], positions, none, none, none, mask, boost=boost)

    def long_way(self, rows: list[int], mask: npt.NDArray[np.uint32] | None = None) -> list[int]:
        starts = self.lengths[rows].astype(np.int32) - 1
        counting = np.arange(len(rows) + 1, dtype=np.int32)
        tables = np.ascontiguousarray(self.pages[rows, : starts.max() // PAGE + 1])
        slots = tables[counting[:-1], starts // PAGE] * PAGE + starts % PAGE
        batch = ForwardBatch(
            self.tokens[rows, starts], starts, slots, counting, starts + 1, tables, counting[:-1]
        )
        self.logits = self.program.replay(batch)
        drawn = self.sampler.sample(self.logits, self.wanted(rows, mask))
        return [-1 if isinstance(token, RowError) else token.token_id for token in drawn]


@pytest.mark.parametrize("threads", [1, 2])
def test_draws_what_a_replay_and_a_sampler_draw(threads: int) -> None:
    for seed in range(5):
        each = Rows(threads, seed)
        order = np.random.default_rng(seed)
        for _ in range(8):
            rows = order.permutation(ROWS)[: order.integers(1, ROWS + 1)].tolist()
            expected, before = each.long_way(rows), each.lengths.copy()
            assert each.decoder.step(rows, (each.lengths[rows] - 1).tolist()) == expected
            assert each.tokens[rows, before[rows]].tolist() == expected
            before[rows] += 1
            assert (each.lengths == before).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_are_left_have_their_logits_and_change_no_other(threads: int) -> None:
    for seed in range(5):
        each = Rows(threads, seed)
        order = np.random.default_rng(seed)
        for _ in range(8):
            rows = order.permutation(ROWS)[: order.integers(1, ROWS + 1)].tolist()
            left = sorted(order.permutation(len(rows))[: order.integers(1, len(rows) + 1)].tolist())
            own = [rows[place] for place in left]
            each.records["num_logprobs"] = -1
            expected, before = each.long_way(rows), each.lengths.copy()
            logits = each.logits.copy()
            each.records["num_logprobs"][own] = 3  # only those that are left may ask for it
            drawn = each.decoder.step(rows, (before[rows] - 1).tolist(), left)
            others = [place for place in range(len(rows)) if place not in left]
            assert [drawn[place] for place in others] == [expected[place] for place in others]
            assert all(drawn[place] < 0 for place in left)
            np.testing.assert_array_equal(each.decoder.logits()[left], logits[left])
            found = each.sampler.sample(each.decoder.logits(), each.wanted(own), left)
            assert [getattr(token, "token_id", -1) for token in found] == [expected[at] for at in left]
            with pytest.raises(ValueError, match="not the last step's"):
                each.decoder.redraw(left[:1], np.zeros((1, -(-VOCAB // 32)), np.uint32))
            before[[rows[place] for place in others]] += 1
            assert (each.lengths == before).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_are_scored_have_the_samplers_scores_and_change_no_other(threads: int) -> None:
    for seed in range(5):
        each = Rows(threads, seed)
        order = np.random.default_rng(seed)
        room = RowLogprobs.empty(ROWS, 4)
        for _ in range(8):
            rows = order.permutation(ROWS)[: order.integers(1, ROWS + 1)].tolist()
            places = order.permutation(len(rows)).tolist()
            left, scored = places[: len(rows) // 3], places[len(rows) // 3 :][: order.integers(1, ROWS + 1)]
            each.records["num_logprobs"] = -1
            each.records["num_logprobs"][[rows[place] for place in scored]] = order.integers(
                0, 5, len(scored)
            )
            expected, before = each.long_way(rows), each.lengths.copy()
            known = each.sampler.sample(each.logits, each.wanted(rows))
            if len(scored) != len(room.ranks):
                room = RowLogprobs.empty(len(scored), 4)  # else the last step's, written over
            starts = (before[rows] - 1).tolist()
            drawn = each.decoder.step(rows, starts, left, None, Scored(scored, room))
            for index, place in enumerate(scored):
                assert with_scores(drawn[place], index, room) == known[place]
            others = [place for place in range(len(rows)) if place not in left]
            assert [drawn[place] for place in others] == [expected[place] for place in others]
            with pytest.raises(ValueError, match="not the last step's"):
                each.decoder.redraw(scored[:1], np.zeros((1, -(-VOCAB // 32)), np.uint32))
            before[[rows[place] for place in others]] += 1
            assert (each.lengths == before).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_are_lifted_draw_with_their_sets_and_change_no_other(threads: int) -> None:
    changed = 0
    for seed in range(5):
        each = Rows(threads, seed)
        order = np.random.default_rng(seed)
        table = order.integers(0, 2**32, (ROWS + 2, VOCAB // 32), np.uint32)
        for _ in range(8):
            rows = order.permutation(ROWS)[: order.integers(1, ROWS + 1)].tolist()
            lifted = order.permutation(len(rows))[: order.integers(1, ROWS + 1)].tolist()
            expected, before = each.long_way(rows), each.lengths.copy()
            lines = order.integers(0, ROWS + 2, len(lifted)).astype(np.int32)
            deltas = order.uniform(5, 30, len(lifted)).astype(np.float32)
            made = [(int(order.integers(2**32)), int(order.integers(VOCAB + 1)), int(lines[0]))]
            known = table.copy()
            known[lines[0]] = reference_green_list(made[0][0], VOCAB, made[0][1])
            own = [rows[place] for place in lifted]
            boosted = each.wanted(own, boost=Boost(known[lines], deltas))
            tokens = each.sampler.sample(each.logits[lifted], boosted)
            asked = Lifted(lifted, table, lines, deltas, made)
            drawn = each.decoder.step(rows, (before[rows] - 1).tolist(), lifted=asked)
            np.testing.assert_array_equal(table, known)
            for place, token in zip(lifted, tokens, strict=True):
                assert isinstance(token, SampledToken)
                changed += token.token_id != expected[place]
                expected[place] = token.token_id
            assert drawn == expected
            assert each.tokens[rows, before[rows]].tolist() == expected
            with pytest.raises(ValueError, match="not the last step's"):
                each.decoder.redraw(lifted[:1], np.zeros((1, VOCAB // 32), np.uint32))
            before[rows] += 1
            assert (each.lengths == before).all()
    assert changed > 10


@pytest.mark.parametrize("vocab", [32, 1000, 65_568])
def test_every_instruction_set_makes_the_same_lists(vocab: int) -> None:
    for isa in _native.isas():
        each = Rows(2, 0, vocab, isa)
        table = np.full((6, -(-vocab // 32)), 0xFFFFFFFF, np.uint32)
        made = [(7, 0, 4), (7, 1, 0), (2**32 - 1, vocab // 4, 3), (5, vocab, 1)]
        lifted = Lifted([0], table, np.array([3], np.int32), np.array([1], np.float32), made)
        each.decoder.step([0], [int(each.lengths[0]) - 1], lifted=lifted)
        for seed, count, line in made:
            np.testing.assert_array_equal(table[line], reference_green_list(seed, vocab, count))
        assert (table[[2, 5]] == 0xFFFFFFFF).all()


def test_sets_that_do_not_fit_change_nothing() -> None:
    each = Rows(1, 0)
    tokens, lengths = each.tokens.copy(), each.lengths.copy()
    for places, words, lines, deltas, made in (
        ([0], 3, [0], 1, []), ([0], 2, [0, 1], 1, []), ([0], 2, [0], 2, []), ([0], 2, [3], 1, []),
        ([0], 2, [-1], 1, []), ([0, 0], 2, [0, 1], 2, []), ([1], 2, [0], 1, []), ([-1], 2, [0], 1, []),
        ([0], 2, [0], 1, [(1, 65, 0)]), ([0], 2, [0], 1, [(1, -1, 0)]), ([0], 2, [0], 1, [(1, 1, 3)]),
    ):  # fmt: skip
        table = np.zeros((3, words), np.uint32)
        lifted = Lifted(places, table, np.array(lines, np.int32), np.ones(deltas, np.float32), made)
        with pytest.raises(ValueError, match=r"list|differ in length|line|a place is no row's|vocabulary"):
            each.decoder.step([0], [0], lifted=lifted)
        assert not table.any()
    assert (each.tokens == tokens).all()
    assert (each.lengths == lengths).all()


def test_scores_without_room_change_nothing() -> None:
    each = Rows(1, 0)
    each.records["num_logprobs"][0] = 3
    tokens, lengths = each.tokens.copy(), each.lengths.copy()
    for room, message in (
        (RowLogprobs.empty(1, 2), "more logprobs than there is room for"),
        (RowLogprobs.empty(2, 3), "differ in length"),
    ):
        with pytest.raises(ValueError, match=message):
            each.decoder.step([0], [0], (), None, Scored([0], room))
    for left, scored in (([0], [0]), ([], [0, 0]), ([], [1]), ([], [-1])):
        with pytest.raises(ValueError, match="a place is no row's"):
            each.decoder.step([0], [0], left, None, Scored(scored, RowLogprobs.empty(len(scored), 3)))
    assert (each.tokens == tokens).all()
    assert (each.lengths == lengths).all()
    (token,) = each.decoder.step([0], [0], (), None, Scored([0], RowLogprobs.empty(1, 3)))
    assert token >= 0


@pytest.mark.parametrize(
    ("rows", "starts"),
    [([], []), ([0], []), ([-1], [0]), ([ROWS], [0]), ([0], [-1]), ([0], [LENGTH]), ([0, 1], [0, LENGTH])],
)
def test_out_of_range_changes_nothing(rows: list[int], starts: list[int]) -> None:
    each = Rows(1, 0)
    tokens, lengths = each.tokens.copy(), each.lengths.copy()
    with pytest.raises(ValueError, match=r"row|position"):
        each.decoder.step(rows, starts)
    each.lengths[0] = LENGTH + 1  # full: there is no place for another token
    with pytest.raises(ValueError, match="position"):
        each.decoder.step([0], [LENGTH])
    each.lengths[0] = lengths[0]
    room = np.zeros(-(-VOCAB // 32), np.uint32)
    for left, asked in (([1], []), ([-1], []), ([0, 0], []), ([0], [0]), ([], [1]), ([], [-1]), ([], [0, 0])):
        with pytest.raises(ValueError, match="a place is no row's"):
            each.decoder.step([0], [0], left, Asked(asked, lambda *_: False, room))
    each.records["num_logprobs"][0] = 0
    with pytest.raises(ValueError, match="log-probabilities"):
        each.decoder.step([0], [0])
    assert (each.tokens == tokens).all()
    assert (each.lengths == lengths).all()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("lengths", lambda a: a.astype(np.int32)),
        ("lengths", lambda a: np.repeat(a, 2)[::2]),
        ("tokens", lambda a: a.astype(np.int64)),
        ("tokens", np.asfortranarray),
        ("pages", lambda a: a.astype(np.int64)),
        ("sliding_pages", np.asfortranarray),
    ],
)
def test_rows_that_would_be_copied_are_refused_by_name(name: str, change: Callable[[Any], Any]) -> None:
    """A decoder writes to the rows' arrays themselves, and reads what others have written there."""
    each = Rows(1, 0)
    arrays = {"tokens": each.tokens, "lengths": each.lengths, "pages": each.pages, "records": each.records}
    arrays["sliding_pages"] = each.pages
    arrays[name] = change(arrays[name])
    rows = DecodeRows(page_size=PAGE, **arrays)
    with pytest.raises(ValueError, match=f"{name} is no array"):
        each.backend.decoder(each.program, each.sampler.native, rows)  # type: ignore[attr-defined]


def test_a_mask_that_would_be_copied_is_refused() -> None:
    each, words = Rows(1, 0), -(-VOCAB // 32)
    with pytest.raises(ValueError, match="mask is no array"):
        each.decoder.step([0], [0], (), Asked([0], lambda *_: False, np.zeros(words, np.int64)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="incompatible function arguments"):
        each.decoder.redraw([0], np.zeros((1, words), np.int64))  # type: ignore[arg-type]


def test_a_decoder_outlives_its_python_program() -> None:
    """The program's arrays are read at each step: here a gain that nobody else holds."""
    backend = CpuBackend(1)
    table = backend.pack([random_weight(np.random.default_rng(0), "u4-min", VOCAB, 32)])
    gains = [np.ones(32, np.float32)]
    held = weakref.ref(gains[0])

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        x = ops.gather_rows(inputs, ops.embed(inputs, table))
        return ops.linear(ops.rms_norm(x, gains.pop(), 1e-5), table)

    program = backend.capture(forward, Limits(ROWS, ROWS, ROWS, -(-LENGTH // PAGE)))
    each = Rows(1, 0)
    rows = DecodeRows(each.tokens, each.lengths, each.pages, PAGE, each.records)
    decoder = backend.decoder(program, backend.sampler(VOCAB), rows)
    assert decoder is not None
    del program
    gc.collect()
    assert held() is not None
    del decoder
    gc.collect()
    assert held() is None


WIDE = 8192
"""So wide that rows are shared out among threads."""


class Refusing:
    """Refuses what its masks forbid, and remembers what it was asked."""

    def __init__(self, masks: npt.NDArray[np.uint32]) -> None:
        self.masks, self.room = masks, np.zeros_like(masks[0])
        self.asked: list[tuple[int, int]] = []
        self.thread = threading.get_ident()

    def __call__(self, index: int, token: int) -> bool:
        assert threading.get_ident() == self.thread
        self.asked.append((index, token))
        self.room[:] = self.masks[index]
        return not self.masks[index][token // 32] >> np.uint32(token % 32) & 1


def some_masks(rng: np.random.Generator, rows: int) -> npt.NDArray[np.uint32]:
    """Half of the tokens, a few of them, all of them, one, or none."""
    masks = np.zeros((rows, WIDE), bool)
    for mask in masks:
        allowed = int(rng.choice([WIDE // 2, WIDE // 2, 40, 40, WIDE, 1, 0]))
        mask[rng.permutation(WIDE)[:allowed]] = True
    return np.packbits(masks, axis=1, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_that_is_refused_is_drawn_as_if_its_mask_had_been_known(threads: int) -> None:
    """Some rows' tokens are refused while others are still drawn: it is no other rule."""
    each, again = Rows(threads, 1, WIDE), 0
    each.records["top_p"], each.records["top_k"] = 1.0, 0  # what narrows needs its mask first
    order = np.random.default_rng(threads)
    for turn in range(60):
        rows = order.permutation(ROWS)[: order.integers(1, ROWS + 1)].tolist()
        each.records["seed"] = order.integers(0, 2**40, ROWS)
        masks = some_masks(order, len(rows))
        free, expected, before = each.long_way(rows), each.long_way(rows, masks), each.lengths.copy()
        refusing = Refusing(masks)
        # Some are not asked about: what they draw stays, and about the others nothing changes.
        count = len(rows) if turn % 2 else int(order.integers(1, len(rows) + 1))
        asked = sorted(order.permutation(len(rows))[:count].tolist())
        expected = [expected[at] if at in asked else free[at] for at in range(len(rows))]
        starts = (before[rows] - 1).tolist()
        drawn = each.decoder.step(rows, starts, (), Asked(asked, refusing, refusing.room))
        assert drawn == expected, turn
        assert sorted(refusing.asked) == [(at, free[at]) for at in asked]
        again += sum(a != b for a, b in zip(free, drawn, strict=True))
        before[rows] += np.array(drawn) >= 0
        assert (each.lengths == before).all()
        kept = [(row, token) for row, token in zip(rows, drawn, strict=True) if token >= 0]
        assert [int(each.tokens[row, before[row] - 1]) for row, _ in kept] == [token for _, token in kept]
        each.lengths[rows] -= np.array(drawn) >= 0
    assert again > 60


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_refusal_raises_ends_the_step(threads: int) -> None:
    each = Rows(threads, 2, WIDE)
    rows, before = list(range(ROWS)), each.lengths.copy()
    starts = (before - 1).tolist()
    room = np.zeros(WIDE // 32, np.uint32)

    def raising(index: int, token: int) -> bool:
        raise KeyError(f"row {index}")

    with pytest.raises(KeyError, match="row "):
        each.decoder.step(rows, starts, (), Asked(rows, raising, room))
    with pytest.raises(RuntimeError):
        each.decoder.step(rows, starts, (), Asked(rows, lambda index, token: "no", room))  # type: ignore[arg-type, return-value]
    for wrong in (None, room[1:]):
        with pytest.raises(ValueError, match="mask"):
            each.decoder.step(rows, starts, (), Asked(rows, raising, wrong))
    assert (each.lengths == before).all()
    with pytest.raises(ValueError, match="not the last step's"):
        each.decoder.redraw([0], np.zeros((1, WIDE // 32), np.uint32))
    expected = each.long_way(rows)
    assert each.decoder.step(rows, starts, (), Asked(rows, lambda index, token: False, room)) == expected


def test_a_row_that_was_drawn_again_is_not_drawn_once_more() -> None:
    each = Rows(2, 3, WIDE)
    rows = list(range(ROWS))
    refusing = Refusing(np.zeros((ROWS, WIDE // 32), np.uint32))
    refusing.masks[1:] = 0xFFFFFFFF
    refusing.masks[0, 7] = 1
    drawn = each.decoder.step(rows, (each.lengths - 1).tolist(), (), Asked(rows, refusing, refusing.room))
    assert drawn[0] == 7 * 32
    with pytest.raises(ValueError, match="not the last step's"):
        each.decoder.redraw([0], refusing.masks[:1])
    assert each.decoder.redraw([1], refusing.masks[:1]) == [7 * 32]
