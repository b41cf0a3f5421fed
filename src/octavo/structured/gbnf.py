"""GBNF, llama.cpp's grammars, as Lark: llguidance's own reader, with what is not linear in it done here.

Its reader joins comments anew with each one, and looks through all rules again for each one that turns out to
be a terminal. Both grow with the square of the text, in Python: 200,000 characters take half a minute.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.params.structured import PARAM

# As llguidance tells Lark, without a second look at lines that it has passed; ?start and !start are Lark too.
_LARK = re.compile(r"^[^\S\n]*+(?:%llguidance\b|[?!]?start\s*+:)", re.MULTILINE)
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*+"?|\[(?:\\.|[^\]\\])*+\]?)|#[^\r\n]*+', re.DOTALL)
_HUMP = re.compile(r"([a-z])([A-Z])")


def as_lark(text: str) -> str:
    """A grammar in Lark or GBNF as Lark.

    Raises:
        InvalidRequestError: neither; or the reader's own exceptions, which may be any.
    """
    if _LARK.search(text):
        return text
    from llguidance.gbnf_to_lark import GrammarParser

    rules: dict[str, Any] = GrammarParser().parse(_COMMENT.sub(lambda found: found[1] or "", text))
    if "root" not in rules:
        raise InvalidRequestError("no rule is called root, and none start (Lark)", PARAM)
    for rule in rules.values():
        rule.alternatives = rule.alternatives.simplify()
    _resolve(rules)
    return "%llguidance {}\n\n" + "".join(f"{rule}\n" for rule in rules.values())


def _resolve(rules: dict[str, Any]) -> None:
    """Bind references to rules, find out which are terminals, and name them as Lark does."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    waits_for: dict[str, int] = dict.fromkeys(rules, 0)
    for name, rule in rules.items():
        for reference in _references(rule.alternatives):
            if reference.name not in rules:
                raise InvalidRequestError(f"there is no rule {reference.name[:60]!r}", PARAM)
            reference.target = rules[reference.name]
            users[reference.name].append(name)
            waits_for[name] += 1
    # A terminal holds terminals alone; what refers to itself or to the first rule never becomes one.
    found = deque(name for name, count in waits_for.items() if not count and name != "root")
    while found:
        name = found.popleft()
        rules[name].rule_is_terminal = True
        for user in users[name]:
            waits_for[user] -= 1
            if not waits_for[user] and user != "root":
                found.append(user)
    taken: dict[str, str] = {}
    for name, rule in rules.items():
        rule.name = "start" if name == "root" else _named(name, rule.rule_is_terminal)
        if rule.name in taken:
            raise InvalidRequestError(f"rules {taken[rule.name]!r} and {name!r} are one in Lark", PARAM)
        taken[rule.name] = name


def _named(name: str, terminal: bool) -> str:
    plain = _HUMP.sub(r"\1_\2", name.replace("-", "_"))
    return plain.upper() if terminal else plain.lower()


def _references(node: Any) -> Iterator[Any]:
    """Nodes that name a rule; without recursion, whose depth the text would choose."""
    open_nodes = [node]
    while open_nodes:
        each = open_nodes.pop()
        if hasattr(each, "target"):
            yield each
        open_nodes.extend(each.children())
