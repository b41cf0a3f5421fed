"""Distinct: a JSON grammar whose arrays of distinct items (uniqueItems) are watched by a walk beside it.

The grammar says which tokens JSON and the schema allow. Of those the walk forbids the ones that finish an
item which is equal to an earlier one of its array, or after which only such items could be finished. Whether
another one can be is looked up in the schema where any text can go on (Place), and elsewhere searched for,
byte by byte, among what the grammar allows, along earlier texts alone: one that has left them is new.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from octavo.errors import GRAMMAR_FAILED, InvalidRequestError
from octavo.sampling.constraints import ConstraintError, full_mask
from octavo.sampling.logits import allowed
from octavo.sampling.sampling_batch import U32
from octavo.structured.grammar import ORIGINALS, Grammar, GrammarMatcher, GrammarVocabulary
from octavo.structured.json_walk import JsonWalk, Mode
from octavo.structured.places import Place, needs_search

LONGEST = 24
"""Characters of a number that the search for another item writes: more than a double tells apart."""
LOOK_S = 64
"""After so many steps of a search its time is looked at."""

_TEXTS = (Mode.STRING, Mode.IN_NAME)
_DELIMITERS = frozenset(b" \n\r\t,]}")
_BLANKS = frozenset(b" \n\r\t")


Later = Callable[[Callable[[], None]], object]
"""Has a piece of work done on another thread."""


def constraint_of(
    source: str,
    vocabulary: GrammarVocabulary,
    param: str,
    originals: int = ORIGINALS,
    later: Later | None = None,
) -> Grammar | Distinct:
    """The constraint of a grammar's text, which may have a second line: the places of a schema (places.py).

    Args:
        later: who makes the grammar over bytes once a search asks for it; None: it is made here and now, as
            it is where the vocabulary cannot stand in for it until then.

    Raises:
        InvalidRequestError: as Grammar.
    """
    plain, _, places = source.partition("\n")
    if not places:
        return Grammar(source, vocabulary, param, originals)
    grammar = Grammar(plain, vocabulary, param, originals)
    known = [Place(*each) for each in json.loads(places)]
    by_bytes = OverBytes(lambda: Grammar(plain, vocabulary.of_bytes, param, 1), later)
    if needs_search(known) and (later is None or vocabulary.single is None):
        by_bytes.make()
    return Distinct(grammar, by_bytes, known)


class OverBytes:
    """A grammar over bytes, made at its first use: that takes as long as the grammar over tokens took.

    Few answers come to a search, and none before some tokens: nobody's first token waits for it.
    """

    def __init__(self, make: Callable[[], Grammar], later: Later | None) -> None:
        self._make, self._later = make, later
        self._made: Grammar | None = None
        self._lock = threading.Lock()
        self._begun = False

    def make(self) -> None:
        """Make it, unless it is there."""
        with self._lock:
            if self._made is None:
                self._made = self._make()

    def get(self, wait: bool) -> Grammar | None:
        """The grammar; None: it is being made, and nobody waits.

        Raises:
            ConstraintError: it cannot be made.
        """
        if self._made is None:
            if wait or self._later is None:
                try:
                    self.make()
                except InvalidRequestError as error:
                    raise ConstraintError(f"{GRAMMAR_FAILED}: {error}") from None
            elif not self._begun:
                self._begun = True
                with suppress(RuntimeError):  # after ConstraintCompiler.close(); rows go on without it
                    self._later(self._made_later)
        return self._made

    def _made_later(self) -> None:
        with suppress(InvalidRequestError):  # rows go on without it
            self.make()


class Distinct:
    """A constraint (see sampling.constraints.Constraint).

    Args:
        grammar: over the model's vocabulary; by_bytes: the same over bytes.
        places: of the schema (places.places_of).
    """

    def __init__(self, grammar: Grammar, by_bytes: OverBytes, places: Sequence[Place]) -> None:
        self._grammar, self._by_bytes, self._places = grammar, by_bytes, places

    def start(self, output: Sequence[int]) -> DistinctMatcher:
        probe = _Probe(self._grammar, self._by_bytes)
        matcher = DistinctMatcher(self._grammar.start(()), probe, JsonWalk(self._places))
        matcher.append(output)
        return matcher

    def begin_widening(self) -> bool:
        """As Grammar's."""
        return self._grammar.begin_widening()

    def widen(self) -> None:
        """As Grammar's."""
        self._grammar.widen()


class DistinctMatcher:
    """One row's place in such a grammar, and in the text."""

    def __init__(self, inner: GrammarMatcher, probe: _Probe, walk: JsonWalk) -> None:
        self._inner, self._probe, self._walk = inner, probe, walk
        self._vocabulary = inner.vocabulary
        self._twice = False  # somebody else's tokens hold an item twice

    @property
    def allowance(self) -> Any:
        """The grammar's."""
        return self._inner.allowance

    def restrict(self, mask: U32, ahead: Sequence[int] = ()) -> None:
        self._inner.restrict(mask, ahead)
        self._check()
        began, mark = time.perf_counter(), self._walk.mark()
        text = b"".join(map(self._vocabulary.text, ahead))
        if self._walk.feed(text):
            size = len(self._vocabulary.tokens)
            may_come = allowed(mask, 32 * len(mask))[:size]
            listing = self._vocabulary.listing
            ids = np.flatnonzero(may_come) if self._walk.nested else listing[may_come[listing]]
            for token in self._forbidden(ids.tolist(), text):
                mask[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
        self._walk.undo(mark)
        self._spend(began)
        self._inner.check()

    def allows(self, token_id: int) -> bool:
        if self._twice or not self._inner.allows(token_id):
            return False
        began = time.perf_counter()
        try:
            return self._may_come(self._vocabulary.text(token_id), b"")
        finally:
            self._spend(began)

    def append(self, token_ids: Sequence[int]) -> None:
        self._inner.append(token_ids)
        for token in token_ids:
            text = self._vocabulary.text(token)
            self._twice = self._twice or not self._walk.feed(text)
            self._probe.text += text
        self._walk.keep()

    def fork(self) -> DistinctMatcher:
        other = DistinctMatcher(self._inner.fork(), self._probe.copy(), self._walk.copy())
        other._twice = self._twice
        return other

    def _check(self) -> None:
        if self._twice:
            raise ConstraintError(f"{GRAMMAR_FAILED}: an array holds an item twice")

    def _spend(self, began: float) -> None:
        self.allowance.left_s -= time.perf_counter() - began

    # --- of many tokens -----------------------------------------------------------------------------

    def _forbidden(self, ids: list[int], text: bytes) -> Iterator[int]:
        """Of these tokens those that must not come; of those that are alike one is tried.

        Args:
            ids: those that may come; outside arrays of distinct items the vocabulary's `listing` of them.
        """
        said: dict[Hashable, bool] = {}
        for token, kind in self._relevant(ids):
            if kind not in said:
                said[kind] = self._may_come(self._vocabulary.text(token), text)
            if not said[kind]:
                yield token

    def _relevant(self, ids: list[int]) -> Iterator[tuple[int, Hashable]]:
        """(token, what tells it apart) of those that may have to be forbidden."""
        walk, texts = self._walk, self._vocabulary.quoted
        if not walk.nested:
            yield from ((token, token) for token in ids)
            return
        if walk.at.mode not in _TEXTS or walk.at.text:
            opens = walk.at.mode is Mode.VALUE and walk.place.string
            for token in ids:
                begun = opens and texts.get(token, (b"x", b""))
                yield token, b'"' if begun and not begun[0].strip() and b'"' not in begun[1] else token
            return
        hot = bool(walk.at.hot) and not walk.is_roomy()
        likely = walk.likely(self._vocabulary.longest) if hot else ()
        named = walk.at.mode is Mode.IN_NAME
        for token in ids:
            if (parts := texts.get(token)) is not None:
                before, after = parts
                apart = named or b"\\" in before or (walk.at.hot and walk.hot_after(before))
                yield token, token if apart else after
            elif hot:
                written = self._vocabulary.text(token)
                if written in likely or b"\\" in written:
                    yield token, token

    # --- of one token -------------------------------------------------------------------------------

    def _may_come(self, text: bytes, before: bytes) -> bool:
        """Whether this text may follow what is fed to the walk; `before`: the end of it that is not kept."""
        walk = self._walk
        mark = walk.mark()
        try:
            return walk.feed(text) and (walk.is_roomy() or self._finds_another(before + text))
        finally:
            walk.undo(mark)

    def _finds_another(self, text: bytes) -> bool:
        """Whether the unfinished items can be finished as new ones."""
        probe, walk = self._probe, self._walk
        probe.go(text)
        taken, steps = len(text), 0
        ways = [iter(self._ways())]
        marks = [walk.mark()]
        try:
            while ways:
                walk.undo(marks[-1])
                byte = next(ways[-1], None)
                if byte is None:
                    ways.pop()
                    marks.pop()
                    probe.back(min(1, len(ways)))
                    taken -= min(1, len(ways))
                    continue
                if byte == _ENOUGH:
                    return True
                if not walk.feed(bytes([byte])):
                    continue
                if walk.is_roomy():
                    return True
                probe.step(byte)
                taken += 1
                steps += 1
                ways.append(iter(self._ways()))
                marks.append(walk.mark())
                if steps % LOOK_S == 0 and time.perf_counter() - probe.began > self.allowance.left_s:
                    raise ConstraintError(
                        f"{GRAMMAR_FAILED}: whether an array has room for another item takes too long to tell"
                    )
            return False
        finally:
            probe.back(taken)

    def _ways(self) -> list[int]:
        """The bytes that may come next; those after which the items are no earlier ones' come first."""
        walk, may = self._walk, self._probe.allowed()
        mark = walk.mark()
        if walk.at.mode is Mode.NUMBER:
            ends = [byte for byte in may if byte in _DELIMITERS]
            if ends and walk.end_number() and not walk.at.hot:
                walk.undo(mark)
                return [_ENOUGH]
            walk.undo(mark)
            if len(walk.at.text) >= LONGEST:
                return ends
            if b"e" in walk.at.text.lower():  # one power of ten is as good as another
                may = [*ends, *[byte for byte in may if byte not in _DELIMITERS][-1:]]
            may = may[::-1]  # 1.0 and all that has more zeros is what 1 is
        elif walk.at.mode not in _TEXTS and len(visible := [b for b in may if b not in _BLANKS]):
            may = visible
        new, old, late = list[int](), list[int](), list[int]()
        for byte in may:
            if byte == 0x5C:
                late.append(byte)
                continue
            fresh = walk.feed(bytes([byte])) and walk.is_roomy()
            walk.undo(mark)
            if fresh:
                new.append(byte)
                break
            old.append(byte)
        return new or old + late


_ENOUGH = -1


class _Probe:
    """The grammar behind the row's text, byte by byte: brought there when it is asked.

    Over bytes it answers in a tenth of the time. Until that one is made the grammar over the model's
    vocabulary says the same, whose tokens of one byte stand for the bytes.
    """

    def __init__(self, grammar: Grammar, by_bytes: OverBytes) -> None:
        self.text = bytearray()
        self.began = 0.0
        self._grammar, self._by_bytes = grammar, by_bytes
        self._fed = 0
        self._row: GrammarMatcher | None = None
        self._single: Sequence[int] | None = None  # tokens that stand for the bytes; None: bytes do

    def copy(self) -> _Probe:
        other = _Probe(self._grammar, self._by_bytes)
        other.text += self.text
        return other

    def _choose(self, text: bytes) -> GrammarMatcher:
        """The grammar's row, over bytes as soon as that one is there."""
        row = self._row
        if row is None or self._single is not None:
            new = row or self._grammar.start(())
            single = new.vocabulary.single
            unknown = single is None or any(single[byte] < 0 for byte in {*self.text, *text})
            if (made := self._by_bytes.get(wait=unknown)) is not None:
                new, single = made.start(()), None
            if new is not row:
                self._row, self._single, self._fed = new, single, 0
                self._mask, self._vocabulary = full_mask(1, 32 * new.words)[0], new.vocabulary
            row = new
        return row

    def _tokens(self, text: bytes | bytearray) -> list[int]:
        return list(text) if self._single is None else [self._single[byte] for byte in text]

    def go(self, text: bytes) -> None:
        """To the row's text, and this behind it."""
        self.began = time.perf_counter()
        self._matcher = self._choose(text).inner
        if self._fed < len(self.text):
            self._matcher.consume_tokens(self._tokens(self.text[self._fed :]))
            self._fed = len(self.text)
        if text:
            self._matcher.consume_tokens(self._tokens(text))

    def step(self, byte: int) -> None:
        self._matcher.consume_token(byte if self._single is None else self._single[byte])

    def back(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)

    def allowed(self) -> list[int]:
        """The bytes that may come next."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if self._matcher.is_error():
            raise ConstraintError(f"{GRAMMAR_FAILED}: {self._matcher.get_error()[:200]}")
        if self._single is None:
            found: list[int] = np.flatnonzero(allowed(self._mask, 256)).tolist()
            return found
        # Where one text is forced the mask holds the token that begins it, of any length: each token that
        # may come begins with a byte that may.
        return self._vocabulary.firsts_of(self._mask)
