"""A folder of safetensors, quantized: a file for each layer, written when all of its matrices are made.

What is not finished lies in TARGET.partial, with a file that says of what; the same command goes on there. At
the end it gets its name. Matrices are made in the order of the forward, so that each is met by what the
quantized ones before it give (Frantar et al. 2023, section 4); AWQ's by what the model gave before.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from octavo.checkpoints.base import PICKLES, StoredTensor
from octavo.checkpoints.safetensors import INDEX, FolderCheckpoint, open_folder, open_tensors, read_json
from octavo.checkpoints.safetensors_writing import write_index, write_safetensors, write_whole
from octavo.errors import InvalidRequestError, OctavoError
from octavo.kernels.ops import F32
from octavo.quant.writer import Tensors, as_stored
from octavo.quantize import calibration as text
from octavo.quantize.asked import Asked, Progress, Report
from octavo.quantize.folds import Fold, find_folds, unfolded
from octavo.quantize.making import Matrices, projections_of
from octavo.quantize.stored import StoredModel, StoredWeight, load_stored

STATE = "octavo-quantize.json"
_COPIED = (".json", ".txt", ".model", ".jinja", ".md")
_LAYER = re.compile(r"(.*?\.\d+)\.")


def quantize_folder(asked: Asked, progress: Progress) -> Report:
    """Make it.

    Raises:
        CheckpointError: the model is broken, or something is there already that is not this run's beginning.
        UnsupportedError: the method cannot be had of this model.
        OSError: the disk is full, or the like; the same command goes on later.
    """
    partial = asked.partial
    checkpoint = open_folder(asked.source)
    folder = _Folder(checkpoint, asked, partial, progress)
    try:
        folder.prepare()
        _run(folder, partial)
        (partial / STATE).unlink()
        partial.rename(asked.target)
        return folder.report
    finally:
        folder.close()


def _run(folder: _Folder, partial: Path) -> None:
    """Make all of it, and leave nothing that no later run could go on from."""
    try:
        folder.run()
    except OctavoError:  # which the same command would meet again
        shutil.rmtree(partial, ignore_errors=True)
        raise
    except OSError:
        if folder.nothing_finished:
            shutil.rmtree(partial, ignore_errors=True)
        raise


class Files:
    """Which tensors of a checkpoint go into which file: those of a layer into one."""

    def __init__(self, names: Iterable[str]) -> None:
        found: dict[str, list[str]] = {}
        for name in names:
            match = _LAYER.match(name)
            found.setdefault(match[1] if match else "", []).append(name)
        self.names = list(found.values())
        self.file_of = {name: i for i, each in enumerate(self.names) for name in each}

    def called(self, number: int) -> str:
        return f"model-{number + 1:05d}-of-{len(self.names):05d}.safetensors"


class _Folder:
    def __init__(self, checkpoint: FolderCheckpoint, asked: Asked, partial: Path, progress: Progress) -> None:
        self._checkpoint, self._asked, self._partial = checkpoint, asked, partial
        self._progress = progress
        self.report = Report(str(asked.target), asked.method)
        self._matrices = Matrices(checkpoint, asked, self.report)
        self._files = Files(checkpoint.tensors)
        self._made: dict[str, Tensors] = {}
        self._finished: set[int] = set()
        self._current = self._held = -1
        self._done = 0

    def prepare(self) -> None:
        """All that can be refused before anything is written, and what an earlier run has left."""
        asked, limits = self._asked, self._matrices.writer.limits
        if limits.calibrated and asked.calibration is None:
            raise InvalidRequestError(
                f"{asked.method} needs a text that is like what the model will read: --calibration FILE",
                "calibration",
            )
        if not limits.calibrated and asked.calibration is not None:
            raise InvalidRequestError(f"{asked.method} looks at no text: leave it out", "calibration")
        self._stored: StoredModel = load_stored(self._checkpoint, self._read, self._context)
        self._matrices.choose(self._stored)
        if asked.calibration is not None:
            text.check_calibrated(self._stored, asked.calibration.length)
            tokenizer = text.tokenizer_of(asked.source, self._checkpoint.config)
            self._ids = asked.calibration.ids(tokenizer)
        state = self._state()
        if not self._partial.exists():
            self._partial.mkdir(parents=True)
            said = json.dumps(state).encode()
            write_whole(self._partial / STATE, lambda file: file.write(said))
        elif not (self._partial / STATE).exists() or read_json(self._partial / STATE) != state:
            raise InvalidRequestError(
                f"{self._partial} was begun by another command, or of another model: repeat that command, or "
                "remove the folder"
            )
        self._lock()
        self._finished = {i for i in range(len(self._files.names)) if self._path(i).exists()}
        self.report.resumed = len(self._finished)

    def _lock(self) -> None:
        """Two runs of one command would both write what is missing. The lock ends with the process."""
        self._held = os.open(self._partial / STATE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequestError(f"{self._partial} is being written by another process") from None

    def close(self) -> None:
        if self._held >= 0:
            os.close(self._held)

    @property
    def nothing_finished(self) -> bool:
        return not self._finished

    @property
    def _context(self) -> int | None:
        return None if self._asked.calibration is None else self._asked.calibration.length

    def run(self) -> None:
        calibration, matrices = self._asked.calibration, self._matrices
        self._count()
        if calibration is not None and len(self._finished) < len(self._files.names):
            if matrices.as_they_were:
                folds = [fold for fold in find_folds(self._stored) if self._together(fold)]
                matrices.use_folds(folds)
                self.report.unfolded = unfolded(folds, self._stored.matrices)
            text.run(self._stored, self._ids, self._meet)
        for number in range(len(self._files.names)):
            self._finish(number)
        self._rest()

    def _together(self, fold: Fold) -> bool:
        """Whether all that a fold changes is written at once."""
        before = fold.before if fold.norm is None else f"{fold.norm.module}.weight"
        return len({self._files.file_of[name] for name in (before, *fold.readers, *fold.tables)}) == 1

    # -- as the forward goes ---------------------------------------------------------------------

    def _meet(self, weight: StoredWeight, x: F32) -> None:
        matrices = self._matrices
        for named in projections_of(weight, matrices.targets):
            number = self._files.file_of[named.name]
            if number != self._current:
                if self._current >= 0:
                    self._finish(self._current)
                matrices.forget()
                self._current = number
            if number in self._finished:
                continue
            if matrices.as_they_were:
                matrices.look(named.name, x)
            elif named.name not in self._made:
                made = self._made[named.name] = matrices.make(named.name, matrices.met(x))
                stored = {key: as_stored(key, array) for key, array in made.items()}
                matrices.replace(named.name, matrices.dense(named.name, stored))
                self._count(1)

    def _read(self, name: str) -> F32:
        matrices = self._matrices
        number = self._files.file_of[name]
        if name in matrices.targets and number in self._finished and not matrices.as_they_were:
            matrices.replace(name, matrices.dense(name, self._written(number)))
        return matrices.read(name)

    def _written(self, number: int) -> dict[str, StoredTensor]:
        return dict(open_tensors(self._path(number)))

    # -- files -----------------------------------------------------------------------------------

    def _finish(self, number: int) -> None:
        """Write a file, making what of it was never met."""
        if number in self._finished:
            return
        matrices, found = self._matrices, list[StoredTensor]()
        for name in self._files.names[number]:
            if name not in matrices.targets:
                found.append(matrices.untouched(name))
                continue
            if name not in self._made:
                self._made[name] = matrices.make_sampled(name)
                self._count(1)
            found += [as_stored(key, array) for key, array in self._made.pop(name).items()]
        write_safetensors(self._path(number), found)
        self._finished.add(number)

    def _rest(self) -> None:
        """The index, config.json, and what lies beside the weights."""
        files: dict[str, str] = {}
        total, kept, targets = 0, 0, self._matrices.targets
        for number in range(len(self._files.names)):
            for name, tensor in self._written(number).items():
                files[name] = self._files.called(number)
                total += tensor.data.nbytes
                kept += tensor.data.nbytes * (name in self._checkpoint.tensors and name not in targets)
        write_index(self._partial, files, total)
        self.report.matrices = len(targets)
        self.report.weights = sum(n * k for n, k in targets.values())
        self.report.bits = 8 * (total - kept)
        self.report.bytes_before = sum(
            self._checkpoint.tensors[n].data.nbytes for n in self._checkpoint.tensors
        )
        self.report.bytes_after = total
        for path in sorted(self._asked.source.iterdir()):
            weights = path.name == INDEX or path.suffix in (".safetensors", *PICKLES)
            if path.is_file() and path.suffix in _COPIED and not weights and path.name != STATE:
                shutil.copyfile(path, self._partial / path.name)
        config = self._checkpoint.config | {"quantization_config": self._matrices.settings}
        said = json.dumps(config, indent=2).encode()
        write_whole(self._partial / "config.json", lambda file: file.write(said))

    def _path(self, number: int) -> Path:
        return self._partial / self._files.called(number)

    def _count(self, more: int = 0) -> None:
        finished = sum(self._files.file_of[name] in self._finished for name in self._matrices.targets)
        if more == 0:
            self._done = finished
        self._done += more
        self._progress(self._done, len(self._matrices.targets))

    def _state(self) -> dict[str, Any]:
        """What must be the same for a run to go on where another ended."""
        asked = self._asked
        source = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(asked.source.iterdir())]
        read: Any = None
        if asked.calibration is not None:
            digest = hashlib.sha256(asked.calibration.read().encode()).hexdigest()
            read = [digest, asked.calibration.samples, asked.calibration.length]
        files = [[name, size, when] for name, size, when in source if name.endswith(".safetensors")]
        config = json.loads(json.dumps(self._checkpoint.config))
        said = {"method": asked.method, "choice": asdict(asked.choice), "text": read}
        return {**said, "files": files, "config": config}
