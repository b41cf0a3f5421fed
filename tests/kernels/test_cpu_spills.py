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


def tiles(disassembly: str, register: str) -> list[tuple[str, str]]:
    """(tokens, type and options; code) of each integer tile that uses these registers.

    Instruction sets of the same registers have tiles of the same names, so a name comes more than once.
    """
    found = []
    for function in disassembly.split("\n\n"):
        name = re.search(
            r"dot_panel(?:_in_units)?<(\d+), .*::"
            r"(U[456](?:Quads<[\w, ]+>)?|C4|S8Quads<[\w, ]+>)((?:, \w+)+)>\(",
            function.split("\n")[0],
        )
        widest = "zmm" if "%zmm" in function else "ymm" if "%ymm" in function else "xmm"
        if name and widest == register:
            found.append((" ".join(name.groups()), function))
    return found


def integer_spills(code: str, register: str) -> int:
    """Stores of whole integer vectors to the stack. (AVX2 keeps its float sums in memory on purpose.)"""
    return len(re.findall(rf"vmovdq\w*\s+%{register}\d+,-?0x\w+\(%[re][sb]p\)", code))


# A few constants and the last token's sums may go to the stack once a block; 6 x 16 tiles are tight. Bytes on
# AVX2 keep signs and magnitudes of two vectors beside 12 sums, 18 values for 16 registers; 4 tokens without a
# spill are slower (benchmarks/kernels/tiles.py --isa avx2 --kinds s8 --rows 4,6). On zmm the last sum of two
# panels with minima goes there once a block: minima in a loop of their own spare it and are slower.
LIMITS = (
    {"ymm": {"U": 4, "S": 10, "C": 4}, "zmm": {"U": 1, "S": 0, "C": 0}}
    if platform.machine() == "x86_64"
    else {}
)


@pytest.mark.parametrize("register", LIMITS)
def test_accumulators_stay_in_registers(disassembly: str, register: str) -> None:
    found = tiles(disassembly, register)
    assert len(found) >= (160 if register == "ymm" else 150)  # two instruction sets have ymm
    spills = [(name, integer_spills(code, register)) for name, code in found]
    limits = LIMITS[register]
    assert [(name, n) for name, n in spills if n > limits[name.split()[1][0]]] == []


@pytest.mark.parametrize("register", LIMITS)
def test_attention_sums_stay_in_registers(disassembly: str, register: str) -> None:
    """No sum of an integer attention tile is stored, or copied to another register, between products."""
    product, count, faults = r"vpmaddwd|vpdpwssd", 0, []
    for function in disassembly.split("\n\n"):
        name = re.search(r"(scores|weigh)_int<(\d), [\w:() ]+, [\w ]+>", function.split("\n")[0])
        if not name or f"%{register}" not in function or (register == "ymm" and "%zmm" in function):
            continue
        count += 1
        lines = function.split("\n")
        at = [i for i, line in enumerate(lines) if re.search(product, line)]
        loops = "\n".join(lines[at[0] : at[-1] + 1])
        moved = len(re.findall(rf"vmovdq\w*\s+%{register}\d+,%{register}\d+", loops))
        if integer_spills(function, register) or moved > 2 * len(at) / 3:  # (sums begin as copies of 0)
            faults.append((name[0], integer_spills(function, register), moved, len(at)))
    assert count >= (120 if register == "ymm" else 60)
    assert faults == []
