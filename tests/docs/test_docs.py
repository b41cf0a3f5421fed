"""Documentation that is read by machines too: links lead somewhere, targets and flags exist, code runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*.md"),
        *ROOT.glob("benchmarks/*.md"),
    ]
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> Iterator[str]:
    """The fenced code blocks of one language."""
    for match in FENCED.finditer(page.read_text(encoding="utf-8")):
        if match[1] == language:
            yield match[2]


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them: lower case, words joined by hyphens, no other marks."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    plain = (
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    )
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in plain}


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    targets = [t.partition("#") for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
    files = [(page.parent / path if path else page, heading) for path, _, heading in targets]
    assert [path for path, _ in files if not path.exists()] == []
    pages = [(path, heading) for path, heading in files if heading and path.suffix == ".md"]
    assert [(path, heading) for path, heading in pages if heading not in anchors(path)] == []


def test_headings_are_found() -> None:
    assert {"status", "the-engine-in-depth"} <= anchors(ROOT / "docs" / "status.md")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    named = set(re.findall(r"(?:^    |`)make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= make_targets()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, name_of(page), "exec")


def test_serve_page_names_flags_that_exist() -> None:
    page = (ROOT / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
    command = [sys.executable, "-m", "octavo", "serve", "--help"]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"}
    ).stdout
    named = set(re.findall(r"--[a-z][a-z-]*", page)) - {"--help"}
    assert len(named) > 8
    assert named <= set(re.findall(r"--[a-z][a-z-]*", shown))


def test_derived_pages_are_current() -> None:
    """What is listed from registries is what the registries hold: `make docs` writes it."""
    command = [sys.executable, str(ROOT / "scripts" / "reference_pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_python_page_runs(smollm2_path: Path) -> None:
    """Its blocks one after another, as a reader would type them."""
    assert smollm2_path.exists()
    code = "\n".join(blocks(ROOT / "docs" / "how-to" / "python.md", "python"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) > 5


def test_the_readme_runs(smollm2_path: Path) -> None:
    assert smollm2_path.exists()
    first = next(blocks(ROOT / "README.md", "python"))
    done = subprocess.run([sys.executable, "-c", first], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120
