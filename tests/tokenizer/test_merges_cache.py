"""Merges of large SentencePiece vocabularies, kept from one start to the next."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.tokenizer import spm

TOKENS = [*"abcdef", "ab", "cd", "abcd", "ef", "cdef", "abcdef", "fa", "fab"]
IDS = {token: i for i, token in enumerate(TOKENS)}
SCORES = [-float(i % 9) for i in range(len(TOKENS))]
TYPES = [spm.NORMAL] * len(TOKENS)


@pytest.fixture(autouse=True)
def worth_caching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spm, "WORTH_CACHING", 1)


def test_the_second_start_reads_what_the_first_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "merges"
    first = spm.cached_merges(IDS, SCORES, TYPES, folder)
    assert first == spm.merges_from_scores(IDS, SCORES, TYPES)
    assert len(first) > 5
    (file,) = folder.iterdir()
    assert file.suffix == ".npy"
    monkeypatch.setattr(spm, "merges_from_scores", lambda *_: pytest.fail("was to be read"))
    assert spm.cached_merges(IDS, SCORES, TYPES, folder) == first


def test_other_scores_are_other_merges(tmp_path: Path) -> None:
    spm.cached_merges(IDS, SCORES, TYPES, tmp_path)
    other = SCORES[::-1]
    assert spm.cached_merges(IDS, other, TYPES, tmp_path) == spm.merges_from_scores(IDS, other, TYPES)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("wrong", [b"", b"\x93NUMPY broken", [[0, 99]], [[-1, 0]], [0, 1], [[0.5, 1.0]]])
def test_a_broken_cache_is_made_anew(wrong: bytes | list[object], tmp_path: Path) -> None:
    merges = spm.cached_merges(IDS, SCORES, TYPES, tmp_path)
    (file,) = tmp_path.iterdir()
    if isinstance(wrong, bytes):
        file.write_bytes(wrong)
    else:
        array = np.array(wrong)
        np.save(file, array.astype(np.int32) if array.dtype.kind == "i" else array)
    assert spm.cached_merges(IDS, SCORES, TYPES, tmp_path) == merges
    assert len(np.load(file)) == len(merges)


def test_a_folder_that_cannot_be_made_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    merges = spm.cached_merges(IDS, SCORES, TYPES, tmp_path / "file" / "merges")
    assert merges == spm.merges_from_scores(IDS, SCORES, TYPES)


def test_a_full_disk_keeps_nothing_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Any, array: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spm.np, "save", full)
    assert spm.cached_merges(IDS, SCORES, TYPES, tmp_path) == spm.merges_from_scores(IDS, SCORES, TYPES)
    assert not list(tmp_path.iterdir())
