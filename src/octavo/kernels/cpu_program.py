"""CpuProgram: a captured forward in native memory; CpuDecoder: its steps of decoding, draws included."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.kernels import _native
from octavo.kernels.cpu_lower import Built
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Limits
from octavo.kernels.program import Recorder, signed


class CpuProgram:
    """A captured forward. replay and kept return views of its own memory.

    Attributes:
        native: the program itself.
        nbytes: of that memory, touched as far as batches reach.
    """

    def __init__(self, built: Built, limits: Limits, recorder: Recorder) -> None:
        self.native, self._limits = built.program, limits
        self.nbytes = built.arena.nbytes
        self._signature = signed(recorder, limits)
        self._given = {name: built.place(number) for name, number in recorder.given_as.items()}
        self._kept = {name: built.place(number) for name, number in recorder.kept_as.items()}

    def replay(self, batch: ForwardBatch, given: Mapping[str, F32] | None = None) -> F32:
        self._limits.check(batch)
        if not given and not self._given:
            return self.native.replay(batch)
        arrays = given or {}
        rows = self._signature.check(batch, self._limits, arrays)
        for name, array in arrays.items():
            self.native.memory(self._given[name], len(array))[:] = array
        return self.native.replay(batch, rows)

    def kept(self, name: str) -> F32:
        self._signature.check_kept(name, self.native.replays > 0)
        return self.native.rows(self._kept[name])


class CpuDecoder:
    """A step of decoding in one call (csrc/decode.h).

    Attributes:
        native: forward_s and drawing_s are the seconds that it has spent so far; ahead: Backend.decoder's.
    """

    def __init__(self, native: _native.Decoder, ahead: bool = False) -> None:
        self.native = native
        native.ahead = ahead
        self.step, self.redraw, self.logits = native.step, native.redraw, native.logits  # nothing in between
        self.verify = native.verify
