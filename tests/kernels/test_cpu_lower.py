"""What a recorded op's arguments are to csrc/: ops by their names, values by their types, enums by order."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from octavo.kernels.select import native_available

if not native_available():
    pytest.skip("the extension is not built", allow_module_level=True)

from octavo.kernels import _native
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.cpu_lower import coded
from octavo.kernels.ops import NO_NORMS, Activation, AttentionSpec, Experts, KVSpec, Ops, Rotary, Rows, Sight
from octavo.kernels.weight import Weight

CSRC = Path(__file__).resolve().parents[2] / "csrc"
BACKEND = CpuBackend(1)
ONE = BACKEND.pack([Weight.dense(np.ones((4, 4), np.float32))])
MIXED = BACKEND.pack([Weight.dense(np.ones((4, 4), kind)) for kind in (np.float32, np.float16)])


@pytest.mark.parametrize("name", sorted(Ops.__abstractmethods__ - {"keep", "given"}))
def test_each_op_is_known(name: str) -> None:
    assert _native.Op(name, {}) is not None


@pytest.mark.parametrize(("kind", "file"), [(Activation, "types.h"), (Sight, "types.h"), (Rows, "program.h")])
def test_enums_are_in_one_order(kind: type[Enum], file: str) -> None:
    (members,) = re.findall(rf"enum class {kind.__name__} : int {{ (.*) }};", (CSRC / file).read_text())
    assert members.lower().split(", ") == [member.name.replace("_", "").lower() for member in kind]


def test_values_by_their_types() -> None:
    cache = BACKEND.kv_cache([KVSpec(1, 4, 4, "f32")], 2, 16)
    spec = AttentionSpec(2, 1, 4, 4, np.float32(0.5), window=None, softcap=3.0, sight=Sight.CROSS)
    found = dict(coded("spec", spec))
    assert (found["spec.num_heads"], found["spec.scale"], found["spec.softcap"]) == (2, 0.5, 3.0)
    assert (found["spec.window"], found["spec.latent"], found["spec.sight"]) == (None, False, 2)
    assert type(found["spec.scale"]) is float
    rotary = dict(coded("rotary", Rotary(np.ones((8, 4))[:, ::2], np.ones((8, 2), np.float32))))
    assert rotary["rotary.cos"].dtype == np.float32
    assert rotary["rotary.cos"].flags.c_contiguous
    assert [type(value).__name__ for _, value in coded("kv", cache.layer(0))] == ["KVLayer"]
    assert [len(value) for _, value in coded("weight", MIXED)] == [2]
    experts = dict(coded("experts", Experts([ONE, ONE], (ONE,), Activation.RELU)))
    assert [len(experts[f"experts.{name}"]) for name in ("gate_up", "down")] == [2, 1]
    assert experts["experts.activation"] == 4
    with pytest.raises(TypeError, match="of one layout"):
        dict(coded("experts", Experts([MIXED], [ONE], Activation.RELU)))
    with pytest.raises(TypeError, match="x: set was made by another backend"):
        dict(coded("x", {1}))


def test_arguments_that_an_op_lacks_are_refused() -> None:
    for args, message in (({}, "no argument weight"), ({"weight": 1.5}, "weight is of another kind")):
        with pytest.raises(ValueError, match=message):
            _native.Op("linear", args).workspace(1)
    with pytest.raises(ValueError, match="no native op is called turn"):
        _native.Op("turn", {})
    with pytest.raises(ValueError, match="weight is no array"):
        _native.Op("linear", {"weight": np.ones(3)})


def test_a_struct_that_is_none_has_no_fields() -> None:
    """Where it is none and a field is missing all the same, the field's name is wrong: that is no None."""
    layer = BACKEND.kv_cache([KVSpec(1, 4, 4, "f32")], 2, 16).layer(0)
    args = dict(coded("kv", layer)) | dict(coded("norms", NO_NORMS)) | {"spec.num_heads": 1}
    limits = _native.Limits(tokens=1, sequences=1, sampled=1, table_width=1)
    program = _native.Program(pool=BACKEND.pool, isa=BACKEND.isa, limits=limits, nbytes=4096)
    qkv, q = (_native.Buffer(rows=0, width=width, offset=0) for width in (12, 4))

    def add(rotary: dict[str, object]) -> None:
        program.add(op=_native.Op("rotary_append", args | rotary), inputs=[qkv], output=q, workspace=0)

    add({"rotary": None})
    with pytest.raises(ValueError, match=r"no argument rotary\.sin"):
        add({"rotary.cos": np.ones((8, 2), np.float32)})
