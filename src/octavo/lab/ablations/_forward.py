"""The same forward run in several ways: what rows about programs have in common."""

from __future__ import annotations

import numpy as np

from octavo.assembly import Loaded
from octavo.assembly.memory import page_specs
from octavo.bench.calibrate import best_time, one_sequence
from octavo.errors import UnsupportedError
from octavo.kernels.backend import Forward
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.cpu_lower import RecordedCalls, build
from octavo.kernels.cpu_program import CpuProgram
from octavo.kernels.forward_batch import ForwardBatch, Limits
from octavo.kernels.program import record
from octavo.lab.ablations import Setting
from octavo.models.registry import EncoderDecoder

PAGE = 16


class Step:
    """A forward over `tokens` tokens of one sequence, with pages of its own."""

    def __init__(self, loaded: Loaded, tokens: int) -> None:
        assert isinstance(loaded.backend, CpuBackend)
        self.backend = loaded.backend
        pages = -(-tokens // PAGE)
        kv = self.backend.kv_cache(page_specs(loaded.model, self.backend, loaded.user), pages, PAGE)
        self.limits = Limits(tokens, 1, 1, pages)
        self.forward: Forward = lambda ops, inputs: loaded.model.forward(ops, inputs, kv)
        ids = np.random.default_rng(0).integers(300, 3000, tokens)
        self.batch: ForwardBatch = one_sequence([int(i) for i in ids], PAGE, tokens - 1)

    def captured(self) -> CpuProgram:
        """As the engine does it."""
        return self.backend.capture(self.forward, self.limits)

    def unfused(self) -> CpuProgram:
        """The same program, with every norm in a call of its own."""
        recorder, result = record(self.forward, self.limits)
        ends = RecordedCalls(recorder.calls, recorder.buffers, result.ref)
        return CpuProgram(
            build(ends, self.limits, self.backend.pool, self.backend.isa), self.limits, recorder
        )

    def seconds(self, program: CpuProgram, most_s: float) -> float:
        """Of the program's replay, the best of those that fit into so many seconds."""
        return best_time(lambda: program.replay(self.batch), most_s)


def need_cpu(setting: Setting) -> None:
    """
    Raises:
        UnsupportedError: the engine does not run on the native kernels.
    """
    if not isinstance(setting.loaded.backend, CpuBackend):
        raise UnsupportedError("it needs the native kernels: --device cpu --backend cpu")
    loaded = setting.loaded
    if loaded.config.sliding_window is not None or isinstance(loaded.model, EncoderDecoder):
        raise UnsupportedError("it is for decoders whose layers share pages")
