"""Which device: the CPU, or a GPU that is there, new enough, and that torch can drive.

The driver is asked by its own C library, so that a machine without a GPU never imports torch.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequestError

MINIMUM_CAPABILITY = (8, 0)
"""Ampere: bf16 tensor cores."""
SHARE = 0.9
"""Of a GPU's memory, for weights, pages and activations, when nobody says otherwise."""
NO_DRIVER = "no NVIDIA driver is installed (libcuda.so.1 was not found)"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its driver describes it.

    Attributes:
        driver: the newest CUDA that the driver knows, as (major, minor).
        memory: bytes in all.
    """

    name: str
    capability: tuple[int, int]
    memory: int
    driver: tuple[int, int]


def find_gpu(index: int = 0) -> Gpu | str:
    """The GPU, or one line that says why there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return NO_DRIVER
    if status := cuda.cuInit(0):
        return driver_says(status)
    count, handle, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    if index >= count.value:
        return f"GPU {index} was asked for, the driver sees {count.value}"
    if status := cuda.cuDeviceGet(ctypes.byref(handle), index):
        return driver_says(status)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    cuda.cuDeviceGetName(name, 256, handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    parts = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        parts.append(value.value)
    driver = version.value // 1000, version.value % 1000 // 10
    return Gpu(name.value.decode(errors="replace"), (parts[0], parts[1]), memory.value, driver)


DRIVER_ERRORS = {
    3: "it is shutting down",
    100: "it sees no GPU: is one visible to this process (CUDA_VISIBLE_DEVICES, the container's devices)?",
    802: "the system is not ready: is NVIDIA's fabric manager running?",
    803: "its kernel module and libcuda.so are of different versions: load the module anew, or restart",
    804: "this libcuda.so is for newer hardware than this GPU",
    999: "unknown error, as after a GPU has failed (Xid): see the kernel's log; a restart may help",
}
"""CUresult of cuInit, by what can be done about it."""


def driver_says(status: int) -> str:
    """A CUresult as one line."""
    return f"the NVIDIA driver cannot start (error {status}): {DRIVER_ERRORS.get(status, 'unknown reason')}"


def why_not(gpu: Gpu | str) -> str | None:
    """Why this GPU cannot be used, before torch is imported; None: nothing speaks against it."""
    if isinstance(gpu, str):
        return gpu
    if gpu.capability < MINIMUM_CAPABILITY:
        major, minor = gpu.capability
        return f"{gpu.name} is of compute capability {major}.{minor}; 8.0 (Ampere) is the least"
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: pip install '.[cuda]' in Octavo's folder"
    return None


def torch_refuses(gpu: Gpu, torch: Any) -> str | None:
    """Why this torch cannot drive the GPU; None: it can."""
    built = torch.version.cuda
    if built is None:
        return f"torch {torch.__version__} was built without CUDA: install a build for CUDA"
    if torch.cuda.is_available():
        return lacks_kernels(gpu, torch)
    known = f"{gpu.driver[0]}.{gpu.driver[1]}"
    if gpu.driver[0] >= int(built.split(".")[0]):  # drivers know all of a major version's minor ones
        return (
            f"torch {torch.__version__} (for CUDA {built}) finds no GPU, and the NVIDIA driver does: do "
            "CUDA_VISIBLE_DEVICES and the container's devices name it?"
        )
    return (
        f"torch {torch.__version__} needs CUDA {built}, the NVIDIA driver knows CUDA up to {known}: "
        "update the driver, or install a torch for that CUDA"
    )


def lacks_kernels(gpu: Gpu, torch: Any) -> str | None:
    """Why this torch's own kernels do not run on the GPU; None: they do. Machine code ("sm_80") runs on later
    GPUs of its generation, what is compiled when it is loaded ("compute_90") on all later ones."""
    archs = torch.cuda.get_arch_list()
    for arch in archs:
        kind, _, digits = arch.partition("_")
        number = "".join(digit for digit in digits if digit.isdigit())
        made = divmod(int(number or 0), 10)
        same = made[0] == gpu.capability[0]
        if made <= gpu.capability and (same or kind == "compute"):
            return None
    if not archs:
        return None
    major, minor = gpu.capability
    return (
        f"torch {torch.__version__} has kernels for {', '.join(archs)}, and {gpu.name} is of compute "
        f"capability {major}.{minor}: install a torch that was built for it"
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """A device, and why it is no GPU.

    Attributes:
        device: "cpu", "cuda" or "cuda:N".
        why: one line; None: it is a GPU, or a CPU was asked for.
    """

    device: str
    why: str | None = None


def choose(
    wanted: str,
    backend: str,
    gpu: Gpu | str | None = None,
    weights: Callable[[], int] | None = None,
    share: float = 1.0,
    memory: Callable[[int], tuple[int, int]] | None = None,
) -> Choice:
    """
    Args:
        wanted: "auto", "cpu", "cuda" or "cuda:N". auto takes a GPU that nothing speaks against.
        backend: other than "auto" it names a CPU backend, which auto then obeys.
        gpu: what find_gpu would say (tests).
        weights: tells how many bytes the weights take at least; they must fit in share of the memory.
        memory: (free, total) bytes of a GPU by its index; None: torch's (tests bring their own).

    Raises:
        InvalidRequestError: a GPU was asked for that cannot be used, with the reason.
    """
    if wanted == "cpu" or (wanted == "auto" and backend not in ("auto", "cuda")):  # no driver is asked
        return Choice("cpu")
    if wanted != "auto" and backend not in ("auto", "cuda"):
        raise InvalidRequestError(f"backend {backend!r} does not run on device {wanted!r}", "backend")
    index = int(wanted[5:]) if wanted.startswith("cuda:") and wanted[5:].isdigit() else 0
    if wanted not in ("auto", "cuda", f"cuda:{index}"):
        raise InvalidRequestError(f"device must be auto, cpu, cuda or cuda:N, not {wanted!r}", "device")
    found = find_gpu(index) if gpu is None else gpu
    reason = why_not(found)
    if reason is None and not isinstance(found, str):  # only now: importing torch takes seconds
        torch = importlib.import_module("torch")
        reason = torch_refuses(found, torch)
        if reason is None and weights is not None:  # last, as it makes torch take the GPU
            ask = torch.cuda.mem_get_info if memory is None else memory
            reason = too_small(found, ask(index), weights(), share)
    if reason is None:
        return Choice(wanted if wanted != "auto" else "cuda")
    if wanted == "auto" and backend != "cuda":  # nobody insists on a GPU
        return Choice("cpu", reason)
    raise InvalidRequestError(f"no GPU can be used: {reason}", "device")


def too_small(gpu: Gpu, memory: tuple[int, int], weights: int, share: float) -> str | None:
    """Why this GPU's memory, (free, total) bytes, cannot hold the weights; None: it can."""
    free, total = memory
    left = free - int(total * (1 - share))
    if weights <= left:
        return None
    return (
        f"the weights need {weights / 1e9:.1f} GB or more, {gpu.name} has {free / 1e9:.1f} of "
        f"{total / 1e9:.1f} GB free, of which {max(left, 0) / 1e9:.1f} may be used: "
        f"{(weights - max(left, 0)) / 1e9:.1f} GB are missing"
    )
