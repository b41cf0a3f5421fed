"""TextIndex: where in a text its last tokens stood before. A few steps a token, however long the text is.

    text      a b c a b d a b          places of the pair (a, b): 8, 5, 2, the latest first
    places          2     5     8      a place is the index of the token that follows: text[5] is d

Runs of tokens of a few lengths (levels) are hashed. For each level a table of chains leads from a hash to the
latest place of such a run, and from each place to the one before it. Different runs may share a chain, so who
follows it compares the tokens. Nothing is ever moved or searched as a whole:

- a token that is appended writes two numbers for each level. A hash is a sum of tokens, each times a power of
  one number, so one pass over the text's end gives those of all runs that end there; many are appended in a
  few array operations, so who does not look up keeps tokens back and saves the host's time;
- a lookup follows at most STEPS places of a chain and compares at most `longest` tokens at each;
- the tables double while they grow, and each doubling chains all tokens anew in a few array operations; at
  `capacity` they stop, and each further token takes the place of the oldest one.

A suffix automaton or a suffix tree would find the longest match among all places rather than among the
latest ones. In Python it costs 500 bytes and more for each token of a prompt, and is built state by state;
this costs 4 bytes and 8 for each level, and a prompt is entered in array operations.

csrc/text_index.cpp has the same tables, and finds the same places. With it proposing takes 30 microseconds a
row instead of 90 (ngram), and 90 instead of 220 (suffix): a step's weights have emptied the caches before.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.kernels.select import native_class

if TYPE_CHECKING:
    from octavo.kernels._native import NativeTextIndex

I32 = npt.NDArray[np.int32]
U64 = npt.NDArray[np.uint64]

SEPARATOR = -1
"""Stands between texts. It is no token, so no match reaches across it."""
STEPS = 24
"""Places of a chain that a lookup follows."""
SMALLEST = 256
"""Tokens that a table holds at first."""
UNREAD = 64
"""Generated tokens that a row keeps back at most until it is looked up."""
_FEW = 16
_BITS = 0xFFFFFFFF
_PRIME = 0x01000193
_SPREAD = 0x9E3779B1

Match = tuple[int, int]
"""(place, how many tokens before it are equal)."""


Text: TypeAlias = "TextIndex | NativeTextIndex"
"""A text in Python, or in the extension: the same attributes and methods, which TextIndex explains."""


def new_text(levels: Sequence[int], capacity: int) -> Text:
    """An empty one: the extension's, where that was built.

    Args:
        levels: lengths of runs that are looked up, ascending; a match has at least the first.
        capacity: tokens that it holds at most, the latest.
    """
    made: Text = (native_class("NativeTextIndex") or TextIndex)(levels, capacity)
    return made


class TextIndex:
    """A text of token ids that grows at its end, and its runs.

    Attributes:
        count: tokens so far, those that are gone included.
        first: the first token that is still held; earlier places are gone. Numbers of places are never used
            again, so a text may have 2**31 tokens at most.
        keys: hash of the last run of each level; 0 where the text is shorter.
    """

    def __init__(self, levels: Sequence[int], capacity: int) -> None:
        self.levels = tuple(levels)
        self.count = self.first = 0
        self.keys = [0] * len(self.levels)
        self._powers = [(length, pow(_PRIME, length, _BITS + 1)) for length in self.levels]
        self._capacity = _power_of_two(capacity)
        self._allocate(min(SMALLEST, self._capacity))

    def _allocate(self, size: int) -> None:
        self._size, self._mask = size, size - 1
        self._shift = 33 - size.bit_length()  # of a hash as many bits remain as number the chains
        self._tokens = array("i", bytes(4 * size))
        self._latest = [array("i", bytes(4 * size)) for _ in self.levels]
        self._earlier = [array("i", bytes(4 * size)) for _ in self.levels]

    @property
    def nbytes(self) -> int:
        return bytes_of(self._size, len(self.levels))

    def __len__(self) -> int:
        """Tokens that are held."""
        return self.count - self.first

    # --- growing ----------------------------------------------------------------------------------

    def extend(self, tokens: Sequence[int]) -> None:
        """Append many: in array operations where they are more than a few, or a table has to grow."""
        new = len(tokens)
        too_small = len(self) + new > self._size < self._capacity
        if not new:
            return
        if new <= _FEW and not too_small:
            self._append_few(tokens)
        elif too_small or 8 * new > len(self):
            self._rebuild([*self.tail(len(self)), *tokens], new)
        else:
            self._append_all(tokens)

    def follow(self, place: int, matched: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Append tokens, and follow a place along them as far as they are what stands there.

        Args:
            place: of a match, or 0. matched: tokens before it that are equal to the text's end.

        Returns:
            Both as they are now; (0, 0) where there is no place, or none that is held and goes on.
        """
        end = self.count  # what follows there is yet to be appended
        for token in tokens:
            if place <= 0 or (self.token(place) if place < end else tokens[place - end]) != token:
                place = 0
                break
            place, matched = place + 1, matched + 1
        self.extend(tokens)
        goes_on = place > self.first and self.token(place) != SEPARATOR
        return (place, matched) if goes_on else (0, 0)

    def forget_before(self, place: int) -> None:
        """What stands before this place is matched no more."""
        self.first = max(self.first, min(place, self.count))

    def _rebuild(self, tokens: Sequence[int], new: int = 0) -> None:
        """Hold these tokens, the last `new` of which were not held before, or the last of them that fit.

        Places keep their numbers.
        """
        held = np.array(tokens[-self._capacity :], np.int32)
        size = len(held)
        self._allocate(min(max(_power_of_two(size + 1), SMALLEST), self._capacity))
        self.count += new
        self.first = self.count - size
        np.frombuffer(self._tokens, np.int32)[np.arange(self.first, self.count) & self._mask] = held
        self._chain_last(held, size)

    def _append_few(self, tokens: Sequence[int]) -> None:
        """Append at least one, one by one: array operations cost more for a few than they save."""
        tail, mask, shift = self.tail(self.levels[-1]), self._mask, self._shift
        place = self.count
        held, begin = len(tail), place - len(tail)
        for token in tokens:
            self._tokens[place & mask] = token
            place += 1
        run, sums = 0, [0]  # of all tokens up to each: a run's hash is its end's sum less that before it
        for token in (*tail, *tokens):
            run = (run * _PRIME + token * _SPREAD) & _BITS
            sums.append(run)
        for level, (length, power) in enumerate(self._powers):
            if min(len(sums) - 1, self._size) < length:
                break
            latest, earlier = self._latest[level], self._earlier[level]
            for end in range(max(length, held + 1), len(sums)):
                run = (sums[end] - sums[end - length] * power) & _BITS
                chain = run >> shift
                earlier[(begin + end - 1) & mask] = latest[chain]
                latest[chain] = begin + end
            self.keys[level] = run
        self.count = place
        self.first = max(self.first, place - self._size)

    def _append_all(self, tokens: Sequence[int]) -> None:
        """Append tokens for which no table has to grow."""
        begin, new = self.count, len(tokens)
        self.count += new
        np.frombuffer(self._tokens, np.int32)[np.arange(begin, self.count) & self._mask] = tokens
        self.first = max(self.first, self.count - self._size)
        self._chain_last(np.array(self.tail(new + self.levels[-1] - 1), np.int32), new)

    def _chain_last(self, tokens: I32, new: int) -> None:
        """Chain the runs that end at the last `new` of these tokens, which are the text's last ones."""
        size = len(tokens)
        run, length, power = np.zeros(size, np.uint64), 0, 1
        bits = tokens.astype(np.int64).astype(np.uint64) * np.uint64(_SPREAD) & np.uint64(_BITS)
        for level, wanted in enumerate(self.levels):
            if size < wanted:
                break
            while length < wanted:  # run[i]: of the tokens that end at i; the first ones have no whole run
                run[length:] = (run[length:] + bits[: size - length] * np.uint64(power)) & np.uint64(_BITS)
                power, length = power * _PRIME & _BITS, length + 1
            self.keys[level] = int(run[-1])
            begin = max(wanted - 1, size - new)
            self._chain_all(level, run[begin:], self.count - size + begin + 1)

    def _chain_all(self, level: int, runs: U64, place: int) -> None:
        """Chain the runs with these hashes, whose places are this one and those that follow."""
        chains = (runs >> np.uint64(self._shift)).astype(np.int64)
        order = np.argsort(chains, kind="stable")  # a chain's places together, in their order
        ordered = chains[order]
        same = ordered[1:] == ordered[:-1]
        places = (order + place).astype(np.int32)
        latest = np.frombuffer(self._latest[level], np.int32)
        earlier = np.frombuffer(self._earlier[level], np.int32)
        earlier[(places[1:] - 1) & self._mask] = np.where(same, places[:-1], latest[ordered[1:]])
        earlier[(places[0] - 1) & self._mask] = latest[ordered[0]]
        last = np.append(~same, True)
        latest[ordered[last]] = places[last]

    # --- looking up -------------------------------------------------------------------------------

    def tail(self, count: int) -> list[int]:
        """The last tokens, as many as there are, in their order."""
        count = min(count, len(self))
        begin, mask = self.count - count, self._mask
        first, last = begin & mask, (self.count - 1) & mask
        if count == 0:
            return []
        if first <= last:
            return self._tokens[first : last + 1].tolist()
        return self._tokens[first:].tolist() + self._tokens[: last + 1].tolist()

    def matches(self, keys: Sequence[int], tail: Sequence[int], most: int = STEPS) -> Iterator[Match]:
        """Places before which the end of `tail` stands, the latest first.

        They are those of the longest level of which there is any, and a token follows each of them.

        Args:
            keys: those of the text that ends with `tail`, which has the same levels.
            tail: its last tokens; a match is at most as long.
            most: places.
        """
        return islice(self._longest_matches(keys, tail), most)

    def _longest_matches(self, keys: Sequence[int], tail: Sequence[int]) -> Iterator[Match]:
        for level in range(len(self.levels) - 1, -1, -1):
            place = self._latest[level][keys[level] >> self._shift]
            if place == self.count:  # of this text itself the chain begins at the end
                place = self._earlier[level][(place - 1) & self._mask]
            if place <= self.first or len(tail) < self.levels[level]:  # mostly: such a run was never there
                continue
            found = False
            for match in self._matches(level, place, tail):
                found = True
                yield match
            if found:
                return

    def _matches(self, level: int, place: int, tail: Sequence[int]) -> Iterator[Match]:
        tokens, mask, least = self._tokens, self._mask, self.levels[level]
        earlier, first, size, known = self._earlier[level], self.first, self._size, len(tail)
        whole = None if SEPARATOR in tail else array("i", tail)
        for _ in range(STEPS):
            if place <= first:
                return
            length, most, begin = 0, min(known, place - first), (place - known) & mask
            if most == known and begin + known <= size and tokens[begin : begin + known] == whole:
                length = most  # as in a long copy: compared at once
            while length < most and tokens[(place - 1 - length) & mask] == tail[-1 - length] != SEPARATOR:
                length += 1
            if length >= least and self.token(place) != SEPARATOR:
                yield place, length
            place = earlier[(place - 1) & mask]

    def token(self, place: int) -> int:
        """What stands at a place of matches(), or after it; SEPARATOR behind the end."""
        return self._tokens[place & self._mask] if place < self.count else SEPARATOR

    def following(self, place: int, count: int) -> list[int]:
        """The tokens from a place on, up to a separator.

        Where the text ends before, they go on as they would if it repeated itself from the place on.
        """
        period, first = self.count - place, place & self._mask
        if period >= count and first + count <= self._size:  # as most are: one slice, no end, no wrap
            found = self._tokens[first : first + count].tolist()
            return found[: found.index(SEPARATOR)] if SEPARATOR in found else found
        found = []
        for index in range(count):
            token = self.token(place + index) if index < period else found[index - period]
            if token == SEPARATOR:
                break
            found.append(token)
        return found


def row_bytes(text: Text, unread: Sequence[int]) -> int:
    """Bytes of a row's text, and of generated tokens that it lacks."""
    return text.nbytes + 8 * len(unread)


def most_row_bytes(tokens: int, levels: int) -> int:
    """Bytes that row_bytes() never exceeds where the index has this capacity."""
    return most_bytes(tokens, levels) + 8 * UNREAD


def bytes_of(tokens: int, levels: int) -> int:
    """Bytes of a Text that holds so many tokens, a power of two."""
    return tokens * 4 * (1 + 2 * levels)


def most_bytes(tokens: int, levels: int) -> int:
    """Bytes that a Text of this capacity never exceeds."""
    return bytes_of(max(_power_of_two(tokens), SMALLEST), levels)


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def with_prediction(tokens: Sequence[int], num_prompt_tokens: int, prediction: Sequence[int]) -> list[int]:
    """A row's text in which the predicted answer has followed this prompt once before.

        prompt | end of the prompt, prediction | end of the prompt, what was generated

    So the first lookup finds the prediction's beginning, and a later one prefers it to the prompt.
    """
    if not prediction:
        return list(tokens)
    prompt, generated = list(tokens[:num_prompt_tokens]), list(tokens[num_prompt_tokens:])
    end = prompt[-16:]
    return [*prompt, SEPARATOR, *end, *prediction, SEPARATOR, *end, *generated]
