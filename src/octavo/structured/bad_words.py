"""bad_words: texts that an answer never holds, however it is cut into tokens.

Let w be a bad word in UTF-8. A token t completes it if the output so far ends with w[:i] and t begins
with w[i:] (1 <= i < len(w)), or if t holds w itself. Words that begin and end inside one token are
looked up once; for the others the vocabulary lies sorted, so what begins with w[i:] is one range of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from octavo.sampling.constraints import mask_of
from octavo.sampling.sampling_batch import U32


class Vocabulary:
    """Bytes of every token, sorted. Made once per model.

    Args:
        tokens: by id; b"" for tokens without text (control tokens too: they are not in the answer).
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self._ids = sorted((i for i, token in enumerate(tokens) if token), key=tokens.__getitem__)
        self._sorted = [tokens[i] for i in self._ids]

    def holding(self, word: bytes) -> list[int]:
        """Tokens that hold the word."""
        return [i for i, token in enumerate(self.tokens) if word in token]

    def beginning(self, part: bytes) -> list[int]:
        """Tokens that begin with the part, which is not empty."""
        low = bisect_left(self._sorted, part)
        high = low
        while high < len(self._sorted) and self._sorted[high].startswith(part):
            high += 1
        return self._ids[low:high]


class BadWords:
    """A constraint (see sampling.constraints.Constraint)."""

    def __init__(self, words: Sequence[str], vocabulary: Vocabulary) -> None:
        encoded = sorted({word.encode("utf-8", errors="surrogatepass") for word in words})
        self._tokens = vocabulary.tokens
        self._always = sorted({i for word in encoded for i in vocabulary.holding(word)})
        self._after: list[tuple[bytes, list[int]]] = [
            (word[:i], ids)
            for word in encoded
            for i in range(1, len(word))
            if (ids := vocabulary.beginning(word[i:]))
        ]
        self.longest = max((len(word) for word in encoded), default=1)
        self._always_mask = np.zeros(0, np.uint32)
        self._always_set = frozenset(self._always)

    def start(self, output: Sequence[int]) -> BadWordsMatcher:
        matcher = BadWordsMatcher(self)
        matcher.append(output)
        return matcher

    def clear(self, mask: U32, tail: bytes) -> None:
        """Clear what would complete a word after the tail."""
        if len(self._always_mask) != len(mask):
            self._always_mask = ~mask_of(self._always, len(mask))
        mask &= self._always_mask
        for begun, ids in self._after:
            if tail.endswith(begun):
                mask &= ~mask_of(ids, len(mask))

    def allows(self, token_id: int, tail: bytes) -> bool:
        """Whether the token completes no word after the tail."""
        if token_id in self._always_set:
            return False
        return not any(token_id in ids for begun, ids in self._after if tail.endswith(begun))

    def tail(self, before: bytes, token_ids: Sequence[int]) -> bytes:
        """The last bytes of the output that could begin a word."""
        text = before + b"".join(self._tokens[i] if i < len(self._tokens) else b"" for i in token_ids)
        keep = self.longest - 1
        return text[-keep:] if keep else b""


class BadWordsMatcher:
    """A row's place: the last bytes of its output."""

    def __init__(self, words: BadWords) -> None:
        self._words, self._tail = words, b""

    def restrict(self, mask: U32, ahead: Sequence[int] = ()) -> None:
        self._words.clear(mask, self._words.tail(self._tail, ahead) if ahead else self._tail)

    def allows(self, token_id: int) -> bool:
        return self._words.allows(token_id, self._tail)

    def append(self, token_ids: Sequence[int]) -> None:
        self._tail = self._words.tail(self._tail, token_ids)

    def fork(self) -> BadWordsMatcher:
        other = BadWordsMatcher(self._words)
        other._tail = self._tail
        return other
