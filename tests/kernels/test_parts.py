"""What a program takes beside its batch's usual arrays, and leaves beside its result, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.errors import UnsupportedError
from octavo.kernels import program as program_module
from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.forward_batch import EXTRAS, Extras, ForwardBatch
from octavo.kernels.ops import F32, AttentionSpec, Backend, Inputs, KVSpec, Limits, Ops, Program, Rows, Tensor
from octavo.kernels.program import Recorder, fuse, plan_arena
from octavo.kernels.reference import ReferenceBackend
from octavo.models.rotary import rotary_tables
from support.cuda import interpreted
from support.kernels import batch_of, random_weight
from support.recordings import Recordings

WIDTH, VOCAB = 32, 50
SPEC = AttentionSpec(4, 2, 16, 16, 0.25)
BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": ReferenceBackend,
    **{isa: lambda isa=isa: CpuBackend(2, isa) for isa in instruction_sets()},
    "cuda": interpreted,
}
every_backend = pytest.mark.parametrize("name", BACKENDS)
LIMITS = Limits(32, 4, 32, 4)
GAIN = np.linspace(0.5, 1.5, WIDTH).astype(np.float32)


class Model:
    """Embedding, one layer of attention whose keys rotate, a norm and a head.

    Args:
        tap: what is kept as "x": None, "before" the norm, or "norm" itself.
    """

    def __init__(self, backend: Backend, tap: str | None = None) -> None:
        rng = np.random.default_rng(3)
        self.table, self.head = (backend.pack([random_weight(rng, "f32", VOCAB, WIDTH)]) for _ in range(2))
        self.qkv = backend.pack([random_weight(rng, "f32", 64 + 32 + 32, WIDTH)])
        self.out = backend.pack([random_weight(rng, "f32", WIDTH, 64)])
        self.rotary, self.tap = rotary_tables(16, 10000.0, 64), tap
        self.kv = backend.kv_cache([KVSpec(2, 16, 16, "f32")], 8, 16)

    def __call__(self, ops: Ops, inputs: Inputs) -> Tensor:
        x = ops.embed(inputs, self.table)
        if "replaced" in inputs.extras:
            x = ops.replace_rows(inputs, x)
        pages = self.kv.layer(0)
        q = ops.rotary_append(inputs, ops.linear(x, self.qkv), pages, SPEC, self.rotary)
        x = ops.linear(ops.attention(inputs, q, pages, SPEC), self.out, residual=x)
        if self.tap == "before":
            ops.keep(inputs, x, "x")
        normed = ops.rms_norm(ops.gather_rows(inputs, x), GAIN, 1e-5)
        if self.tap == "norm":
            ops.keep(inputs, normed, "x")
        return ops.linear(normed, self.head)  # alone reads the norm, which is fused into it


def prompt(lengths: tuple[int, ...] = (9, 5)) -> ForwardBatch:
    batch = batch_of(np.random.default_rng(1), lengths, lengths, num_pages=8)
    return replace(batch, sampled=np.arange(batch.num_tokens, dtype=np.int32))


def programs(backend: Backend, **limits: Any) -> Program:
    return backend.capture(Model(backend), replace(LIMITS, **limits))


# -- parts of a batch ----------------------------------------------------------------------------


@every_backend
def test_rotation_alone_reads_its_positions(name: str) -> None:
    """Shifted by one number they change no score between two tokens; attention goes on by position."""
    backend, batch = BACKENDS[name](), prompt()
    plain = programs(backend).replay(batch).copy()
    program = programs(backend, extras=frozenset({"rope_positions"}))
    same = replace(batch, extras=Extras(rope_positions=batch.positions))
    np.testing.assert_array_equal(program.replay(batch), plain)
    np.testing.assert_array_equal(program.replay(same), plain)
    far = replace(batch, extras=Extras(rope_positions=batch.positions + np.int32(7)))
    np.testing.assert_allclose(program.replay(far), plain, atol=2e-4)
    stretched = replace(batch, extras=Extras(rope_positions=batch.positions * np.int32(3)))
    got = program.replay(stretched).copy()
    assert np.abs(got - plain).max() > 1e-2
    reference = ReferenceBackend()
    want = programs(reference, extras=frozenset({"rope_positions"})).replay(stretched)
    np.testing.assert_allclose(got, want, atol=2e-4)


@every_backend
def test_replaced_rows_stand_for_embeddings(name: str) -> None:
    """Rows that are the table's own give the tokens' logits; others give the reference's."""
    backend, batch = BACKENDS[name](), prompt()
    plain = programs(backend).replay(batch).copy()
    program = programs(backend, extras=frozenset({"replaced"}))
    np.testing.assert_array_equal(program.replay(batch), plain)
    table = random_weight(np.random.default_rng(3), "f32", VOCAB, WIDTH).dequantize()
    at = np.array([0, 3, 8, 13], np.int32)
    wrong = batch.token_ids.copy()
    wrong[at] = (wrong[at] + 1) % VOCAB
    own = Extras(replaced=at, rows=table[batch.token_ids[at]])
    got = program.replay(replace(batch, token_ids=wrong, extras=own)).copy()
    np.testing.assert_array_equal(got, plain)
    other = replace(batch, extras=Extras(replaced=at, rows=own.rows * np.float32(2)))
    want = programs(ReferenceBackend(), extras=frozenset({"replaced"})).replay(other)
    np.testing.assert_allclose(program.replay(other), want, atol=2e-4)
    np.testing.assert_array_equal(program.replay(batch), plain)


def brought(name: str, tokens: int) -> Extras:
    if name == "replaced":
        return Extras(replaced=np.zeros(1, np.int32), rows=np.zeros((1, WIDTH), np.float32))
    return Extras(**{name: np.zeros(tokens, np.int32)})  # type: ignore[arg-type]


@every_backend
@pytest.mark.parametrize("part", EXTRAS)
def test_a_part_that_was_not_declared_is_refused_by_name(name: str, part: str) -> None:
    backend, batch = BACKENDS[name](), prompt()
    program = programs(backend, extras=frozenset({"rope_positions", "replaced"}) - {part})
    with pytest.raises(ValueError, match=f"not captured for {part}"):
        program.replay(replace(batch, extras=brought(part, batch.num_tokens)))


@every_backend
@pytest.mark.parametrize("part", ["horizons", "adapters", "words"])
def test_a_part_that_nobody_takes_is_refused_at_capture(name: str, part: str) -> None:
    with pytest.raises(UnsupportedError, match=f"no program takes {part} yet"):
        programs(BACKENDS[name](), extras=frozenset({part}))


@every_backend
def test_a_part_that_the_model_does_not_read_is_refused_at_capture(name: str) -> None:
    backend = BACKENDS[name]()
    table = backend.pack([random_weight(np.random.default_rng(3), "f32", VOCAB, WIDTH)])
    for part in ("rope_positions", "replaced"):
        limits = replace(LIMITS, extras=frozenset({part}))
        with pytest.raises(UnsupportedError, match=f"does not read {part}"):
            backend.capture(lambda ops, inputs: ops.embed(inputs, table), limits)


@every_backend
@pytest.mark.parametrize(
    ("extras", "message"),
    [
        (Extras(rope_positions=np.zeros(13, np.int32)), "each of 14 tokens"),
        (Extras(rope_positions=np.zeros((14, 3), np.int32)), r"each of 14 tokens, not shape \(14, 3\)"),
        (Extras(replaced=np.zeros(1, np.int32)), "come together"),
        (Extras(replaced=np.int32([1, 2]), rows=np.zeros((1, WIDTH), np.float32)), "one for each of"),
        (Extras(replaced=np.int32([2, 1]), rows=np.zeros((2, WIDTH), np.float32)), "ascend"),
        (Extras(replaced=np.int32([1, 1]), rows=np.zeros((2, WIDTH), np.float32)), "ascend"),
        (Extras(replaced=np.int32([-1]), rows=np.zeros((1, WIDTH), np.float32)), "batch's 14"),
        (Extras(replaced=np.int32([14]), rows=np.zeros((1, WIDTH), np.float32)), "batch's 14"),
        (Extras(replaced=np.int32([1]), rows=np.zeros((1, WIDTH + 1), np.float32)), "wid"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name: str, extras: Extras, message: str) -> None:
    program = programs(BACKENDS[name](), extras=frozenset({"rope_positions", "replaced"}))
    with pytest.raises(ValueError, match=message):
        program.replay(replace(prompt(), extras=extras))


@every_backend
@pytest.mark.parametrize("position", [-1, 64])
def test_rotation_stays_within_its_tables(name: str, position: int) -> None:
    batch = prompt()
    own = batch.positions.copy()
    own[3] = position
    program = programs(BACKENDS[name](), extras=frozenset({"rope_positions"}))
    with pytest.raises(ValueError, match="rotary tables"):
        program.replay(replace(batch, extras=Extras(rope_positions=own)))
    own[3] = 63
    program.replay(replace(batch, extras=Extras(rope_positions=own)))


@pytest.mark.parametrize("position", [-1, 64])
def test_recorded_rotation_stays_within_its_tables(position: int) -> None:
    """Graphs, and steps that draw on the device, of which no host sees what they read."""
    backend = interpreted()
    from octavo.kernels.cuda.capture import Captures
    from octavo.kernels.cuda.graph_program import GraphProgram
    from octavo.kernels.cuda.steps import Steps

    limits = replace(LIMITS, extras=frozenset({"rope_positions"}))
    captures = Captures(Recordings(), background=False)
    graphs = GraphProgram(backend.maker, Model(backend), limits, captures)
    steps = Steps(backend.maker, Model(backend), limits, captures, VOCAB)
    batch = batch_of(np.random.default_rng(1), [7, 3], [1, 1], num_pages=8)
    batch = replace(batch, extras=Extras(rope_positions=np.int32([0, position])))
    with pytest.raises(ValueError, match="rotary tables"):
        graphs.replay(batch)
    with pytest.raises(ValueError, match="rotary tables"):
        steps.launch(batch, np.full(2, -1, np.int32), ())


@pytest.mark.parametrize("lengths", [(64, 40), (40, 64)])
def test_the_shortest_table_bounds_rotation(lengths: tuple[int, int]) -> None:
    """Layers of two kinds rotate by tables of their own."""
    backend = ReferenceBackend()
    models = [Model(backend), Model(backend)]
    for model, positions in zip(models, lengths, strict=True):
        model.rotary = rotary_tables(16, 10000.0, positions)

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        one, other = (model(ops, inputs) for model in models)
        return ops.add(one, other)

    program = backend.capture(forward, replace(LIMITS, extras=frozenset({"rope_positions"})))
    batch = prompt()
    own = batch.positions.copy()
    own[3] = 39
    program.replay(replace(batch, extras=Extras(rope_positions=own)))
    own[3] = 40
    with pytest.raises(ValueError, match="have 40 positions"):
        program.replay(replace(batch, extras=Extras(rope_positions=own)))


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.bool_])
@pytest.mark.parametrize("array", ["token_ids", "page_tables", "sampled", "context_lens", "slots"])
def test_the_native_program_names_an_array_of_another_type(array: str, dtype: type) -> None:
    batch = prompt()
    bad = replace(batch, **{array: getattr(batch, array).astype(dtype)})
    with pytest.raises(ValueError, match=f"{array} is no array"):
        programs(CpuBackend(1)).native.replay(bad)  # type: ignore[attr-defined]


@pytest.mark.parametrize("array", ["token_ids", "sampled"])
def test_the_native_program_names_an_array_of_another_shape(array: str) -> None:
    batch = prompt()
    bad = replace(batch, **{array: getattr(batch, array)[:, None]})
    with pytest.raises(ValueError, match=f"{array} is no array"):
        programs(CpuBackend(1)).native.replay(bad)  # type: ignore[attr-defined]


@pytest.mark.parametrize("array", ["token_ids", "page_tables"])
def test_the_native_program_takes_arrays_in_any_order(array: str) -> None:
    batch, program = prompt((40, 5)), programs(CpuBackend(1), max_tokens=64, max_sampled=64)
    plain = program.replay(batch).copy()
    spread = np.repeat(getattr(batch, array), 2, axis=-1)[..., ::2]
    assert not spread.flags.c_contiguous
    np.testing.assert_array_equal(program.replay(replace(batch, **{array: spread})), plain)


# -- kept and given ------------------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("tap", ["before", "norm"])
def test_what_is_kept_changes_nothing_else(name: str, tap: str) -> None:
    backend, batch = BACKENDS[name](), prompt()
    plain = programs(backend).replay(batch).copy()
    program = backend.capture(Model(backend, tap), LIMITS)
    for lengths in ((9, 5), (3,), (9, 5)):
        program.replay(prompt(lengths))
    np.testing.assert_array_equal(program.replay(batch), plain)
    kept = program.kept("x")
    assert kept.shape == (batch.num_tokens, WIDTH)
    reference = ReferenceBackend().capture(Model(ReferenceBackend(), tap), LIMITS)
    reference.replay(batch)
    np.testing.assert_allclose(kept, reference.kept("x"), atol=2e-4)
    with pytest.raises(ValueError, match=r"keeps \['x'\], not 'y'"):
        program.kept("y")


def test_nothing_is_kept_before_the_first_replay() -> None:
    backend = interpreted()
    from octavo.kernels.cuda.capture import Captures
    from octavo.kernels.cuda.graph_program import GraphProgram

    captures = Captures(Recordings(), background=False)
    made: list[Program] = [
        *(each.capture(Model(each, "before"), LIMITS) for each in (ReferenceBackend(), CpuBackend(2))),
        backend.capture(Model(backend, "before"), LIMITS),
        GraphProgram(backend.maker, Model(backend, "before"), LIMITS, captures),
    ]
    for program in made:
        with pytest.raises(ValueError, match="nothing was replayed yet"):
            program.kept("x")
        with pytest.raises(ValueError, match=r"keeps \['x'\], not 'y'"):
            program.kept("y")


def sum_of(rows: Rows) -> Callable[[Ops, Inputs], Tensor]:
    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        x = ops.given(inputs, "x", rows, WIDTH)
        return ops.rms_norm(ops.add(x, ops.given(inputs, "y", rows, WIDTH)), GAIN, 1e-5)

    return forward


@every_backend
@pytest.mark.parametrize(
    ("rows", "count"), [(Rows.TOKENS, 14), (Rows.SAMPLED, 5), (Rows.GIVEN, 6), (Rows.GIVEN, 0)]
)
def test_given_arrays_have_as_many_rows_as_their_kind(name: str, rows: Rows, count: int) -> None:
    backend, batch = BACKENDS[name](), prompt()
    batch = replace(batch, sampled=np.arange(5, dtype=np.int32))
    program = backend.capture(sum_of(rows), replace(LIMITS, max_given=6))
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((count, WIDTH)).astype(np.float32) for _ in range(2))
    total = (x + y).astype(np.float64)
    want = total / np.sqrt((total**2).mean(1, keepdims=True) + 1e-5) * GAIN
    got = program.replay(batch, {"x": x, "y": y})
    assert got.shape == (count, WIDTH)
    np.testing.assert_allclose(got, want, atol=1e-5)
    bad: list[tuple[dict[str, F32] | None, str]] = [
        (None, r"is given \['x', 'y'\], not \[\]"),
        ({"x": x}, r"not \['x'\]"),
        ({"x": x, "y": y, "z": y}, r"not \['x', 'y', 'z'\]"),
        ({"x": x, "y": np.zeros((count + 1, WIDTH), np.float32)}, "'y' is of shape"),
        ({"x": x, "y": y[:, 1:]}, "'y' is of shape"),
    ]
    if rows is Rows.GIVEN:
        many = np.zeros((7, WIDTH), np.float32)
        bad.append(({"x": many, "y": many}, "7 given rows exceed the 6"))
    for given, message in bad:
        with pytest.raises(ValueError, match=message):
            program.replay(batch, given)


@every_backend
def test_who_is_given_nothing_refuses_arrays(name: str) -> None:
    backend, batch = BACKENDS[name](), prompt()
    with pytest.raises(ValueError, match=r"is given \[\], not \['x'\]"):
        programs(backend).replay(batch, {"x": np.zeros((14, WIDTH), np.float32)})


@every_backend
def test_names_are_of_one_thing(name: str) -> None:
    backend = BACKENDS[name]()

    def twice(ops: Ops, inputs: Inputs) -> Tensor:
        x = ops.given(inputs, "x", Rows.TOKENS, WIDTH)
        ops.keep(inputs, x, "k")
        ops.keep(inputs, x, "k")
        return x

    def other(ops: Ops, inputs: Inputs) -> Tensor:
        ops.given(inputs, "x", Rows.TOKENS, WIDTH)
        return ops.given(inputs, "x", Rows.TOKENS, WIDTH + 1)

    with pytest.raises(ValueError, match="two results are kept as 'k'"):
        backend.capture(twice, LIMITS)
    with pytest.raises(ValueError, match="'x' was asked for as"):
        backend.capture(other, LIMITS)


def test_a_given_array_that_is_read_late_lies_where_nothing_else_does() -> None:
    """It is there before the first op runs, and until its last reader has."""
    backend = CpuBackend(1)
    model = Model(backend)

    def late(ops: Ops, inputs: Inputs) -> Tensor:
        x = model(ops, inputs)
        for _ in range(3):
            x = ops.add(x, x)
        return ops.add(x, ops.given(inputs, "x", Rows.TOKENS, VOCAB))

    batch = prompt()
    plain = programs(backend).replay(batch).copy() * 8
    x = np.random.default_rng(0).standard_normal(plain.shape).astype(np.float32)
    np.testing.assert_array_equal(backend.capture(late, LIMITS).replay(batch, {"x": x}), plain + x)


def test_eager_ops_keep_and_are_given_too() -> None:
    backend, batch = CpuBackend(1), prompt()
    ops = backend.eager(batch, LIMITS)
    x = np.ones((batch.num_tokens, WIDTH), np.float32)
    inputs = Inputs(batch, given={"x": x})
    y = ops.add(ops.given(inputs, "x", Rows.TOKENS, WIDTH), ops.given(inputs, "x", Rows.TOKENS, WIDTH))
    np.testing.assert_array_equal(ops.value(y), 2 * x)


# -- without them, nothing is otherwise ------------------------------------------------------------


def recorded(tap: str | None) -> tuple[Recorder, int]:
    backend = CpuBackend(1)
    recorder = Recorder()
    return recorder, Model(backend, tap)(recorder, Inputs()).ref


def test_a_tap_before_the_norm_leaves_the_program_as_it_is() -> None:
    """Call for call; one on the norm itself sets it apart from the projection (slower, the same bits)."""

    def names(tap: str | None) -> list[str]:
        recorder, result = recorded(tap)
        return [call.name for call in fuse(recorder.calls, result, tuple(recorder.kept_as.values()))]

    plain = names(None)
    assert "rms_norm" not in plain
    assert names("before") == plain
    assert names("norm") == [*plain[:-1], "rms_norm", plain[-1]]


def test_a_kept_norm_is_not_fused_away() -> None:
    backend = CpuBackend(1)
    table, head = (backend.pack([random_weight(np.random.default_rng(3), "f32", VOCAB, WIDTH)]) for _ in "ab")
    recorder = Recorder()
    normed = recorder.rms_norm(recorder.embed(Inputs(), table), GAIN, 1e-5)
    result = recorder.linear(normed, head).ref
    assert [c.name for c in fuse(recorder.calls, result)] == ["embed", "linear"]
    assert [c.name for c in fuse(recorder.calls, result, (normed.ref,))] == ["embed", "rms_norm", "linear"]


@pytest.mark.parametrize("mutant", ["freed early", "fused all the same"])
def test_mutants_show(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept buffer whose memory another takes, and a kept norm that no op computes."""
    backend, batch = CpuBackend(1), prompt()
    if mutant == "freed early":
        monkeypatch.setattr(
            "octavo.kernels.cpu_lower.plan_arena", lambda *arguments: plan_arena(*arguments[:4])
        )
    else:
        monkeypatch.setattr("octavo.kernels.cpu.fuse", lambda calls, result, kept: fuse(calls, result))

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        normed = ops.rms_norm(ops.embed(inputs, table), GAIN, 1e-5)
        ops.keep(inputs, normed, "x")
        x = ops.linear(normed, square)
        for _ in range(4):
            x = ops.add(x, x)
        return x

    rng = np.random.default_rng(3)
    table = backend.pack([random_weight(rng, "f32", VOCAB, WIDTH)])
    square = backend.pack([random_weight(rng, "f32", WIDTH, WIDTH)])
    rows = random_weight(np.random.default_rng(3), "f32", VOCAB, WIDTH).dequantize()[batch.token_ids]
    want = rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-5) * GAIN

    def wrong() -> bool:
        program = backend.capture(forward, LIMITS)
        program.replay(batch)
        return bool(np.abs(program.kept("x") - want).max() > 1e-3)

    if mutant == "freed early":
        assert wrong()
    else:
        with pytest.raises(KeyError):  # what is kept lies nowhere
            wrong()
    monkeypatch.undo()
    assert not wrong()


def test_the_words_are_those_of_the_batch() -> None:
    assert set(EXTRAS) > program_module.IMPLEMENTED


# -- recorded steps --------------------------------------------------------------------------------


def test_recorded_steps_keep_and_are_given() -> None:
    """Graphs over arrays at fixed addresses; what one has kept is given to another without the host."""
    backend = interpreted()
    from octavo.kernels.cuda.capture import Captures
    from octavo.kernels.cuda.graph_program import GraphProgram

    captures = Captures(Recordings(), background=False)
    limits = replace(LIMITS, extras=frozenset({"rope_positions"}))
    graphs = GraphProgram(backend.maker, Model(backend, "before"), limits, captures)
    eager = GraphProgram(backend.maker, Model(backend, "before"), limits, None)
    doubled = GraphProgram(backend.maker, sum_of(Rows.TOKENS), LIMITS, captures)
    for rows in (3, 3, 2, 3):
        batch = batch_of(np.random.default_rng(rows), [7] * rows, [1] * rows, num_pages=8)
        for extras in (None, Extras(rope_positions=batch.positions * np.int32(2))):
            step = replace(batch, extras=extras)
            # Tiles of another number of rows add in another order: of numbers around 40, four roundings.
            np.testing.assert_allclose(graphs.replay(step), eager.replay(step), rtol=2.0**-21, atol=1e-5)
            np.testing.assert_allclose(graphs.kept("x"), eager.kept("x"), rtol=2.0**-21, atol=1e-5)
            x = graphs.kept_there("x")
            given = graphs.kept("x")
            got = doubled.replay(batch, {"x": x, "y": given})
            total = 2.0 * given.astype(np.float64)
            want = total / np.sqrt((total**2).mean(1, keepdims=True) + 1e-5) * GAIN
            np.testing.assert_allclose(got, want, atol=1e-5)
    assert graphs.replays > 4
    assert doubled.replays > 4


def test_steps_that_draw_refuse_what_they_could_not_hand_on() -> None:
    backend = interpreted()
    with pytest.raises(UnsupportedError, match="keep nothing yet"):
        backend.steps(Model(backend, "before"), LIMITS, VOCAB)


@pytest.mark.parametrize("recorded_at", [0, 2, 3])
def test_a_step_keeps_what_it_has_computed_itself(recorded_at: int) -> None:
    """A graph fills its tensors when it is replayed, not when it is recorded: who records meanwhile, at the
    end of a step or in the midst of one, leaves that step's own rows as they are."""
    backend = interpreted()
    from octavo.kernels.cuda.eager import CudaEagerOps, values
    from octavo.kernels.cuda.graph_program import GraphProgram
    from octavo.kernels.cuda.ops import value

    model, steps = Model(backend, "before"), list[int]()
    filled: list[Any] = []
    jobs: list[Callable[[], None]] = []

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        result = model(ops, inputs)
        if isinstance(ops, CudaEagerOps):
            filled[:] = [value(result), *values(inputs.kept).values()]
            if len(steps) == recorded_at and jobs:
                jobs.pop()()
        return result

    class Captures:
        def want(self, name: str, run: Any, warm: Any, take: Any) -> None:
            def job() -> None:
                run()
                there = list(filled)

                def replay() -> None:
                    run()
                    for mine, its in zip(there, filled, strict=True):
                        mine.copy_(its)

                for each in there:
                    each.fill_(np.nan)
                take(SimpleNamespace(replay=replay), there[0])

            if recorded_at == 0:
                job()
            else:
                jobs.append(job)

    captures: Any = Captures()
    graphs = GraphProgram(backend.maker, forward, LIMITS, captures)
    eager = GraphProgram(backend.maker, Model(backend, "before"), LIMITS, None)
    for seed in range(4):
        steps.append(seed)
        batch = batch_of(np.random.default_rng(seed), [7, 3], [1, 1], num_pages=8)
        want = eager.replay(batch)
        np.testing.assert_allclose(graphs.replay(batch), want, atol=1e-5)
        np.testing.assert_allclose(graphs.kept("x"), eager.kept("x"), atol=1e-5)
    assert graphs.replays > 0
