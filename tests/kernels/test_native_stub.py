"""_native.pyi says what the bindings in csrc/ say: their names, and their arguments' names or number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import octavo.kernels
from octavo.kernels.select import native_available

if not native_available():
    pytest.skip("the extension is not built", allow_module_level=True)

from octavo.kernels import _native

STUB = ast.parse(Path(octavo.kernels.__path__[0], "_native.pyi").read_text())


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in STUB.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and not part.decorator_list:
                    yield f"{node.name}.{part.name}", part


def bound(name: str) -> ast.arguments:
    """The arguments of a signature as nanobind writes it. What is in brackets (of an array) is no Python."""
    found: Any = _native
    for part in name.split("."):
        found = getattr(found, part)
    signature = str(found.__nb_signature__[0][0]).replace("\\", "")  # defaults are numbered: \0
    while (shorter := re.sub(r"\[[^\[\]]*\]", "()", signature)) != signature:
        signature = shorter
    (function,) = ast.parse(signature + ": ...").body
    assert isinstance(function, ast.FunctionDef)
    return function.args


def names(arguments: ast.arguments) -> tuple[list[str], list[str]]:
    return [a.arg for a in arguments.args], [a.arg for a in arguments.kwonlyargs]


@pytest.mark.parametrize(("name", "stub"), [pytest.param(*pair, id=pair[0]) for pair in functions()])
def test_arguments_have_the_names_of_the_bindings(name: str, stub: ast.FunctionDef) -> None:
    there = bound(name)
    if stub.args.posonlyargs:
        assert len(stub.args.posonlyargs) == len(there.args) + len(there.posonlyargs)
    else:
        assert names(stub.args) == names(there)


def test_what_is_bound_is_there_and_nothing_else() -> None:
    declared = {node.name: node for node in STUB.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert declared.keys() == {name for name in vars(_native) if name[0] != "_"}
    for name, node in declared.items():
        if isinstance(node, ast.ClassDef):
            parts = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            there = vars(getattr(_native, name))
            bound_parts = {part for part in there if part[0] != "_" or part == "__len__"}
            assert parts - {"__init__"} == bound_parts, name


def test_many_arguments_are_passed_by_name() -> None:
    """Neighbours of one type could change places without a word. Decoder.step is called once a step."""
    by_place = {"Decoder.step", "Sampler.sample"}
    many = {name for name, stub in functions() if len(stub.args.args) + len(stub.args.posonlyargs) > 4}
    assert many == by_place
