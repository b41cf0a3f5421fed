"""docs/how-to/your-first-change.md, done as it says: its files and edits applied to a copy, its tests run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "your-first-change.md").read_text(encoding="utf-8")
STEP = re.compile(r"`((?:src|tests)/[\w/]+\.py)`:\n\n((?:```(?:python|diff)\n.*?\n```\n+)+)", re.DOTALL)
BLOCK = re.compile(r"```(python|diff)\n(.*?\n)```\n", re.DOTALL)
Edit = tuple[str, str, str]


def edits(page: str) -> list[Edit]:
    """(file, "python" or "diff", text) in the page's order."""
    return [(path, kind, text) for path, blocks in STEP.findall(page) for kind, text in BLOCK.findall(blocks)]


def apply(root: Path, edit: Edit) -> None:
    """Write a new file, or replace what a diff's old lines are, which stand there once, by its new ones."""
    path, kind, text = edit
    if kind == "python":
        assert not (root / path).exists(), f"{path} is no new file"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
        return
    old = "".join(line[1:] for line in text.splitlines(keepends=True) if line[0] in "- ")
    new = "".join(line[1:] for line in text.splitlines(keepends=True) if line[0] in "+ ")
    before = (root / path).read_text(encoding="utf-8")
    assert before.count(old) == 1, f"{path} does not hold this once:\n{old}"
    (root / path).write_text(before.replace(old, new), encoding="utf-8")


def copied(root: Path, changed: str) -> None:
    """src/octavo as links, but for one folder, which is copied and may be changed."""
    source, target = ROOT / "src" / "octavo", root / "src" / "octavo"
    target.mkdir(parents=True)
    for name in Path(changed).parts:
        for entry in source.iterdir():
            if entry.name not in (name, "__pycache__"):
                (target / entry.name).symlink_to(entry)
        source, target = source / name, target / name
        target.mkdir()
    target.rmdir()
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.parametrize(("left_out", "passes"), [("nothing", True), ("src", False)])
def test_the_page_works(tmp_path: Path, left_out: str, passes: bool) -> None:
    copied(tmp_path, "server/tools")
    for edit in edits(PAGE):
        if not edit[0].startswith(left_out):
            apply(tmp_path, edit)
    checkout = Path("tests", "support", "checkout")  # has a process import the sources that it stands beside
    shutil.copytree(ROOT / checkout, tmp_path / checkout)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / checkout)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "tests"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is passes, done.stdout[-3000:] + done.stderr[-1000:]
    assert "8 passed" in done.stdout or not passes


def test_it_touches_what_it_says() -> None:
    """A format is one file of about 18 lines, and one of tests."""
    new, tests = edits(PAGE)
    assert (new[0], tests[0]) == ("src/octavo/server/tools/tagged.py", "tests/server/tools/test_tagged.py")
    assert len(new[2].splitlines()) <= 20


def test_its_code_is_lint_free(tmp_path: Path) -> None:
    for path, kind, text in edits(PAGE):
        if kind == "python":
            command = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "-"]
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=ROOT)
            assert done.returncode == 0, path + done.stdout


def test_an_edit_that_does_not_fit_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="once"):
        apply(tmp_path, ("a.py", "diff", "-x = 1\n+x = 2\n"))
    with pytest.raises(AssertionError, match="no new file"):
        apply(tmp_path, ("a.py", "python", "x = 3\n"))
