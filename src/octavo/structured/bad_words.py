"""bad_words: texts that an answer never holds, however it is cut into tokens.

Let w be a bad word in UTF-8. A token t completes it if the output so far ends with w[:i] and t begins
with w[i:] (1 <= i < len(w)), or if t holds w itself. Words that begin and end inside one token are
looked up once; for the others the vocabulary lies sorted, so what begins with w[i:] is one range of it.

An automaton of all words follows the output: its state is the longest end of the output that begins a word,
and the chain of its shorter ones gives the w[:i] that the output ends with. So a request's words take memory
in proportion to their length, and a token costs as much as it has bytes.
"""

from __future__ import annotations

import functools
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.sampling.constraints import mask_of
from octavo.sampling.sampling_batch import U32
from octavo.tokenizer.stop import StopAutomaton

KEPT_WORDS = 1024
"""Of which a vocabulary remembers what it was asked: up to 100 kB each, of most a few hundred bytes."""
SLICE = 16
"""Words that are looked up before other threads have the interpreter: some 0.5 ms."""
PAUSE_S = 5e-5
_NO_BYTE = b"\xff"
"""Stands in no UTF-8, so no word is found across it, and it comes behind all that does."""


class Range(NamedTuple):
    """Tokens at low and on, up to high, where all of them lie sorted by their bytes."""

    low: int
    high: int


class Vocabulary:
    """Bytes of every token, sorted, and where each pair of bytes stands. Made once per model. Thread-safe.

    A word of letters is looked for where the rarest of its pairs stands. Who looks through all texts takes
    0.25 ms a word, and holds the interpreter's lock meanwhile.

    Args:
        tokens: by id; b"" for tokens without text (control tokens too: they are not in the answer).

    Attributes:
        ids: of the tokens, sorted by their bytes; places: of each id among them, -1 of one without text.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        order = sorted((i for i, token in enumerate(tokens) if token), key=tokens.__getitem__)
        self.ids = np.array(order, np.int64)
        self.places = np.full(len(tokens), -1, np.int64)
        self.places[self.ids] = np.arange(len(order))
        self._sorted = [tokens[i] for i in order]
        self._longest = max(map(len, tokens), default=0)
        lengths = [len(token) + 1 for token in tokens]
        self._starts = np.concatenate(([0], np.cumsum(lengths)))
        self._joined = np.frombuffer(_NO_BYTE.join([*tokens, b""]), np.uint8)  # by id, each with its end
        pairs = self._joined[:-1].astype(np.uint16) << 8 | self._joined[1:]
        self._at = np.argsort(pairs, kind="stable").astype(np.int32)
        self._first = np.concatenate(([0], np.cumsum(np.bincount(pairs, minlength=1 << 16))))
        self.ask = functools.lru_cache(KEPT_WORDS)(self._look_up)

    def _look_up(self, word: bytes) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """(tokens that hold the word; [bytes - 1, 2], the Range of those that word[i:] begins, i from 1)."""
        ranges = np.zeros((len(word) - 1, 2), np.int32)
        for i in range(max(1, len(word) - self._longest), len(word)):
            ranges[i - 1] = self.beginning(word[i:])
        return self.holding(word), ranges

    def holding(self, word: bytes) -> NDArray[np.int64]:
        """Tokens that hold the word, which is UTF-8 and not empty."""
        if len(word) > self._longest:
            return np.zeros(0, np.int64)
        place, at = self._rarest(word)
        at = at - place
        at = at[(at >= 0) & (at <= len(self._joined) - len(word))]
        for offset, byte in enumerate(word):
            if not len(at):
                break
            at = at[self._joined[at + offset] == byte]
        return np.unique(np.searchsorted(self._starts, at, side="right") - 1)

    def _rarest(self, word: bytes) -> tuple[int, NDArray[np.int32]]:
        """(a place in the word, where in all texts the pair of bytes at that place stands)."""
        if len(word) == 1:  # and any byte behind it
            low, high = self._first[[word[0] << 8, word[0] + 1 << 8]]
            return 0, self._at[low:high]
        pairs = [first << 8 | second for first, second in pairwise(word)]
        begins = self._first[pairs]
        counts = self._first[[pair + 1 for pair in pairs]] - begins
        place = int(counts.argmin())
        return place, self._at[begins[place] : begins[place] + counts[place]]

    def beginning(self, part: bytes) -> Range:
        """Tokens that begin with the part, which is UTF-8 or the end of some, and not empty."""
        after = part[:-1] + bytes([part[-1] + 1])
        return Range(bisect_left(self._sorted, part), bisect_left(self._sorted, after))


def _in_turns(words: Sequence[bytes]) -> Iterator[bytes]:
    """The words, and a pause behind each SLICE of them: who waits for the interpreter's lock gets it."""
    for place, word in enumerate(words):
        if place and place % SLICE == 0:
            time.sleep(PAUSE_S)
        yield word


class BadWords:
    """A constraint (see sampling.constraints.Constraint)."""

    def __init__(self, words: Sequence[str], vocabulary: Vocabulary) -> None:
        encoded = sorted({word.encode("utf-8", errors="surrogatepass") for word in words})
        looked_up = [vocabulary.ask(word) for word in _in_turns(encoded)]
        self._vocabulary = vocabulary
        self._always = np.unique(np.concatenate([holding for holding, _ in looked_up]))
        self._always_mask = np.zeros(0, np.uint32)
        # A byte is a character here: of one node the ranges of all words that begin with it.
        texts = [word.decode("latin-1") for word in encoded]
        self.automaton = StopAutomaton(texts)
        self._after: dict[int, list[Range]] = {}
        for text, (_, ranges) in zip(texts, looked_up, strict=True):
            node = 0
            for char, (low, high) in zip(text, ranges.tolist(), strict=False):
                node = self.automaton.step(node, ord(char))
                if low < high:
                    self._after.setdefault(node, []).append(Range(low, high))

    def start(self, output: Sequence[int]) -> BadWordsMatcher:
        matcher = BadWordsMatcher(self)
        matcher.append(output)
        return matcher

    def clear(self, mask: U32, state: int) -> None:
        """Clear what would complete a word in this state."""
        if len(self._always_mask) != len(mask):
            self._always_mask = ~_mask(self._always, len(mask))
        mask &= self._always_mask
        for found in self._ranges(state):
            mask &= ~_mask(self._vocabulary.ids[found.low : found.high], len(mask))

    def allows(self, token_id: int, state: int) -> bool:
        """Whether the token completes no word in this state."""
        at = np.searchsorted(self._always, token_id)
        if at < len(self._always) and self._always[at] == token_id:
            return False
        place = self._vocabulary.places[token_id] if token_id < len(self._vocabulary.places) else -1
        return not any(found.low <= place < found.high for found in self._ranges(state))

    def _ranges(self, state: int) -> list[Range]:
        """Of all beginnings of words that the output ends with."""
        found: list[Range] = []
        while state:
            found += self._after.get(state, ())
            state = self.automaton.fail[state]
        return found

    def follow(self, state: int, token_ids: Sequence[int]) -> int:
        """The state after these tokens."""
        tokens, step = self._vocabulary.tokens, self.automaton.step
        for token_id in token_ids:
            for byte in tokens[token_id] if token_id < len(tokens) else b"":
                state = step(state, byte)
        return state


def _mask(ids: NDArray[np.int64], words: int) -> U32:
    """[words] with the bits of these tokens set. (Half of a vocabulary is no list on the way.)"""
    one_dimension: Any = ids
    return mask_of(one_dimension, words)


class BadWordsMatcher:
    """A row's place: the longest end of its output that begins a word."""

    def __init__(self, words: BadWords, state: int = 0) -> None:
        self._words, self._state = words, state

    def restrict(self, mask: U32, ahead: Sequence[int] = ()) -> None:
        self._words.clear(mask, self._words.follow(self._state, ahead))

    def allows(self, token_id: int) -> bool:
        return self._words.allows(token_id, self._state)

    def append(self, token_ids: Sequence[int]) -> None:
        self._state = self._words.follow(self._state, token_ids)

    def fork(self) -> BadWordsMatcher:
        return BadWordsMatcher(self._words, self._state)
