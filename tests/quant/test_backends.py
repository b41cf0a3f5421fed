"""Every format through every backend's linear: the same product as with gguf's own numbers."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from octavo import quant
from octavo.checkpoints.base import StoredTensor
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import Backend, Inputs, Limits, Ops, Tensor
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import native_available
from octavo.kernels.weight import Weight

ROWS, N, K = 5, 40, 256
QUANTIZED = [name for name in quant.names() if name not in ("BF16", "F16", "F32")]


def backends() -> list[Backend]:
    if not native_available():
        return [ReferenceBackend()]
    from octavo.kernels.cpu import CpuBackend

    return [ReferenceBackend(), CpuBackend(threads=2)]


def exact_in_int8(rng: np.random.Generator) -> np.ndarray:
    """x whose rounding to int8 per block of 32 loses nothing: whole numbers, 127 in each block."""
    x = rng.integers(-127, 128, (ROWS, K // 32, 32)).astype(np.float32)
    x[:, :, 5] = 127
    return x.reshape(ROWS, K)


def product(backend: Backend, x: np.ndarray, weights: list[Weight]) -> np.ndarray:
    table, packed = backend.pack([Weight.dense(x)]), backend.pack(weights)

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        return ops.linear(ops.embed(inputs, table), packed)

    counting = np.arange(ROWS, dtype=np.int32)
    start, length = np.array([0, ROWS], np.int32), np.array([ROWS], np.int32)
    batch = ForwardBatch(counting, counting, counting, start, length, np.zeros((1, 1), np.int32), counting)
    return np.array(backend.capture(forward, Limits(ROWS, 1, ROWS, 1)).replay(batch))


@pytest.mark.parametrize("backend", backends(), ids=lambda b: b.name)
@pytest.mark.parametrize("name", QUANTIZED)
def test_linear_with_every_format(name: str, backend: Backend) -> None:
    rng = np.random.default_rng(3)
    weight, truth = random_weight(rng, name)
    x = exact_in_int8(rng)
    expected = x.astype(np.float64) @ truth.astype(np.float64).T
    got = product(backend, x, [weight])
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("backend", backends(), ids=lambda b: b.name)
def test_formats_stacked(backend: Backend) -> None:
    """As files mix them within one layer's q, k and v."""
    rng = np.random.default_rng(4)
    weights, truths = zip(*(random_weight(rng, name) for name in QUANTIZED), strict=True)
    x = exact_in_int8(rng)
    expected = x.astype(np.float64) @ np.concatenate(truths).astype(np.float64).T
    got = product(backend, x, list(weights))
    for i in range(len(QUANTIZED)):
        part = np.s_[:, i * N : (i + 1) * N]
        assert np.abs(got[part] - expected[part]).max() <= 1e-5 * np.abs(expected[part]).max()


def random_weight(rng: np.random.Generator, name: str) -> tuple[Weight, np.ndarray]:
    """A weight of random bytes with small scales, and gguf's reading of it."""
    form = quant.get_format(name)
    blocks = rng.integers(0, 256, (N, K // form.block, form.block_bytes), np.uint8)
    assert form.dtype.fields is not None
    for dtype, offset, *_ in form.dtype.fields.values():
        if dtype == np.float16:
            scales = rng.uniform(0.001, 0.01, blocks.shape[:2]).astype(np.float16)
            blocks[..., offset : offset + 2] = scales[..., None].view(np.uint8)
    if name == "IQ1_M":  # its scale, 2^-8 to 2^-7, is the four highest nibbles
        for i, nibble in enumerate(rng.integers(0, 16, (3, *blocks.shape[:2]))):
            blocks[..., 49 + 2 * i] = blocks[..., 49 + 2 * i] & 15 | nibble << 4
        blocks[..., 55] = blocks[..., 55] & 15 | 0x10
    if "e" in form.dtype.fields:  # an exponent
        blocks[..., form.dtype.fields["e"][1]] = rng.integers(116, 122, blocks.shape[:2])
    data = blocks.reshape(-1)
    truth = gguf.dequantize(data, gguf.GGMLQuantizationType[name]).reshape(N, K)
    return quant.weight(StoredTensor("t", (N, K), name, data, lambda: None)), truth
