"""Heads that are cut: the same logits, and from bounds the same greedy choices, ties and NaN included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from octavo.kernels.select import native_available

if not native_available():
    pytest.skip("the extension is not built", allow_module_level=True)

from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.draws import Asked, RowLogprobs, Scored
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import (
    F32,
    DecodeRows,
    Inputs,
    Limits,
    Ops,
    Rows,
    Tensor,
)
from octavo.kernels.program import Buffer
from octavo.kernels.weight import Layout, Weight
from octavo.sampling.native import make_sampler
from octavo.sampling.sampling_batch import ROW, SamplingBatch, TokenLists
from support.kernels import limits_of, normal, random_weight, tokens_batch

ISAS = instruction_sets()
ROWS, K = 32, 160


def rounded(rng: np.random.Generator, rows: F32, wide: bool = False) -> Weight:
    """As Q8_0 has them: the largest number of a block is 127."""
    blocks = rows.reshape(len(rows), -1, 32)
    scale = (np.abs(blocks).max(axis=2) / 127).astype(np.float32 if wide else np.float16)
    divisor = np.where(scale == 0, 1, scale).astype(np.float32)[:, :, None]
    values = np.clip(np.rint(blocks / divisor), -128, 127).astype(np.int8)
    return Weight(Layout.S8, rows.shape, values, scale)


class Greedy:
    """A model of nothing but an embedding and a head, and rows that each know one token of it."""

    def __init__(self, head: Weight, inputs: F32, isa: str, threads: int = 2) -> None:
        backend, vocab = CpuBackend(threads, isa), head.shape[0]
        table, packed = backend.pack([Weight.dense(inputs)]), backend.pack([head], head=True)

        def forward(ops: Ops, batch: Inputs) -> Tensor:
            return ops.linear(ops.gather_rows(batch, ops.embed(batch, table)), packed)

        self.program = backend.capture(forward, Limits(ROWS, ROWS, ROWS, 1))
        self.sampler = make_sampler(backend, vocab)
        self.records = np.zeros(ROWS, ROW)
        self.records["typical_p"] = 1
        self.records["num_logprobs"], self.records["top_p"], self.records["repetition_penalty"] = -1, 1, 1
        self.tokens, self.lengths = np.zeros((ROWS, 9), np.int32), np.ones(ROWS, np.int64)
        self._pages = np.arange(ROWS, dtype=np.int32)[:, None]
        native = self.sampler.native  # type: ignore[attr-defined]
        rows = DecodeRows(self.tokens, self.lengths, self._pages, 16, self.records)
        decoder = backend.decoder(self.program, native, rows)
        assert decoder is not None
        self.decoder = decoder
        for _ in range(18):  # what inputs usually are is learned from 32 rows, then the bounds in 16 steps
            self.step(np.arange(32, 64))
        assert self.chosen == 0

    @property
    def chosen(self) -> int:
        """Of all rows so far, those that needed no logits."""
        return self.decoder.native.chosen  # type: ignore[attr-defined, no-any-return]

    def step(self, ids: npt.NDArray[np.int64]) -> list[int]:
        rows = list(range(len(ids)))
        self.lengths[:] = 1
        self.tokens[: len(ids), 0] = ids
        return [
            max(token, -1) for token in self.decoder.step(rows, [0] * len(ids))
        ]  # errors are -1 and below

    def logits(self, ids: npt.NDArray[np.int64]) -> F32:
        n = np.arange(len(ids) + 1, dtype=np.int32)
        zeros = np.zeros(len(ids), np.int32)
        slots = n[:-1] * 16
        batch = ForwardBatch(
            ids.astype(np.int32), zeros, slots, n, zeros + 1, self._pages[: len(ids)], n[:-1]
        )
        return np.array(self.program.replay(batch))

    def long_way(self, ids: npt.NDArray[np.int64]) -> list[int]:
        none = TokenLists.none(len(ids))
        wanted = SamplingBatch(self.records[: len(ids)], np.ones(len(ids), np.int64), none, none, none, None)
        return [getattr(t, "token_id", -1) for t in self.sampler.sample(self.logits(ids), wanted)]


def like_a_model(rng: np.random.Generator, vocab: int, k: int = K) -> tuple[F32, F32]:
    """Rows of a head, and inputs that each lie near one of them and somewhat near others."""
    head = normal(rng, vocab, k) * rng.uniform(0.3, 1.5, (vocab, 1)).astype(np.float32)
    near = head[rng.integers(0, vocab, 64)] + head[rng.integers(0, vocab, 64)] * rng.uniform(0, 1.1, (64, 1))
    return head, (near + normal(rng, 64, k) * 0.4).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["s8", "s8-wide"])
def test_the_same_logits_and_embedding(isa: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    w = random_weight(rng, kind, 101, K)
    scale = np.array(w.scale)
    scale[20, 2] *= 2.0**9  # too far from its row for integers of a unit
    scale[33] = 0
    w = replace(w, scale=scale)
    backend = CpuBackend(2, isa)
    whole, cut = backend.pack([w]), backend.pack([w], head=True)
    for rows in (1, 2, 3, 5, 7, 13, 40, 150):
        x, batch = normal(rng, rows, K), tokens_batch(rows)
        ops = backend.eager(batch, limits_of(batch))
        got = [ops.value(ops.linear(ops.tensor(x, Buffer(Rows.TOKENS, K)), p)) for p in (cut, whole)]
        np.testing.assert_array_equal(got[0], got[1])
    ids = replace(tokens_batch(101), token_ids=np.arange(101, dtype=np.int32))
    ops = backend.eager(ids, limits_of(ids))
    np.testing.assert_array_equal(ops.value(ops.embed(Inputs(ids), cut)), w.dequantize())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("wide", [False, True])
def test_choices_are_the_first_of_the_largest(isa: str, wide: bool) -> None:
    rng = np.random.default_rng(2)
    head, inputs = like_a_model(rng, 4001)
    model, steps = Greedy(rounded(rng, head, wide), inputs, isa), 0
    for rows in (1, 2, 3, 4, 6, 11, 12, 13, 31, 32):
        ids = rng.integers(0, 64, rows)
        before = model.chosen
        assert model.step(ids) == model.long_way(ids)
        steps += rows * (model.chosen > before)
    assert model.chosen >= 0.9 * steps > 0


@pytest.mark.parametrize("isa", ISAS)
def test_rows_that_are_equal_or_next_to_equal(isa: str) -> None:
    """Copies of the best row tie, in any panel: the lowest id is chosen."""
    rng = np.random.default_rng(3)
    head, inputs = like_a_model(rng, 3000)
    w = rounded(rng, head)
    values, scale = np.array(w.values), np.array(w.scale)
    best = Greedy(w, inputs, isa).long_way(np.arange(ROWS))
    for row in best:
        for other in rng.integers(0, 3000, 4):
            values[other], scale[other] = values[row], scale[row]
            values[other, 0, 3] -= rng.integers(0, 2) * np.sign(values[other, 0, 3])
    model = Greedy(replace(w, values=values, scale=scale), inputs, isa)
    for rows in (1, 3, 32):
        assert model.step(np.arange(rows)) == model.long_way(np.arange(rows))
    assert model.chosen > 0


@pytest.mark.parametrize("isa", ISAS)
def test_bounds_that_say_little(isa: str) -> None:
    """Rows in no order, or all alike: whatever bounds leave is computed; steps between go without."""
    rng = np.random.default_rng(4)
    for head in (normal(rng, 2000, K), np.ones((2000, K), np.float32), np.zeros((2000, K), np.float32)):
        model = Greedy(rounded(rng, head), normal(rng, 64, K), isa)
        for _ in range(12):
            ids = rng.integers(0, 64, rng.integers(1, 5))
            assert model.step(ids) == model.long_way(ids)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf, 1e38, 1e-38, -1e-42])
def test_inputs_that_are_hardly_numbers(isa: str, what: float) -> None:
    rng = np.random.default_rng(5)
    head, inputs = like_a_model(rng, 2000)
    inputs[3, 40] = what
    inputs[5] *= np.float32(what)
    inputs[6] = 0
    model = Greedy(rounded(rng, head), inputs, isa)
    for ids in ([3], [5], [6], [1, 3, 2], list(range(9)), list(range(30))):
        assert model.step(np.array(ids)) == model.long_way(np.array(ids))


@pytest.mark.parametrize("what", [np.nan, np.inf, 6e4])
def test_scales_that_are_no_numbers_or_large(what: float) -> None:
    rng = np.random.default_rng(6)
    head, inputs = like_a_model(rng, 2000)
    w = rounded(rng, head)
    scale = np.array(w.scale)
    scale[77, 1] = what
    for isa in ISAS:
        model = Greedy(replace(w, scale=scale), inputs, isa)
        for rows in (1, 4, 32):
            assert model.step(np.arange(rows)) == model.long_way(np.arange(rows))


@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_other_wishes_beside_greedy_ones(isa: str) -> None:
    rng = np.random.default_rng(7)
    head, inputs = like_a_model(rng, 2000)
    model = Greedy(rounded(rng, head), inputs, isa)
    ids = rng.integers(0, 64, 4)
    assert model.step(ids) == model.long_way(ids)
    assert model.chosen == 4
    model.records["temperature"][1] = 0.7
    assert model.step(ids) == model.long_way(ids)
    assert model.chosen == 4


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("vocab", "k", "wide"), [(4001, K, False), (4001, K, True), (509, 8192, False)])
def test_few_rows_that_need_logits_take_no_choice_from_the_others(
    isa: str, vocab: int, k: int, wide: bool
) -> None:
    """Their logits are whole, to the bit; of the others only those are computed that can be the largest.
    Where inputs are long, a panel meets the rows in several sweeps."""
    rng = np.random.default_rng(9)
    head, inputs = like_a_model(rng, vocab, k)
    head[40, :32] /= 512  # its panel's scales are no integers of a unit
    model = Greedy(rounded(rng, head, wide), inputs, isa)
    ids = rng.integers(0, 64, ROWS)
    model.step(ids)
    bounded = model.chosen > 0  # elsewhere so many rows are computed whole
    rows, starts = list(range(ROWS)), [0] * ROWS
    room = np.zeros(-(-vocab // 32), np.uint32)
    for few in (0, 1, 2, 4, 5, 9, ROWS):
        places = rng.permutation(ROWS)[:few]
        left, asked, drawn, scored = (sorted(places[kind::4].tolist()) for kind in range(4))
        model.records["temperature"] = 0
        model.records["temperature"][drawn] = 0.7
        model.records["num_logprobs"] = -1
        ids = rng.integers(0, 64, ROWS)
        expected, logits = model.long_way(ids), model.logits(ids)
        before = model.chosen
        model.lengths[:], model.tokens[:, 0] = 1, ids
        model.records["num_logprobs"][scored] = 3
        refuses = Asked(asked, lambda at, token: False, room) if asked else None
        scores = RowLogprobs.empty(len(scored), 3)
        found = model.decoder.step(rows, starts, left, refuses, Scored(scored, scores))
        assert all(token == expected[at] for at, token in enumerate(found) if at not in left)
        whole = left + drawn + scored
        np.testing.assert_array_equal(model.decoder.logits()[whole], logits[whole])
        assert scores.top_tokens[:, 0].tolist() == [expected[at] for at in scored]
        needed = len(whole)
        assert model.chosen - before == (ROWS - needed if bounded and needed <= ROWS // 8 else 0)


def masks_of(rng: np.random.Generator, logits: F32, kind: str) -> npt.NDArray[np.uint32]:
    """Lines of bits [rows, words] that forbid each row's largest logit."""
    rows, vocab = logits.shape
    allowed = np.zeros((rows, -(-vocab // 32) * 32), bool)
    match kind:
        case "few":
            for row in allowed:
                row[rng.integers(0, vocab, 5)] = True
        case "one":
            allowed[np.arange(rows), rng.integers(0, vocab, rows)] = True
        case "most":
            allowed[:] = True  # beyond the vocabulary, too
            allowed[:, :vocab] &= logits < np.sort(logits, axis=1)[:, -20:-19]  # nor the next 19
        case "half":
            allowed[:, :vocab] = rng.random((rows, vocab)) < 0.5
        case "none":
            pass
    allowed[np.arange(rows), logits.argmax(axis=1)] = False
    bits = np.packbits(allowed.reshape(rows, -1, 32), axis=2, bitorder="little")
    return np.ascontiguousarray(bits).view(np.uint32).reshape(rows, -1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("kind", ["few", "one", "most", "half", "none"])
def test_a_refused_choice_is_the_largest_of_those_allowed(isa: str, later: bool, kind: str) -> None:
    """Without its logits. Rows of the head that are equal tie, and the first of them wins."""
    rng, vocab = np.random.default_rng(10), 4001
    head, inputs = like_a_model(rng, vocab)
    head[rng.integers(0, vocab, 400)] = head[rng.integers(0, vocab, 400)]
    model = Greedy(rounded(rng, head), inputs, isa)
    room = np.zeros(-(-vocab // 32), np.uint32)
    for count in (1, 4):
        ids = rng.integers(0, 64, count)
        logits = model.logits(ids)
        masks = masks_of(rng, logits, kind)
        allowed = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :vocab] == 1
        expected = np.where(allowed.any(axis=1), np.where(allowed, logits, -np.inf).argmax(axis=1), -1)
        refused = sorted(rng.permutation(count)[: -(-count // 2)].tolist())
        free = model.long_way(ids)
        before = model.chosen
        model.lengths[:], model.tokens[:count, 0] = 1, ids

        def refuses(at: int, token: int, masks: npt.NDArray[np.uint32] = masks) -> bool:
            room[:] = masks[at]
            return not later and at in refused  # noqa: B023 - called before the next round

        drawn = model.decoder.step(list(range(count)), [0] * count, [], Asked(range(count), refuses, room))
        assert model.chosen - before == count
        if later:
            assert drawn == free
            again = model.decoder.redraw(refused, masks[refused])
            drawn = [again[refused.index(at)] if at in refused else drawn[at] for at in range(count)]
        assert drawn == [int(expected[at]) if at in refused else free[at] for at in range(count)]
        for at, token in enumerate(drawn):
            assert model.lengths[at] == 1 + (token >= 0)
            assert token < 0 or model.tokens[at, 1] == token
        with pytest.raises(ValueError, match="not the last step's"):
            model.decoder.redraw(refused[:1], masks[refused[:1]])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("alike", [0.5, 0.8])
def test_bounds_are_wide_enough_where_low_bits_decide(isa: str, alike: float) -> None:
    """Each input has a row whose low bits make its logit, and a lesser one that its high bits tell.

    A bound a quarter too low, or what inputs have in common with the wrong sign, loses the former.
    """
    rng, vocab = np.random.default_rng(8), 20_000  # panels enough for 128 of them to be few
    signs = np.where(rng.random((64, K)) < alike, 1, -1) * rng.choice([-1, 1], K)
    low = np.where(signs > 0, rng.integers(2, 4, (64, K)), rng.integers(-4, -2, (64, K)))
    inputs = low.astype(np.float32)
    values, scale = np.full((vocab, K), 4, np.int8), np.full((vocab, K // 32), 1e-5, np.float32)
    rows = rng.permutation(vocab)[:128].reshape(2, 64)
    values[rows[0]] = low + 4 * rng.choice([-1, 1], (64, K))
    values[rows[1]] = 4 * np.sign(inputs)
    scale[rows[0]] = 0.01
    best = (values[rows[0]] * inputs).sum(axis=1) * 0.01
    scale[rows[1]] = (0.9 * np.abs(best) / np.abs(4 * inputs).sum(axis=1))[:, None]
    w = Weight(Layout.S8, (vocab, K), values.reshape(vocab, -1, 32), scale)
    model = Greedy(w, inputs, isa)
    found = set()
    for start in range(0, 64, 4):
        ids = np.arange(start, start + 4)
        expected = model.long_way(ids)
        assert model.step(ids) == expected
        found |= set(expected)
    assert model.chosen > 32
    assert len(found & set(rows[0].tolist())) > 16


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("second", [1, 2])
@pytest.mark.parametrize("behind", [0.1, 0.25, 0.5, 0.75])
def test_bounds_are_wide_enough_where_rounding_is_all_they_leave_open(
    isa: str, second: int, behind: float
) -> None:
    """The best row's bound is rounded down by a 64th (or 128th) of its logit, a rival's by a 31st of that.

    Numbers that are 4 or 124 have no low bits, and all inputs lie along one direction. So of a bound there is
    nothing but where its sums start, which loses half a number for an odd sum of activations: of each block,
    or (second 1) of both halves that have sums of their own on AVX2.
    """
    blocks, vocab = 4, 3000
    pattern = np.zeros((blocks, 32), np.float32)
    pattern[:, 0], pattern[:, 2] = 127, second
    swing = 1 + 0.25 * np.array([[1, -1, 1, -1], [-1, 1, -1, 1]], np.float32)  # orthogonal to the pattern
    inputs = np.tile(pattern, (64, 1, 1))
    inputs[:32] *= np.linspace(0.5, 2, 32, dtype=np.float32)[:, None, None]
    inputs[32:] *= np.tile(swing, (16, 1))[:, :, None]
    lost = (1 if second == 1 and isa == "avx2" else 0.5) * 8 / (4 * (127 + second))
    values, scale = np.full((vocab, blocks * 32), 4, np.int8), np.full((vocab, blocks), 1e-5, np.float32)
    best, rival = 1234, 77
    values[rival] = 124
    scale[best], scale[rival] = 0.01, 0.01 / 31 * (1 - behind * lost)
    w = Weight(Layout.S8, values.shape, values.reshape(vocab, blocks, 32), scale)
    model = Greedy(w, inputs.reshape(64, -1), isa)
    for rows in (1, 2, 4):
        ids = np.arange(rows) * 7
        assert model.long_way(ids) == [best] * rows
        assert model.step(ids) == [best] * rows
    assert model.chosen > 0
