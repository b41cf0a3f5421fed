"""Triton paged attention against the reference: whole, chunked, decoded, split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.kernels.cuda import launch
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, AttentionSpec, Inputs, KVSpec, Ops, Rotary, Tensor
from support import attention
from support.cuda import REFERENCE, Apply, by_reference, interpreted, run
from support.kernels import batch_on, normal

# NumPy warns of infinities under the interpreter; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def specs(heads: int, kv_heads: int, d: int, dv: int) -> list[AttentionSpec]:
    base = (heads, kv_heads, d, dv, d**-0.5)
    slopes = np.linspace(0.02, 0.3, heads).astype(np.float32)
    sinks = np.linspace(-2, 3, heads).astype(np.float32)
    return [
        AttentionSpec(*base, window=40, softcap=3.0),
        AttentionSpec(*base, alibi_slopes=slopes),
        AttentionSpec(*base, window=5, sinks=sinks),
        AttentionSpec(*base, window=100, softcap=20.0, alibi_slopes=slopes, sinks=sinks),
    ]


class Case(attention.Case):
    """Computed on a CudaBackend."""

    rounds_queries = False

    def apply(self, layer: object) -> Apply:
        def case(ops: Ops, inputs: Inputs, t: list[Tensor]) -> Tensor:
            q = ops.rotary_append(inputs, t[0], layer, self.spec, None)  # type: ignore[arg-type]
            return ops.attention(inputs, q, layer, self.spec)  # type: ignore[arg-type]

        return case

    def compute(self, backend: Any, cache: Any, batch: ForwardBatch, qkv: F32) -> F32:
        return run(backend, batch, self.apply(cache.layer(0)), qkv)


@pytest.mark.parametrize(
    ("dtype", "shape", "page"),
    [
        ("f32", (6, 2, 32, 32), 16),
        ("f16", (3, 3, 24, 40), 5),
        ("int8", (5, 1, 80, 16), 1),
        ("f16", (2, 2, 8, 8), 16),
    ],
)
def test_equals_the_reference(dtype: str, shape: tuple[int, int, int, int], page: int) -> None:
    """A prompt at once, one in chunks, one decoded. (The interpreter cuts bf16 off instead of rounding.)"""
    spec = specs(*shape)[["f32", "f16", "int8"].index(dtype) + (page == 16 and dtype == "f16") * 2]
    case = Case(1, [1, 45, 33, 70], spec, page, dtype)
    got = case.run(interpreted(sms=24), [[1], [45], [20, 1, 12], [68, 1, 1]])
    for mine, its in zip(got, case.truth(), strict=True):
        np.testing.assert_allclose(mine, its, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("window", [None, 70])
def test_decoding_in_splits(window: int | None) -> None:
    """One split, several, and bit-exact mode's fixed ones, on a busy and on an idle device."""
    spec = AttentionSpec(4, 2, 16, 16, 0.25, window=window, sinks=np.float32([0.5, 1, -1, 2]))
    case = Case(3, [200], spec, 16, "f32")
    want = case.truth()[0][196:]
    outputs = {}
    for name, backend in (
        ("one", interpreted(sms=1)),
        ("many", interpreted(sms=16)),
        ("exact", interpreted(exact=True, fixed_split=64)),
        ("exact, busy", interpreted(exact=True, sms=1, fixed_split=64)),
    ):
        outputs[name] = case.run(backend, [[196, 1, 2, 1]])[0][196:]
        np.testing.assert_allclose(outputs[name], want, atol=2e-5, rtol=2e-5)
    np.testing.assert_array_equal(outputs["exact"], outputs["exact, busy"])


def test_bits_do_not_depend_on_the_cut() -> None:
    """Bit-exact mode: a prompt at once, in chunks, decoded in a batch; across an edge of splits.

    To 1e-6 here: the BLAS under the interpreter adds by a row's place in its tile. `make gpu-check`
    compares bits.
    """
    spec = AttentionSpec(4, 2, 16, 24, 0.25, window=90)
    backend = interpreted(exact=True, fixed_split=64)
    case = Case(4, [140, 30], spec, 16, "f16")
    whole = case.run(backend, [[140], [30]])
    pieces = case.run(backend, [[100, 20, 18, 1, 1], [7, 20, 1, 1, 1]])
    for a, b in zip(whole, pieces, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(a).max())


def test_heads_are_shared_out_where_a_group_is_large() -> None:
    """Latent attention's 128 heads of 576 elements would fill a multiprocessor many times over."""
    from octavo.kernels.cuda import attention

    queries = attention.Queries(*[interpreted().constants(np.zeros(3, np.float32))] * 5, 1, 4096)
    policy = interpreted().policy
    for spec, sub in (
        (AttentionSpec(128, 1, 576, 512, 0.1, latent=True), 16),
        (AttentionSpec(20, 1, 576, 512, 0.1, latent=True), 10),
        (AttentionSpec(71, 1, 64, 64, 0.1), 71),
        (AttentionSpec(32, 8, 128, 128, 0.1), 4),
    ):
        shape = attention.shape_of(queries, 3, spec, policy, False)
        assert shape.sub == sub
        assert shape.bq * sub <= shape.bm <= 128
    case = Case(8, [30], AttentionSpec(34, 1, 272, 16, 0.06), 16, "f32")  # 2 heads a program: 17 is too many
    got = case.run(interpreted(), [[28, 1, 1]])[0]
    np.testing.assert_allclose(got, case.truth()[0], atol=2e-5, rtol=2e-5)


def test_blocks_of_a_gpu_whose_programs_share_much() -> None:
    """Larger blocks, more splits, one token a sequence: what Hopper gets, and the others do not."""
    from octavo.kernels.cuda import attention, make

    backend = make("cpu", dtype="float16", sms=8)
    backend.maker = replace(backend.maker, policy=replace(backend.policy, shared=228 << 10))
    case = Case(9, [300, 290], AttentionSpec(8, 2, 64, 64, 0.125), 16, "f16")
    for got, want in zip(case.run(backend, [[260, 39, 1], [250, 39, 1]]), case.truth(), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-3, rtol=3e-3)
    policy, spec = replace(backend.policy, sms=132, shared=228 << 10), AttentionSpec(32, 8, 128, 128, 0.1)

    def shape(sequences: int, tokens: int, longest: int, wide: bool = False) -> Any:
        array = interpreted().constants(np.zeros(sequences, np.float32))
        return attention.shape_of(attention.Queries(*[array] * 5, longest, 8192), tokens, spec, policy, wide)

    decode = shape(65, 65, 1)
    assert (decode.single, decode.bn, decode.splits, decode.stages) == (True, 128, 1, 2)
    assert shape(1, 1, 1).stages == 1
    assert shape(1, 8192, 8192).bm == 128
    assert shape(1, 512, 512).bm == 64
    assert shape(65, 65, 1, wide=True).bn == 64


def test_stale_pages_of_others_do_no_harm() -> None:
    """NaN that another request left in a reused page, beyond our context and before our window."""
    spec, backend = AttentionSpec(2, 1, 16, 16, 0.25, window=6), interpreted()
    case = Case(5, [21], spec, 4, "f16")
    clean = case.run(backend, [[17, 1, 1, 1, 1]])[0]
    cache = backend.kv_cache([case.kv], case.num_pages, 4)
    for tensor in cache.tensors:
        tensor.fill_(float("nan"))
    out = [run(backend, b, case.apply(cache.layer(0)), x) for _, b, x in case.steps([[17, 1, 1, 1, 1]])]
    np.testing.assert_array_equal(np.concatenate(out), clean)


@pytest.mark.parametrize("dtype", ["f16", "int8"])
def test_a_sequence_that_is_not_finite_harms_only_itself(dtype: str) -> None:
    case = Case(6, [20, 25, 15], AttentionSpec(4, 2, 32, 32, 0.2), 16, dtype)
    clean = case.run(interpreted(), [[20], [25], [15]])
    case.qkv[1][3] = np.nan
    got = case.run(interpreted(), [[20], [25], [15]])
    np.testing.assert_array_equal(got[0], clean[0])
    np.testing.assert_array_equal(got[2], clean[2])
    assert np.isnan(got[1][3:]).all()


@pytest.mark.parametrize("dtype", ["f32", "int8"])
def test_latent_attention(dtype: str) -> None:
    rng = np.random.default_rng(7)
    backend, heads, rank, rope = interpreted(), 4, 32, 16
    spec = AttentionSpec(heads, 1, rank + rope, rank, 0.2, latent=True)
    angles = rng.uniform(0, 7, (64, rope // 2)).astype(np.float32)
    rotary = Rotary(np.cos(angles), np.sin(angles), True)
    batch = batch_on(rng, np.int32([[3, 1, 0], [4, 5, 2]]), [40, 20], [40, 20], 16)
    arrays = [normal(rng, 60, w) for w in (heads * rank, heads * rope, rank, rope)]
    kv = KVSpec(1, rank + rope, rank, dtype, latent=True)

    def case(layer: object) -> Apply:
        def apply(ops: Ops, inputs: Inputs, t: list[Tensor]) -> Tensor:
            q = ops.latent_append(inputs, (t[0], t[1]), (t[2], t[3]), layer, spec, rotary)  # type: ignore[arg-type]
            return ops.attention(inputs, q, layer, spec)  # type: ignore[arg-type]

        return apply

    mine, its = (b.kv_cache([kv], 6, 16) for b in (backend, REFERENCE))
    assert mine.nbytes == its.nbytes
    got = run(backend, batch, case(mine.layer(0)), *arrays)
    want = by_reference(batch, case(its.layer(0)), *arrays)
    np.testing.assert_allclose(got, want, atol=2e-5, rtol=2e-5)


def test_one_process_has_one_kind_of_kernels() -> None:
    from octavo.errors import InvalidRequestError

    interpreted()
    with pytest.raises(InvalidRequestError, match="not both"):
        launch.prepare(interpret=False)


class TestWholePrompts:
    """Prompts by torch's attention: where it means the same, what it says, and who is asked."""

    @pytest.mark.parametrize(
        ("shape", "lengths", "page"),
        [((4, 2, 16, 16), [40], 16), ((4, 4, 24, 24), [33, 33, 33], 5), ((6, 1, 16, 16), [48, 48], 16)],
    )
    def test_equals_the_reference(
        self,
        shape: tuple[int, int, int, int],
        lengths: list[int],
        page: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        from octavo.kernels.cuda import attention, make, prompts

        asked: list[object] = []
        plain = prompts.by_torch
        monkeypatch.setattr(prompts, "LEAST", 1)
        monkeypatch.setattr(prompts, "STEP", 16)
        monkeypatch.setattr(attention, "by_torch", lambda *given: asked.append(given) or plain(*given))
        monkeypatch.setattr(attention, "torchs_is_faster", lambda *_: True)
        case = Case(21, lengths, AttentionSpec(*shape, shape[2] ** -0.5), page, "f16")
        got = case.run(make("cpu", dtype="float16"), [[length] for length in lengths])
        assert len(asked) == 1
        for mine, its in zip(got, case.truth(), strict=True):
            np.testing.assert_allclose(mine, its, atol=4e-3, rtol=4e-3)
        case.run(make("cpu", dtype="float16"), [[length - 1, 1] for length in lengths])
        assert len(asked) == 2, "what was cached before is not torch's to see"

    def test_what_torch_would_see_otherwise_is_not_asked_of_it(self) -> None:
        import torch

        from octavo.kernels.cuda import attention, prompts
        from octavo.kernels.ops import Sight

        spec, policy = AttentionSpec(4, 2, 16, 16, 0.25), interpreted().policy
        kinds = [KVSpec(2, 16, 16, kind) for kind in ("f16", "int8", "f32")]
        layers = {kind.dtype: interpreted().kv_cache([kind], 2, 16).layer(0) for kind in kinds}

        def asks(
            tokens: int = 1024, sequences: int = 2, longest: int = 512, context: int = 512,
            dtype: Any = torch.float16, pages: str = "f16", trees: Any = None, exact: bool = False,
            **more: Any,
        ) -> bool:  # fmt: skip
            array = torch.zeros(sequences, dtype=torch.int32)
            queries = attention.Queries(*[array] * 5, longest, context, trees)
            q = torch.zeros((tokens, 64), dtype=dtype)
            given = replace(spec, **more), queries, replace(policy, exact=exact)
            return prompts.whole_prompts(q, layers[pages], *given)

        assert asks()
        assert asks(sequences=1, tokens=512)
        row = np.zeros(4, np.float32)
        for other in (
            {"tokens": 1023}, {"context": 513}, {"longest": 511, "tokens": 1022, "context": 511},
            {"window": 600}, {"softcap": 5.0}, {"alibi_slopes": row}, {"sinks": row}, {"sight": Sight.WHOLE},
            {"relative_bias": np.zeros((4, 3), np.float32)}, {"latent": True}, {"pages": "int8"},
            {"pages": "f32", "dtype": torch.float32}, {"dtype": torch.bfloat16},
            {"trees": torch.zeros((1024, 2), dtype=torch.int32)}, {"exact": True},
        ):  # fmt: skip
            assert not asks(**other), other  # type: ignore[arg-type]

    def test_the_faster_one_is_measured_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from types import SimpleNamespace

        import torch

        from octavo.kernels.cuda import prompts

        monkeypatch.setattr(prompts, "_is_faster", {})
        told = iter([9.0, 3.0, 4.0, 8.0, 5.0, 6.0])  # torch's, then ours
        event = SimpleNamespace(
            record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: next(told)
        )
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
        runs: list[str] = []
        for place, want in (("cuda", True), ("cuda", True), ("cpu", False)):
            key = (torch.device(place), "a shape")
            got = prompts.torchs_is_faster(key, lambda: runs.append("ours"), lambda: runs.append("torch's"))
            assert got is want
        assert runs == ["torch's"] * 4 + ["ours"] * 4

    def test_lengths_that_are_filled_alike_are_measured_together(self) -> None:
        import torch

        from octavo.kernels.cuda import attention, prompts

        def key(length: int, sequences: int = 1, dtype: Any = torch.float16) -> object:
            queries = attention.Queries(*[torch.zeros(sequences)] * 5, length, length)
            return prompts.key_of(torch.zeros(1, dtype=dtype), AttentionSpec(4, 2, 16, 16, 0.25), queries)

        assert key(513) == key(768)
        assert len({key(512), key(513), key(513, 2), key(513, 1, torch.bfloat16)}) == 4
