"""Logits of every position of a text, and what quality is judged by: perplexity and KL divergence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.bench.calibrate import one_sequence
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError
from octavo.kernels.ops import F32, Limits

F64 = npt.NDArray[np.float64]
NEAR_TIE = 0.15
"""Top tokens closer than this in the reference's logits may change places without anyone being wrong."""


def windows(ids: Sequence[int], length: int, count: int | None = None) -> Iterator[list[int]]:
    """The first count stretches of length ids, side by side; what is left over is left out."""
    total = len(ids) // length
    for i in range(total if count is None else min(count, total)):
        yield list(ids[i * length : (i + 1) * length])


class WindowScorer:
    """A model that gives the logits of every position, one window at a time.

    Args:
        config: model, dtype, kv_cache_dtype, threads, isa and backend are read.
        window: the most ids of one call.

    Raises:
        OctavoError: the model cannot be loaded.
    """

    def __init__(self, config: EngineConfig, window: int = 512) -> None:
        from octavo.assembly.memory import page_specs
        from octavo.checkpoints import open_checkpoint
        from octavo.checkpoints.sources import resolve
        from octavo.kernels.select import Wanted, make_backend
        from octavo.models.load import load_model
        from octavo.runtime.hardware import usable_threads

        checkpoint = open_checkpoint(resolve(config.model))
        threads = config.threads or usable_threads()
        self.backend = make_backend(config.backend, Wanted(threads, config.isa, config.dtype))
        model, _ = load_model(checkpoint, self.backend, config.dtype, context=window)
        self._window, self._page_size = window, config.page_size
        pages = -(-window // config.page_size)
        specs = page_specs(model, self.backend, config)
        kv = self.backend.kv_cache(specs, pages, config.page_size)
        limits = Limits(window, 1, window, pages)
        self._program = self.backend.capture(lambda ops, inputs: model.forward(ops, inputs, kv), limits)

    def logits(self, ids: Sequence[int], first: int = 0) -> F32:
        """[len(ids) - first, vocab]: row i is the prediction made at position first + i.

        Raises:
            InvalidRequestError: more ids than the window holds, or none to score.
        """
        if not 0 <= first < len(ids) <= self._window:
            raise InvalidRequestError(
                f"positions from {first} on of {len(ids)} ids do not fit a window of {self._window}"
            )
        return self._program.replay(one_sequence(ids, self._page_size, first)).copy()


def log_softmax(logits: F32) -> F64:
    """Natural log-probabilities [n, vocab] in double precision."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


@dataclass(slots=True)
class Quality:
    """Sums over positions, of one engine beside a reference's logits.

    Attributes:
        nll: negative log-likelihood of the text; kl: of the reference from the engine, in nats.
        flips: positions where the engine's top token is not the reference's, and the reference has it
            more than NEAR_TIE logits below its own.
    """

    positions: int = 0
    nll: float = 0.0
    kl: float = 0.0
    flips: int = 0

    def add(self, logits: F32, reference: F32, targets: Sequence[int]) -> None:
        """Count the rows of one window; targets are the ids that follow."""
        p, q = log_softmax(reference), log_softmax(logits)
        rows = np.arange(len(targets))
        self.positions += len(targets)
        self.nll -= float(q[rows, np.array(targets)].sum())
        self.kl += float((np.exp(p) * (p - q)).sum())
        chosen = logits.argmax(axis=1)
        self.flips += int((reference.max(axis=1) - reference[rows, chosen] > NEAR_TIE).sum())

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.nll / self.positions))

    @property
    def mean_kl(self) -> float:
        return self.kl / self.positions

    @property
    def flip_share(self) -> float:
        return self.flips / self.positions
