"""Threads and instruction sets that somebody asks for: more than there are, none, those of another CPU."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import InvalidRequestError
from octavo.kernels.select import native_available

if not native_available():
    pytest.skip("the extension is not built", allow_module_level=True)

from octavo.config import EngineConfig
from octavo.kernels import _native
from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.ops import Rows
from octavo.kernels.program import Buffer
from support.kernels import limits_of, normal, random_weight, tokens_batch

ALL = {"generic", "avx2", "avxvnni", "avx512vnni", "neon"}


@pytest.mark.parametrize("threads", [0, -1])
def test_no_threads(threads: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"threads must be at least 1, not {threads}"):
        CpuBackend(threads)
    with pytest.raises(InvalidRequestError, match="threads"):
        EngineConfig("model", threads=threads)


def test_more_threads_than_cores_change_no_bit() -> None:
    rng = np.random.default_rng(0)
    weight, x = random_weight(rng, "u4-min", 200, 96), normal(rng, 5, 96)
    results = []
    for threads in (1, 33):
        backend = CpuBackend(threads)
        batch = tokens_batch(len(x))
        ops = backend.eager(batch, limits_of(batch))
        given = ops.tensor(x, Buffer(Rows.TOKENS, x.shape[1]))
        results.append(ops.value(ops.linear(given, backend.pack([weight]))))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("isa", [*sorted(ALL - set(instruction_sets())), "avx9", "", "AVX2"])
def test_instruction_sets_of_other_cpus_are_refused_by_name(isa: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        CpuBackend(isa=isa)
    assert refused.value.param == "isa"
    assert f"does not run instruction set '{isa}'" in str(refused.value)
    assert ", ".join(instruction_sets()) in str(refused.value)


def test_those_of_this_cpu_are_known_and_the_first_is_chosen() -> None:
    found = instruction_sets()
    assert found[-1] == "generic"
    assert set(found) <= ALL
    assert len(set(found)) == len(found)
    assert CpuBackend().isa == _native.choose_isa("auto") == found[0]
    assert [CpuBackend(isa=isa).isa for isa in found] == found
