"""A calibration text: its token ids in pieces of one length, and one forward over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from octavo.checkpoints.sources import default_cache_dir
from octavo.errors import CheckpointError, InvalidRequestError, UnsupportedError
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import Inputs, KVCache, KVLayer, KVSpec
from octavo.kernels.reference_kv import ReferenceKVCache
from octavo.models.registry import Embedder, EncoderDecoder, Model
from octavo.quantize.stored import Meet, StoredModel, WatchedOps
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.folder import from_folder
from octavo.tokenizer.gguf import from_gguf

MAX_TEXT_BYTES = 64 * 2**20
_PAGE = 16
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Calibration:
    """
    Attributes:
        text: a UTF-8 file.
        samples, length: so many pieces of so many tokens, from its beginning.
    """

    text: Path
    samples: int = 64
    length: int = 512

    def read(self) -> str:
        """
        Raises:
            InvalidRequestError: it is no text, or too long.
        """
        with self.text.open("rb") as opened:
            data = opened.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise InvalidRequestError(
                f"{self.text} has more than {MAX_TEXT_BYTES} bytes: give a part of it", "calibration"
            )
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(f"{self.text} is no text: it must be UTF-8", "calibration") from None

    def ids(self, tokenizer: Tokenizer) -> I32:
        """[samples, length].

        Raises:
            InvalidRequestError: the text is too short.
        """
        if self.samples < 1 or self.length < 1:
            raise InvalidRequestError("samples and their length must be at least 1", "calibration")
        found = tokenizer.encode(self.read(), add_special_tokens=False)
        if len(found) < self.samples * self.length:
            raise InvalidRequestError(
                f"{self.text} has {len(found)} tokens, and {self.samples} samples of {self.length} need "
                f"{self.samples * self.length}: give a longer text, or other numbers to "
                "--calibration-samples and --calibration-length",
                "calibration",
            )
        return np.array(found[: self.samples * self.length], np.int32).reshape(self.samples, self.length)


def tokenizer_of(path: Path, config: dict[str, object]) -> Tokenizer:
    """The tokenizer of a folder, or of a GGUF file's metadata."""
    return from_folder(path) if path.is_dir() else from_gguf(config, default_cache_dir() / "merges")


class _OneLayer:
    """Pages of the layer that is computed: nobody reads those of an earlier one again."""

    def __init__(self, specs: list[KVSpec], pages: int) -> None:
        self._specs, self._pages = specs, pages
        self._index = -1
        self._cache = ReferenceKVCache([], 0, _PAGE)

    def layer(self, index: int) -> KVLayer:
        if index != self._index:
            self._cache = ReferenceKVCache([self._specs[index]], self._pages, _PAGE)
            self._index = index
        return self._cache.layer(0)


def pages_of(model: Model, pages: int) -> KVCache:
    """So many pages, which hold one layer at a time."""
    return cast(KVCache, _OneLayer(list(model.kv_specs("f32")), pages))  # nobody moves or saves any


def check_calibrated(stored: StoredModel, length: int) -> None:
    """
    Raises:
        UnsupportedError: the model cannot be run over a text alone, or not over so many tokens at once.
    """
    if isinstance(stored.model, EncoderDecoder):
        raise UnsupportedError(
            "methods that need a calibration text are not supported for encoder-decoder models: rtn, int8, "
            "nf4 and fp8 are",
            "method",
        )
    if length > stored.model.max_position:
        raise UnsupportedError(
            f"--calibration-length {length} exceeds the model's {stored.model.max_position} positions",
            "calibration_length",
        )


def run(stored: StoredModel, ids: I32, meet: Meet) -> None:
    """One forward over the ids [samples, length], each row a sequence of its own; every projection is told.

    Raises:
        CheckpointError: an id is beyond the model's vocabulary.
    """
    samples, length = ids.shape
    if ids.max(initial=0) >= stored.model.vocab_size:
        raise CheckpointError(
            f"the tokenizer knows the id {ids.max()}, the model only {stored.model.vocab_size} words"
        )
    pages = -(-length // _PAGE)
    tables = np.arange(samples * pages, dtype=np.int32).reshape(samples, pages)
    positions = np.tile(np.arange(length, dtype=np.int32), samples)
    slots = (np.arange(samples, dtype=np.int32)[:, None] * (pages * _PAGE) + np.arange(length)).reshape(-1)
    batch = ForwardBatch(
        token_ids=ids.reshape(-1),
        positions=positions,
        slots=slots.astype(np.int32),
        query_start=np.arange(samples + 1, dtype=np.int32) * length,
        context_lens=np.full(samples, length, np.int32),
        page_tables=tables,
        sampled=np.arange(ids.size, dtype=np.int32),  # the last layer meets no others
    )
    model = stored.model
    cache = pages_of(model, tables.size)
    ops = WatchedOps(meet)
    with np.errstate(invalid="ignore", over="ignore"):
        if isinstance(model, Embedder):  # nobody needs logits
            model.hidden(ops, Inputs(batch), cache)
        else:
            model.forward(ops, Inputs(batch), cache)
