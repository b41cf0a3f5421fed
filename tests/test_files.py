"""Files and functions stay short. Kernels alone may be long."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
KERNELS = "src/octavo/kernels/"
SYSTEMD = {"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}
FOLDERS = ("src", "scripts", "examples", "benchmarks")


def python_files() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", python_files(), ids=name_of)
def test_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if not name_of(path).startswith(KERNELS):
        assert len(text.splitlines()) <= MAX_FILE_LINES
    long = [
        f"{node.name} ({body_lines(node)} lines)"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and body_lines(node) > MAX_FUNCTION_LINES
    ]
    assert not long, ", ".join(long)


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body, docstring included; a signature that declares options may be long.

    A Triton kernel counts for nothing: what it calls must be a kernel too, and is inlined.
    """
    if any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list):
        return 0
    return (node.end_lineno or 0) - node.body[0].lineno + 1


SUPPRESSED = re.compile(r"#\s*(?:noqa|type: ignore)\b[^\n]*")
REASON = re.compile(r"#\s*(?:noqa: [A-Z0-9, ]+?|type: ignore\[[\w,-]+\])\s+(?:[-#(]\s*)\w")


@pytest.mark.parametrize("path", python_files(), ids=name_of)
def test_what_a_checker_is_told_to_ignore_has_its_reason(path: Path) -> None:
    bare = [told for told in SUPPRESSED.findall(path.read_text(encoding="utf-8")) if not REASON.match(told)]
    assert not bare, bare


def test_a_suppression_without_a_reason_is_noticed() -> None:
    for bare in ("# noqa", "# noqa: E731", "# noqa: E731 -", "# type: ignore", "# type: ignore[arg-type]"):
        assert not REASON.match(bare)
    for reasoned in ("# noqa: E731, B008 - why", "# noqa: E731 (why)", "# type: ignore[arg-type]  # why"):
        assert REASON.match(reasoned)


@pytest.mark.parametrize("path", python_files(), ids=name_of)
def test_nothing_left_behind(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    left = [word for word in ("TODO", "FIXME", "XXX", "raise NotImplementedError") if word in text]
    assert not left, f"finish it or refuse it by name: {left}"


def test_no_environment_variable_switches() -> None:
    """Configuration comes by argument. The cache's place follows the XDG convention, and the process
    that downloads is given the environment it needs; Triton is told by it whether to interpret. systemd tells
    its services there where to report. One variable holds an API key, which a command line would show to
    every user of the machine. A confined process gets of it what an interpreter needs to start. A shell that
    completes words says in some that it does so. Platforms tell an image its port there, and launched
    programs get what their user has. Nothing else reads it."""
    readers = {
        name_of(path)
        for path in (ROOT / "src").rglob("*.py")
        if "os.environ" in path.read_text(encoding="utf-8") or "getenv" in path.read_text(encoding="utf-8")
    }
    allowed = {"checkpoints/sources.py", "checkpoints/wheels.py", "kernels/cuda/launch.py"}
    named = {"server/keys.py": {"OCTAVO_API_KEY"}, "server/notify.py": SYSTEMD}
    named["cli/_app.py"] = {"_OCTAVO_COMPLETE", "COMP_WORDS", "_TYPER_COMPLETE_ARGS"}
    named["cli/launch.py"] = {"OCTAVO_API_KEY"}
    named["entrypoints/container.py"] = {"PORT", "XDG_CACHE_HOME"}
    named["confined/process.py"] = {"LC_ALL", "LD_LIBRARY_PATH", "OPENBLAS_NUM_THREADS"}
    assert readers <= {f"src/octavo/{name}" for name in allowed | set(named)}
    for name, variables in named.items():
        text = (ROOT / "src" / "octavo" / name).read_text(encoding="utf-8")
        assert set(re.findall(r'"(_?[A-Z]+_[A-Z_]+|PORT)"', text)) - {"COMMAND_CLASS"} == variables
