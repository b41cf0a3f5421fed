"""Logits of every position of a text, and what quality is judged by: perplexity and KL divergence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import inf, sqrt

import numpy as np
import numpy.typing as npt

from octavo.bench.calibrate import one_sequence
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.kernels.ops import F32, Limits

F64 = npt.NDArray[np.float64]
NEAR_TIE = 0.15
"""Top tokens closer than this in the reference's logits may change places without anyone being wrong."""


def windows(ids: Sequence[int], length: int, count: int | None = None) -> Iterator[list[int]]:
    """The first count stretches of length ids, side by side; what is left over is left out."""
    total = len(ids) // length
    for i in range(total if count is None else min(count, total)):
        yield list(ids[i * length : (i + 1) * length])


def given_and_scored(window: list[int], first: int, before: int | None) -> tuple[list[int], list[int]]:
    """The ids that a model is given, and those that its rows from position first on are scored by.

    Row i predicts the id after position first + i; the last position predicts nothing known.

    Args:
        before: stands for the window's first id, where the model wants it before every text.
    """
    given = window if before is None else [before, *window[1:]]
    return given[:-1], given[first + 1 :]


@dataclass(frozen=True, slots=True)
class TextIds:
    """A text as a model reads it.

    Attributes:
        ids: of the text alone.
        before: the id that the model wants before every text, if it does.
    """

    ids: list[int]
    before: int | None


def text_ids(config: EngineConfig, text: str) -> TextIds:
    """The text as the model's tokenizer reads it; no weights are read.

    Raises:
        OctavoError: there is no such model, or it has no tokenizer.
    """
    from octavo.assembly.tokenizer import tokenizer_and_template
    from octavo.checkpoints import open_checkpoint
    from octavo.checkpoints.sources import resolve

    path = resolve(config.model)
    tokenizer, _ = tokenizer_and_template(config, open_checkpoint(path, headers=True), path)
    before = tokenizer.encode("", add_special_tokens=True)
    return TextIds(tokenizer.encode(text, add_special_tokens=False), before[0] if before else None)


class WindowScorer:
    """A model that gives the logits of every position, one window at a time.

    Args:
        config: model, dtype, quantization, kv_cache_dtype, threads, isa and backend are read.
        window: the most ids of one call.

    Attributes:
        weight_bytes: of all its weights as they lie in memory.
        bits: of a weight there, scales included; looked-up tables left out.

    Raises:
        InvalidRequestError: the window is longer than what the model was made for.
        OctavoError: the model cannot be loaded, or has an encoder.
    """

    def __init__(self, config: EngineConfig, window: int = 512) -> None:
        from octavo.assembly.memory import page_specs
        from octavo.bench.roofline import cost_of
        from octavo.checkpoints import open_checkpoint
        from octavo.checkpoints.sources import resolve
        from octavo.kernels.select import WantedBackend, make_backend
        from octavo.models.load import load_model
        from octavo.models.registry import family_of
        from octavo.runtime.hardware import usable_threads

        checkpoint = open_checkpoint(resolve(config.model))
        if family_of(checkpoint).encoder_decoder:
            raise UnsupportedError(f"{config.model} has an encoder: windows of a text are scored by decoders")
        threads = config.threads or usable_threads()
        self.backend = make_backend(config.backend, WantedBackend(threads, config.isa, config.dtype))
        quantization = config.quantization
        model, self.weight_bytes = load_model(checkpoint, self.backend, config.dtype, window, quantization)
        if window > model.max_position:
            raise InvalidRequestError(
                f"a context of {window} tokens is above the {model.max_position} of {config.model}"
            )
        self._window, self._page_size = window, config.page_size
        pages = -(-window // config.page_size)
        specs = page_specs(model, self.backend, config)
        self.bits = cost_of(model, self.backend, checkpoint, specs[0].dtype).bits
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
    """Sums over positions, of one engine and, where there is one, beside a reference's logits.

    Attributes:
        nll: negative log-likelihood of the text, in nats; squares: of each position's, squared.
        beside: nll less the reference's; beside_squares: of each position's, squared.
        kl: of the reference from the engine, in nats.
        agreed: positions where both have the same first choice.
        flips: positions where the engine's first choice is not the reference's, and the reference has it
            more than NEAR_TIE logits below its own.
    """

    positions: int = 0
    nll: float = 0.0
    squares: float = 0.0
    beside: float = 0.0
    beside_squares: float = 0.0
    kl: float = 0.0
    agreed: int = 0
    flips: int = 0

    def add(
        self, logits: F32, reference: F32 | None, targets: Sequence[int], likely: F64 | None = None
    ) -> None:
        """Count the rows of one window; targets are the ids that follow.

        Args:
            likely: log_softmax(reference), where several are held against it.
        """
        q = log_softmax(logits)
        rows = np.arange(len(targets))
        each = -q[rows, np.array(targets)]
        self.positions += len(targets)
        self.nll += float(each.sum())
        self.squares += float((each * each).sum())
        if reference is None:
            return
        p = log_softmax(reference) if likely is None else likely
        more = each + p[rows, np.array(targets)]
        self.beside += float(more.sum())
        self.beside_squares += float((more * more).sum())
        self.kl += float((np.exp(p) * (p - q)).sum())
        chosen = logits.argmax(axis=1)
        self.agreed += int((chosen == reference.argmax(axis=1)).sum())
        self.flips += int((reference.max(axis=1) - reference[rows, chosen] > NEAR_TIE).sum())

    def __add__(self, other: Quality) -> Quality:
        """The sums over both's positions."""
        return Quality(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.nll / self.positions))

    @property
    def perplexity_error(self) -> float:
        """Its standard error, as if positions knew nothing of each other."""
        return self.perplexity * self._error(self.nll, self.squares)

    @property
    def over(self) -> float:
        """Its perplexity over the reference's."""
        return float(np.exp(self.beside / self.positions))

    @property
    def over_error(self) -> float:
        """Its standard error, as if positions knew nothing of each other.

        Far less than the perplexity's own: both read the same text.
        """
        return self.over * self._error(self.beside, self.beside_squares)

    def _error(self, total: float, squares: float) -> float:
        """Of a mean over the positions."""
        if self.positions < 2:
            return inf
        mean = total / self.positions
        return sqrt(max(squares / self.positions - mean * mean, 0.0) / (self.positions - 1))

    @property
    def mean_kl(self) -> float:
        return self.kl / self.positions

    @property
    def agreement(self) -> float:
        """The share of positions whose first choice is the reference's."""
        return self.agreed / self.positions

    @property
    def flip_share(self) -> float:
        return self.flips / self.positions
