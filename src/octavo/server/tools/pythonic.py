"""Pythonic (Llama 3.2 and 4): the whole answer is a list, [f(a=1), g(b="x")]; Llama 4 has marks around it."""

from __future__ import annotations

import ast
import json
import re

from octavo.server.tools.base import ToolCall, ToolFormat, Tools, all_or_none, dumps
from octavo.server.tools.literals import STRING, written

BEGIN, END = "<|python_start|>", "<|python_end|>"
_OPENED = re.compile(r"\s*+([^\W\d][\w.]*+)\s*+\(")
_PARTS = re.compile(rf"({STRING})|[][(){{}},]", re.DOTALL)
_JOINT = re.compile(r"\s*+,")
_ARGUMENT = re.compile(r"\s*+(?:([^\W\d]\w*+)\s*+(?:=(.*))?)?", re.DOTALL)


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    text = block.strip()
    if text.startswith(BEGIN):
        text = text.removeprefix(BEGIN).removesuffix(END).strip()
    tree = _expression(text)
    return all_or_none([_call(item) for item in tree.elts]) if isinstance(tree, ast.List) else None


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr | None) -> ToolCall | None:
    if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
        return None
    try:
        name = ast.unparse(node.func)
        arguments = {str(k.arg): ast.literal_eval(_json_names(k.value)) for k in node.keywords}
        return ToolCall(name, dumps(arguments))
    except (ValueError, TypeError, RecursionError, json.JSONDecodeError):
        return None  # not a literal, or one that JSON does not know


class _Names(ast.NodeTransformer):
    """true, false and null, which models write where they mean Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        known = {"true": True, "false": False, "null": None}
        return ast.Constant(known[node.id]) if node.id in known else node


def _json_names(node: ast.expr) -> ast.expr:
    changed: ast.expr = _Names().visit(node)
    return changed


def begun(block: str, tools: Tools) -> list[ToolCall] | None:
    text = block.lstrip().removeprefix(BEGIN).lstrip()
    if text[:1] != "[":
        return None if text else []
    calls: list[ToolCall] = []
    at = 1
    while (opened := _OPENED.match(text, at)) is not None:
        comma, at = _ends(text, opened.end())
        if at < 0:
            last = _begun(text, opened, comma)
            return None if last is None else [*calls, last]
        call = _call(_expression(text[opened.start(1) : at]))
        if call is None:
            return None
        calls.append(call)
        joint = _JOINT.match(text, at)
        if joint is None:
            rest = text[at:].strip()
            return calls if not rest or (rest[0] == "]" and END.startswith(rest[1:].strip())) else None
        at = joint.end()
    rest = text[at:].strip()  # nothing yet, or a name that may go on
    return calls if any(tool.startswith(rest) for tool in tools) else None


def _ends(text: str, at: int) -> tuple[int, int]:
    """(the last comma between arguments from here, where the call ends); negative: nowhere."""
    comma, depth = -1, 0
    for found in _PARTS.finditer(text, at):
        mark = found[0]
        if mark == "," and not depth:
            comma = found.start()
        elif mark in ("(", "[", "{"):
            depth += 1
        elif mark in (")", "]", "}"):
            if not depth:
                return comma, found.end()
            depth -= 1
    return comma, -1


def _begun(text: str, opened: re.Match[str], comma: int) -> ToolCall | None:
    """The call that is cut: whole arguments, and of the last one what can be said."""
    begin = opened.end()
    whole = _call(_expression(f"{opened[1]}({text[begin : max(begin, comma)]})"))
    last = _ARGUMENT.fullmatch(text, comma + 1 if comma >= 0 else begin)
    if whole is None or last is None:
        return None
    said = whole.arguments[:-1]
    if last[2] is not None:
        said += f"{', ' * (comma >= 0)}{dumps(last[1])}: {written(last[2])}"
    return ToolCall(opened[1], said, cut=True)


FORMAT = ToolFormat(
    "pythonic", (BEGIN, "["), None, parse, ("[func_name1(",), begun, only_first=True, anywhere=(BEGIN,),
    keep_start=True, special=True, rank=3,
)  # fmt: skip
