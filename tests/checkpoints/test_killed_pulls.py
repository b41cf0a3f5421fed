"""Pulls killed at twenty places: the next one goes on or begins again, and no wrong file is taken."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from octavo.checkpoints.hub import INDEX
from support.cli import environment
from support.small_hub import SmallHub, running

POINTS = 20
ONE, TWO = save({"a": np.arange(50_000, dtype=np.float32)}), save({"b": np.ones(20_000, np.float32)})
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    INDEX: json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}).encode(),
    "m-1.safetensors": ONE,
    "m-2.safetensors": TWO,
}
CONTENT = b"GGUF" + bytes(range(256)) * 64


def rounds(folder: Path, *words: str, **more: str) -> list[dict[str, Any]]:
    """What support/kill_points.py says of each place."""
    given = {name: value for name, value in environment().items() if not name.startswith("HF_")}
    given |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", **more}
    command = [sys.executable, "-m", "support.kill_points", str(folder), str(POINTS), *words]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def content(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_of_a_repository(tmp_path: Path) -> None:
    with running(SmallHub({"org/sharded": FILES})) as small:
        found = rounds(tmp_path, "hub", "org/sharded", HF_ENDPOINT=small.url)
    assert len(found) == POINTS
    assert all(each["killed"] for each in found)
    assert [content(each["second"]) for each in found] == [FILES] * POINTS
    whole = [each["cached"] for each in found if each["cached"] is not None]
    assert [content(path) for path in whole] == [FILES] * len(whole)
    assert len(whole) < POINTS / 2, "most places are before the end"
    large = {hashlib.sha256(data).hexdigest() for data in (ONE, TWO)}
    left = [path for path in tmp_path.rglob("*.incomplete") if path.name.partition(".")[0] in large]
    assert left == [], "each pull that is killed would take its part of the disk for ever"


def test_of_a_repository_whose_bytes_are_others(tmp_path: Path) -> None:
    """They have the right size, and are all there when the process is killed before it has hashed them."""
    files = {"config.json": FILES["config.json"], "model.safetensors": TWO}
    with running(SmallHub({"org/one": files}, spoiled={"model.safetensors": bytes(len(TWO))})) as small:
        found = rounds(tmp_path, "hub", "org/one", HF_ENDPOINT=small.url)
    assert [each["cached"] for each in found] == [None] * len(found)
    assert all("came with other bytes" in each["second"] for each in found)


PIP = """
    import pathlib, sys
    dest = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
    data = (pathlib.Path(__file__).parent / "toy.whl").read_bytes()
    (dest / "llm_toy-1.0-py3-none-any.whl").write_bytes(data)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="children die with their parent on Linux only")
def test_of_an_alias(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "toy.whl", "w") as wheel:
        wheel.writestr("llm_toy/toy.gguf", CONTENT)
    (tmp_path / "pip.py").write_text(textwrap.dedent(PIP))
    digest = hashlib.sha256(CONTENT).hexdigest()
    pip = [sys.executable, str(tmp_path / "pip.py")]
    found = rounds(tmp_path / "cache", "alias", digest, str(len(CONTENT)), *pip)
    assert len(found) >= 12
    assert all(each["killed"] for each in found)
    for each in found:
        assert Path(each["second"]).read_bytes() == CONTENT
        assert each["cached"] in (None, each["second"])
        assert {path.name for path in Path(each["second"]).parent.iterdir()} == {
            "toy.gguf", "toy.gguf.verified", ".lock"
        }  # fmt: skip
