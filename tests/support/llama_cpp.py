"""Octavo's greedy texts beside llama.cpp on the same file, and how near ties are told from errors."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.checkpoints.gguf import open_gguf
from octavo.kernels.ops import F32, Backend
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import native_available
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.gguf import from_gguf
from support.forward import greedy, load, logits
from support.prompts import PROMPTS

COUNT, CONTEXT = 32, 96


@dataclass(frozen=True)
class Text:
    """One prompt's greedy text in exact arithmetic: ids, and the logits that chose the last COUNT."""

    ids: list[int]
    exact: F32


@dataclass(frozen=True)
class Run:
    """Octavo's texts with f32 weights and activations: nothing is rounded but to f32."""

    path: Path
    backend: Backend
    tokenizer: Tokenizer
    texts: list[Text]

    @staticmethod
    def of(path: Path) -> Run:
        backend = _backend()
        tokenizer = from_gguf(open_gguf(path).config)
        model = load(path, backend, "float32", CONTEXT)
        texts = []
        for prompt in PROMPTS:
            ids = tokenizer.encode(prompt)
            chosen, rows = greedy(model, backend, ids, COUNT)
            texts.append(Text([*ids, *chosen], rows))
        del model
        gc.collect()
        return Run(path, backend, tokenizer, texts)


def choose_alike(run: Run) -> None:
    """As both run a file by default, with activations rounded to 8 bits, each in its own way.

    Rounding moves every logit by an error that is measured here, of either engine, against exact
    arithmetic: 0.1 to 0.3 RMS. Where the two choose differently, both choices should lie within four
    times llama.cpp's own error of the best: a difference of two such logits exceeds that (2.8 of its
    standard deviations) once in 200 times, and so may one choice in 200, but never twice as much. That
    they differ seldom, and that Octavo's error is not the larger one, is asserted too.
    """
    llama = open_llama(run.path)
    model = load(run.path, run.backend, "auto", CONTEXT)
    differ, beyond, errors = 0, 0, []
    for text in run.texts:
        theirs = logits_of(llama, text.ids)
        ours = logits(model, run.backend, text.ids, [len(text.ids)])[-COUNT - 1 : -1]
        errors.append((_rms(ours - text.exact), _rms(theirs - text.exact)))
        for side in (ours, theirs):
            different = ours.argmax(axis=1) != theirs.argmax(axis=1)
            behind = behind_best(text.exact, side.argmax(axis=1))[different]
            assert (behind <= 8 * errors[-1][1]).all(), behind / errors[-1][1]
            beyond += int((behind > 4 * errors[-1][1]).sum())
        differ += int(different.sum())
    own, other = np.sqrt(np.mean(np.square(errors), axis=0))
    total = COUNT * len(run.texts)
    print(
        f"\n{run.path.name}: {differ} of {total} choices differ, {beyond} by much; "
        f"RMS error {own:.3f}, llama.cpp's {other:.3f}"
    )
    assert beyond <= total / 200
    assert differ <= 0.05 * total
    assert own <= 1.05 * other


def _rms(error: F32) -> float:
    """Of logits, whose common shift means nothing."""
    return float(np.sqrt(np.mean(np.square(error - error.mean(axis=1, keepdims=True)))))


def behind_best(judge: F32, chosen: Any) -> F32:
    """How far below the best each of these choices is, by the logits [COUNT, vocab] of a judge."""
    return np.asarray(judge.max(axis=1) - judge[np.arange(COUNT), np.asarray(chosen)])


def open_llama(path: Path, **arguments: Any) -> Any:
    """A llama_cpp.Llama that gives every position's logits."""
    import llama_cpp

    quiet = {"n_ctx": CONTEXT, "n_batch": CONTEXT, "logits_all": True, "n_threads": 2, "verbose": False}
    return llama_cpp.Llama(str(path), **{**quiet, **arguments})


def logits_of(llama: Any, ids: list[int]) -> F32:
    """llama.cpp's logits [COUNT, vocab] that chose the last COUNT of these ids."""
    llama.reset()
    llama.eval(ids[:-1])
    return np.array(llama.scores[len(ids) - COUNT - 1 : len(ids) - 1])


def _backend() -> Backend:
    if not native_available():
        return ReferenceBackend()
    from octavo.kernels.cpu import CpuBackend

    return CpuBackend(threads=2)
