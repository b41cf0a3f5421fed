"""scripts/image.py: which of the Dockerfile's stages it carries out, and when it is content."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("image")


def test_stages_by_their_names(image: Any) -> None:
    stages = image.stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert list(stages) == ["build", "cpu", "cuda", ""]
    assert {word for word, _ in stages["cpu"]} >= {"ENV", "USER", "ENTRYPOINT"}
    assert image.moved("python -m venv /opt/octavo && cp /wheels/a /data", Path("/x")).endswith(
        "-m venv /x/opt/octavo && cp /x/wheels/a /x/data"
    )


@pytest.mark.parametrize(
    ("unpacked", "packed", "holds", "status"),
    [
        (190e6, 60e6, True, 0),
        (201e6, 60e6, True, 1),
        (190e6, 84e6, True, 1),
        (190e6, 60e6, False, 1),
    ],
)
def test_it_weighs_with_its_base_and_prints_both(
    image: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    unpacked: float,
    packed: float,
    holds: bool,
    status: int,
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    monkeypatch.setattr(image, "build", lambda folder: None)
    monkeypatch.setattr(image, "size_of", lambda folder: unpacked)
    monkeypatch.setattr(image, "compressed", lambda folder, file: packed)
    monkeypatch.setattr(image, "tried", lambda container, model: iter([("it answers", holds, "Paris")]))
    assert image.main(["--model", str(tmp_path / "m.gguf")]) == status
    out = capsys.readouterr().out
    assert f"beside the base image: {unpacked / 1e6:.0f} MB unpacked, {packed / 1e6:.0f} MB compressed" in out
    assert "(at most 330 and 130)" in out
