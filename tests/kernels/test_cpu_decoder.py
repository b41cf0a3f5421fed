"""The native decoder by itself: it draws what a replay and a sampler give, and stays in its arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from octavo.kernels.select import native_available

if not native_available():
    pytest.skip("the extension is not built", allow_module_level=True)

from octavo.kernels.batch import ForwardBatch
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import Inputs, Limits, Ops, Tensor
from octavo.sampling.batch import ROW, SamplingBatch, TokenLists
from octavo.sampling.native import make_sampler
from octavo.sampling.sampler import RowError
from support.kernels import random_weight

ROWS, LENGTH, PAGE, VOCAB = 5, 23, 4, 64


class Rows:
    """Rows of random tokens, pages and ways to draw, over a model that knows its last token alone."""

    def __init__(self, threads: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        backend = CpuBackend(threads)
        table = backend.pack([random_weight(rng, "u4-min", VOCAB, 32)])

        def forward(ops: Ops, inputs: Inputs) -> Tensor:
            return ops.linear(ops.gather_rows(inputs, ops.embed(inputs, table)), table, scale=4.0)

        self.program = backend.capture(forward, Limits(ROWS, ROWS, ROWS, -(-LENGTH // PAGE)))
        self.sampler = make_sampler(backend, VOCAB)
        self.tokens = rng.integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)
        self.lengths = rng.integers(1, LENGTH - 8, ROWS)
        self.pages = rng.permutation(ROWS * -(-LENGTH // PAGE)).reshape(ROWS, -1).astype(np.int32)
        self.records = np.zeros(ROWS, ROW)
        self.records["seed"], self.records["num_logprobs"] = rng.integers(0, 99, ROWS), -1
        self.records["temperature"] = [0.0, 0.7, 1.3, 0.0, 1.0]
        self.records["top_p"], self.records["repetition_penalty"] = [1, 1, 0.8, 1, 1], 1.0
        self.records["top_k"] = [0, 5, 0, 0, 0]
        native = self.sampler.native  # type: ignore[attr-defined]
        decoder = backend.decoder(
            self.program, native, self.tokens, self.lengths, self.pages, PAGE, self.records
        )
        assert decoder is not None
        self.decoder = decoder

    def long_way(self, rows: list[int], mask: npt.NDArray[np.uint32] | None = None) -> list[int]:
        starts = self.lengths[rows].astype(np.int32) - 1
        counting = np.arange(len(rows) + 1, dtype=np.int32)
        tables = np.ascontiguousarray(self.pages[rows, : starts.max() // PAGE + 1])
        slots = tables[counting[:-1], starts // PAGE] * PAGE + starts % PAGE
        batch = ForwardBatch(
            self.tokens[rows, starts], starts, slots, counting, starts + 1, tables, counting[:-1]
        )
        none = TokenLists.none(len(rows))
        wanted = SamplingBatch(self.records[rows], (starts + 1).astype(np.int64), none, none, none, mask)
        drawn = self.sampler.sample(self.program.replay(batch), wanted)
        return [-1 if isinstance(token, RowError) else token.token_id for token in drawn]


@pytest.mark.parametrize("threads", [1, 2])
def test_draws_what_a_replay_and_a_sampler_draw(threads: int) -> None:
    for seed in range(5):
        each = Rows(threads, seed)
        order = np.random.default_rng(seed)
        for _ in range(8):
            rows = order.permutation(ROWS)[: order.integers(1, ROWS + 1)].tolist()
            shape = len(rows), -(-VOCAB // 32)
            mask = order.integers(0, 2**32, shape, np.uint32) if order.integers(2) else None
            expected, before = each.long_way(rows, mask), each.lengths.copy()
            assert each.decoder.step(rows, (each.lengths[rows] - 1).tolist(), mask) == expected
            assert each.tokens[rows, before[rows]].tolist() == expected
            before[rows] += 1
            assert (each.lengths == before).all()


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
    with pytest.raises(ValueError, match="mask"):
        each.decoder.step([0], [0], np.zeros((2, -(-VOCAB // 32)), np.uint32))
    each.records["num_logprobs"][0] = 0
    with pytest.raises(ValueError, match="log-probabilities"):
        each.decoder.step([0], [0])
    assert (each.tokens == tokens).all()
    assert (each.lengths == lengths).all()
