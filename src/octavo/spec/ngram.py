"""ngram: prompt lookup. What followed the last time that the last n tokens stood in this row's text.

Saxena 2023. The longest n from prompt_lookup_min to prompt_lookup_max that stood there decides, of equal ones
the latest. A place whose continuation was right goes on being followed: it has matched more than any n.

Each row has an index of its own text (text_index.py), so nothing is shared and nothing outlives a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from octavo.errors import InvalidRequestError
from octavo.params.drafts import Draft
from octavo.spec.base import Begin, Option, Registration, Wanted
from octavo.spec.text_index import (
    STEPS,
    UNREAD,
    Text,
    most_row_bytes,
    new_text,
    row_bytes,
    with_prediction,
)

MOST = "prompt_lookup_max"
LEAST = "prompt_lookup_min"
OPTIONS = {
    MOST: Option(5, 1, 32, "the longest n-gram that is looked up"),
    LEAST: Option(0, 0, 32, "the shortest one; 0: two tokens, or the longest where that is one"),
}


@dataclass(slots=True)
class _Lookup:
    """A row's text, and the place in it that its drafts come from.

    Attributes:
        place: 0: none. matched: tokens before it that are equal to the text's end.
        unread: generated tokens that the text lacks. A row that is seldom looked up enters many at a time.
    """

    text: Text
    place: int = 0
    matched: int = 0
    unread: list[int] = field(default_factory=list)


class NGram:
    """A base.Proposer. A token costs a few steps however long the text is: no lookup searches it."""

    def __init__(self, least: int, most: int, max_model_len: int) -> None:
        self._levels, self._longest, self._max_model_len = levels_of(least, most), most, max_model_len
        self._rows: dict[int, _Lookup] = {}

    @property
    def nbytes(self) -> int:
        return sum(row_bytes(row.text, row.unread) for row in self._rows.values())

    def start(self, row: int, begin: Begin) -> None:
        text = new_text(self._levels, self._max_model_len)
        text.extend(with_prediction(begin.tokens, begin.num_prompt_tokens, begin.prediction))
        self._rows[row] = _Lookup(text)

    def remove(self, row: int) -> None:
        self._rows.pop(row, None)

    def reset(self) -> None:
        pass  # each table is a request's own

    def observe(self, row: int, tokens: Sequence[int]) -> None:
        state = self._rows[row]
        state.unread += tokens
        if len(state.unread) >= UNREAD:
            self._read(state)

    def _read(self, state: _Lookup) -> None:
        """Enter what was generated since the last lookup, and follow the row's place along it."""
        state.place, state.matched = state.text.follow(state.place, state.matched, state.unread)
        state.unread.clear()

    def propose(self, most: Mapping[int, int]) -> dict[int, Draft]:
        drafts: dict[int, Draft] = {}
        for row, count in most.items():
            state = self._rows[row]
            self._read(state)
            if state.matched < self._longest:
                self._look_up(state)
            if state.place and (tokens := state.text.following(state.place, count)):
                drafts[row] = Draft.chain(tokens, state.matched.bit_length())
        return drafts

    def _look_up(self, state: _Lookup) -> None:
        """The place with the longest match becomes the row's; of equal ones that of now, else the latest."""
        text = state.text
        for place, matched in text.matches(text.keys, text.tail(self._longest), STEPS):
            if matched > state.matched:
                state.place, state.matched = place, matched
                if matched == self._longest:
                    return


def levels_of(least: int, most: int) -> tuple[int, ...]:
    """Lengths of runs that an index looks up: the longest first, and then whatever has the shortest."""
    return (least, most) if least < most else (least,)


def _bounds(wanted: Wanted) -> tuple[int, int]:
    """
    Raises:
        InvalidRequestError: the shortest n-gram is longer than the longest.
    """
    least, most = int(wanted.options[LEAST]), int(wanted.options[MOST])
    least = least or min(2, most)
    if least > most:
        raise InvalidRequestError(f"{LEAST} {least} is above {MOST} {most}", "speculative_config")
    return least, most


def _make(wanted: Wanted) -> NGram:
    least, most = _bounds(wanted)
    return NGram(least, most, wanted.max_model_len)


def _bound(wanted: Wanted) -> int:
    levels = levels_of(*_bounds(wanted))
    return wanted.max_num_seqs * most_row_bytes(wanted.max_model_len, len(levels))


PROPOSER = Registration("what followed in the prompt and the answer so far", _make, _bound, OPTIONS)
