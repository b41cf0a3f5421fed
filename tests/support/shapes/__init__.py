"""Requests in the shapes that clients document, each with the status that the client's own service documents.

A table is written by hand from a client's typed parameters and its service's reference, never recorded from
Octavo. Its rows say what differs from a base request; reading.py has the types that answers must pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ABSENT: Any = object()
"""As a row's value: the base request without this member."""
MODEL = "agent"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """One client's requests to one path.

    Attributes:
        client: whose parameters they are.
        reads: which of reading.READERS its answers must pass.
        base: a request that is answered.
        taken: rows that the service answers with 200, whole and, where the path streams, streamed.
        refused: (row, status, the field that the error names; None where it names none).
        otherwise: (row, the documented status, Octavo's, why it is another).
        params: the client's own type of a request, which those with 200 must fit; None where it has none.
        beside: members that the client sends beside its typed ones (extra_body).
        headers: that the client sends.
    """

    client: str
    path: str
    reads: str
    base: Fields
    taken: Sequence[Fields]
    refused: Sequence[tuple[Fields, int, str | None]] = ()
    otherwise: Sequence[tuple[Fields, int, int, str]] = ()
    params: Any = None
    beside: frozenset[str] = frozenset()
    streams: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self, fields: Fields) -> Fields:
        """The request of a row."""
        return {name: value for name, value in {**self.base, **fields}.items() if value is not ABSENT}

    @property
    def rows(self) -> list[Fields]:
        refused = [row for row, _, _ in self.refused]
        return [*self.taken, *refused, *(row for row, _, _, _ in self.otherwise)]
