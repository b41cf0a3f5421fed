"""scripts/: rebuilding by content, and weighing an environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


class Once:
    """when_changed.py over a folder `in/` and a command that counts its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = folder / "in"
        self.inputs.mkdir()
        (self.inputs / "a.txt").write_text("one")
        (folder / "count.py").write_text(
            "import pathlib, sys\n"
            "runs = pathlib.Path('runs'); runs.write_text(runs.read_text() + 'x' if runs.exists() else 'x')\n"
            "pathlib.Path('made').write_text('made')\n"
            "sys.exit(int(pathlib.Path('status').read_text()) if pathlib.Path('status').exists() else 0)\n"
        )

    def __call__(self) -> int:
        arguments = ["stamps/s", "--makes", "made", "in", "--", sys.executable, "count.py"]
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / "when_changed.py"), *arguments], cwd=self.folder, check=False
        )
        return done.returncode

    @property
    def runs(self) -> int:
        path = self.folder / "runs"
        return len(path.read_text()) if path.exists() else 0


@pytest.fixture
def once(tmp_path: Path) -> Once:
    return Once(tmp_path)


def test_runs_once_and_not_again(once: Once) -> None:
    assert [once(), once()] == [0, 0]
    assert once.runs == 1


def test_touching_is_no_change(once: Once) -> None:
    once()
    (once.inputs / "a.txt").write_text("one")
    once()
    assert once.runs == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a.txt").write_text("two"),
        lambda folder: (folder / "deeper").mkdir() or (folder / "deeper" / "b.txt").write_text(""),
        lambda folder: (folder / "a.txt").unlink(),
        lambda folder: (folder / "a.txt").rename(folder / "c.txt"),
        lambda folder: (folder.parent / "made").unlink(),
    ],
    ids=["content", "new file", "removed", "renamed", "product missing"],
)
def test_each_change_runs_it_again(once: Once, change: object) -> None:
    assert callable(change)
    once()
    change(once.inputs)
    once()
    assert once.runs == 2


def test_failure_leaves_no_stamp(once: Once) -> None:
    (once.folder / "status").write_text("3")
    assert once() == 3
    (once.folder / "status").unlink()
    assert once() == 0
    assert once.runs == 2


def weigh(environment: Path, limit_mb: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "env_size.py"), "--limit-mb", str(limit_mb), str(environment)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    (site / "numpy").mkdir(parents=True)
    (site / "numpy" / "data").write_bytes(b"\0" * 2_000_000)
    return tmp_path


def test_weight_is_counted(environment: Path) -> None:
    assert weigh(environment, 3).returncode == 0
    heavy = weigh(environment, 1)
    assert heavy.returncode == 1
    assert "2 MB is above 1 MB" in heavy.stderr


def test_torch_is_found(environment: Path) -> None:
    (environment / "lib" / "python3.11" / "site-packages" / "torch-2.13.0.dist-info").mkdir()
    found = weigh(environment, 3)
    assert found.returncode == 1
    assert "must not need torch" in found.stderr
