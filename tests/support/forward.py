"""Run a loaded model without an engine: one sequence, any chunking, one page table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from octavo.checkpoints.safetensors import open_folder
from octavo.kernels.batch import ForwardBatch
from octavo.kernels.ops import F32, Backend, Limits
from octavo.models.loader import Loader
from octavo.models.registry import Model, family_of


def load(folder: Path, backend: Backend, dtype: str = "float32") -> Model:
    checkpoint = open_folder(folder)
    family = family_of(checkpoint)
    names = family.names if checkpoint.kind == "gguf" else {}
    return family.build(family.config(checkpoint), Loader(checkpoint, backend, names, dtype))


def logits(
    model: Model, backend: Backend, ids: Sequence[int], chunks: Sequence[int], page_size: int = 16
) -> F32:
    """[len(ids), vocab]: every position's logits, the prompt computed in these chunk lengths."""
    assert sum(chunks) == len(ids)
    pages = -(-len(ids) // page_size)
    kv = backend.kv_cache(model.kv_specs("f32"), pages + 3, page_size)
    limits = Limits(len(ids), 1, len(ids), pages)
    program = backend.capture(lambda ops, inputs: model.forward(ops, inputs, kv), limits)
    table = np.random.default_rng(0).permutation(pages + 3)[:pages].astype(np.int32)
    out, start = [], 0
    for count in chunks:
        positions = np.arange(start, start + count, dtype=np.int32)
        batch = ForwardBatch(
            token_ids=np.array(ids[start : start + count], np.int32),
            positions=positions,
            slots=(table[positions // page_size] * page_size + positions % page_size).astype(np.int32),
            query_start=np.array([0, count], np.int32),
            context_lens=np.array([start + count], np.int32),
            page_tables=table[None],
            sampled=np.arange(count, dtype=np.int32),
        )
        out.append(program.replay(batch).copy())
        start += count
    return np.concatenate(out)
