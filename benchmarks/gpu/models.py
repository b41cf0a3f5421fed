"""Models of real shapes with random weights, made on the device itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from octavo.kernels.cuda.weight import CudaWeight, PackedRows
from octavo.kernels.ops import Activation, AttentionSpec, KVSpec
from octavo.kernels.weight import Layout
from octavo.models.layers import Attention, DecoderLayer, DecoderStack, Embedding, GatedMLP, Linear, RMSNorm
from octavo.models.rotary import rotary_tables


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama: all that its speed depends on."""

    name: str
    hidden: int
    layers: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    positions: int = 40960

    @property
    def spec(self) -> AttentionSpec:
        dim = self.head_dim
        return AttentionSpec(self.heads, self.kv_heads, dim, dim, dim**-0.5)

    def matrices(self) -> list[tuple[int, int]]:
        """(rows, columns) of a layer's four products."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [(q + 2 * kv, self.hidden), (self.hidden, q), (2 * self.inner, self.hidden),
                (self.hidden, self.inner)]  # fmt: skip

    @property
    def linear_parameters(self) -> int:
        """Multiplied with each token, the head included."""
        return self.layers * sum(n * k for n, k in self.matrices()) + self.vocab * self.hidden


LLAMA_8B = Shape("llama-3-8b", 4096, 32, 14336, 32, 8, 128, 128256, False)
SMOLLM2 = Shape("smollm2-135m", 576, 30, 1536, 9, 3, 64, 49152, True)
TINY = Shape("tiny", 64, 2, 96, 4, 2, 16, 320, False, 512)
"""Small enough for an interpreter; its vocabulary holds each byte as a token (gpu/folder.py)."""


class Model:
    """A DecoderStack over pages, with what a benchmark has to know of it."""

    def __init__(self, backend: Any, shape: Shape, kind: str, pages: int, page_size: int = 16) -> None:
        self.shape, self.backend, self.page_size = shape, backend, page_size
        self._generator = torch.Generator(backend.device).manual_seed(0)
        table = self._weight(shape.vocab, shape.hidden, kind)
        head = table if shape.tied else self._weight(shape.vocab, shape.hidden, kind)
        rotary = rotary_tables(shape.head_dim, 500000.0, shape.positions)
        gain = np.ones(shape.hidden, np.float32)
        layers = []
        for index in range(shape.layers):
            qkv, out, gate_up, down = (
                self._weight(n, k, kind, gated=i == 2) for i, (n, k) in enumerate(shape.matrices())
            )
            layers.append(
                DecoderLayer(
                    RMSNorm(gain, 1e-5),
                    Attention(index, Linear(qkv), Linear(out), shape.spec, rotary),
                    RMSNorm(gain, 1e-5),
                    GatedMLP(Linear(gate_up), Linear(down), Activation.SILU),
                )
            )
        self.stack = DecoderStack(Embedding(table), layers, RMSNorm(gain, 1e-5), Linear(head))
        self.weights = [head, *(w for la in layers for w in weights_of(la))]
        dtype = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[backend.dtype]
        kv = KVSpec(shape.kv_heads, shape.head_dim, shape.head_dim, dtype)
        self.kv = backend.kv_cache([kv] * shape.layers, pages, page_size)
        self.kv_bytes_per_token = kv.bytes_per_token * shape.layers

    @property
    def bytes_per_step(self) -> int:
        """Weights that one decode step reads, whatever the batch."""
        return sum(w.nbytes for w in self.weights)

    def _weight(self, n: int, k: int, kind: str, gated: bool = False) -> CudaWeight:
        device, make = self.backend.device, self._generator
        if kind == "dense":
            values = torch.randn((n, k), generator=make, device=device, dtype=self.backend.dtype) * k**-0.5
            return CudaWeight([PackedRows(Layout.F32, n, k, values)], gated)
        values = torch.randint(0, 256, (k // 32, n, 16), generator=make, device=device, dtype=torch.uint8)
        scale = torch.full((k // 32, n), k**-0.5 / 4.6, device=device, dtype=torch.float16)
        return CudaWeight([PackedRows(Layout.U4, n, k, values, scale, scale * -7.5)], gated)


def weights_of(layer: DecoderLayer) -> list[Any]:
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(attention, Attention)
    assert isinstance(mlp, GatedMLP)
    return [attention.qkv.weight, attention.out.weight, mlp.gate_up.weight, mlp.down.weight]
