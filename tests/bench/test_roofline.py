"""Bounds against counting by hand, and the work of models against their files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.bench.calibrate import (
    Machine,
    Rates,
    Timed,
    best_time,
    calibrate,
    decoding_attention,
    random_weight,
    rates_of_prompts,
    rates_of_rows,
    tile,
)
from octavo.bench.driver import Drawn, Driver, Run, StepTime, Watch
from octavo.bench.roofline import Asked, Meter, ModelCost, attention_of, cost_of, layout_of
from octavo.checkpoints.gguf import GGUFCheckpoint
from octavo.errors import InvalidRequestError, OctavoError, UnsupportedError
from octavo.kernels.ops import (
    Activation,
    AttentionSpec,
    Experts,
    Inputs,
    KVCache,
    KVSpec,
    Ops,
    Tensor,
)
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import WantedBackend, make_backend, native_available
from octavo.kernels.weight import Layout, Weight
from octavo.quant import registry

MACHINE = Machine("none", 2, bandwidth=1e9, tile_rate=1e10, attention_rate=1e9, clock=1e9)


def work(**changes: Any) -> ModelCost:
    fields: dict[str, Any] = {
        "linear_macs": 1000, "head_macs": 300, "weight_bytes": 800, "kv_bytes": 10,
        "attention": ((4, None), (6, 3)), "bits": 4.5,
    }  # fmt: skip
    return ModelCost(**{**fields, **changes})


def visible(position: int, window: int | None) -> int:
    """KV positions that a query sees."""
    return sum(1 for j in range(position + 1) if window is None or j > position - window)


@pytest.mark.parametrize("context", [1, 2, 3, 4, 50])
def test_decode_is_counted_by_hand(context: int) -> None:
    bound = work().decode(MACHINE, batch=5, context=context)
    seen = [visible(context - 1, window) for window in (None, 3)]
    assert bound.compute_s == pytest.approx(5 * 1300 / 1e10 + 5 * (4 * seen[0] + 6 * seen[1]) / 1e9)
    # Each of the two layers holds half of a token's KV bytes.
    assert bound.memory_s == pytest.approx((800 + 5 * (5 * seen[0] + 5 * seen[1])) / 1e9)
    assert bound.seconds == max(bound.memory_s, bound.compute_s)
    assert bound.limit == ("memory" if bound.memory_s >= bound.compute_s else "compute")


def test_a_greedy_step_does_not_read_all_of_the_head() -> None:
    spared = work(spared_bytes=100)
    assert spared.decode_bytes(2, 3) == work().decode_bytes(2, 3) - 100
    assert spared.prompt(MACHINE, 7, 8) == work().prompt(MACHINE, 7, 8)


@pytest.mark.parametrize(("length", "chunk"), [(1, 8), (2, 8), (7, 8), (8, 8), (20, 8)])
def test_a_prompt_is_counted_by_hand(length: int, chunk: int) -> None:
    bound = work().prompt(MACHINE, length, chunk)
    attention = sum(4 * visible(p, None) + 6 * visible(p, 3) for p in range(length))
    assert bound.compute_s == pytest.approx((length * 1000 + 300) / 1e10 + attention / 1e9)
    assert bound.memory_s == pytest.approx((-(-length // chunk) * 800 + length * 10) / 1e9)
    last = 6 * visible(length - 1, 3)
    for ends, attention in (  # of a layer that ends, what the last token sees
        (1, sum(4 * visible(p, None) for p in range(length)) + last),
        (2, 4 * visible(length - 1, None) + last),
    ):
        bound = work(ends=ends).prompt(MACHINE, length, chunk)
        assert bound.compute_s == pytest.approx((length * 1000 + 300) / 1e10 + attention / 1e9)


def test_the_ridge_is_where_both_times_meet() -> None:
    bare = work(attention=(), kv_bytes=0)
    batch = bare.ridge(MACHINE)
    machine = MACHINE
    assert batch * 1300 / machine.tile_rate == pytest.approx(800 / machine.bandwidth)


def test_experts_are_read_as_tokens_ask_for_them() -> None:
    mixed = work(expert_bytes=1000, expert_share=0.25)
    assert [mixed.step_bytes(tokens) for tokens in (1, 2, 4, 9)] == [1050, 1300, 1800, 1800]


def test_the_real_model_is_its_file(driver: Driver, smollm2: GGUFCheckpoint) -> None:
    loaded = driver.loaded
    found = cost_of(loaded.model, loaded.backend, smollm2, "f16")
    hidden, layers, ffn, kv, vocab = 576, 30, 1536, 192, 49152
    ends = hidden * hidden + 3 * hidden * ffn  # of the last layer, behind its attention
    assert found.linear_macs == layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * ffn) - ends
    assert found.head_macs == hidden * vocab + ends
    assert found.ends == 1
    assert found.weight_bytes == sum(t.data.nbytes for t in smollm2.tensors.values()), "the head is the table"
    if native_available():
        assert found.spared_bytes == 3 * hidden * vocab // 8, "five of the eight bits of its Q8_0 head"
    assert found.kv_bytes == 2 * layers * kv * 2
    assert found.attention == ((2 * hidden, None),) * layers
    assert 5.0 < found.bits < 6.5
    assert found.layout == ("u4" if native_available() else "f32")


class Mixture:
    """Embedding, attention, two experts of four, a head of its own."""

    vocab_size, max_position = 64, 8
    spec = AttentionSpec(1, 1, 32, 32, 1.0, window=4)

    def __init__(self, backend: ReferenceBackend) -> None:
        def matrix(n: int, k: int = 32) -> Any:
            return backend.pack([Weight.dense(np.ones((n, k), np.float32))])

        self.table, self.head, self.qkv, self.router = matrix(64), matrix(64), matrix(96), matrix(4)
        self.up = [
            backend.pack([Weight.dense(np.ones((48, 32), np.float32))] * 2, gated=True) for _ in range(4)
        ]
        self.down = [matrix(32, 48) for _ in range(4)]

    def kv_specs(self, dtype: str) -> list[KVSpec]:
        return [KVSpec(1, 32, 32, dtype)]

    def forward(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        x = ops.embed(inputs, self.table)
        layer = kv.layer(0)
        q = ops.rotary_append(inputs, ops.linear(x, self.qkv), layer, self.spec, None)
        x = ops.add(x, ops.attention(inputs, q, layer, self.spec))
        x = ops.moe(x, ops.linear(x, self.router), Experts(self.up, self.down, Activation.SILU), 2, True)
        return ops.linear(ops.gather_rows(inputs, x), self.head)


def test_mixtures_and_tables_that_are_only_looked_up() -> None:
    backend = ReferenceBackend()
    model = Mixture(backend)
    expert = 3 * 32 * 48
    sizes = {"model.embed_tokens.weight": (64, 32), "lm_head.weight": (64, 32), "rest": (100, 32)}
    experts = {f"expert.{i}": (3 * 48, 32) for i in range(4)}
    tensors = {
        name: SimpleNamespace(shape=shape, data=np.zeros(4 * shape[0] * shape[1], np.uint8))
        for name, shape in {**sizes, **experts}.items()
    }
    found = cost_of(model, backend, SimpleNamespace(tensors=tensors), "f16")  # type: ignore[arg-type]
    assert found.linear_macs == (96 + 4) * 32 + 2 * expert
    assert found.head_macs == 64 * 32
    assert found.attention == ((64, 4),)
    assert found.expert_share == 0.5
    assert found.weight_bytes + found.expert_bytes == 4 * 32 * (64 + 100) + 4 * 4 * expert
    assert found.expert_bytes == pytest.approx(4 * 4 * expert, rel=0.01)


def test_measured_beside_the_bound(driver: Driver, smollm2: GGUFCheckpoint) -> None:
    loaded = driver.loaded
    found = cost_of(loaded.model, loaded.backend, smollm2, "f16")
    if not native_available():
        with pytest.raises(UnsupportedError, match="native kernels"):
            calibrate(loaded.backend, Layout(found.layout))
        return
    machine = calibrate(loaded.backend, Layout(found.layout), seconds=0.01)
    assert machine.threads == loaded.backend.threads
    assert 0 < machine.tile_per_cycle < 1000
    assert min(machine.bandwidth, machine.attention_rate, machine.clock) > 0
    swept: list[float] = []

    def sweep(nbytes: float) -> float:
        """Twice what the last sweep said: of a line's two the mean counts."""
        swept.append(nbytes)
        return 1e9 * 2.0 ** len(swept)

    asked: list[int] = []

    def decoding(rows: int) -> Callable[[Machine], Machine]:
        """So fast a tile that no step waits for arithmetic, and a slower attention for more rows."""
        asked.append(rows)
        return lambda now: replace(now, tile_rate=1e15, attention_rate=1e15 / rows)

    lines = list(Meter(driver, found, machine, 3, 1, sweep, None, decoding).lines([20], [1, 3], [40]))
    assert asked == [1, 3, 1]
    assert [row.bound_spread for row in lines] == [1.0] * 4  # of one turn each
    assert [(row.work, row.size, row.context) for row in lines] == [
        ("prompt", 20, 10), ("decode", 1, 17), ("decode", 3, 17), ("decode", 1, 41)
    ]  # fmt: skip
    # Each line's first run warms up.
    assert swept == [found.decode_bytes(*each) for each in ((1, 17), (3, 17), (1, 41)) for _ in range(4)]
    assert [row.bandwidth for row in lines] == [machine.bandwidth, 12e9, 192e9, 3072e9]
    for row, moved in zip(lines[1:], swept[::4], strict=True):
        assert row.bandwidth_share == pytest.approx(moved / row.bandwidth * row.rate / row.size)
    for row in lines[1:]:
        assert row.limit == "memory"
        assert row.share == pytest.approx(row.bandwidth_share)
    for row in lines:
        assert row.share == pytest.approx(row.rate / row.bound_rate)
        assert row.limit in ("memory", "compute")
        assert 0 < row.bandwidth_share <= row.share * 1.000001


@dataclass
class Scripted:
    """A driver whose step i takes i seconds; in the first one not all of two sequences draw."""

    tokens: int
    vocab_size = 100

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int, watch: Watch) -> Run:
        steps = [StepTime(float(i), 2 if i else 1) for i in range(self.tokens + 1)]
        for step in steps:
            watch([Drawn(place, 1, False) for place in range(step.tokens)])
        return Run(8, tuple(steps[:2]), tuple(steps[2:]), (0.0, 1.0), ((1,), (1,)))


def test_memory_is_swept_between_steps_whose_first_does_not_count() -> None:
    def turns(tokens: int, runs: int) -> list[tuple[float, float]]:
        found = itertools.count(100.0, 100.0)
        meter = Meter(Scripted(tokens), work(), MACHINE, tokens, runs)  # type: ignore[arg-type]
        looks = meter._turns(2, 4, lambda: replace(MACHINE, bandwidth=next(found)))
        return [(seconds, here.bandwidth) for seconds, here in looks]

    # After steps 1 and 9, and at the end; of a run that warms up nothing counts.
    assert turns(9, 1) == [(6.0, 350.0)]
    assert turns(10, 1) == [(6.0, 450.0)]  # the last step followed a sweep
    assert turns(12, 1) == [(6.0, 450.0), (11.5, 550.0)]
    assert turns(9, 2) == [(6.0, 350.0), (6.0, 550.0)]
    with pytest.raises(OctavoError, match="2 sequences never drew at once"):
        list(Meter(Scripted(1), work(), MACHINE, 1, 1).lines([], [2]))  # type: ignore[arg-type]


@dataclass
class Slowing:
    """A driver of prompts whose cores slow down from run to run, and say how fast they are."""

    speed: float = 2.0
    max_step_tokens = 100
    vocab_size = 100

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int, watch: Watch | None) -> Run:
        self.speed /= 2
        return Run(8, (StepTime(1 / self.speed, 1),), (), (0.0,), ((1,),))

    def rates(self, machine: Machine) -> Machine:
        return replace(machine, tile_rate=1e4 * self.speed, attention_rate=1e4 * self.speed)


def test_a_prompt_is_held_against_what_its_cores_do_then() -> None:
    """Cores that slow down by half with each run: a look lies before and after each."""
    driver = Slowing()
    found = work(attention=(), kv_bytes=0, weight_bytes=0)
    meter = Meter(driver, found, MACHINE, 1, 3, None, driver.rates)  # type: ignore[arg-type]
    (line,) = meter.lines([8], [])
    # Before a run twice of what is after it, so 1.5 times its speed; and 8,300 MACs of 10,000 at speed 1.
    assert line.share == pytest.approx(0.83 / 1.5)
    assert line.bound_spread == pytest.approx(4.0)
    assert line.limit == "compute"


def test_rates_are_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter((2.0, 4.0, 8.0, 16.0))
    monkeypatch.setattr("octavo.bench.calibrate.best_time", lambda run, seconds: next(took))
    rates = Rates(Timed(16.0, list), Timed(32.0, list))
    for tile_rate, attention_rate in ((8.0, 8.0), (2.0, 2.0)):
        assert rates(MACHINE) == replace(MACHINE, tile_rate=tile_rate, attention_rate=attention_rate)


@pytest.mark.parametrize(
    ("prompts", "limit", "text"),
    [
        ([5], 20, None),
        ([19], 20, None),
        ([5], 19, r"max_model_len must be at least 20 \(batches decode 4 tokens after 16\), not 19"),
        ([5, 20, 7], 20, "--prompt-tokens 20: max_model_len 20 leaves room for at most 19"),
    ],
)
def test_what_is_too_long_is_refused_before_it_is_measured(
    prompts: list[int], limit: int, text: str | None
) -> None:
    asked = Asked(prompts, [1], [10, 16, 17], 4)
    with nullcontext() if text is None else pytest.raises(InvalidRequestError, match=text):
        asked.check_length(limit)
    assert asked.contexts_within(20) == [10, 16]


def test_batches_that_never_are_at_once_are_refused_before_they_are_measured() -> None:
    asked = Asked([5], [2, 4, 1], [], 4)
    asked.check_batches(4)
    asked.check_batches(4, num_pages=8, page_size=16)  # 17 tokens each
    for given, text in (
        ((3,), "--batch-sizes 4: max_num_seqs 3 allows no more at once"),
        ((4, 7, 16), "--batch-sizes 4: their prompts take 8 pages of KV, and there are 7"),
    ):
        with pytest.raises(InvalidRequestError, match=text):
            asked.check_batches(*given)


def test_the_reference_has_no_roofline() -> None:
    with pytest.raises(UnsupportedError, match="native kernels"):
        calibrate(ReferenceBackend(), Layout.U4)


def test_a_tile_can_be_timed_anywhere() -> None:
    assert tile(ReferenceBackend(), Layout.U4).rate(0.0) > 0
    assert rates_of_prompts(ReferenceBackend(), Layout.U4).tile.macs > 0


@pytest.mark.skipif(not native_available(), reason="needs the native kernels")
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_XS", "F16"])
def test_a_model_is_measured_by_the_layout_it_is_held_in(kind: str) -> None:
    """Of most of its numbers; none of its tiles is one that no weight meets."""
    from octavo.kernels.cpu import CpuBackend

    backend = CpuBackend(1, planned=True)
    form = registry.outline(kind, (64, 256))
    packed = [backend.pack([each]) for each in (form, registry.outline("F32", (16, 256)))]
    assert layout_of(packed) is form.layout
    assert layout_of([]) is Layout.F32


@pytest.mark.parametrize("layout", list(Layout))
def test_a_tile_of_every_layout_can_be_timed(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.bench.calibrate.TILE_BYTES", 1 << 12)
    monkeypatch.setattr("octavo.bench.calibrate.TILE_K", 256)
    monkeypatch.setattr("octavo.bench.calibrate.TILE_WORK", 1e5)
    backend = make_backend("auto", WantedBackend(1, "auto", "auto"))
    assert tile(backend, layout, 3).rate(0.0) > 0


def test_what_few_rows_get_is_measured_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which every replay takes a millisecond: rates are what was counted, times 1000."""
    monkeypatch.setattr("octavo.bench.calibrate.best_time", lambda run, seconds: (run(), 1e-3)[1])
    backend, kv = ReferenceBackend(), KVSpec(1, 32, 16, "f32")
    spec = AttentionSpec(2, 1, 32, 16, 1.0)
    windowed = AttentionSpec(2, 1, 32, 16, 1.0, window=100)
    monkeypatch.setattr("octavo.bench.calibrate.ATTENTION_REPEATS", 3)
    assert decoding_attention(backend, spec, kv).rate(1.0) == pytest.approx(3 * 2 * 48 * 1024 * 1e3)
    assert decoding_attention(backend, windowed, kv).rate(1.0) == pytest.approx(3 * 2 * 48 * 100 * 1e3)
    monkeypatch.setattr("octavo.bench.calibrate.tile", lambda backend, layout, rows: Timed(7.0 * rows, list))
    found = rates_of_rows(backend, Layout.U4, (spec, kv), 5)(MACHINE)
    assert (found.tile_rate, found.bandwidth) == (35e3, MACHINE.bandwidth)
    assert found.attention_rate == pytest.approx(3 * 2 * 48 * 1024 * 1e3)


def test_attention_is_taken_from_the_program(driver: Driver) -> None:
    loaded = driver.loaded
    spec, kv = attention_of(loaded.model, loaded.backend, "f16")
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (9, 3, 64)
    assert (kv.num_kv_heads, kv.head_dim, kv.dtype) == (3, 64, "f16")


def test_random_weights_are_centred() -> None:
    rng = np.random.default_rng(0)
    for layout in (Layout.U4, Layout.S8, Layout.F32, Layout.U3, Layout.NF4):
        w = random_weight(rng, layout, 64, 256).dequantize()
        assert abs(w.mean()) < 0.2 * w.std()


def test_best_time_runs_at_least_twice() -> None:
    calls: list[int] = []
    assert best_time(lambda: calls.append(1), 0.0) >= 0.0
    assert len(calls) == 2
