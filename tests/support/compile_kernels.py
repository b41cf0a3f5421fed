"""Compile the GPU backend's kernels for a GPU that is not there: `python -m support.compile_kernels 90`.

Tiny models run on tensors of the CPU, and each launch only compiles, down to machine code: what the
interpreter lets pass and the compiler does not is found without a GPU. Results are garbage. --json prints how
many there are. "gfx942" in the place of 90 is AMD's CDNA 3: nothing has run there, and no AMD device is
chosen.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)


class NoGpu:
    """A Triton driver that knows its target and cannot launch."""

    def __init__(self, name: str) -> None:
        from triton.backends.compiler import GPUTarget

        amd = name.startswith("gfx")
        self._target = GPUTarget("hip", name, 64) if amd else GPUTarget("cuda", int(name), 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def compile_only(name: str) -> list[str]:
    """From now on kernels are compiled for sm_<name>, or gfx..., instead of launched; returns their names."""
    import triton
    from triton.runtime.jit import JITFunction

    triton.runtime.driver.set_active(NoGpu(name))
    compiled: list[str] = []
    seen: set[Any] = set()

    def getitem(self: Any, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            kernel = self.warmup(*args, grid=grid, **options)
            if kernel.hash not in seen:
                seen.add(kernel.hash)
                assert kernel.asm["hsaco" if name.startswith("gfx") else "cubin"]
                if options.get("enable_fp_fusion") is False and "ptx" in kernel.asm:
                    assert "fma." not in kernel.asm["ptx"], f"{self.fn.__name__} fuses"
                compiled.append(self.fn.__name__)
                print(len(compiled), self.fn.__name__, file=sys.stderr, flush=True)

        return launch

    JITFunction.__getitem__ = getitem
    return compiled


def main() -> int:
    import numpy as np
    import torch

    name = sys.argv[1]
    capability = name if name.startswith("gfx") else int(name)
    compiled = compile_only(name)
    from octavo.kernels.cuda import attention, gemv, norms, rotary
    from octavo.kernels.cuda.backend import CudaBackend
    from support.cuda_shapes import draw, exercise

    if isinstance(capability, int) and capability >= 90:
        for module in (attention, gemv, rotary, norms):
            module.chained = lambda x: {"CHAINED": True, "launch_pdl": True}
    if isinstance(capability, str):  # NVIDIA's instructions are not AMD's
        gemv.INTERPRETED = True
    torch.set_num_threads(1)
    draw(torch.device("cpu"), np.random.default_rng(0))
    for options in ({}, {"exact": True}, {"rounds": True, "dtype": "float16"}):
        backend = CudaBackend("cpu", sms=132, **options)  # type: ignore[arg-type]
        exercise(backend, np.random.default_rng(0), brief="rounds" in options)
    if "--json" in sys.argv:
        print(json.dumps({"kernels": len(compiled), "capability": capability}))
    else:
        print(f"{len(compiled)} kernels compiled: {', '.join(sorted(set(compiled)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
