"""How the work of a chat template grows with its input: read off its syntax tree, before anything runs.

A template comes with a model, and two loops of 99,999 turns or ten doublings of a text are as easily written
as a chat format. Most templates are plainly harmless: they go through the messages once and copy what they
find. Those are rendered in the server. All others are rendered in a confined process (see chat.py).

The proof knows few things and takes everything else for a danger. It counts loops inside each other and where
the values come from that are worked on:

    for message in messages            each message once:   size ** 1
        message.content | trim         of this turn's own:  size ** 1
        messages[0].content | trim     the same in each:    size ** 2
        for call in message.calls      of this turn's own:  size ** 1
        for other in messages          all in each:         size ** 2

Values grow by being joined and stored: a product of operands bounds them, and in a loop no text may grow from
one turn to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeGuard

from jinja2 import nodes

MAX_NODES = 5_000
MAX_GROWTH = 64
MAX_INDENT = 8
MAX_STATEMENTS = 20_000
"""That are looked at, a macro's at each of its calls."""
SMALL, KEPT = 1_000, -1
"""Where a value comes from that is small whatever the input: further in than any loop; and one that an
earlier turn of a loop may have left in a namespace."""

_CHEAP_FILTERS = frozenset({"length", "count", "default", "d", "first"})
_FILTERS = _CHEAP_FILTERS | frozenset(
    {
        "abs", "capitalize", "dictsort", "e", "escape", "float", "int", "items", "last", "list", "lower",
        "map", "reject", "rejectattr", "replace", "reverse", "safe", "select", "selectattr", "string",
        "title", "tojson", "trim", "upper", "join"
    }
)  # fmt: skip
_LISTED = frozenset(
    {
        "dictsort", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr"
    }
)  # fmt: skip
"""What list may follow: a text's characters would take 70 bytes each."""
_TESTS = frozenset(
    {
        "boolean", "callable", "defined", "eq", "equalto", "false", "float", "ge", "gt", "in", "integer",
        "iterable", "le", "lower", "lt", "mapping", "ne", "none", "number", "sameas", "sequence", "string",
        "true", "undefined", "upper", "==", "!=", ">", ">=", "<", "<="
    }
)  # fmt: skip
_METHODS = frozenset(
    {
        "capitalize", "count", "endswith", "find", "get", "index", "isalpha", "isdigit", "isspace", "items",
        "keys", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind",
        "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper",
        "values"
    }
)  # fmt: skip
_ODD = frozenset({"caller", "varargs", "kwargs"})
_LOOP = frozenset({"index", "index0", "first", "last", "length", "revindex", "revindex0", "depth", "depth0"})


class _UnprovenError(Exception):
    pass


def degree(template: nodes.Template) -> int | None:
    """The power of the input's size that bounds the work; None: nothing is proven."""
    if next(islice(template.find_all(nodes.Node), MAX_NODES, None), None) is not None:
        return None
    try:
        spaces = _namespaces(template)
        proof = _Proof(spaces, _numbers(template, spaces), _variables(template))
        proof.statements(template.body)
    except (_UnprovenError, RecursionError):
        return None
    return max(1, proof.power)


@dataclass(slots=True)
class _Turn:
    """One loop that is open: what its variables come from."""

    names: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Written:
    """What a macro has written so far: how many values, whence the worst, and how large one may be."""

    name: str
    pieces: int = 0
    origin: int = SMALL
    growth: int = 1


class _Proof:
    """Walks through a template.

    Values are known by their origin: the number of the loop whose turns each have their own; 0: the input.
    """

    def __init__(
        self,
        namespaces: frozenset[str],
        numbers: frozenset[tuple[str, str]],
        variables: frozenset[str] = frozenset(),
    ) -> None:
        self._namespaces, self._variables = namespaces, variables
        self._numbers = numbers  # fields of namespaces that only ever hold numbers
        self._turns = [_Turn()]
        self._all_in_each = 0  # loops that are open and go through more than their turn's own
        self._growth = 1  # of the value that is looked at, in sizes of the input
        self._grown: dict[str, int] = {}  # of variables, and of namespaces' fields
        self.power = 1
        self._macros: dict[str, nodes.Macro] = {}
        self._calls: list[_Written] = []  # the macros that are open, each within the one before
        self._left = MAX_STATEMENTS

    # Statements

    def statements(self, body: Iterable[nodes.Node]) -> None:
        for node in body:
            self._left -= 1
            if self._left < 0:
                raise _UnprovenError
            match node:
                case nodes.Output():
                    for each in node.nodes:
                        self._passing(self._shown, each)
                case nodes.If():
                    self._branches(node)
                case nodes.For():
                    self._loop(node)
                case nodes.Assign():
                    self._assign(node.target, node.node)
                case nodes.Scope():
                    self.statements(node.body)
                case nodes.ExprStmt():
                    self._passing(self._origin, node.node)
                case nodes.Macro() if node.name not in self._variables and node.name not in self._macros:
                    self._macros[node.name] = node
                case nodes.Continue() | nodes.Break():
                    pass
                case _:
                    raise _UnprovenError

    def _passing(self, walk: Callable[[nodes.Node], object], node: nodes.Node) -> None:
        """A value that nothing keeps: however it grows, the next one begins anew."""
        before, self._growth = self._growth, 1
        walk(node)
        if self._growth > MAX_GROWTH:
            raise _UnprovenError
        if self._calls:
            self._calls[-1].growth = max(self._calls[-1].growth, self._growth)
        self._growth = before

    def _branches(self, node: nodes.If) -> None:
        """A variable comes from wherever the worst of the branches has it from."""
        names, ends = self._turns[-1].names, []
        before = dict(names)
        for branch in (node, *node.elif_):
            self._passing(self._origin, branch.test)
            self.statements(branch.body)
            ends.append(dict(names))
            names.clear()
            names.update(before)
        self.statements(node.else_)
        ends.append(dict(names))
        names.clear()
        names.update(before)  # what a branch does not set is what it was
        names.update(
            {name: min(end[name] if name in end else self._name(name) for end in ends)
             for name in {name for end in ends for name in end}}
        )  # fmt: skip

    def _shown(self, node: nodes.Node) -> None:
        """What is written: joining costs no more than the output, which is bounded."""
        match node:
            case nodes.TemplateData():
                pass
            case nodes.Add():
                self._shown(node.left)
                self._shown(node.right)
            case nodes.Concat():
                for each in node.nodes:
                    self._shown(each)
            case nodes.CondExpr():
                self._origin(node.test)
                for branch in filter(None, (node.expr1, node.expr2)):
                    self._shown(branch)
            case _:
                origin = self._origin(node)
                if self._calls:  # of a macro it is a text that is put together, and handed on
                    self._work(origin)
                    self._calls[-1].pieces += 1
                    self._calls[-1].origin = min(self._calls[-1].origin, origin)

    def _loop(self, node: nodes.For) -> None:
        if node.recursive:
            raise _UnprovenError
        before, self._growth = self._growth, 1
        origin = self._stored(node.iter)
        own = len(self._turns) > 1 and origin >= len(self._turns) - 1
        self._all_in_each += not own
        targets = (
            [node.target] if isinstance(node.target, nodes.Name) else [*node.target.find_all(nodes.Name)]
        )
        each = KEPT if origin == KEPT else len(self._turns)
        self._grown.update({name.name: self._growth for name in targets} if self._growth > 1 else {})
        self._turns.append(_Turn({name.name: each for name in targets}))
        self.power = max(self.power, self._all_in_each)
        if node.test is not None:
            self._passing(self._origin, node.test)
        self.statements(node.body)
        self._turns.pop()
        self._all_in_each -= not own
        self._growth = before
        self.statements(node.else_)

    def _assign(self, target: nodes.Node, value: nodes.Node) -> None:
        inside = len(self._turns) > 1
        if isinstance(target, nodes.Name) and _is_namespace(value):
            for pair in value.kwargs:
                self._given(f"{target.name}.{pair.key}", pair.value)
            if value.args or value.dyn_args or value.dyn_kwargs:
                raise _UnprovenError
            return
        if isinstance(target, nodes.Name):
            origin = self._given(target.name, value)
            self._turns[-1].names[target.name] = origin if inside else min(origin, 0)
        elif isinstance(target, nodes.NSRef):
            self._given(f"{target.name}.{target.attr}", value, in_turns=inside)
        else:
            raise _UnprovenError

    def _given(self, name: str, value: nodes.Node, in_turns: bool = False) -> int:
        """The origin of what a variable gets; how large it may be is kept by its name."""
        before, self._growth = self._growth, 1
        origin = self._stored(value)
        if in_turns and origin == KEPT and (self._growth > 1 or self._joins(value)):
            raise _UnprovenError  # it may grow with every turn
        if self._growth > MAX_GROWTH:
            raise _UnprovenError
        self._grown[name] = max(self._growth, self._grown.get(name, 1))
        self._growth = before
        return origin

    def _joins(self, value: nodes.Node) -> bool:
        """Whether the value is more than a part of another one."""
        if self.is_number(value):
            return False
        grows = (nodes.Add, nodes.Concat, nodes.Filter, nodes.Call, nodes.Mul)
        return isinstance(value, grows) or any(value.find(kind) is not None for kind in grows)

    def _stored(self, node: nodes.Node) -> int:
        """The origin of what will be met again. Lists within lists could build a text of any length."""
        for literal in (node, *node.find_all((nodes.List, nodes.Dict, nodes.Tuple))):
            if isinstance(literal, (nodes.List, nodes.Dict, nodes.Tuple)) and literal.find(nodes.Name):
                raise _UnprovenError
        return self._origin(node)

    # Expressions

    def _origin(self, node: nodes.Node) -> int:
        match node:
            case nodes.Const() | nodes.TemplateData():
                return SMALL
            case nodes.Name():
                return self._name(node.name)
            case nodes.Getattr():
                return self._attribute(node)
            case nodes.Getitem():
                return self._item(node)
            case nodes.Filter():
                return self._filter(node)
            case nodes.Call():
                return self._call(node)
            case nodes.Test() | nodes.Compare() | nodes.Not():
                return self._truth(node)
            case nodes.And() | nodes.Or():
                return min(self._origin(node.left), self._origin(node.right))
            case nodes.Neg() | nodes.Pos():
                return self._origin(node.node)
            case nodes.CondExpr():
                self._origin(node.test)
                return self._least((node.expr1, node.expr2))
            case nodes.List() | nodes.Tuple():
                return self._least(node.items)
            case nodes.Dict():
                return self._least([each for pair in node.items for each in (pair.key, pair.value)])
            case nodes.Concat():
                return self._joined(node.nodes)
            case nodes.Add():
                return self._joined((node.left, node.right))
            case nodes.Sub() | nodes.Div() | nodes.FloorDiv():
                self._work(self._least((node.left, node.right)))
                return SMALL
            case nodes.Mod():  # of a text it is what % means to printf: as wide as the text says
                if self.is_number(node.left):
                    return self._least((node.left, node.right))
        raise _UnprovenError

    def _truth(self, node: nodes.Test | nodes.Compare | nodes.Not) -> int:
        """Whether something is so: as small as a value can be, whatever it was asked of."""
        before = self._growth
        match node:
            case nodes.Test():
                self._test(node)
            case nodes.Compare():
                self._compare(node)
            case _:
                self._origin(node.node)
        self._growth = before
        return SMALL

    def _least(self, parts: Iterable[nodes.Node | None]) -> int:
        return min((self._origin(part) for part in parts if part is not None), default=SMALL)

    def _work(self, origin: int) -> int:
        """Something is done in time that grows with a value."""
        shared = origin < len(self._turns) - 1
        self.power = max(self.power, self._all_in_each + shared)
        return origin

    def _joined(self, parts: Iterable[nodes.Node]) -> int:
        parts = list(parts)
        if any(isinstance(part, nodes.Const) and type(part.value) is int for part in parts):
            return self._least(parts)  # a sum: nothing else can be added to a number
        origins = [self._origin(part) for part in parts]
        self._growth *= max(1, sum(origin < SMALL for origin in origins))
        return self._work(min(origins, default=SMALL))

    def _name(self, name: str) -> int:
        if name in self._namespaces:
            raise _UnprovenError  # itself, and not a field of it: they may hold each other
        self._growth *= self._grown.get(name, 1)
        for turn in reversed(self._turns):
            if name in turn.names:
                return turn.names[name]
        if name == "loop":
            raise _UnprovenError  # itself, and not a field of it
        return 0

    def _attribute(self, node: nodes.Getattr) -> int:
        if isinstance(node.node, nodes.Name) and node.node.name == "loop":
            if node.attr in _LOOP:
                return SMALL
            if node.attr in ("previtem", "nextitem"):
                return len(self._turns) - 1
            raise _UnprovenError
        if isinstance(node.node, nodes.Name) and node.node.name in self._namespaces:
            self._growth *= self._grown.get(f"{node.node.name}.{node.attr}", 1)
            return KEPT
        return self._origin(node.node)

    def _item(self, node: nodes.Getitem) -> int:
        if isinstance(node.arg, nodes.Slice):
            self._least((node.arg.start, node.arg.stop, node.arg.step))
            return self._work(self._origin(node.node))
        origin, index = self._origin(node.node), node.arg
        self._origin(index)
        if isinstance(index, (nodes.Add, nodes.Sub)) and isinstance(index.right, nodes.Const):
            index = index.left
        # Another one in each turn, as messages[loop.index0 - 1] is.
        match index:
            case nodes.Getattr(node=nodes.Name(name="loop"), attr="index" | "index0"):
                return max(origin, len(self._turns) - 1)
        return origin

    def _compare(self, node: nodes.Compare) -> None:
        origins = [self._origin(node.expr), *(self._origin(each.expr) for each in node.ops)]
        contains = any(each.op in ("in", "notin") for each in node.ops)
        if contains or SMALL not in origins:  # beside something small no more than that is looked at
            self._work(min(origins))

    def _test(self, node: nodes.Test) -> None:
        if node.name not in _TESTS or node.dyn_args or node.dyn_kwargs or node.kwargs:
            raise _UnprovenError
        origin = self._least((node.node, *node.args))
        if node.name in ("in", "lower", "upper") or node.args:
            self._work(origin)

    def _filter(self, node: nodes.Filter) -> int:
        if node.node is None or node.name not in _FILTERS or node.dyn_args or node.dyn_kwargs:
            raise _UnprovenError
        origin = self._least((node.node, *node.args, *(pair.value for pair in node.kwargs)))
        given = _constants(node.args)
        named = {str(pair.key): _constants([pair.value]) for pair in node.kwargs}
        match node.name:
            case "tojson":
                if given is None or None in named.values():
                    raise _UnprovenError
                indent = (named.get("indent") or given or [None])[0]
                if indent is not None and (not isinstance(indent, int) or not 0 <= indent <= MAX_INDENT):
                    raise _UnprovenError
                self._growth *= 6  # a control character is written as six
            case "replace":
                self._replace(given if not named else None)
            case "join":
                self._joins_with(given if not named else None)
            case "list":
                inner = node.node
                called = isinstance(inner, nodes.Call) and isinstance(inner.node, nodes.Getattr)
                if not (called or (isinstance(inner, nodes.Filter) and inner.name in _LISTED)):
                    raise _UnprovenError
            case "map" | "select" | "reject" | "selectattr" | "rejectattr":
                self._each(node.name, given, named)
            case "default" | "d":
                return origin
        if node.name in ("length", "count"):
            return SMALL
        return origin if node.name in _CHEAP_FILTERS else self._work(origin)

    def _each(self, name: str, given: list[object] | None, named: Mapping[str, object]) -> None:
        """A filter of all members: by an attribute, or by filters and tests that change little."""
        if given is None or any(value is None for value in named.values()):
            raise _UnprovenError
        at = 1 if name in ("selectattr", "rejectattr") else 0
        known = _FILTERS - {"tojson", "replace", "join", "list", "map"} if name == "map" else _TESTS
        if len(given) > at and given[at] not in known:
            raise _UnprovenError
        if name == "map" and (len(given) > 1 or set(named) - {"attribute", "default"}):
            raise _UnprovenError

    def _call(self, node: nodes.Call) -> int:
        if node.dyn_args or node.dyn_kwargs:
            raise _UnprovenError
        given = _constants(node.args)
        if isinstance(node.node, nodes.Name):
            return self._function(node.node.name, node, given)
        if not isinstance(node.node, nodes.Getattr) or node.kwargs:
            raise _UnprovenError
        method, of = node.node.attr, node.node.node
        if method == "join" and isinstance(of, nodes.Const) and isinstance(of.value, str):
            self._joins_with([of.value])
            return self._work(self._least(node.args))
        if method not in _METHODS:
            raise _UnprovenError
        if method == "replace":
            self._replace(given)
        return self._work(self._least((of, *node.args)))

    def _function(self, name: str, node: nodes.Call, given: list[object] | None) -> int:
        if name in self._macros:
            return self._macro(self._macros[name], node)
        for turn in self._turns:
            if name in turn.names:
                raise _UnprovenError
        match name:
            case "raise_exception" if not node.kwargs:
                return self._work(self._least(node.args))
            case "strftime_now" if given and isinstance(given[0], str):
                if any(character.isdigit() for character in given[0]):  # the width of a field
                    raise _UnprovenError
                return SMALL
        raise _UnprovenError

    def _macro(self, macro: nodes.Macro, call: nodes.Call) -> int:
        """What a macro writes, as if it stood where it is called; one that calls itself is a loop."""
        names = [argument.name for argument in macro.args]
        given = dict(zip(names, call.args, strict=False)) | {str(p.key): p.value for p in call.kwargs}
        odd = any(name.name in _ODD for name in macro.find_all(nodes.Name))
        if odd or len(call.args) > len(names) or set(given) - set(names):
            raise _UnprovenError
        if any(each.name == macro.name for each in self._calls):
            raise _UnprovenError
        if not all(isinstance(default, nodes.Const) for default in macro.defaults):
            raise _UnprovenError
        outside, self._grown = self._grown, {k: v for k, v in self._grown.items() if k not in names}
        parameters = dict.fromkeys(names, SMALL)
        inside: dict[str, int] = {}
        for name, value in given.items():
            before, self._growth, self._grown, own = self._growth, 1, outside, self._grown
            parameters[name], inside[name] = self._stored(value), self._growth
            self._growth, self._grown = before, own
        self._grown |= inside
        seen = [turn.names for turn in self._turns]
        for turn in self._turns[1:]:
            turn.names = {}  # of the loops that it is called in it sees no variable
        self._turns[-1].names = self._turns[-1].names | parameters
        self._calls.append(written := _Written(macro.name))
        self.statements(macro.body)
        self._calls.pop()
        for turn, names_before in zip(self._turns, seen, strict=True):
            turn.names = names_before
        outside |= {k: max(v, outside.get(k, 1)) for k, v in self._grown.items() if "." in k}
        self._grown = outside
        self._growth *= max(1, written.pieces) * written.growth
        return written.origin

    def _replace(self, given: list[object] | None) -> None:
        match given:
            case [str() as old, str() as new, *_]:
                self._growth *= max(1, -(-len(new) // len(old)) if old else len(new) + 1)
            case _:
                raise _UnprovenError

    def _joins_with(self, given: list[object] | None) -> None:
        match given:
            case []:
                pass
            case [str() as between]:
                self._growth *= 1 + len(between)
            case _:
                raise _UnprovenError
        if self._growth > MAX_GROWTH:
            raise _UnprovenError

    def is_number(self, node: nodes.Node) -> bool:
        match node:
            case nodes.Const():
                return isinstance(node.value, (int, float))
            case nodes.Getattr(node=nodes.Name(name="loop")):
                return node.attr in _LOOP
            case nodes.Getattr(node=nodes.Name(name=name)):
                return (name, node.attr) in self._numbers
            case nodes.Filter():  # int may be told what else to give
                return node.name in ("length", "count", "int") and not (node.args or node.kwargs)
            case nodes.Add() | nodes.Sub():
                return self.is_number(node.left) or self.is_number(node.right)
        return False


def _constants(parts: Iterable[nodes.Node]) -> list[object] | None:
    """The values, if all are constants; a constant list counts as a name of nothing."""
    values: list[object] = []
    for part in parts:
        if not isinstance(part, nodes.Const):
            return None
        values.append(part.value)
    return values


def _variables(template: nodes.Template) -> frozenset[str]:
    """Names that something is assigned to, somewhere."""
    return frozenset(name.name for name in template.find_all(nodes.Name) if name.ctx == "store")


def _namespaces(template: nodes.Template) -> frozenset[str]:
    """Names of variables that hold a namespace, somewhere."""
    return frozenset(
        assign.target.name
        for assign in template.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name) and _is_namespace(assign.node)
    )


def _numbers(template: nodes.Template, namespaces: frozenset[str]) -> frozenset[tuple[str, str]]:
    """(namespace, field) of those that hold nothing but numbers.

    The namespace must be made where nothing decides about it: else the name may be the caller's.
    """
    made = set[str]()
    for each in template.body:
        if (
            isinstance(each, nodes.Assign)
            and isinstance(each.target, nodes.Name)
            and _is_namespace(each.node)
        ):
            made.add(each.target.name)
    values: dict[tuple[str, str], list[nodes.Node]] = {}
    for assign in template.find_all(nodes.Assign):
        target = assign.target
        if isinstance(target, nodes.NSRef):
            values.setdefault((target.name, target.attr), []).append(assign.node)
        elif isinstance(target, nodes.Name) and _is_namespace(assign.node):
            for pair in assign.node.kwargs:
                values.setdefault((target.name, pair.key), []).append(pair.value)
        elif isinstance(target, nodes.Name):
            made.discard(target.name)
    found = frozenset(each for each in values if each[0] in made)
    while True:
        proof = _Proof(namespaces, found)
        left = frozenset(each for each in found if all(map(proof.is_number, values[each])))
        if left == found:
            return found
        found = left


def _is_namespace(node: nodes.Node) -> TypeGuard[nodes.Call]:
    return (
        isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name == "namespace"
    )
