"""Counts the names, lists and objects of a large body before anybody parses it.

A parser holds the interpreter's lock while it makes objects: 0.2 s for the different names that fit into
4 MiB, and 300 MB for as many empty lists. Numbers and texts cost a tenth of that.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from concurrent.futures import ThreadPoolExecutor

from octavo.server.errors import ApiError

SMALL = 20_000
"""Bytes of a body that is not looked through."""
MOST = 200_000
"""Names, lists and objects. As many messages as are taken have some 196,609."""
_ONE = ThreadPoolExecutor(1, "bodies-inside")  # the loop waits behind every thread that wants its lock
_INSIDE = re.compile(
    rb'(?:[^"\[{]*+"[^"\\]*+(?:\\.[^"\\]*+)*+"(?!\s*+:)){0,500}+'  # texts: 500 take 50 microseconds
    rb'[^"\[{]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"\s*+(:)?)?+|([\[{]))?+',
    re.DOTALL,
)
"""Texts, then a name, or the beginning of a list or an object (a group each). It never goes back."""


async def check_inside(body: bytes) -> None:
    """Refuse a body, of more than SMALL bytes, that takes too long to parse.

    Raises:
        ApiError: 400, it holds more than MOST names, lists and objects.
    """
    if await asyncio.get_running_loop().run_in_executor(_ONE, body_holds_more, body, MOST):
        raise ApiError(400, f"the body holds more than {MOST} names and lists", code="invalid_json")


def body_holds_more(body: bytes, most: int) -> bool:
    """Whether JSON has more than so many names, lists and objects.

    They are looked for one by one, so that other threads run between; and only where there could be so many.
    """
    if body.count(b'"') // 2 + body.count(b"[") + body.count(b"{") <= most:
        return False
    found = (each for each in _INSIDE.finditer(body) if each.lastindex)
    return next(itertools.islice(found, most, None), None) is not None
