"""How large a regular expression is once its counted repetitions are written out.

(a{1000}){1000} is twelve characters and a million states: compiling it takes minutes that no limit of
the grammar library bounds. So nested counts are multiplied here, before anything is compiled.
"""

from __future__ import annotations

import re

MAX_REPEATS = 20_000
"""Product of counted repetitions that stand inside each other."""
MAX_COUNT = 100_000
"""Of a repetition that holds no other."""

_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]?|\{(\d*)(?:,(\d*))?\}|.", re.DOTALL)


def repeats(regex: str) -> tuple[int, int]:
    """(the largest count by itself, the largest product of counts inside each other); 1: there is none."""
    groups = [1]  # per open group: the largest product in it so far
    last, single, nested = 1, 1, 1  # last: of the last atom
    for token in _TOKEN.finditer(regex):
        text = token[0]
        if text == "(":
            groups.append(1)
            last = 1
        elif text == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] = max(groups[-1], last)
        elif token[1] is not None and (token[1] or token[2]):
            count = max(_count(token[1]), _count(token[2]))
            if last > 1:
                nested = max(nested, last * count)
            else:
                single = max(single, count)
            last *= count
            groups[-1] = max(groups[-1], last)
        elif text not in "*+?":  # these repeat what they follow, without a count
            last = 1
    return single, nested


def _count(text: str | None) -> int:
    """A count, cut where it is absurd."""
    return int(text[:9]) if text else 1
