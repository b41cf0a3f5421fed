"""PlannedLoader: a model of shapes alone, to be weighed; no tensor's numbers are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from octavo.checkpoints.base import Checkpoint, StoredTensor
from octavo.kernels.ops import F32, Backend
from octavo.kernels.outline import Outline, outline_of
from octavo.kernels.weight import Weight
from octavo.models.layers import Use
from octavo.models.loader import Loader, WantedMatrix
from octavo.quant import registry as formats
from octavo.quant.on_load import Method
from octavo.quant.scheme import Outlining, outlines_of

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_SEPARATE = ("lm_head.weight", "embed_tokens.weight")
"""Ends of names of tensors that a model has of its own where tie_word_embeddings is false."""


class PlannedLoader(Loader):
    """Gives build() weights without numbers (kernels.outline.Outline), vectors of zeros, and the same checks.

    Where the checkpoint lists tensors (safetensors' headers, a GGUF header), each has the format that is said
    there. A folder that holds only config.json has what its dtype and quantization_config say: a method's
    format for all projections but those that it leaves out, dtype for the rest.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        names: Mapping[str, str],
        dtype: str = "auto",
        context: int | None = None,
        method: Method | None = None,
    ) -> None:
        super().__init__(checkpoint, backend, names, dtype, context, method)
        config = checkpoint.config
        self._listed = len(checkpoint.tensors) > 0
        self._outlines = None if self._listed else outlines_of(config)
        stored = config.get("dtype") or config.get("torch_dtype")
        self._format = _DTYPES.get(str(stored), "F32")  # transformers' own default
        self._tied = config.get("tie_word_embeddings", True)

    def has(self, name: str) -> bool:
        return super().has(name) if self._listed else not self._tied and name.endswith(_SEPARATE)

    def _weight(self, wanted: WantedMatrix) -> Weight:
        outline = self._outline(wanted.name, wanted.stored, wanted.use)
        if wanted.transposed:
            outline = outline.dense_f32().transpose()
        if self._dense is not None:
            outline = Outline.floats(wanted.shape, self._dense)
        if self._method is None or wanted.use is not Use.PROJECTION:
            return outline
        return self._method.weight(wanted.name, outline)

    def _outline(self, name: str, shape: tuple[int, int], use: Use) -> Weight:
        if not self._listed:
            found: Weight | None = None
            if self._outlines is not None and use is Use.PROJECTION:
                found = self._outlines(name.removesuffix(".weight"), shape)
            return formats.outline(self._format, shape) if found is None else found
        if self._scheme is not None:
            stored = self._find(name)[0]
            if isinstance(self._scheme, Outlining):
                found = self._scheme.outline(stored, shape, self._part)
            else:
                found = self._scheme(stored, shape, self._part)
            if found is not None:
                return outline_of(found)
        return formats.outline(self._take(name, shape).format, shape)

    def vector(self, name: str, length: int) -> F32:
        self._take(name, (length,))
        return np.zeros(length, np.float32)

    def matrix(self, name: str, shape: tuple[int, int]) -> F32:
        self._take(name, shape)
        return np.zeros(shape, np.float32)

    def finish(self, ignored: Sequence[str] = ()) -> None:
        if self._listed:
            super().finish(ignored)

    def _check_copy(self, copy: StoredTensor, embedding: StoredTensor) -> None:
        """Whether a tied head's copy is the embedding is for those to see who read numbers."""

    def _factors(self, stored: str, length: int) -> F32:
        self._take(stored, (length,), stored)
        return np.ones(length, np.float32)

    def _take(self, name: str, shape: tuple[int, ...], stored: str | None = None) -> StoredTensor:
        if self._listed:
            return super()._take(name, shape, stored)
        return StoredTensor(name, shape, self._format, np.zeros(0, np.uint8), lambda: None)

    def _slice(self, tensor: StoredTensor, index: int) -> StoredTensor:
        # A file that ends among its data may hold any part of the tensor's bytes.
        return replace(tensor, shape=tuple(tensor.shape[1:]), data=np.zeros(0, np.uint8))
