"""suffix: what most often followed the longest run of tokens that the row's text ends with.

Oliaro et al. 2024, SuffixDecoding. Two texts are looked up: the row's own, and what other requests of the
same salt have generated before. The places where the end of the row's text stood vote for what followed
there, each with as many votes as tokens matched. A draft grows where it is likeliest, token by token:

    ... def area ( self ) :  \\n return self . w   matched 6   chance of w: 6 / (6 + 9 + 1), then of what
    ... def area ( self ) :  \\n return 3.14 *     matched 9   follows it: 6 / (6 + 1), ...

    chance of a token = its places' votes / (all votes there + 1), times the chance of the token before it

The one vote for "something new" makes drafts short after short matches and long after long ones. A draft ends
at suffix_decoding_min_token_prob, and is never longer than suffix_decoding_max_spec_factor times the match.
With suffix_decoding_use_tree_spec a draft may be a tree: the likeliest token may be a second guess then,
rather than a further one.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.params.drafts import Draft
from octavo.spec.base import Begin, Option, Registration, Wanted
from octavo.spec.text_index import (
    SEPARATOR,
    UNREAD,
    Text,
    bytes_of,
    most_bytes,
    most_row_bytes,
    new_text,
    row_bytes,
    with_prediction,
)

LEVELS = (2, 4, 8, 16)
"""Runs that are looked up: a match of m tokens is found by the longest of them that is not above m."""
DEPTH = "suffix_decoding_max_tree_depth"
REQUESTS = "suffix_decoding_max_cached_requests"
FACTOR = "suffix_decoding_max_spec_factor"
CHANCE = "suffix_decoding_min_token_prob"
TOKENS = "suffix_decoding_max_cached_tokens"
TREES = "suffix_decoding_use_tree_spec"
OPTIONS = {
    DEPTH: Option(24, 2, 64, "tokens that a match is compared by"),
    REQUESTS: Option(10_000, 0, 10**9, "answers of each salt that are kept for others; 0: none"),
    FACTOR: Option(1.0, 0.1, 64.0, "drafted tokens for each that matches"),
    CHANCE: Option(0.1, 0.001, 1.0, "chance below which no token is drafted"),
    TOKENS: Option(1 << 20, 1 << 10, 1 << 26, "tokens of answers that are kept, of all salts together"),
    TREES: Option(False, 0, 1, "drafts may be trees: a second guess instead of a further token"),
}
ENOUGH = 8
"""Places that vote in each text."""


@dataclass(slots=True)
class _OwnText:
    """A row's text; from `begin` on it is what others of its salt may learn from.

    Attributes:
        unread: generated tokens that the text lacks. A row that is seldom looked up enters many at a time.
    """

    text: Text
    salt: str | None
    begin: int
    generated: bool = False
    unread: list[int] = field(default_factory=list)

    def read(self) -> Text:
        """The text with all that was generated."""
        self.text.extend(self.unread)
        self.unread.clear()
        return self.text


class _Vote(NamedTuple):
    """A place where the end of the row's text stood, and how much of it."""

    text: Text
    place: int
    weight: int


class Answers:
    """What requests have generated, a text for each salt. The least recently used salt goes first."""

    def __init__(self, most_tokens: int, most_answers: int) -> None:
        self._most_tokens, self._most_answers = most_tokens, most_answers
        self._most_bytes = most_bytes(most_tokens, len(LEVELS))
        self._texts: dict[str | None, Text] = {}  # the latest used last
        self._begins: dict[str | None, deque[int]] = {}  # of each answer that is held
        self.nbytes = 0

    def of(self, salt: str | None) -> Text | None:
        """The text of a salt; None: nothing was generated under it."""
        return self._texts.get(salt)

    def add(self, salt: str | None, tokens: Sequence[int]) -> None:
        """Keep an answer; the oldest ones of the salt, or whole other salts, make room for it."""
        if not self._most_answers:
            return
        text = self._texts.get(salt)
        if text is None or text.count > 2**30:  # (its places would have no numbers left some day)
            text = new_text(LEVELS, self._most_tokens)
        begins = self._begins.get(salt, deque()) if text.count else deque()
        self._forget(salt)
        begins.append(text.count)
        text.extend([*tokens[-self._most_tokens // 2 :], SEPARATOR])
        if len(begins) > self._most_answers:
            begins.popleft()
            text.forget_before(begins[0])
        while begins[0] < text.first:
            begins.popleft()
        self._texts[salt], self._begins[salt] = text, begins
        self.nbytes += _bytes(text, begins)
        while self.nbytes > self._most_bytes and len(self._texts) > 1:
            self._forget(next(iter(self._texts)))

    def _forget(self, salt: str | None) -> None:
        text = self._texts.pop(salt, None)
        if text is not None:
            self.nbytes -= _bytes(text, self._begins.pop(salt))

    def clear(self) -> None:
        self._texts.clear()
        self._begins.clear()
        self.nbytes = 0


def _bytes(text: Text, begins: deque[int]) -> int:
    return text.nbytes + 32 * len(begins)


class Suffix:
    """A base.Proposer."""

    def __init__(self, wanted: Wanted) -> None:
        options = wanted.options
        self._max_model_len = wanted.max_model_len
        self._trees = wanted.trees and bool(options[TREES])
        self._depth, self._factor = int(options[DEPTH]), float(options[FACTOR])
        self._chance = float(options[CHANCE])
        self._answers = Answers(int(options[TOKENS]), int(options[REQUESTS]))
        self._rows: dict[int, _OwnText] = {}

    @property
    def nbytes(self) -> int:
        rows = sum(row_bytes(row.text, row.unread) for row in self._rows.values())
        return rows + self._answers.nbytes

    def start(self, row: int, begin: Begin) -> None:
        text = new_text(LEVELS, self._max_model_len)
        text.extend(with_prediction(begin.tokens, begin.num_prompt_tokens, begin.prediction))
        # The prompt's end goes along, so that an answer's first tokens are found after it.
        self._rows[row] = _OwnText(text, begin.salt, max(text.count - LEVELS[-1], text.first))

    def remove(self, row: int) -> None:
        state = self._rows.pop(row, None)
        if state is not None and state.generated:
            text = state.read()
            self._answers.add(state.salt, text.tail(text.count - state.begin))

    def reset(self) -> None:
        self._answers.clear()
        for state in self._rows.values():  # what they have said so far is not for others either
            state.begin, state.generated = state.read().count, False

    def observe(self, row: int, tokens: Sequence[int]) -> None:
        state = self._rows[row]
        state.generated = True
        state.unread += tokens
        if len(state.unread) >= UNREAD:
            state.read()

    def propose(self, most: Mapping[int, int]) -> dict[int, Draft]:
        drafts: dict[int, Draft] = {}
        for row, count in most.items():
            votes = self._votes(self._rows[row])
            if not votes or count <= 0:
                continue
            matched = max(vote.weight for vote in votes)
            count = min(count, max(int(self._factor * matched), 1))
            support = matched.bit_length()
            if self._trees:
                tokens, parents = likeliest(votes, count, self._chance)
                draft = Draft(tokens, parents, support)
            else:
                draft = Draft.chain(likeliest_chain(votes, count, self._chance), support)
            if draft.tokens:
                drafts[row] = draft
        return drafts

    def _votes(self, state: _OwnText) -> list[_Vote]:
        """The latest places of both texts, without those that match less than half of the longest."""
        own, answers = state.read(), self._answers.of(state.salt)
        keys, tail = own.keys, own.tail(self._depth)
        votes: list[_Vote] = []
        for text in (own,) if answers is None else (own, answers):
            votes += [_Vote(text, *match) for match in text.matches(keys, tail, ENOUGH)]
        if not votes:
            return votes
        longest = max(vote.weight for vote in votes)
        return [vote for vote in votes if 2 * vote.weight >= longest]


def likeliest_chain(votes: Sequence[_Vote], count: int, chance: float) -> list[int]:
    """likeliest() where each token hangs on the one before it: what follows the places is read once."""
    runs = [
        (vote.text.following(vote.place, min(count, vote.text.count - vote.place)), vote.weight)
        for vote in votes
    ]
    tokens: list[int] = []
    reached = 1.0
    while runs and len(tokens) < count:
        depth, first, total = len(tokens), runs[0][0], 1
        alike = True
        for run, weight in runs:
            total += weight
            alike = alike and run == first
        if alike:  # as most are: nobody has to be counted any more
            for token in first[depth:]:
                reached = reached * (total - 1) / total
                if reached < chance:
                    break
                tokens.append(token)
            break
        said: dict[int, int] = {}
        for run, weight in runs:
            if depth < len(run):
                said[run[depth]] = said.get(run[depth], 0) + weight
        token = min(said, key=lambda each: (-said[each], each))
        reached = reached * said[token] / total
        if reached < chance:
            break
        tokens.append(token)
        runs = [(run, weight) for run, weight in runs if depth < len(run) and run[depth] == token]
    return tokens


def likeliest(votes: Sequence[_Vote], count: int, chance: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens [N] and parents [N] of a draft, N <= count: the tokens likeliest to be generated, best first.

    Args:
        chance: that a token must have.
    """
    tokens: list[int] = []
    parents: list[int] = []
    heap: list[tuple[float, int, int, list[_Vote]]] = []  # (-chance, token, parent, who votes for it)
    parent, reached, depth = -1, 1.0, [0]  # depth of each node of the draft, the row's last token's first
    here: Sequence[_Vote] = votes
    while len(tokens) < count:
        for child in _children(here, depth[parent + 1], reached, parent):
            heapq.heappush(heap, child)
        if not heap or -heap[0][0] < chance:
            break
        negative, token, above, here = heapq.heappop(heap)
        reached, parent = -negative, len(tokens)
        tokens.append(token)
        parents.append(above)
        depth.append(depth[above + 1] + 1)
    return tuple(tokens), tuple(parents)


def _children(
    votes: Sequence[_Vote], depth: int, reached: float, parent: int
) -> list[tuple[float, int, int, list[_Vote]]]:
    """What these places say of the token `depth` after them, as likeliest() holds it."""
    found: dict[int, list[_Vote]] = {}
    total = 1
    for vote in votes:
        total += vote.weight
        token = vote.text.token(vote.place + depth)
        if token != SEPARATOR:
            found.setdefault(token, []).append(vote)
    return [
        (-reached * sum(vote.weight for vote in ones) / total, token, parent, ones)
        for token, ones in found.items()
    ]


def _bound(wanted: Wanted) -> int:
    kept = int(wanted.options[TOKENS])
    rows = wanted.max_num_seqs * most_row_bytes(wanted.max_model_len, len(LEVELS))
    answers = most_bytes(kept, len(LEVELS)) + bytes_of(kept // 2, len(LEVELS)) + 32 * kept
    return rows + answers


PROPOSER = Registration("what most often followed, here and in earlier answers", Suffix, _bound, OPTIONS)
