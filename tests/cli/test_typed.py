"""llama-cli's lines for octavo run, chat and generate: a GPU's layers are left out, and this is said."""

from __future__ import annotations

import pytest

from octavo.cli._typed import without_layers


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("-m smollm2 -p Hello -n 5 -ngl 99", "-m smollm2 -p Hello -n 5"),
        ("-ngl 99 -m smollm2", "-m smollm2"),
        ("--n-gpu-layers=99 x --gpu-layers all", "x"),
        ("x -ngl", "x"),
        ("x -- -ngl 99", "x -- -ngl 99"),
        ("-n 5", "-n 5"),
    ],
)
def test_what_is_kept(typed: str, kept: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert without_layers(typed.split()) == kept.split()
    left = typed.count("ngl") + typed.count("gpu-layers") - kept.count("ngl")
    assert capsys.readouterr().err.count("has no effect: a model is on one device") == left
