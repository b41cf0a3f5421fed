"""TokenLogprobs: what is reported of one token after the other, in arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from octavo.engine.token_source import TokenDecoder
from octavo.params import Logprob, SampledToken


class _Columns:
    """Of all tokens: ids and log-probabilities, the token's own first; where each token's end; its rank."""

    def __init__(self) -> None:
        self.ids, self.values = array("i"), array("d")
        self.ends, self.ranks = array("q", [0]), array("i")


class TokenLogprobs(Sequence[Any]):
    """For each token {id: Logprob} of it, which comes first, and of the likeliest ones; or None.

    Reads as a list does, equals one, and is pickled as one. A dict is made when it is asked for: in arrays a
    member takes 12 bytes, as an object with its text some 200. A slice shows the same arrays, whose members
    never change: what is added later is not in it.

    Args:
        decode: the text of a token.
        length: of a prompt; its tokens of which nothing is known (yet) are None. None: as many as were added.
    """

    def __init__(self, decode: TokenDecoder, length: int | None = None) -> None:
        self._decode, self._columns = decode, _Columns()
        self._start, self._stop = 0, length

    def add(self, token: SampledToken) -> None:
        """The next token's."""
        columns = self._columns
        columns.ids.append(token.token_id)
        columns.values.append(token.logprob or 0.0)
        for token_id, logprob in token.top:
            columns.ids.append(token_id)
            columns.values.append(logprob)
        columns.ranks.append(token.rank)
        columns.ends.append(len(columns.ids))

    def put(self, start: int, tokens: Sequence[SampledToken]) -> None:
        """Those of the tokens at start and on. What is known already stays: computed anew it is the same."""
        columns = self._columns
        while len(columns.ranks) < start:
            columns.ranks.append(0)
            columns.ends.append(len(columns.ids))
        for token in tokens[len(columns.ranks) - start :]:
            self.add(token)

    @property
    def nbytes(self) -> int:
        """Of the arrays."""
        parts: Iterable[Any] = vars(self._columns).values()
        return sum(len(part) * part.itemsize for part in parts)

    def __len__(self) -> int:
        return (len(self._columns.ranks) if self._stop is None else self._stop) - self._start

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self._at(self._start + range(len(self))[index])
        start, stop, step = index.indices(len(self))
        if step != 1:
            return [self[i] for i in range(start, stop, step)]
        part = TokenLogprobs(self._decode)
        part._columns = self._columns
        part._start, part._stop = self._start + start, self._start + max(start, stop)
        return part

    def _at(self, place: int) -> dict[int, Logprob] | None:
        columns, decode = self._columns, self._decode
        if place >= len(columns.ranks) or columns.ends[place] == columns.ends[place + 1]:
            return None
        first, end = columns.ends[place], columns.ends[place + 1]
        own = columns.ids[first]
        found = {own: Logprob(columns.values[first], columns.ranks[place], decode(own))}
        for rank, i in enumerate(range(first + 1, end), 1):
            if columns.ids[i] != own:
                found[columns.ids[i]] = Logprob(columns.values[i], rank, decode(columns.ids[i]))
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, TokenLogprobs)) and list(self) == list(other)

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        return [*other, *self]

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> Any:
        return list, (list(self),)
