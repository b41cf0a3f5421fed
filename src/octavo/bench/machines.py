"""Machines that can be planned for by name: memory, bandwidth and arithmetic, and where the numbers are from.

The numbers are makers' peaks. What a program gets of them is less: a plan from them is a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import InvalidRequestError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Described:
    """A machine in three numbers.

    Attributes:
        memory: bytes for the model. bandwidth: bytes a second that can be read of it. flops: a second, in the
            type that a model is computed in (16-bit tensors on a GPU, 32-bit floats on a CPU).
        gpu: whether its memory is the model's alone, which then takes nine tenths of it.
        source: where the numbers are from.
    """

    name: str
    memory: int
    bandwidth: float
    flops: float
    gpu: bool
    source: str


def _gpu(name: str, gib: float, gb_s: float, tflops: float, source: str) -> Described:
    return Described(name, int(gib * GIB), gb_s * 1e9, tflops * 1e12, True, source)


def _cpu(name: str, gib: float, gb_s: float, tflops: float, source: str) -> Described:
    return Described(name, int(gib * GIB), gb_s * 1e9, tflops * 1e12, False, source)


MACHINES = {
    machine.name: machine
    for machine in (
        _gpu("t4", 16, 320, 65, "NVIDIA T4 data sheet, FP16 tensor"),
        _gpu("l4", 24, 300, 121, "NVIDIA L4 data sheet, FP16 tensor, dense"),
        _gpu("rtx-3090", 24, 936, 71, "NVIDIA GA102 white paper, FP16 tensor with FP32 sums, dense"),
        _gpu("rtx-4090", 24, 1008, 165, "NVIDIA Ada white paper, FP16 tensor with FP32 sums, dense"),
        _gpu("a100-40", 40, 1555, 312, "NVIDIA A100 data sheet, 40 GB, BF16 tensor, dense"),
        _gpu("a100-80", 80, 2039, 312, "NVIDIA A100 data sheet, SXM 80 GB, BF16 tensor, dense"),
        _gpu("l40s", 48, 864, 362, "NVIDIA L40S data sheet, BF16 tensor, dense"),
        _gpu("h100", 80, 3350, 989, "NVIDIA H100 data sheet, SXM, BF16 tensor, dense"),
        _gpu("h200", 141, 4800, 989, "NVIDIA H200 data sheet, SXM, BF16 tensor, dense"),
        _gpu("mi300x", 192, 5300, 1307, "AMD MI300X data sheet, BF16, dense"),
        _cpu("desktop-ddr5", 64, 83, 1.0, "2 channels of DDR5-5200; 8 cores x 4 GHz x 32 FP32 a cycle"),
        _cpu("epyc-9654", 384, 461, 7.4, "12 channels of DDR5-4800; 96 cores x 2.4 GHz x 32 FP32 a cycle"),
        _cpu("xeon-8480", 256, 307, 7.2, "8 channels of DDR5-4800; 56 cores x 2.0 GHz x 64 FP32 a cycle"),
    )
}


def machine_of(name: str) -> Described:
    """
    Raises:
        InvalidRequestError: there is none of this name; the message has those that there are.
    """
    if name not in MACHINES:
        raise InvalidRequestError(f"--machine knows {', '.join(MACHINES)}, and not {name!r}")
    return MACHINES[name]
