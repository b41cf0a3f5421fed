"""Pythonic (Llama 3.2 and 4): the whole answer is a list, [f(a=1), g(b="x")]; Llama 4 has marks around it."""

from __future__ import annotations

import ast
import json

from octavo.server.tools.base import ToolCall, ToolFormat, Tools, all_or_none, dumps

BEGIN, END = "<|python_start|>", "<|python_end|>"


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    text = block.strip()
    if text.startswith(BEGIN):
        text = text.removeprefix(BEGIN).removesuffix(END).strip()
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return all_or_none([_call(item) for item in tree.elts]) if isinstance(tree, ast.List) else None


def _call(node: ast.expr) -> ToolCall | None:
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


FORMAT = ToolFormat(
    "pythonic", (BEGIN, "["), None, parse, ("[func_name1(",), only_first=True, anywhere=(BEGIN,),
    keep_start=True, special=True, rank=3,
)  # fmt: skip
