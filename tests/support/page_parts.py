"""Groups of a KV manager by their kind, for tests that look into one."""

from __future__ import annotations

from typing import TypeVar

from octavo.engine.kv_manager import KVManager
from octavo.engine.page_group import PageGroup

G = TypeVar("G", bound=PageGroup)


def part(kv: KVManager, kind: type[G]) -> G | None:
    """The manager's group of this kind, if it has one."""
    return next((group for group in kv.groups if isinstance(group, kind)), None)


def the(kv: KVManager, kind: type[G]) -> G:
    """The same, which it has."""
    found = part(kv, kind)
    assert found is not None
    return found
