"""The hot tiles keep their integer accumulators in registers: a spill in the loop costs a quarter."""

from __future__ import annotations

import platform
import re
import subprocess

import pytest

from octavo.kernels import _native


@pytest.fixture(scope="module")
def disassembly() -> str:
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", str(_native.__file__)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def tiles(disassembly: str, register: str) -> dict[str, str]:
    """Name -> code of each integer tile that uses these registers, by tokens, type and options."""
    found = {}
    for function in disassembly.split("\n\n"):
        name = re.search(
            r"dot_panel<(\d+), .*::(U4|U4Quads<\w+>|U5|U5Quads<\w+>|S8Quads<\d>), (\w+), (\w+)>\(",
            function.split("\n")[0],
        )
        widest = "zmm" if "%zmm" in function else "ymm" if "%ymm" in function else "xmm"
        if name and widest == register:
            found[" ".join(name.groups())] = function
    return found


def integer_spills(code: str, register: str) -> int:
    """Stores of whole integer vectors to the stack. (AVX2 keeps its float sums in memory on purpose.)"""
    return len(re.findall(rf"vmovdq\w*\s+%{register}\d+,-?0x\w+\(%[re][sb]p\)", code))


# A few constants and the last token's sums may go to the stack once a block; 6 x 16 tiles are tight.
REGISTERS = {"x86_64": [("ymm", 3), ("zmm", 0)]}.get(platform.machine(), [])


@pytest.mark.parametrize(("register", "allowed"), REGISTERS)
def test_accumulators_stay_in_registers(disassembly: str, register: str, allowed: int) -> None:
    found = tiles(disassembly, register)
    assert len(found) >= 36
    spilled = {name: n for name, code in found.items() if (n := integer_spills(code, register)) > allowed}
    assert not spilled
