"""Words that had more than one meaning, and the rule by which house.py counts what is left of that.

A meaning is a file of src/octavo in which a module, a class or an alias of a type is called by the word and
nothing else: case, underscores at the ends and a plural's s do not count. A compound says its meaning itself
(StepPlan). Files that share a meaning count once. A metaphor counts where a function or a field is called so,
too, and has no meaning at all.

The words are those of a table. What is counted without one are names that classes of several files bear.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

PLAN_COMMAND = ("bench/plan.py", "cli/plan.py", "plan.py")
OPS = ("kernels/operations.py", "kernels/ops.py", "kernels/cuda/ops.py")
ROWS: dict[str, tuple[str, ...]] = {
    "entry": ("entry",),
    "part": ("part",),
    "plan": ("plan",),
    "slot": ("slot",),
    "row": ("row",),
    "local": ("local",),
    "scores": ("score",),
    "batch": ("batch",),
    "pipeline": ("pipeline",),
    "checks": ("check",),
    "memory": ("memory",),
    "operations": ("op", "operation"),
    "program": ("program",),
    "recorder": ("recorder",),
    "eager ops": ("eagerops", "eager_ops"),
    "work": ("work",),
    "stop matcher": ("stopmatcher", "stop_matcher"),
    "call": ("call",),
    "format": ("format",),
    "hypothesis": ("hypothesis",),
    "hub": ("hub",),
    "repository": ("repository",),
}
"""A word of the table -> how it is written."""
METAPHORS = ("doors", "house", "room", "books", "words", "gone", "passed", "seat", "hear", "deal")
"""middleware, engine, memory, state, tokenizer, released, unseen, slot, receive, assign."""
SAME: dict[str, dict[str, str]] = {
    "plan": dict.fromkeys(PLAN_COMMAND, "what octavo plan prints"),
    "operations": dict.fromkeys(OPS, "the interface between models and kernels"),
    "program": dict.fromkeys(("kernels/backend.py", "kernels/program.py"), "a recorded forward"),
    "format": dict.fromkeys(("quant/registry.py", "quant/formats/__init__.py"), "how numbers are stored"),
}
"""Files in which a word has the same meaning, by what it means."""
PLAIN = {
    ("words", "kernels/cuda/buckets.py"),  # of 32 bits
    ("words", "structured/grammar.py"),
}
"""Metaphors that are none there."""


class Meaning(NamedTuple):
    """A place where a word is a name."""

    word: str
    file: str
    line: int
    name: str
    meaning: str


def names(file: str, tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """(kind, line, name) of the module, its classes, aliases of types, functions and fields."""
    parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
    yield "type", 1, parts[-1]
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name, lineno=line):
                yield "type", line, name
                for each in node.body:
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        yield "other", each.lineno, each.target.id
            case ast.FunctionDef(name=name, lineno=line) | ast.AsyncFunctionDef(name=name, lineno=line):
                yield "other", line, name
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], lineno=line) if re.match(r"_?[A-Z][a-z]", name):
                yield "type", line, name


def folded(name: str) -> str:
    """The word that a name is: lower case, without underscores at its ends and a plural's s."""
    return re.sub(r"s$", "", re.sub(r"ies$", "y", name.strip("_").lower()))


def meanings(trees: Mapping[str, ast.Module]) -> dict[str, list[Meaning]]:
    """Word of the table -> places where it is a name, metaphors after the others."""
    forms = {form: word for word, written in ROWS.items() for form in written}
    metaphors = {folded(word): word for word in METAPHORS}
    found: dict[str, list[Meaning]] = {word: [] for word in (*ROWS, *METAPHORS)}
    for file, tree in trees.items():
        for kind, line, name in names(file, tree):
            word = forms.get(folded(name)) if kind == "type" else None
            if word is not None:
                meaning = SAME.get(word, {}).get(file, file)
                found[word].append(Meaning(word, file, line, name, meaning))
            metaphor = metaphors.get(folded(name))
            if metaphor is not None and (metaphor, file) not in PLAIN:
                found[metaphor].append(Meaning(metaphor, file, line, name, file))
    return found


def ambiguous(trees: Mapping[str, ast.Module]) -> dict[str, list[Meaning]]:
    """Words with more than one meaning, and metaphors with one."""
    return {
        word: places
        for word, places in meanings(trees).items()
        if len({place.meaning for place in places}) > (word not in METAPHORS)
    }


def doubled_classes(trees: Mapping[str, ast.Module]) -> dict[str, list[Meaning]]:
    """Names that classes of more than one file bear, underscores at the ends aside. Enclosed ones count."""
    found: dict[str, list[Meaning]] = {}
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                name = node.name.strip("_")
                found.setdefault(name, []).append(Meaning(name, file, node.lineno, node.name, file))
    return {name: places for name, places in found.items() if len({place.file for place in places}) > 1}
