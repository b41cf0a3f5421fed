"""Every family, every variant, every backend against transformers, discovered from the registry."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models.tiny import TINY, VARIANTS
from octavo.kernels.reference import ReferenceBackend
from octavo.models import registry
from octavo.models.registry import Model, family, family_names
from support.forward import BACKENDS, SOURCE, Sequences, backend_called, greedy, load, logits

LENGTH = 70
IDS = [int(i) for i in np.random.default_rng(5).integers(3, 150, LENGTH)]
CASES = [(*v, b) for v in VARIANTS for b in BACKENDS]
Folders = Callable[[str, str], Path]

every_variant = pytest.mark.parametrize(
    ("name", "variant", "backend"), CASES, ids=["-".join(case) for case in CASES]
)


@cache
def loaded(folder: Path, backend: str) -> Model:
    return load(folder, backend_called(backend))


@cache
def transformers_model(folder: Path) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    # The default, SDPA, leaves soft caps out; Falcon's "eager" adds ALiBi twice.
    kind = "sdpa" if "falcon" in folder.name else "eager"
    both = AutoConfig.from_pretrained(folder).is_encoder_decoder
    auto = AutoModelForSeq2SeqLM if both else AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation=kind)


@cache
def truth(folder: Path, ids: tuple[int, ...]) -> np.ndarray:
    """transformers' logits [len(ids), vocab]."""
    import torch

    model = transformers_model(folder)
    inputs = {"input_ids": torch.tensor([ids])}
    if model.config.is_encoder_decoder:
        inputs = {"input_ids": torch.tensor([SOURCE]), "decoder_input_ids": inputs["input_ids"]}
    with torch.no_grad():
        return np.asarray(model(**inputs).logits[0])


@every_variant
def test_prompt_logits_equal_transformers(
    name: str, variant: str, backend: str, tiny_folder: Folders
) -> None:
    folder = tiny_folder(name, variant)
    ours = logits(loaded(folder, backend), backend_called(backend), IDS, [LENGTH])
    theirs = truth(folder, tuple(IDS))
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


@every_variant
def test_greedy_text_equals_transformers(name: str, variant: str, backend: str, tiny_folder: Folders) -> None:
    """64 tokens: transformers, given what we wrote so far, would have written the same next.

    That is its own greedy text by induction, in one forward pass instead of 64.
    """
    folder = tiny_folder(name, variant)
    ours, rows = greedy(loaded(folder, backend), backend_called(backend), IDS, 64)
    theirs = truth(folder, (*IDS, *ours))[LENGTH - 1 : -1]
    assert np.abs(rows - theirs).max() <= 1e-4 * np.abs(theirs).max()
    behind = theirs.max(axis=1) - theirs[np.arange(64), ours]
    assert (behind <= 1e-5 * np.abs(theirs).max()).all()  # above 0 only for a tie
    assert len(set(ours)) > 1  # not one word again and again, which anybody could write


@every_variant
@pytest.mark.parametrize(("chunks", "page_size"), [([7] * 10, 5), ([16, 17, 31, 1, 5], 1)])
def test_chunked_equals_whole(
    name: str, variant: str, backend: str, chunks: list[int], page_size: int, tiny_folder: Folders
) -> None:
    model, computer = loaded(tiny_folder(name, variant), backend), backend_called(backend)
    same(logits(model, computer, IDS, chunks, page_size), logits(model, computer, IDS, [LENGTH]), backend)


@every_variant
def test_in_a_batch_equals_alone(name: str, variant: str, backend: str, tiny_folder: Folders) -> None:
    model, computer = loaded(tiny_folder(name, variant), backend), backend_called(backend)
    prompts = {s: IDS[s : s + length] for s, length in enumerate((1, 40, 17, 33, 5))}
    together = Sequences(model, computer, [len(ids) for ids in prompts.values()])
    first = together.logits({s: ids[: len(ids) // 2] for s, ids in prompts.items() if len(ids) > 1})
    rest = together.logits({s: ids[len(ids) // 2 :] for s, ids in prompts.items()})
    for s, ids in prompts.items():
        got = np.concatenate([first[s], rest[s]]) if s in first else rest[s]
        same(got, logits(model, computer, ids, [len(ids)]), backend)


def same(ours: np.ndarray, theirs: np.ndarray, backend: str) -> None:
    """Bits on the native backend; 1e-5 on the reference, whose BLAS adds in an order of its own."""
    if backend == "cpu":
        np.testing.assert_array_equal(ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max(), rtol=0)


def source_of(name: str) -> str:
    import octavo.models.families

    return (Path(octavo.models.families.__path__[0]) / f"{name}.py").read_text()


def windows(name: str, variant: str) -> int | None:
    return TINY[name][variant].get("sliding_window")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "variant"), [v for v in VARIANTS if windows(*v)])
def test_window_edges_are_exact(name: str, variant: str, backend: str, tiny_folder: Folders) -> None:
    """Prompts of W - 1, W and W + 1 tokens: one position too many or too few would show."""
    folder = tiny_folder(name, variant)
    width = windows(name, variant)
    assert width is not None
    model = loaded(folder, backend)
    for length in (width - 1, width, width + 1):
        ours = logits(model, backend_called(backend), IDS[:length], [length])
        theirs = truth(folder, tuple(IDS[:length]))
        assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("name", family_names())
def test_who_reads_a_window_has_one_to_test(name: str) -> None:
    reads = re.search(r"windows|sliding_window", source_of(name))
    assert not reads or any(windows(name, variant) for variant in TINY[name])


def test_a_window_matters(tiny_folder: Folders) -> None:
    """The mutant: with a window of one more or less the logits differ, so the tests above can fail."""
    name, variant = next(v for v in VARIANTS if windows(*v))
    folder = tiny_folder(name, variant)
    config = folder / "config.json"
    text = config.read_text()
    for step in (-1, 1):
        width = windows(name, variant)
        assert width is not None
        config.write_text(text.replace(f'"sliding_window": {width}', f'"sliding_window": {width + step}'))
        try:
            ours = logits(load(folder, ReferenceBackend()), ReferenceBackend(), IDS, [LENGTH])
        finally:
            config.write_text(text)
        assert np.abs(ours - truth(folder, tuple(IDS))).max() > 1e-3 * np.abs(ours).max()


@pytest.mark.parametrize("name", family_names())
def test_every_file_declares_a_whole_family(name: str) -> None:
    assert family(name).name == name


def test_every_family_is_tested() -> None:
    assert set(TINY) == set(family_names())
    assert all(TINY.values())


def test_a_file_without_a_family_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.importlib, "import_module", lambda name: SimpleNamespace(__path__=[]))
    with pytest.raises(TypeError, match=r"octavo/models/families/novel.py declares no FAMILY"):
        family("novel")


def test_a_family_is_one_file(tiny_folder: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file put beside the others is known, and what it composes is served: nothing else lists it."""
    import octavo.models.families

    theirs = tiny_folder("qwen3", "plain")
    text = source_of("qwen3").replace('"qwen3"', '"novel"')
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "novel.py").write_text(text)
    shutil.copytree(theirs, tmp_path / "folder")
    config = tmp_path / "folder" / "config.json"
    config.write_text(config.read_text().replace('"qwen3"', '"novel"'))
    monkeypatch.setattr(
        octavo.models.families, "__path__", [*octavo.models.families.__path__, str(tmp_path / "models")]
    )
    family_names.cache_clear()
    try:
        assert "novel" in family_names()
        ours = logits(load(tmp_path / "folder", ReferenceBackend()), ReferenceBackend(), IDS, [LENGTH])
    finally:
        sys.modules.pop("octavo.models.families.novel", None)
        family_names.cache_clear()
    np.testing.assert_array_equal(
        ours, logits(loaded(theirs, "reference"), ReferenceBackend(), IDS, [LENGTH])
    )


@pytest.mark.parametrize("name", family_names())
def test_family_files_stay_short(name: str) -> None:
    assert len(source_of(name).splitlines()) < 200
