"""What the caches keep, and what is left when a part of it is removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.checkpoints import hub, sources
from octavo.checkpoints.hub import Repository
from octavo.checkpoints.kept import KeptModel, kept_models, removable, remove
from octavo.errors import CheckpointError

A, B = "a" * 40, "b" * 40


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both caches, empty, below one folder."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(sources, "default_cache_dir", lambda: tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(id: str, commit: str, files: dict[str, bytes], *refs: str) -> Path:
    """Files of a commit, laid out as huggingface_hub documents it."""
    home = hub.home_of(Repository(id))
    (home / "blobs").mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        blob = home / "blobs" / f"{abs(hash(data)):x}"
        blob.write_bytes(data)
        link = home / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    for ref in refs:
        (home / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (home / "refs" / ref).write_text(commit)
    return home


def rows() -> list[tuple[str, str, int]]:
    return [(model.name, model.format, model.size) for model in kept_models()]


def blobs(home: Path) -> set[bytes]:
    return {path.read_bytes() for path in (home / "blobs").iterdir()}


def test_empty_caches_hold_nothing(caches: Path) -> None:
    assert kept_models() == []


def test_an_alias(caches: Path) -> None:
    path = sources.place("smollm2")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    os.utime(path, (86_400.0, 1.0))
    assert kept_models() == [KeptModel("smollm2", "incomplete", path, 4, 86_400.0)], "its hash is not known"
    sources._write_stamp(sources.ALIASES["smollm2"], path)
    assert rows() == [("smollm2", "gguf", 4)]
    assert removable("smollm2") == [path]
    remove("smollm2")
    assert rows() == []
    assert [each.name for each in path.parent.iterdir()] == [".lock"]
    with pytest.raises(CheckpointError, match="'smollm2' is not in the cache; octavo list"):
        remove("smollm2")


def test_a_folder_and_its_revisions(caches: Path) -> None:
    old = {"config.json": b"{}", "model.safetensors": b"old weights"}
    new = {"config.json": b"{}", "model.safetensors": b"newer weights"}
    home = put("org/m", A, old, "v1", "refs/pr/1")
    put("org/m", B, new, "main")
    assert rows() == [
        ("org/m", "safetensors", 15), ("org/m@refs/pr/1", "safetensors", 13), ("org/m@v1", "safetensors", 13)
    ]  # fmt: skip
    remove("org/m@v1")
    assert rows() == [("org/m", "safetensors", 15)]
    assert blobs(home) == {b"{}", b"newer weights"}, "the config is the newer commit's too"
    remove("org/m@main")
    assert not home.exists()


def test_a_commit_without_a_name_is_its_own(caches: Path) -> None:
    put("org/m", A, {"config.json": b"{}", "model.safetensors": b"w"})
    assert [name for name, _, _ in rows()] == [f"org/m@{A}"]
    remove(f"org/m@{A}")
    assert rows() == []


def test_the_whole_of_a_repository(caches: Path) -> None:
    home = put("org/m", A, {"config.json": b"{}", "model.safetensors": b"w"}, "main")
    put("org/m", B, {"config.json": b"{ }", "model.safetensors": b"x"}, "v1")
    put("org/other", A, {"config.json": b"{}", "model.safetensors": b"w"}, "main")
    assert sum(path.stat().st_size for path in removable("org/m") if path.parent.name == "blobs") == 7
    remove("org/m")
    assert not home.exists()
    assert rows() == [("org/other", "safetensors", 3)]


def test_gguf_files_go_one_by_one(caches: Path) -> None:
    home = put("org/g", A, {"m-Q4.gguf": b"four", "deep/m-Q8.gguf": b"eight"}, "main")
    assert rows() == [("org/g/deep/m-Q8.gguf", "gguf", 5), ("org/g/m-Q4.gguf", "gguf", 4)]
    remove("org/g/deep/m-Q8.gguf")
    assert rows() == [("org/g/m-Q4.gguf", "gguf", 4)]
    assert blobs(home) == {b"four"}
    assert not (home / "snapshots" / A / "deep").exists()
    remove("org/g/m-Q4.gguf")
    assert not home.exists()


def test_a_blob_outside_of_the_cache_stays(caches: Path) -> None:
    (caches / "mine.gguf").write_bytes(b"mine")
    home = put("org/g", A, {"m.gguf": b"four"}, "main")
    (home / "snapshots" / A / "link.gguf").symlink_to(caches / "mine.gguf")
    remove("org/g/link.gguf")
    assert (caches / "mine.gguf").read_bytes() == b"mine"
    assert rows() == [("org/g/m.gguf", "gguf", 4)]


def test_a_pull_that_has_not_ended(caches: Path) -> None:
    home = put("org/m", A, {"config.json": b"{}", "model.safetensors": b"w"}, "main")
    (home / hub.UNCHECKED).mkdir()
    (home / hub.UNCHECKED / "hash").touch()
    assert [(name, format) for name, format, _ in rows()] == [("org/m", "incomplete")]
    (home / "snapshots" / A / "model.safetensors").unlink()
    assert [(name, format) for name, format, _ in rows()] == [("org/m", "incomplete")]


def test_what_octavo_cannot_read_is_not_listed(caches: Path) -> None:
    put("org/pickle", A, {"config.json": b"{}", "pytorch_model.bin": b"\x80"}, "main")
    assert rows() == []


@pytest.mark.parametrize(
    "model", ["nope", "org/none", "", "a\0b", "x" * 5000, "~nobody-of-that-name/x", "../x"]
)
def test_what_is_not_there_is_said(model: str, caches: Path) -> None:
    with pytest.raises(CheckpointError, match="is not in the cache; octavo list says what is"):
        remove(model)


@pytest.mark.parametrize("model", ["mine.gguf", "org/m", ".."])
def test_files_and_folders_of_the_user_are_not_removed(model: str, caches: Path) -> None:
    (caches / "mine.gguf").touch()
    (caches / "org" / "m").mkdir(parents=True)
    put("org/m", A, {"config.json": b"{}", "model.safetensors": b"w"}, "main")
    with pytest.raises(CheckpointError, match="is a path of yours"):
        remove(model)
    assert (caches / "mine.gguf").exists()
    assert [name for name, _, _ in rows()] == ["org/m"]


def test_a_name_without_its_organisation_is_met_with_a_question(caches: Path) -> None:
    put("Org/Tiny-Model-1B", A, {"config.json": b"{}", "model.safetensors": b"w"}, "main")
    with pytest.raises(CheckpointError, match="did you mean 'Org/Tiny-Model-1B'"):
        sources.resolve("tiny-model-1b")
