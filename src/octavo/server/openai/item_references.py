"""Items of earlier answers that a Responses request names by their ids, instead of sending them back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.server.errors import ApiError
from octavo.server.openai.body import off_loop
from octavo.server.openai.fields import only_known
from octavo.server.store import ResponseStore, Stored

KEYS = {"type", "id"}


async def with_referenced(given: Any, store: ResponseStore, owner: str) -> Any:
    """`input` with what its references name in their places.

    Raises:
        InvalidRequestError: a reference without an id. ApiError: 404, nothing of this owner's has it.
    """
    if not isinstance(given, list) or not any(map(_refers, given)):
        return given
    holders: dict[int, Stored] = {}
    for i, item in enumerate(given):
        if _refers(item):
            holder = _holder(item, f"input[{i}]", store, owner)
            holders[id(holder)] = holder
    held = list(holders.values())
    return await off_loop(sum(len(each.body) for each in held), _replaced, given, held)


def _refers(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "item_reference"


def _holder(item: dict[str, Any], where: str, store: ResponseStore, owner: str) -> Stored:
    only_known(item, KEYS, where, "input")
    name = item.get("id")
    if not isinstance(name, str):
        raise InvalidRequestError(f"{where}: a reference has an id", "input")
    found = store.holding(owner, name)
    if found is None:
        message = f"{where}: there is no item {name[:100]!r} (any more): send the item itself"
        raise ApiError(404, message, "not_found_error", "input", "item_not_found")
    return found


def _replaced(given: Sequence[Any], held: Sequence[Stored]) -> list[Any]:
    """Each response is read once, however many of its items are named."""
    items = {item["id"]: item for each in held for item in json.loads(each.body)["output"]}
    return [items[item["id"]] if _refers(item) else item for item in given]
