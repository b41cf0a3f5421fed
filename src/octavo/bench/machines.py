"""Machines that can be planned for by name: memory, bandwidth and arithmetic, and where the numbers are from.

The numbers are makers' peaks, from their data sheets. What a program gets of them is less: a plan from them
is a bound. Rates of tensors are those without sparsity, half of what some sheets print. A CPU's memory is
what somebody has fitted, so no sheet says it; its arithmetic is cores x base clock x operations a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import InvalidRequestError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Described:
    """A machine in a few numbers.

    Attributes:
        memory: bytes for the model; 0: whoever plans says how much is fitted.
        bandwidth: bytes a second that can be read of it. flops: a second, in the
            type that a model is computed in (16-bit tensors on a GPU, 32-bit floats on a CPU).
        gpu: whether its memory is the model's alone, which then takes nine tenths of it.
        source: where the numbers are from, and url: where that stands.
        link: bytes a second that it sends to its peers while it receives as many; 0: it has none.
    """

    name: str
    memory: int
    bandwidth: float
    flops: float
    gpu: bool
    source: str
    link: float = 0.0
    url: str = ""


NVIDIA = "https://www.nvidia.com"
SHEETS = f"{NVIDIA}/content/dam/en-zz/Solutions/Data-Center"
T4 = f"{SHEETS}/tesla-t4/t4-tensor-core-product-brief.pdf"
A100 = f"{SHEETS}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
GA102 = f"{NVIDIA}/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
ADA = (
    "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/"
    "nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
)
AMD = "https://www.amd.com"
MI300X = (
    f"{AMD}/content/dam/amd/en/documents/instinct-tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf"
)
EPYC = f"{AMD}/en/products/processors/server/epyc/4th-generation-9004-and-8004-series/amd-epyc-9654.html"
XEON = (
    "https://www.intel.com/content/www/us/en/products/sku/231746/"
    "intel-xeon-platinum-8480-processor-105m-cache-2-00-ghz/specifications.html"
)


def _gpu(name: str, gib: float, rates: tuple[float, float, float], source: str, url: str) -> Described:
    """
    Args:
        rates: GB/s of its memory, TFLOP/s, and GB/s of its link, both directions together, as sheets say.
    """
    gb_s, tflops, link = rates
    return Described(name, int(gib * GIB), gb_s * 1e9, tflops * 1e12, True, source, link / 2 * 1e9, url)


def _cpu(name: str, gb_s: float, tflops: float, source: str, url: str) -> Described:
    return Described(name, 0, gb_s * 1e9, tflops * 1e12, False, source, url=url)


MACHINES = {
    machine.name: machine
    for machine in (
        _gpu("t4", 16, (320, 65, 32), "NVIDIA T4 product brief, FP16 tensor; PCIe 3.0 x16", T4),
        _gpu(
            "l4", 24, (300, 121, 64), "NVIDIA L4 data sheet, FP16 tensor; PCIe 4.0 x16",
            f"{NVIDIA}/en-us/data-center/l4/",
        ),
        _gpu(
            "rtx-3090", 24, (936, 71, 112.5),
            "NVIDIA GA102 white paper, FP16 tensor with FP32 sums; NVLink", GA102,
        ),
        _gpu(
            "rtx-4090", 24, (1008, 165.2, 64),
            "NVIDIA Ada white paper, FP16 tensor with FP32 sums; PCIe 4.0 x16", ADA,
        ),
        _gpu("a100-40", 40, (1555, 312, 600), "NVIDIA A100 data sheet, SXM 40 GB, BF16 tensor; NVLink", A100),
        _gpu("a100-80", 80, (2039, 312, 600), "NVIDIA A100 data sheet, SXM 80 GB, BF16 tensor; NVLink", A100),
        _gpu(
            "l40s", 48, (864, 362, 64), "NVIDIA L40S data sheet, BF16 tensor; PCIe 4.0 x16",
            f"{NVIDIA}/en-us/data-center/l40s/",
        ),
        _gpu(
            "h100", 80, (3350, 989, 900), "NVIDIA H100 data sheet, SXM, BF16 tensor; NVLink",
            f"{NVIDIA}/en-us/data-center/h100/",
        ),
        _gpu(
            "h200", 141, (4800, 989, 900), "NVIDIA H200 data sheet, SXM, BF16 tensor; NVLink",
            f"{NVIDIA}/en-us/data-center/h200/",
        ),
        _gpu(
            "mi300x", 192, (5300, 1307, 896), "AMD MI300X data sheet, BF16; 7 links of 128 GB/s", MI300X
        ),
        _cpu(
            "epyc-9654", 460.8, 7.37,
            "AMD EPYC 9654 data sheet: 12 channels of DDR5-4800, 96 cores of 2.4 GHz; Zen 4: 32 FP32 a cycle",
            EPYC,
        ),
        _cpu(
            "xeon-8480", 307.2, 7.17,
            "Intel Xeon Platinum 8480+ data sheet: 8 channels of DDR5-4800, 56 cores of 2.0 GHz; two AVX-512 "
            "units: 64 FP32 a cycle",
            XEON,
        ),
    )
}  # fmt: skip


def machine_of(name: str) -> Described:
    """
    Raises:
        InvalidRequestError: there is none of this name; the message has those that there are.
    """
    if name not in MACHINES:
        raise InvalidRequestError(f"--machine knows {', '.join(MACHINES)}, and not {name!r}")
    return MACHINES[name]
