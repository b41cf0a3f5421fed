"""CudaBackend: torch and Triton behind kernels.ops.Backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from octavo.errors import InvalidRequestError
from octavo.kernels.cuda.capture import Captures, GraphRecorder
from octavo.kernels.cuda.device import SHARE
from octavo.kernels.cuda.eager import CudaEagerOps, OpsMaker
from octavo.kernels.cuda.errors import clear_errors
from octavo.kernels.cuda.gemm import SHARED, TilePolicy
from octavo.kernels.cuda.graph_program import GraphProgram
from octavo.kernels.cuda.kv import CudaKVCache
from octavo.kernels.cuda.launch import cache_dir
from octavo.kernels.cuda.ops import Constants
from octavo.kernels.cuda.steps import Steps
from octavo.kernels.cuda.weight import CudaWeight, pack
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import Backend, Forward, KVSpec, Limits, Program
from octavo.kernels.weight import Weight

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def budget(free: int, total: int, share: float, reserve: int) -> int:
    """Bytes for pages: what share of the whole leaves after all that is taken, ours and others'."""
    return max(int(total * share) - (total - free) - reserve, 0)


def with_index(device: str) -> torch.device:
    """ "cuda" as the GPU that it means now: another thread's calls must not depend on which is current."""
    wanted = torch.device(device)
    if wanted.type == "cuda" and wanted.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return wanted


class CudaBackend(Backend):
    """One GPU (or, on device "cpu", Triton's interpreter).

    Args:
        dtype: of activations and dense weights: "float32", "float16" or "bfloat16".
        exact: a row's bits do not depend on the batch, at a price (docs/how-to/gpu.md).
        rounds: activations meet quantized weights as int8 (W8A8, W4A8), as on the CPU backend;
            otherwise as they are (W8A16, W4A16).
        sms: multiprocessors to plan for, if not the device's own.
        fixed_split: KV positions of a split of attention where exact.
        graphs: decode and verify steps are recorded and replayed.
    """

    name = "cuda"
    threads = 1
    step_tokens = 8192

    def __init__(
        self,
        device: str = "cuda",
        dtype: str = "bfloat16",
        exact: bool = False,
        rounds: bool = False,
        sms: int | None = None,
        fixed_split: int = 1024,
        graphs: bool = True,
    ) -> None:
        if dtype not in DTYPES:
            raise InvalidRequestError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}", "dtype")
        self.device, self.dtype = with_index(device), DTYPES[dtype]
        cuda = self.device.type == "cuda"
        properties = torch.cuda.get_device_properties(self.device) if cuda else None
        self.isa = "interpreter" if properties is None else f"sm_{properties.major}{properties.minor}"
        found = 4 if properties is None else properties.multi_processor_count
        self.kv_dtype = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
        shared = getattr(properties, "shared_memory_per_block_optin", SHARED)
        self.policy = TilePolicy(sms or found, exact, rounds, fixed_split, dtype == "float32", shared)
        self.constants = Constants(self.device)
        self.maker = OpsMaker(self.device, self.dtype, self.policy, self.constants)
        self._page_size = 16  # of the pages made last: a context is no longer than its table of them
        self.captures = Captures(GraphRecorder(self.device)) if graphs and cuda else None

    def facts(self) -> dict[str, str]:
        name = self.isa
        if self.device.type == "cuda":
            name = f"{torch.cuda.get_device_name(self.device)} ({self.isa})"
        return {"device": f"{self.device}: {name}", "kernels": f"compiled ones are kept in {cache_dir()}"}

    def device_memory(self) -> dict[str, int]:
        if self.device.type != "cuda":
            return {}
        return {  # asked of torch's own books: a GPU that hangs must not hold the scrape
            "total": torch.cuda.get_device_properties(self.device).total_memory,
            "used": torch.cuda.memory_reserved(self.device),
            "peak": torch.cuda.max_memory_reserved(self.device),
        }

    def report(self, tell: Callable[[str, float], None]) -> None:
        if self.captures is not None:
            self.captures.tell = tell

    def page_budget(self, share: float | None, reserve: int) -> int | None:
        if self.device.type != "cuda":
            return None
        return budget(*torch.cuda.mem_get_info(self.device), SHARE if share is None else share, reserve)

    def pack(self, weights: Sequence[Weight], gated: bool = False, head: bool = False) -> CudaWeight:
        with clear_errors(self.device, "the weights"):
            return pack(weights, gated, self.dtype, self.device)

    def kv_cache(
        self, layers: Sequence[KVSpec], num_pages: int, page_size: int, swap_pages: int = 0,
        sliding: bool = False,
    ) -> CudaKVCache:  # fmt: skip
        with clear_errors(self.device, f"{num_pages} pages"):
            self._page_size = page_size
            return CudaKVCache(layers, num_pages, page_size, self.device, swap_pages, sliding)

    def capture(self, forward: Forward, limits: Limits) -> Program:
        return GraphProgram(self.maker, forward, limits, self.captures, self._page_size)

    def steps(self, forward: Forward, limits: Limits, vocab_size: int) -> Steps:
        return Steps(self.maker, forward, limits, self.captures, vocab_size, self._page_size)

    def eager(self, batch: ForwardBatch, limits: Limits | None = None) -> CudaEagerOps:
        """Ops that run at once, on one batch."""
        if limits is not None:
            limits.check(batch)
        return self.maker.eager(batch)
