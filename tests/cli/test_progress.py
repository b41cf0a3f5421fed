"""Lines while something takes long."""

from __future__ import annotations

import threading

import pytest

from octavo.cli import _progress
from octavo.cli._progress import count_progress, saying


def test_what_is_done_and_how_long_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    with saying("measuring"):
        assert capsys.readouterr() == ("", "measuring ...\n")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("measuring: ")
    assert err.endswith(" s\n")


def test_what_is_quick_goes_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with saying("loading", after_s=600.0):
        pass
    with saying("loading", quiet=True):
        pass
    assert capsys.readouterr() == ("", "")
    assert threading.active_count() <= before + 1  # the timer's thread may take a moment to end


def test_counts_are_told_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    with count_progress("windows") as progress:
        for done in range(5):
            now[0] = 10.0 * done
            progress(done, 4)
    assert capsys.readouterr() == ("", "windows: 2 of 4\nwindows: 4 of 4\n")
    with count_progress("windows", quiet=True) as progress:
        now[0] = 1000.0
        progress(4, 4)
    assert capsys.readouterr() == ("", "")


def test_an_error_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="x"), saying("loading", after_s=600.0):
        raise ValueError("x")
    assert capsys.readouterr().err == ""
