"""Each projection of each family says which rows of which matrices it is made of, and how it is divided."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.tiny import VARIANTS
from octavo.checkpoints import open_checkpoint
from octavo.kernels.ops import PackedWeight
from octavo.kernels.reference import ReferenceBackend, ReferenceWeight
from octavo.models.config import DecoderConfig
from octavo.models.families.deepseek_v2 import DeepSeekConfig
from octavo.models.layers import Linear, Role, SourceRows, Split, Use
from octavo.models.loader import Loader, sources_of
from octavo.models.registry import Model, family

Folders = Callable[[str, str], Path]
ROWS, COLUMNS, NONE = Split.ROWS, Split.COLUMNS, Split.NONE

TABLE: tuple[tuple[str, Split, str], ...] = (
    # the ends of modules' names, how they are divided, and what stays together
    (r"\.(q_proj|k_proj|v_proj|[qkv])$", ROWS, "head"),
    (r"\.(qkv_proj|query_key_value|c_attn)$", ROWS, "head"),
    (r"\.(o_proj|out_proj|dense|attn\.c_proj|o)$", COLUMNS, "head"),
    (r"\.(gate_proj|up_proj|gate_up_proj|w1|w3|fc1|c_fc|wi|wi_0|wi_1|dense_h_to_4h)$", ROWS, "one"),
    (r"\.(down_proj|w2|fc2|mlp\.c_proj|wo|dense_4h_to_h)$", COLUMNS, "one"),
    (r"\.(q_a_proj|kv_a_proj_with_mqa)$", NONE, "one"),
    (r"\.(q_b_proj|kv_b_proj)$", ROWS, "some"),  # a head's part with positions, or without
    (r"\.(project_in|project_out)$", NONE, "one"),
    (r"\.(gate|shared_expert_gate)$", NONE, "one"),
    (r"(lm_head|embed_out|embed_tokens|shared|wte|embed_in|word_embeddings)$", ROWS, "one"),
)
ROUTERS = r"\.(gate|shared_expert_gate)$"


def linears(node: Any, path: str = "model") -> Iterator[tuple[str, Linear]]:
    """All projections below a node of a model."""
    if isinstance(node, Linear):
        yield path, node
    elif dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            yield from linears(getattr(node, field.name), f"{path}.{field.name}")
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for i, item in enumerate(node):
            yield from linears(item, f"{path}[{i}]")


def packed(node: Any) -> Iterator[PackedWeight]:
    """All packed weights below a node that no projection holds: tables of embeddings."""
    if isinstance(node, ReferenceWeight):
        yield node
    elif dataclasses.is_dataclass(node) and not isinstance(node, Linear):
        for field in dataclasses.fields(node):
            yield from packed(getattr(node, field.name))
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for item in node:
            yield from packed(item)


def built(folder: Path, name: str) -> tuple[Model, Loader, Any]:
    checkpoint, declared = open_checkpoint(folder), family(name)
    loader = Loader(checkpoint, ReferenceBackend(), {})
    config = declared.config(checkpoint)
    return declared.build(config, loader), loader, config


def expected(name: str) -> tuple[Split, str]:
    found = [(split, unit) for pattern, split, unit in TABLE if re.search(pattern, name)]
    assert len(found) == 1, f"{name} is {len(found)} times in the table"
    return found[0]


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=["-".join(v) for v in VARIANTS])
def test_names_and_roles(name: str, variant: str, tiny_folder: Folders) -> None:
    model, loader, config = built(tiny_folder(name, variant), name)
    found = list(linears(model))
    assert len(found) >= 4
    for path, linear in found:
        rows = linear.weight.shape[0]
        assert linear.sources, path
        assert [i for part in linear.sources for i in part.rows] == list(range(rows)), path
        for part in linear.sources:
            assert loader.has(f"{part.name}.weight"), f"{path}: no {part.name}"
            assert len(part.taken) == (linear.weight.shape[1] if part.transposed else len(part.rows))
            split, unit = expected(part.name)
            assert linear.role.split is split, part.name
            if unit == "head":
                head = linear.role.unit
                if isinstance(config, DeepSeekConfig):  # queries are of two parts, values narrower
                    sizes = (config.v_dim,) if split is COLUMNS else (config.nope_dim, config.rope_dim)
                    assert head in sizes
                elif isinstance(config, DecoderConfig):
                    assert head == config.head_dim
                else:
                    assert head > 1
                across = rows if split is ROWS else linear.weight.shape[1]
                assert across % head == 0
            elif unit == "one":
                assert linear.role.unit == 1, part.name
            if split is ROWS:
                assert len(part.rows) % linear.role.unit == 0
        uses = {Use.ROUTER if re.search(ROUTERS, part.name) else Use.PROJECTION for part in linear.sources}
        assert {linear.role.use} == (uses if path != "model.stack.head" else {Use.HEAD}), path


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=["-".join(v) for v in VARIANTS])
def test_rows_are_those_of_the_file(name: str, variant: str, tiny_folder: Folders) -> None:
    """What adapters and shards will rely on: the named rows of the named matrix, in their order."""
    model, loader, _ = built(tiny_folder(name, variant), name)
    transposed = name == "gpt2"
    for path, linear in linears(model):
        whole = dense(linear.weight)
        for part in linear.sources:
            stored = whole_matrix(loader, part, transposed and path != "model.stack.head")
            taken = np.asarray(part.taken)
            want = stored[taken].T if part.transposed else stored[taken]
            np.testing.assert_array_equal(whole[part.rows.start : part.rows.stop], want, err_msg=path)


def dense(weight: Any) -> Any:
    assert isinstance(weight, ReferenceWeight)
    return weight.matrix


def whole_matrix(loader: Loader, part: SourceRows, transposed: bool) -> Any:
    tensor = loader._checkpoint.tensors[loader._find(f"{part.name}.weight")[0]]
    matrix = tensor.data.view(np.float32).reshape(tensor.shape)
    return matrix.T if transposed else matrix


def test_no_weight_but_tables_is_without_a_name(tiny_folder: Folders) -> None:
    for name, variant in VARIANTS:
        model, _, config = built(tiny_folder(name, variant), name)
        width = {getattr(config, f, None) for f in ("hidden_size", "d_model", "word_size")}
        assert all(table.shape[1] in width for table in packed(model)), name


def test_parts_of_stacked_and_fused_matrices() -> None:
    order = np.array([2, 0, 1, 3])
    stacked = sources_of([("q", 4, order), ("k", 2, None)], Role(Split.ROWS, 2))
    assert [(p.name, p.rows, list(p.taken)) for p in stacked] == [
        ("q", range(4), [2, 0, 1, 3]),
        ("k", range(4, 6), [0, 1]),
    ]
    fused = sources_of([("qkv", 4, order)], Role(Split.ROWS, 1, (2, 1, 1)))
    assert [(p.name, p.rows, list(p.taken)) for p in fused] == [
        ("qkv", range(2), [2, 0]),
        ("qkv", range(2, 3), [1]),
        ("qkv", range(3, 4), [3]),
    ]
