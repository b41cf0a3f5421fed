"""The rules that house.py counts by, on syntax trees: each function's docstring is one."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Trees = Mapping[str, ast.Module]
"""Syntax trees by the file's path below src/octavo."""
Def = ast.FunctionDef | ast.AsyncFunctionDef

ROOMS = ("engine/", "runtime/")
MANY = 8
LONG = 60
FEATURE, BESIDE, ASKED, ABSENT = "features", "beside", "asked", "absent"
KINDS = (FEATURE, BESIDE, ASKED, ABSENT)
SWITCHED = (FEATURE, BESIDE)

# Optional features of the pages and of the scheduler: attributes, and what a part of one is called.
# Those that are optional no more stay here: one that comes back counts as the feature that it is.
FEATURES = frozenset(["windows", "cross", "disk", "group", "sliding"])
# Attributes that are None by nature: not (yet) known or not there, whatever is switched on.
BY_NATURE = {
    "finish_reason",
    "stop_reason",
    "error",
    "failure",
    "_dead",
    "_settled",
    "_latest",
    "_loop",
    "metrics",
    "node",
    "cache_node",
    "parent",
    "seed",
    "vocab_size",
    "index",
    "key",
    "state",
    "cache_salt",
    "leader",
    "waits_for",
    "copy",
    "copied_page",
    "copied_sliding_page",
}
# What one request asked for or did not ask for: counted, and shown apart.
BY_REQUEST = {
    "logprobs",
    "prompt_logprobs",
    "matcher",
    "prompt",
    "embedding",
    "vector",
    "_detokenizer",
}
LISTED = FEATURES | BY_NATURE | BY_REQUEST
# Every other attribute is "beside": an optional part of another name. That number may not rise either, nor
# may the sum of both, or a feature could be renamed out of the first.


class Test(NamedTuple):
    """One truth or None test: where it stands, of which attribute, and how the expression reads."""

    file: str
    line: int
    column: int
    attribute: str
    kind: str
    text: str


class Function(NamedTuple):
    """A function and how many parameters it has."""

    parameters: int
    file: str
    line: int
    name: str


class Long(NamedTuple):
    """A function and how many lines it has."""

    lines: int
    file: str
    line: int
    name: str


class Changes(NamedTuple):
    """Lines of a diff, those of punctuation alone left out."""

    moved: int
    deleted: int
    written: int


def optional(annotation: ast.expr | None) -> bool:
    """The annotation is `X | None`, `Optional[X]`, or a string of one."""
    match annotation:
        case ast.Constant(value=None):
            return True
        case ast.Constant(value=str(text)):
            try:
                return optional(ast.parse(text, mode="eval").body)
            except SyntaxError:
                return False
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return optional(left) or optional(right)
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inner):
            return name == "Optional" or (name in ("Final", "ClassVar", "Annotated") and optional(inner))
    return False


def optional_attributes(trees: Trees) -> set[str]:
    """Names of attributes that may be None, of any class in engine and runtime.

    An attribute is one where the class or `self.x: T | None` says so, where a property returns such,
    where `self.x` is given a parameter or a local that is annotated so, or is given `y if c else None`.
    """
    return {
        name
        for _, tree in _rooms(trees)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for name in _optional_of(node)
    }


def none_tests(trees: Trees) -> list[Test]:
    """Truth and None tests in engine and runtime of an attribute that may be None.

    A test is a condition (if, while, assert, ternary, comprehension), an operand of not, and, or, or
    of bool(), and a comparison with None; `case None` counts too. Attributes are known by name alone.
    Counted as tests of an attribute are also tests of
    - a local name that was assigned from it (also through a ternary, and, or, `:=`) anywhere in the function;
    - a parameter `x: T | None` or `_x` of the same name, or of a type T that a feature's attribute has;
    - a property or a method without parameters that only returns such a test: a renamed test is one.
    An expression that is tested twice in one place (`not x.a and ...`) counts once.
    """
    names = optional_attributes(trees)
    feature_types = _feature_types(trees, names)
    names |= _aliases(trees, names)
    found: dict[tuple[str, int, int], Test] = {}
    for file, tree in _rooms(trees):
        for scope in _outermost(tree):
            local = _locals(scope, names, feature_types)
            for leaf in _tested(scope):
                attribute = _attribute(leaf, names, local)
                if attribute is not None:
                    text = ast.unparse(leaf)
                    test = Test(file, leaf.lineno, leaf.col_offset, attribute, _kind(attribute), text)
                    found[file, leaf.lineno, leaf.col_offset] = test
    return sorted(found.values())


def many_parameters(trees: Trees, at_least: int = MANY) -> list[Function]:
    """Functions of all of src/octavo with that many parameters; self, *args and **kwargs count one each.

    Kernels written in Triton are functions; lambdas and the __init__ that a dataclass makes are none.
    """
    found = [
        Function(parameter_count(node.args), file, node.lineno, node.name)
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, Def)
    ]
    return sorted(
        (f for f in found if f.parameters >= at_least), key=lambda f: (-f.parameters, f.file, f.line)
    )


def long_functions(trees: Trees, above: int = LONG) -> list[Long]:
    """Functions of more lines than that: from `def` to the end, decorators and the docstring left out."""
    found = []
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, Def):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if ast.get_docstring(node, clean=False) is not None:
                    said = node.body[0]
                    lines -= (said.end_lineno or said.lineno) - said.lineno + 1
                found.append(Long(lines, file, node.lineno, node.name))
    return sorted((f for f in found if f.lines > above), key=lambda f: (-f.lines, f.file, f.line))


def parameter_count(arguments: ast.arguments) -> int:
    named = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    return named + (arguments.vararg is not None) + (arguments.kwarg is not None)


def owned_fields(trees: Trees, name: str, folder: str) -> dict[str, list[str]]:
    """Fields of the class and of the objects that it owns: class -> names.

    A field is an annotated name in the class body (ClassVar excepted), or `self.x` that its methods
    assign. An object is owned where the field's annotation is a class of the same folder (no enumeration,
    and not `| None`), or where its default_factory or the call that a method gives it names one; what an
    owned one owns is followed too. What a class inherits from one of the folder counts as its own.
    """
    classes = {
        node.name: node
        for file, tree in trees.items()
        if file.startswith(folder)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not any("Enum" in ast.unparse(base) for base in node.bases)
    }
    found: dict[str, list[str]] = {}
    queue = [name]
    while queue:
        current = queue.pop(0)
        if current in found:
            continue
        fields, values = _fields(classes, current)
        found[current] = fields
        made = {n.id for value in values for n in ast.walk(value) if isinstance(n, ast.Name)}
        queue += sorted(made & (classes.keys() - found.keys()))
    return found


def stands_in(tree: ast.Module, word: str) -> bool:
    """The word is a name in the code (of a variable, an attribute, a parameter, a function, a module), or
    stands as a whole word in a string that is no docstring. In comments and docstrings it does not stand."""
    pattern = re.compile(rf"(?<![\w/]){re.escape(word)}(?!\w)")
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings and pattern.search(text):
                return True
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) if name == word:
                return True
            case ast.arg(arg=name) | ast.keyword(arg=name) | ast.ClassDef(name=name) if name == word:
                return True
            case ast.AsyncFunctionDef(name=name) if name == word:
                return True
            case ast.alias(name=name) if word in name.split("."):
                return True
            case ast.ImportFrom(module=str(name)) if word in name.split("."):
                return True
    return False


def moved_and_deleted(diff: Iterable[str]) -> Changes:
    """Of the lines of a diff without renames: moved, deleted, written.

    A line that is taken away in one place and added in another, equal but for its indentation, has
    moved, each as often as it does both. The rest of what was taken away is deleted, the rest of what
    was added is written. Lines without a letter or a digit count nowhere.
    """
    sides: dict[str, Counter[str]] = {"-": Counter(), "+": Counter()}
    for line in diff:
        if line[:1] in sides and not line.startswith(("--- ", "+++ ")):
            text = line[1:].strip()
            if any(character.isalnum() for character in text):
                sides[line[0]][text] += 1
    removed, added = sides["-"], sides["+"]
    return Changes((removed & added).total(), (removed - added).total(), (added - removed).total())


def _rooms(trees: Trees) -> Iterator[tuple[str, ast.Module]]:
    return ((file, tree) for file, tree in trees.items() if file.startswith(ROOMS))


def _kind(attribute: str) -> str:
    if attribute in FEATURES:
        return FEATURE
    if attribute in BY_NATURE:
        return ABSENT
    return ASKED if attribute in BY_REQUEST else BESIDE


def _parameters(function: Def) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _optional_of(cls: ast.ClassDef) -> Iterator[str]:
    for node in cls.body:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and optional(node.annotation)
        ):
            yield node.target.id
        elif isinstance(node, Def):
            if optional(node.returns) and _is_property(node):
                yield node.name
            yield from _given_none(node)


def _given_none(method: Def) -> Iterator[str]:
    """Attributes of self that the method declares as optional, or gives something optional."""
    known = {a.arg for a in _parameters(method) if optional(a.annotation)} | {
        node.target.id
        for node in ast.walk(method)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and optional(node.annotation)
    }
    for node in ast.walk(method):
        if isinstance(node, ast.AnnAssign) and optional(node.annotation) and _of_self(node.target):
            yield _of_self(node.target)
        elif isinstance(node, ast.Assign):
            for name, value in _pairs(node):
                if (isinstance(value, ast.Name) and value.id in known) or _may_be_none(value):
                    yield name


def _pairs(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """(attribute of self, value) of an assignment, tuples taken apart."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            both = zip(target.elts, node.value.elts, strict=False)
        else:
            both = zip([target], [node.value], strict=True)
        yield from ((_of_self(left), right) for left, right in both if _of_self(left))


def _of_self(target: ast.expr) -> str:
    match target:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""


def _may_be_none(value: ast.expr) -> bool:
    match value:
        case ast.IfExp(body=body, orelse=orelse):
            return any(isinstance(side, ast.Constant) and side.value is None for side in (body, orelse))
    return False


def _is_property(function: Def) -> bool:
    return any(
        ast.unparse(d).split(".")[-1] in ("property", "cached_property") for d in function.decorator_list
    )


def _feature_types(trees: Trees, names: set[str]) -> set[str]:
    """Classes that an optional feature's attribute holds: the X of its `X | None`."""
    types: set[str] = set()
    for _, tree in _rooms(trees):
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and optional(node.annotation):
                target = node.target
                name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
                if name in names and _kind(name) in SWITCHED:
                    types |= _classes(node.annotation)
            elif isinstance(node, Def):
                for argument in _parameters(node):
                    held = argument.arg in names and _kind(argument.arg) in SWITCHED
                    if held and argument.annotation is not None and optional(argument.annotation):
                        types |= _classes(argument.annotation)
    return types


def _classes(annotation: ast.expr) -> set[str]:
    """Names of classes of the house's own in an annotation: of CapWords, not of typing or collections."""
    plain = {"Callable", "Sequence", "Mapping", "Iterable", "Iterator", "Optional", "Any", "None", "Literal"}
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    found = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    return {name for name in found if name[:1].isupper() or name[:1] == "_"} - plain


def _aliases(trees: Trees, names: set[str]) -> set[str]:
    """Properties, and methods of self alone, that return nothing but a test of a feature."""
    found = set()
    for _, tree in _rooms(trees):
        for node in ast.walk(tree):
            if isinstance(node, Def) and parameter_count(node.args) == 1 and _returns_test(node, names):
                found.add(node.name)
    return found


def _returns_test(function: Def, names: set[str]) -> bool:
    body = [n for n in function.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
        return False
    value = body[0].value
    match value:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Call(func=ast.Name(id="bool")):
            leaves = list(_leaves_of(value))
            found = [_attribute(leaf, names, {}) for leaf in leaves]
            return len(leaves) == 1 and found[0] is not None and _kind(found[0]) in SWITCHED
    return False


def _outermost(tree: ast.Module) -> Iterator[ast.AST]:
    """Functions and methods that stand in no function, and what stands outside of all."""
    queue: list[ast.AST] = list(tree.body)
    while queue:
        node = queue.pop(0)
        if isinstance(node, ast.ClassDef):
            queue += node.body
        else:
            yield node


def _locals(scope: ast.AST, names: set[str], feature_types: set[str]) -> dict[str, str]:
    """Local name -> the attribute that a test of it is counted for."""
    found: dict[str, str] = {}
    for node in ast.walk(scope):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
            ):
                found.update((name, leaf) for leaf in _values(value, names))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found.update((name, leaf) for leaf in _values(value, names))
            case ast.arg(arg=name, annotation=ast.expr() as annotation) if optional(annotation):
                same = next((n for n in (name, f"_{name}", name.strip("_")) if n in names), None)
                if same is not None:
                    found[name] = same
                elif _classes(annotation) & feature_types:
                    found[name] = name
    return found


def _values(value: ast.expr, names: set[str]) -> Iterator[str]:
    """Attributes that the expression may come out as."""
    match value:
        case ast.Attribute(attr=name) if name in names:
            yield name
        case ast.IfExp(body=body, orelse=orelse):
            yield from _values(body, names)
            yield from _values(orelse, names)
        case ast.BoolOp(values=values):
            for operand in values:
                yield from _values(operand, names)
        case ast.NamedExpr(value=inner):
            yield from _values(inner, names)


def _attribute(leaf: ast.expr, names: set[str], local: Mapping[str, str]) -> str | None:
    match leaf:
        case ast.Attribute(attr=name) | ast.Call(func=ast.Attribute(attr=name), args=[]) if name in names:
            return name
        case ast.Name(id=name):
            return local.get(name)
    return None


def _tested(scope: ast.AST) -> Iterator[ast.expr]:
    """Expressions that the code tests for truth or for None."""
    for node in ast.walk(scope):
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
                yield from _leaves_of(test)
            case ast.comprehension(ifs=conditions):
                for condition in conditions:
                    yield from _leaves_of(condition)
            case ast.UnaryOp(op=ast.Not()) | ast.BoolOp() | ast.Compare():
                yield from _leaves_of(node)
            case ast.Call(func=ast.Name(id="bool"), args=[_]):
                yield from _leaves_of(node)
            case ast.Match(subject=subject, cases=cases) if any(_matches_none(c.pattern) for c in cases):
                yield from _leaves_of(subject)


def _leaves_of(node: ast.expr) -> Iterator[ast.expr]:
    """What a condition is decided by: through not, and, or, :=, bool() and comparisons with None."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _leaves_of(operand)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _leaves_of(value)
        case ast.NamedExpr(value=value):
            yield from _leaves_of(value)
        case ast.Call(func=ast.Name(id="bool"), args=[argument]):
            yield from _leaves_of(argument)
        case ast.Compare(left=left, comparators=others):
            if any(_is_none(side) for side in (left, *others)):
                for side in (left, *others):
                    if not _is_none(side):
                        yield from _leaves_of(side)
        case _:
            yield node


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _matches_none(pattern: ast.pattern) -> bool:
    match pattern:
        case ast.MatchSingleton(value=None):
            return True
        case ast.MatchOr(patterns=patterns):
            return any(_matches_none(one) for one in patterns)
    return False


@dataclass
class _Body:
    """Fields of one class, and the expressions that are given to them."""

    fields: list[str]
    values: list[ast.expr]


def _fields(classes: Mapping[str, ast.ClassDef], name: str) -> tuple[list[str], list[ast.expr]]:
    cls = classes[name]
    body = _Body([], [])
    for base in cls.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            inherited, values = _fields(classes, base.id)
            body.fields += inherited
            body.values += values
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if "ClassVar" not in ast.unparse(node.annotation):
                body.fields.append(node.target.id)
                body.values += [node.annotation] if isinstance(node.annotation, ast.Name) else []
                body.values += [node.value] if isinstance(node.value, ast.Call) else []
        elif isinstance(node, Def):
            for assigned in ast.walk(node):
                if isinstance(assigned, ast.AnnAssign) and _of_self(assigned.target):
                    body.fields.append(_of_self(assigned.target))
                    body.values += [assigned.value] if isinstance(assigned.value, ast.Call) else []
                elif isinstance(assigned, ast.Assign):
                    for field, value in _pairs(assigned):
                        body.fields.append(field)
                        body.values += [value] if isinstance(value, ast.Call) else []
    return list(dict.fromkeys(body.fields)), body.values
