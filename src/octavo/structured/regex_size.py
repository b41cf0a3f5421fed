"""How large a regular expression is once its counted repetitions are written out.

(a{1000}){1000} is twelve characters and a million states: compiling it takes minutes that no limit of
the grammar library bounds. So nested counts are multiplied and those in a row are added up, before anything
is compiled. What is written otherwise but means the same counts the same: a{ 1000 }, and (?x)a {1000}.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from octavo.errors import InvalidRequestError
from octavo.params.structured import PARAM

MAX_REPEATS = 20_000
"""Product of counted repetitions that stand inside each other."""
MAX_COUNT = 100_000
"""Of a repetition that holds no other."""
MAX_WRITTEN = 200_000
"""Characters, classes and groups of all counted repetitions of a grammar, each as often as it is repeated."""

_TOKEN = re.compile(
    r"\\.|\[(?:\\.|[^\]\\])*+\]?|\{\s*+(\d*+)\s*+(?:,\s*+(\d*+)\s*+)?\}|\s++|\#[^\n]*+|.", re.DOTALL
)
_VERBOSE = re.compile(r"\(\?[a-z]*x")
"""Where a flag x may be, white space and comments mean nothing: a count behind them is of what was before."""


class Repeats(NamedTuple):
    """Of one expression; 1 and 0: nothing is counted in it.

    Attributes:
        single: the largest count of a repetition that holds none. nested: the largest product of counts
            inside each other. written: MAX_WRITTEN's sum.
    """

    single: int
    nested: int
    written: int


class Repetitions:
    """What all expressions of a grammar may repeat."""

    def __init__(self) -> None:
        self._written = 0

    def take(self, regex: str, where: str, flags: str = "") -> None:
        """Count an expression, before anything compiles it.

        Args:
            where: it stands, as errors name it. flags: as repeats() takes them.

        Raises:
            InvalidRequestError: it repeats too much, by itself or together with those before.
        """
        found = repeats(regex, flags)
        self._written += found.written
        if found.single > MAX_COUNT:
            said = f"{where} repeats {found.single} times; at most {MAX_COUNT} are taken"
        elif found.nested > MAX_REPEATS:
            said = (
                f"{where}: repetitions inside each other multiply to {found.nested}; "
                f"at most {MAX_REPEATS} are taken"
            )
        elif self._written > MAX_WRITTEN:
            said = (
                f"{where}: all repetitions written out have {self._written} characters; at most "
                f"{MAX_WRITTEN} are taken"
            )
        else:
            return
        raise InvalidRequestError(said, PARAM)


def repeats(regex: str, flags: str = "") -> Repeats:
    """What is counted in an expression; one pass over its text.

    Args:
        flags: that stand outside of it, as in Lark's /.../x.
    """
    if "{" not in regex:
        return Repeats(1, 1, 0)
    verbose = "x" in flags or _VERBOSE.search(regex) is not None
    groups = [(1, 0)]  # per open group: the largest product in it so far, and its size written out
    last, size = 1, 0  # of the last atom
    single, nested, written = 1, 1, 0
    for token in _TOKEN.finditer(regex):
        text = token[0]
        if text == "(":
            groups.append((1, 0))
            last, size = 1, 0
        elif text == ")" and len(groups) > 1:
            last, size = groups.pop()
            groups[-1] = (max(groups[-1][0], last), groups[-1][1] + size)
        elif token[1] is not None and (token[1] or token[2]):
            count = max(_count(token[1]), _count(token[2]))
            if last > 1:
                nested = max(nested, last * count)
            else:
                single = max(single, count)
            more = max(size, 1) * (count - 1)
            last, size = last * count, size + more
            written += more
            groups[-1] = (max(groups[-1][0], last), groups[-1][1] + more)
        elif verbose and (text.isspace() or text[0] == "#"):
            continue
        elif text not in "*+?":  # these repeat what they follow, without a count
            last, size = 1, 1
            blank = text.isspace() or text[0] == "#"
            groups[-1] = (groups[-1][0], groups[-1][1] + (len(text) if blank else 1))
    return Repeats(single, nested, written)


def _count(text: str | None) -> int:
    """A count, cut where it is absurd."""
    return int(text[:9]) if text else 1
