"""Which norm, or which rows of a projection, come right before which matrices, by the recorded forward.

Dividing them by a scale, and multiplying the columns that they meet by it, changes nothing that is computed
(Lin et al. 2023, section 3.2). It can be done where nobody else reads what they make:

    norm -> projections                     gains, and biases, are divided
    gated projection -> projection          up's rows
    q, k, v -> attention -> projection      v's rows; heads that share one of v share its scale
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.ops import AttentionSpec, Inputs, KVCache, Limits, Ops, Tensor
from octavo.kernels.program import Call, record
from octavo.models.layers import Use
from octavo.models.registry import Embedder
from octavo.quantize.calibration import pages_of
from octavo.quantize.stored import Named, NormName, StoredModel, StoredWeight

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """
    Attributes:
        readers: names of the projections that read the same x; tables: of other matrices that do (routers).
        norm: what makes x; None: rows of a matrix do.
        before, rows: that matrix, and which of its rows, one for each of ties' numbers.
        ties: [K], which scale each column of x has.
    """

    readers: tuple[str, ...]
    tables: tuple[str, ...]
    ties: I64
    norm: NormName | None = None
    before: str = ""
    rows: I64 | None = None


def find_folds(stored: StoredModel) -> list[Fold]:
    """Every place where a scale can be folded, in the order of the forward."""
    graph = _Graph(stored, pages_of(stored.model, 1))
    found = (graph.fold(buffer) for buffer in graph.read_by_projections())
    return [fold for fold in found if fold is not None]


class _Graph:
    def __init__(self, stored: StoredModel, cache: KVCache) -> None:
        model = stored.model

        def forward(ops: Ops, inputs: Inputs) -> Tensor:
            if isinstance(model, Embedder):
                return model.hidden(ops, inputs, cache)
            return model.forward(ops, inputs, cache)

        recorder, result = record(forward, Limits(1, 1, 1, 1))
        self._matrices, self._norms = stored.matrices, stored.norms
        # What is gathered is as whoever made it left it.
        whole = {call.output: call.inputs[0] for call in recorder.calls if call.name == "gather_rows"}
        calls = [
            replace(call, inputs=tuple(whole.get(buffer, buffer) for buffer in call.inputs))
            for call in recorder.calls
            if call.name != "gather_rows"
        ]
        self._makers = {call.output: call for call in calls}
        self._readers: dict[int, list[tuple[Call | None, int]]] = defaultdict(list)
        self._readers[whole.get(result.ref, result.ref)].append((None, 0))
        for call in calls:
            for place, buffer in enumerate(call.inputs):
                self._readers[buffer].append((call, place))
        gains = [id(call.args.get("gain")) for call in calls if "gain" in call.args]
        self._once = {gain for gain in gains if gains.count(gain) == 1}

    def read_by_projections(self) -> list[int]:
        """Buffers that some projection reads."""
        return [b for b, readers in self._readers.items() if any(_weight(*r) is not None for r in readers)]

    def fold(self, buffer: int) -> Fold | None:
        matrices = self._whole_matrices(buffer)
        maker = self._makers.get(buffer)
        if matrices is None or maker is None:
            return None
        readers = tuple(n for n in matrices if self._matrices[n][1] is Use.PROJECTION)
        tables = tuple(n for n in matrices if n not in readers)
        if not readers:
            return None
        width = self._matrices[readers[0]][0][1]
        every = np.arange(width)
        if maker.name in ("rms_norm", "layer_norm"):
            gain = id(maker.args["gain"])
            if gain not in self._norms or gain not in self._once:
                return None
            return Fold(readers, tables, every, self._norms[gain])
        if maker.name == "linear":
            found = _rows(maker, 1, width) if maker.args["weight"].gated else None
            return None if found is None else Fold(readers, tables, every, None, *found)
        if maker.name == "attention":
            return self._through_attention(maker, readers, tables)
        return None

    def _through_attention(
        self, attention: Call, readers: tuple[str, ...], tables: tuple[str, ...]
    ) -> Fold | None:
        spec: AttentionSpec = attention.args["spec"]
        rotated = self._makers.get(attention.inputs[0])
        if rotated is None or rotated.name != "rotary_append" or len(self._readers[rotated.output]) != 1:
            return None
        qkv = self._makers.get(rotated.inputs[0])
        if qkv is None or qkv.name != "linear" or len(self._readers[qkv.output]) != 1:
            return None
        count = spec.num_kv_heads * spec.v_head_dim
        found = _rows(qkv, -1, count)
        if found is None:
            return None
        heads = np.arange(spec.num_heads) // (spec.num_heads // spec.num_kv_heads)
        ties = heads[:, None] * spec.v_head_dim + np.arange(spec.v_head_dim)
        return Fold(readers, tables, ties.reshape(-1), None, *found)

    def _whole_matrices(self, buffer: int) -> list[str] | None:
        """The matrices that read a buffer, all their rows; None: something else reads it, or cuts of them."""
        rows: dict[str, int] = {}
        for reader in self._readers[buffer]:
            weight = _weight(*reader)
            if weight is None or len(weight.named()) != len(weight.stack):
                return None
            for named in weight.named():
                rows[named.name] = rows.get(named.name, 0) + named.shape[0]
        whole = all(self._matrices[name][0][0] == count for name, count in rows.items())
        return list(rows) if whole else None


def _weight(call: Call | None, place: int) -> StoredWeight | None:
    """Of a projection that reads a buffer as its x."""
    if call is None or call.name != "linear" or place != 0:
        return None
    weight: Any = call.args["weight"]
    return weight if isinstance(weight, StoredWeight) else None


def _rows(call: Call, place: int, count: int) -> tuple[str, I64] | None:
    """The last rows, so many, of a projection's matrix at that place of its stack, if it adds nothing."""
    weight = call.args["weight"]
    if (
        not isinstance(weight, StoredWeight)
        or len(call.inputs) != 1
        or len(weight.named()) != len(weight.stack)
    ):
        return None
    named: Named = weight.named()[place]
    if named.shape[0] < count:
        return None
    return named.name, named.taken[-count:]


def unfolded(folds: Sequence[Fold], matrices: Mapping[str, Any]) -> list[str]:
    """The projections that no fold reaches, as modules."""
    reached = {name for fold in folds for name in fold.readers}
    names = (name for name, (_, use) in matrices.items() if use is Use.PROJECTION and name not in reached)
    return [name.removesuffix(".weight") for name in names]
