"""octavo list and octavo rm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from octavo.checkpoints import kept, sources
from octavo.cli import main
from octavo.cli._models import megabytes


@pytest.fixture
def alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of smollm2 in a cache of its own."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(sources, "default_cache_dir", lambda: tmp_path)
    path = sources.place("smollm2")
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(2_600_000))
    sources._write_stamp(sources.ALIASES["smollm2"], path)
    return path


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Somebody at a terminal types this."""
    import io

    typed = io.StringIO(text)
    typed.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", typed)


def test_list(alias: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "format", "size", "last", "used"]
    name, form, size, unit, day = row.split()
    assert (name, form, size, unit) == ("smollm2", "gguf", "3", "MB")
    assert len(day) == len("2026-01-01")


def test_list_as_json(alias: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (model,) = found["models"]
    assert model.pop("last_used").endswith("+00:00")
    assert model == {"name": "smollm2", "format": "gguf", "bytes": 2_600_000, "path": str(alias)}
    assert found["bytes"] == 2_600_000


def test_an_empty_cache_says_what_fills_it(alias: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alias.unlink()
    assert main(["list"]) == 0
    assert capsys.readouterr() == ("", "no model is in the cache; octavo pull MODEL brings one\n")


@pytest.mark.parametrize(("typed", "goes"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_rm_asks(
    typed: str, goes: bool, alias: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, typed)
    assert main(["rm", "smollm2"]) == (0 if goes else 1)
    out, err = capsys.readouterr()
    assert "remove smollm2 (3 MB)? [y/N]" in err
    assert out == ("removed smollm2\n" if goes else "")
    assert alias.exists() is not goes


@pytest.mark.parametrize("words", [["smollm2"], ["smollm2", "--json"]])
def test_rm_does_not_ask_nobody(words: list[str], alias: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", *words]) == 2
    assert capsys.readouterr().err.endswith("stdin is no terminal: give --yes\n")
    assert alias.exists()


def test_rm_yes(alias: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "-y", "smollm2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": ["smollm2"], "bytes": 2_600_000}
    assert kept.kept_models() == []


def test_rm_removes_nothing_where_one_name_is_wrong(alias: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "-y", "smollm2", "smolm2"]) == 1
    assert "'smolm2' is not in the cache" in capsys.readouterr().err
    assert alias.exists()


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 MB"), (98_362_432, "98 MB"), (10**9, "1.0 GB"), (2_460_000_000, "2.5 GB")]
)
def test_sizes(size: int, text: str) -> None:
    assert megabytes(size) == text
