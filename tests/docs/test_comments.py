"""Comments and docstrings name modules, classes and files that exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "octavo"
DOTTED = re.compile(r"(?<![\w./`\"'@-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(r"(?<![\w./*{}<>-])(?:[\w-]+/)*[\w-]+\.(?:py|cpp|inl|h|md|sh)\b")
FOLDERS = (SOURCE, ROOT, ROOT / "csrc", ROOT / "docs")
"""What a file is named from, besides the folder of whoever names it."""
BESIDE = ("tests", "scripts", "benchmarks", "examples")
VALUES = {"config", "params", "tokenizer", "spec"}
"""Rooms by whose names values go, too: `config.json`, `params.n`."""
FOREIGN = {
    "docs/gguf.md",  # of ggml, as those below are of other projects
    "encoder.py",
    "functional.py",
    "ggml-common.h",
    "ggml.h",
    "qlinear_cuda.py",
    "quant_args.py",
    "sysexits.h",
    "llama.cpp",
    "ik_llama.cpp",
}


def python_says(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of comments and of docstrings, those of fields among them."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(said)), lineno=line):
                yield line, said
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def native_says(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of a file's comments of one line."""
    for number, line in enumerate(text.splitlines(), 1):
        if (found := re.search(r"//(.*)", line)) is not None:
            yield number, found[1]


@cache
def defines(path: Path) -> frozenset[str]:
    """What can be named of a module: its own names, imported ones, and the members of its classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                names.update(alias.asname or alias.name for alias in aliases)
    return frozenset(names)


@cache
def known(source: Path) -> frozenset[str]:
    return frozenset().union(*map(defines, source.rglob("*.py")))


def follow(parts: list[str], folder: Path, source: Path) -> bool | None:
    """Whether dotted parts lead somewhere from a folder; None: they begin with nothing of it."""
    path, first = folder, True
    for index, part in enumerate(parts):
        if (path / part).is_dir() and any((path / part).glob("*.py")):
            path, first = path / part, False
            continue
        module = path / f"{part}.py"
        if module.is_file():
            # A value may go by a module's name: `request.kv`. What begins with a capital is the module's.
            return all(
                name in (defines(module) if name[0].isupper() else known(source) | defines(module))
                for name in parts[index + 1 :]
            )
        if first:
            return None
        initial = path / "__init__.py"
        if part in (defines(initial) if initial.is_file() else ()):
            return True
        return parts[0] in VALUES and index == 1 and part[0].islower()
    return True


def stale_names(said: str, file: Path, source: Path = SOURCE) -> list[str]:
    """Dotted names in a text, written in this file, that lead nowhere."""
    found = []
    for name in DOTTED.findall(said):
        parts = name.split(".")
        if parts[-1] in ("py", "json") or parts[0] == file.stem:
            continue  # (cli/_engines/vllm.py speaks of vllm's modules)
        whole = parts[0] == "octavo"
        starts = [source] if whole else [source, file.parent]
        led = [follow(parts[1:] if whole else parts, start, source) for start in starts]
        if True not in led and False in led:
            found.append(name)
    return found


def stale_files(said: str, folder: Path, folders: tuple[Path, ...] = FOLDERS) -> list[str]:
    """Files in a text that are not there: with a folder in front that one's, a bare name anybody's.

    A path that begins with no folder of these is another project's.
    """
    found = []
    for name in FILE.findall(said):
        first, _, rest = name.partition("/")
        places = (folder, *folders)
        if name in FOREIGN or any((place / name).is_file() for place in places):
            continue
        if any((place / first).is_dir() for place in places) if rest else name not in bare(folders):
            found.append(name)
    return found


@cache
def bare(folders: tuple[Path, ...]) -> frozenset[str]:
    """Names of all files below these folders, and of those beside the root's."""
    whole = [*(folder for folder in folders if folder != ROOT), *(ROOT / name for name in BESIDE)]
    return frozenset(path.name for folder in whole for path in folder.rglob("*.*")) | {
        path.name for path in ROOT.glob("*.*")
    }


def test_what_python_names_exists() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for folder in (SOURCE, *(ROOT / name for name in BESIDE))
        for path in sorted(folder.rglob("*.py"))
        for line, said in python_says(path.read_text(encoding="utf-8"))
        for name in (*stale_names(said, path), *stale_files(said, path.parent))
    ]
    assert not wrong, "\n".join(wrong)


def test_what_native_code_names_exists() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "csrc").rglob("*.*"))
        if path.suffix in (".cpp", ".h", ".inl")
        for line, said in native_says(path.read_text(encoding="utf-8"))
        for name in stale_files(said, path.parent)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_judges_can_acquit_and_convict(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    text = "class Held:\n    size: int\n    def take(self): ...\ndef make(): ...\n"
    (room / "pages.py").write_text(text, encoding="utf-8")
    (room / "__init__.py").write_text("from room.pages import make\n", encoding="utf-8")
    here = room / "other.py"
    good = ["room.pages", "room.make", "room.pages.Held.take", "pages.Held", "pages.size"]
    good += ["self.pages", "a.b", "config.json", "e.g."]
    assert stale_names(", ".join(good), here, tmp_path) == []
    wrong = ["room.page", "room.pages.Kept", "pages.Kept", "pages.kept", "room.pages.Held.kept", "room.Held"]
    assert stale_names(", ".join(wrong), here, tmp_path) == wrong
    assert stale_names("pages.Held", tmp_path / "elsewhere.py", tmp_path) == [], "of another project"
    folders = (tmp_path,)
    assert (
        stale_files("room/pages.py, pages.py, modules/gemm.py, *_op.cpp, test_house.py", room, folders) == []
    )
    assert stale_files("room/page.py, page.py and a.h", room, folders) == ["room/page.py", "page.py", "a.h"]


def test_what_is_read() -> None:
    code = 'x = "no comment"  # one\nclass A:\n    """two"""\n    y: int = 1\n    """three"""\n'
    assert sorted(said for _, said in python_says(code)) == ["# one", "three", "two"]
    assert list(native_says("int x; // one\n// two")) == [(1, " one"), (2, " two")]
