"""A stand-in for the recording of CUDA graphs, and a model small enough for Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.kernels.ops import AttentionSpec, Inputs, KVSpec, Limits, Ops, Tensor
from support.cuda import interpreted
from support.kernels import random_weight

VOCAB = 50
SPEC = AttentionSpec(2, 1, 16, 16, 0.25)


class Recordings:
    """Plays graphs: replaying runs the work again, over the same arrays. A capture computes nothing,
    so what its run changed is put back.

    Attributes:
        state: tensors that a step changes.
    """

    def __init__(self) -> None:
        self.made = 0
        self.state: list[Any] = []

    def __call__(self, run: Any, warm: Any) -> tuple[Any, Any]:
        self.made += 1
        before = [each.clone() for each in self.state]
        warm()
        assert all((each == was).all() for each, was in zip(self.state, before, strict=True)), "padding"
        result = run().clone()
        for each, was in zip(self.state, before, strict=True):
            each.copy_(was)

        class Graph:
            def replay(self) -> None:
                result.copy_(run())

        return Graph(), result


class Tiny:
    """One layer of attention over pages, and a head; the same for every backend of the same seed."""

    def __init__(self) -> None:
        rng, self.backend = np.random.default_rng(0), interpreted()
        self._table = self.backend.pack([random_weight(rng, "f32", VOCAB, 64)])
        self._qkv, self._head = (
            self.backend.pack([random_weight(rng, "f32", n, k)]) for n, k in ((64, 64), (VOCAB, 32))
        )
        self.cache = self.backend.kv_cache([KVSpec(1, 16, 16, "f32")], 24, 16)

    def __call__(self, ops: Ops, inputs: Inputs) -> Tensor:
        x = ops.linear(ops.embed(inputs, self._table), self._qkv)
        q = ops.rotary_append(inputs, x, self.cache.layer(0), SPEC, None)
        y = ops.attention(inputs, q, self.cache.layer(0), SPEC)
        return ops.linear(ops.gather_rows(inputs, y), self._head)


def steps_of(record: Recordings | None, limits: Limits) -> Any:
    """Steps of a Tiny on the device: eager, or captured by `record` when a form is first met."""
    from octavo.kernels.cuda.capture import Captures
    from octavo.kernels.cuda.steps import Steps

    tiny = Tiny()
    captures = None if record is None else Captures(record, background=False)
    steps = Steps(tiny.backend.maker, tiny, limits, captures, VOCAB)
    if record is not None:
        record.state = [steps.sampler.latest, *tiny.cache.tensors]
    return steps
