"""Steps that workers begin before they are asked for: nobody can tell, but by the clock."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.kernels.select import native_available

if not native_available():
    pytest.skip("the extension is not built", allow_module_level=True)

from octavo.kernels.cpu import CpuBackend
from octavo.kernels.draws import Asked, RowLogprobs, Scored
from octavo.kernels.ops import AttentionSpec, DecodeRows, Inputs, KVSpec, Limits, Ops, Scaling, Tensor
from octavo.sampling.sampling_batch import ROW
from support.kernels import random_weight

ROWS, LENGTH, PAGE, VOCAB = 3, 40, 4, 64
WIDTH = -(-LENGTH // PAGE)
SPEC = AttentionSpec(2, 2, 16, 16, 0.25)
QKV = 3 * 32
HEAD = 4096


class Deep:
    """Rows over a model of many layers with attention: a step takes longer than what tests do meanwhile."""

    def __init__(self, threads: int, layers: int = 40, seed: int = 0, head: int = 0, words: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.backend = CpuBackend(threads)
        vocab = head or VOCAB
        table = self.backend.pack([random_weight(rng, "u4-min", words or vocab, QKV)])
        last = self.backend.pack([random_weight(rng, "s8", head, QKV)], head=True) if head else table
        out = [self.backend.pack([random_weight(rng, "f32", QKV, 32)]) for _ in range(2)]
        self.cache = self.backend.kv_cache([KVSpec(2, 16, 16, "f32")] * layers, ROWS * WIDTH, PAGE)
        gain = np.ones(QKV, np.float32)

        def forward(ops: Ops, inputs: Inputs) -> Tensor:
            x = ops.embed(inputs, table)
            for i in range(layers):
                layer = self.cache.layer(i)
                q = ops.rotary_append(inputs, ops.rms_norm(x, gain, 1e-5), layer, SPEC, None)
                x = ops.linear(ops.attention(inputs, q, layer, SPEC), out[i % 2])
            x = ops.rms_norm(ops.gather_rows(inputs, x), gain, 1e-5)
            return ops.linear(x, last, scaling=Scaling(1.0 if head else 0.5))

        self.program = self.backend.capture(forward, Limits(ROWS, ROWS, ROWS, WIDTH))
        self.tokens = rng.integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)
        self.lengths = np.ones(ROWS, np.int64)
        self.pages = rng.permutation(ROWS * WIDTH).reshape(ROWS, -1).astype(np.int32)
        self.records = np.zeros(ROWS, ROW)
        self.records["typical_p"] = self.records["top_p"] = self.records["repetition_penalty"] = 1
        self.records["num_logprobs"], self.records["seed"] = -1, [3, 4, 5]
        rows = DecodeRows(self.tokens, self.lengths, self.pages, PAGE, self.records)
        self.rows = rows
        found: Any = self.backend.decoder(self.program, self.backend.sampler(vocab), rows)
        self.decoder = found

    def step(self, rows: list[int], *more: Any, ahead: bool) -> list[int]:
        self.decoder.native.ahead = ahead
        drawn: list[int] = self.decoder.step(rows, (self.lengths[rows] - 1).tolist(), *more)
        return drawn

    @property
    def taken_up(self) -> int:
        count: int = self.decoder.native.taken_up
        return count


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_step_within_a_page_is_taken_up_and_draws_the_same(threads: int, temperature: float) -> None:
    plain, ahead = Deep(threads), Deep(threads)
    plain.records["temperature"] = ahead.records["temperature"] = temperature
    for position in range(LENGTH - 1):
        assert plain.step([1], ahead=False) == ahead.step([1], ahead=position != LENGTH - 2)
    assert (plain.tokens == ahead.tokens).all()
    assert (plain.lengths == ahead.lengths).all()
    assert plain.taken_up == 0
    within = sum(position % PAGE != 0 for position in range(1, LENGTH - 1))
    assert ahead.taken_up == (within if threads > 1 else 0)
    assert [plain.cache.read_page(p).tobytes() for p in plain.pages[1].tolist()] == [
        ahead.cache.read_page(p).tobytes() for p in ahead.pages[1].tolist()
    ]


def other_token(each: Deep) -> None:
    each.tokens[0, each.lengths[0] - 1] ^= 1


def other_page(each: Deep) -> None:
    """One that the row has read: what lies there is not what it has written."""
    each.pages[0, 0] = each.pages[2, WIDTH - 1]


def other_page_to_write(each: Deep) -> None:
    each.pages[0, (each.lengths[0] - 1) // PAGE] = each.pages[2, WIDTH - 1]


def warmer(each: Deep) -> None:
    each.records["temperature"][0] = 1.5


def earlier(each: Deep) -> None:
    each.lengths[0] -= 1


def later(each: Deep) -> None:
    each.lengths[0] += 1


@pytest.mark.parametrize(
    "change", [other_token, other_page, other_page_to_write, warmer, earlier, later], ids=lambda c: c.__name__
)
def test_a_step_that_is_not_the_one_that_was_begun_is_computed_anew(change: Callable[[Deep], None]) -> None:
    plain, ahead = Deep(2), Deep(2)
    for _ in range(5):
        assert plain.step([0], ahead=False) == ahead.step([0], ahead=True)
    before = ahead.taken_up
    for each in (plain, ahead):
        change(each)
    assert plain.step([0], ahead=False) == ahead.step([0], ahead=True)
    assert ahead.taken_up == before
    assert plain.step([0], ahead=False) == ahead.step([0], ahead=True)  # and so it goes on
    assert (plain.tokens == ahead.tokens).all()


def test_whatever_comes_next_is_as_if_nothing_had_been_begun() -> None:
    """Random steps: one row or more, of one that was begun or another, scored, or with drafts."""
    taken = 0
    for seed in range(12):
        rng = random.Random(seed)
        threads = rng.choice([2, 3])
        plain, ahead = Deep(threads, 9, seed), Deep(threads, 9, seed)
        row = 0
        while max(plain.lengths) < LENGTH - 4:
            row = row if rng.random() < 0.8 else rng.randrange(ROWS)
            way = rng.choices(["lone", "many", "scored", "verify"], [12, 1, 1, 1])[0]
            rows = [row] if way != "many" else rng.sample(range(ROWS), rng.randint(2, ROWS))
            drawn = []
            for each, early in ((plain, False), (ahead, True)):
                each.records["temperature"][row] = 0.0 if seed % 2 else 0.8
                each.records["num_logprobs"] = 3 if way == "scored" else -1
                if way == "verify":
                    starts = [int(each.lengths[row]) - 1]
                    drawn.append(each.decoder.verify([row], starts, [[7, 9]]))
                elif way == "scored":
                    scores = RowLogprobs.empty(1, 3)
                    drawn.append(each.step(rows, (), None, Scored([0], scores), ahead=early))
                    drawn[-1] += [*scores.logprobs, *scores.top_tokens[0]]
                else:
                    drawn.append(each.step(rows, ahead=early))
            assert drawn[0] == drawn[1], (seed, way)
        assert (plain.tokens == ahead.tokens).all()
        taken += ahead.taken_up
    assert taken > 100


@pytest.mark.parametrize("act", ["write", "copy", "move"])
def test_pages_are_at_rest_before_others_touch_them(act: str) -> None:
    """A page that has changed hands keeps what its new owner writes: a step that was begun writes no more."""
    each = Deep(2, layers=400)
    for _ in range(6):  # position 6, of a page that has begun, is under way now
        each.step([0], ahead=True)
    mine, other = int(each.pages[0, 1]), int(each.pages[1, 0])
    if act == "write":
        each.cache.write_page(mine, np.full(each.cache.page_bytes, 1, np.uint8))
    elif act == "copy":
        each.cache.copy_pages([(other, mine)])
    else:
        each.cache.move_slots([(other * PAGE, mine * PAGE + 2)])
    left = each.cache.read_page(mine).tobytes()
    time.sleep(0.05)  # as long as the step would have taken, and longer
    assert each.cache.read_page(mine).tobytes() == left
    if act != "move":
        wanted = (
            bytes([1]) * each.cache.page_bytes if act == "write" else each.cache.read_page(other).tobytes()
        )
        assert left == wanted


def test_what_was_drawn_before_a_begun_step_is_not_drawn_again() -> None:
    """Its logits are being written over."""
    each = Deep(2)
    each.records["temperature"] = 1.0
    each.step([0], ahead=True)
    with pytest.raises(ValueError, match="not the last step's"):
        each.decoder.redraw([0], np.zeros((1, VOCAB // 32), np.uint32))


def test_a_row_whose_draw_others_know_of_begins_nothing() -> None:
    each, free = Deep(2), np.zeros(VOCAB // 32, np.uint32)
    each.step([0], (), Asked([0], lambda *_: False, free), ahead=True)
    each.step([0], ahead=False)
    each.step([0], ahead=True)
    each.step([0], ahead=False)  # position 3
    assert each.taken_up == 1
    each.step([0], (), None, Scored([0], RowLogprobs.empty(1, 3)), ahead=True)
    each.step([0], ahead=True)
    assert each.taken_up == 1


def test_whoever_else_needs_the_threads_gets_them() -> None:
    """Another program of the backend, or another decoder: what was begun for one is not another's."""
    each, long = Deep(2), Deep(2)
    second: Any = each.backend.decoder(each.program, each.backend.sampler(VOCAB), each.rows, ahead=True)
    for _ in range(3):
        assert each.step([0], ahead=True) == long.step([0], ahead=False)
        starts = [int(each.lengths[1]) - 1]
        assert second.step([1], starts) == long.step([1], ahead=False)
    assert each.taken_up == second.native.taken_up == 0
    assert (each.tokens == long.tokens).all()


def test_what_a_head_was_to_learn_in_a_step_that_was_left_it_learns_again() -> None:
    """It learns in 16 steps, from the 33rd row on, what its choices need: those of one that nobody leaves."""
    plain, ahead = Deep(1, head=HEAD), Deep(2, head=HEAD)
    tokens = np.random.default_rng(1).integers(0, VOCAB, 400)
    for number, token in enumerate(tokens.tolist()):
        drawn = []
        for each, early in ((plain, False), (ahead, True)):
            each.lengths[0] = 1 + number % 3
            each.tokens[0, number % 3] = token
            drawn.append(each.step([0], ahead=early))
        if number % 4:
            ahead.backend.pool.leave()
        assert drawn[0] == drawn[1], number
    assert ahead.decoder.native.chosen > 250
    assert plain.decoder.native.chosen > 250


def test_a_step_that_cannot_be_computed_is_said_to_whoever_asks_for_it() -> None:
    """Here of a token that has no embedding: the step that drew it is whole."""
    each = Deep(2, head=HEAD, words=VOCAB)
    (token,) = each.step([0], ahead=True)
    assert token >= VOCAB
    assert each.lengths[0] == 2
    with pytest.raises(ValueError, match="outside the vocabulary"):
        each.step([0], ahead=True)
    assert each.lengths[0] == 2


def test_a_decoder_ends_with_a_step_under_way() -> None:
    for _ in range(20):
        each = Deep(2, layers=100)
        each.step([0], ahead=True)
        each.step([0], ahead=True)
        del each
        gc.collect()
