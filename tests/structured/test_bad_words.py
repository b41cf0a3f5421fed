"""Bad words: none appears, however it is cut into tokens, and nothing else is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.params import SamplingParams
from octavo.sampling.constraints import full_mask
from octavo.sampling.logits import allowed
from octavo.structured import ConstraintCompiler, bad_words
from octavo.structured.bad_words import BadWords, Vocabulary
from support.grammars import ByteTokenizer
from support.growth import LINEAR, growth

TOKENS = [b"a", b"b", b"ab", b"ba", b"aab", b"bb", b"c", b"", "é".encode(), b"\xc3", b"\xa9"]
WORDS = st.lists(st.text("abcé", min_size=1, max_size=5), min_size=1, max_size=3)


@given(words=WORDS, prefer=st.lists(st.integers(0, len(TOKENS) - 1), max_size=40), drafts=st.integers(0, 3))
def test_no_bad_word_appears_however_it_is_cut(words: list[str], prefer: list[int], drafts: int) -> None:
    """A token is refused exactly if it would complete a word: the mask is neither weaker nor stronger."""
    constraint = BadWords(words, Vocabulary(TOKENS))
    matcher = constraint.start([])
    output: list[int] = []
    bad = [word.encode() for word in words]
    for wish in prefer:
        mask = full_mask(1, len(TOKENS))[0]
        ahead = output[len(output) - drafts :] if drafts and len(output) >= drafts else []
        own = output[: len(output) - len(ahead)]
        constraint.start(own).restrict(mask, ahead)  # looking ahead is the same as having written
        direct = full_mask(1, len(TOKENS))[0]
        matcher.restrict(direct)
        assert mask.tolist() == direct.tolist()
        may = allowed(mask, len(TOKENS))
        text = b"".join(TOKENS[i] for i in output)
        for token, added in enumerate(TOKENS):
            completes = any(word in text + added for word in bad) and bool(added)
            assert bool(may[token]) is not completes
        if may[wish]:
            output.append(wish)
            matcher.append([wish])


def test_bad_words_need_a_compiler_and_get_one() -> None:
    compiler = ConstraintCompiler(ByteTokenizer())
    params = compiler.compile(SamplingParams(bad_words=["bad"]))
    mask = full_mask(1, 260)[0]
    params.constraints[0].start(list(b"ba")).restrict(mask)
    banned = set(np.flatnonzero(~allowed(mask, 260)).tolist())
    assert banned == {258, ord("d")}
    assert compiler.compile(params) is params


@given(word=st.text("abcé", min_size=1, max_size=4), part=st.text("abcé", min_size=1, max_size=3))
def test_the_vocabulary_is_looked_up_as_if_by_eye(word: str, part: str) -> None:
    vocabulary = Vocabulary([*TOKENS, b"\xff", b"", b"a\xff", b"ab"])
    tokens = vocabulary.tokens
    holding = vocabulary.holding(word.encode()).tolist()
    assert holding == [i for i, token in enumerate(tokens) if word.encode() in token]
    for cut in range(len(part.encode())):
        end = part.encode()[cut:]
        low, high = vocabulary.beginning(end)
        begun = [i for i, token in enumerate(tokens) if token.startswith(end)]
        assert sorted(vocabulary.ids[low:high].tolist()) == begun


def test_a_word_is_looked_for_where_its_rarest_pair_of_bytes_stands() -> None:
    """And nowhere else: the other texts of a vocabulary cost it nothing."""
    vocabulary = Vocabulary([b"%05d abc" % i for i in range(2000)])
    assert len(vocabulary._rarest(b"00017")[1]) < 200
    assert len(vocabulary._rarest(b"00017 a")[1]) < 400
    assert [len(vocabulary._rarest(word)[1]) for word in (b"abc", b"xyz", b"c")] == [2000, 0, 2000]


def test_what_is_longer_than_every_token_is_not_looked_up() -> None:
    vocabulary = Vocabulary(TOKENS)
    looked: list[bytes] = []
    beginning = vocabulary.beginning
    vocabulary.beginning = lambda part: (looked.append(part), beginning(part))[1]  # type: ignore
    holding, begun = vocabulary.ask(b"ab" * 40)
    assert (len(holding), len(begun)) == (0, 79)
    assert max(map(len, looked)) == max(map(len, TOKENS))


@pytest.mark.parametrize("count", [1, 16, 17, 256])
def test_others_have_the_interpreter_between_slices_of_words(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for its lock would otherwise wait for all of them, or for a turn each time."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    BadWords([f"w{i}" for i in range(count)], Vocabulary(TOKENS))
    assert pauses == [bad_words.PAUSE_S] * ((count - 1) // bad_words.SLICE)


def test_lists_of_words_are_prepared_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that run Python are no faster than one, and the event loop would wait for both."""
    made = ConstraintCompiler(ByteTokenizer())
    running: list[int] = []
    most: list[int] = []
    prepare = made._bad_words

    def counted(words: Sequence[str]) -> BadWords:
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)  # another thread would come in
        running.pop()
        return prepare(words)

    monkeypatch.setattr(made, "_bad_words", counted)

    async def test() -> None:
        wanted = [SamplingParams(bad_words=[f"w{i}"]) for i in range(6)]
        await asyncio.gather(*map(made.compile_async, wanted))
        made.close()

    asyncio.run(test())
    assert most == [1] * 6


def words_of(characters: int) -> list[str]:
    return [f"{i:06d} " * 4 for i in range(characters // 28)]


def test_a_word_is_looked_up_once() -> None:
    """Whoever sends it: the second request with a word does not look through the vocabulary again."""
    vocabulary = Vocabulary(TOKENS)
    looked: list[bytes] = []
    holding = vocabulary.holding
    vocabulary.holding = lambda word: (looked.append(word), holding(word))[1]  # type: ignore
    for words in (["ab", "c"], ["c", "ab"], ["c", "b"]):
        BadWords(words, vocabulary)
    assert sorted(looked) == [b"ab", b"b", b"c"]


def test_words_cost_in_proportion_to_their_length() -> None:
    vocabulary = Vocabulary([b"%06d " % i for i in range(2000)])
    assert growth(lambda size: BadWords(words_of(size), vocabulary), 2800) < LINEAR
    assert growth(lambda size: BadWords(["ab" * (size // 2)], vocabulary), 4000) < LINEAR


def test_a_word_that_ends_in_a_space_keeps_a_range_and_no_list() -> None:
    """Half of a vocabulary begins with a space."""
    vocabulary = Vocabulary([b" %d" % i for i in range(50_000)])
    words = BadWords([f"w{i} " for i in range(256)], vocabulary)
    kept = [found for ranges in words._after.values() for found in ranges]
    assert [found.high - found.low for found in kept] == [50_000] * 256
    assert len(words._always) == 0


def test_a_token_costs_its_bytes_however_long_the_words_are() -> None:
    vocabulary = Vocabulary([b"a", b"b"])
    words = BadWords(["a" * 8000 + "b"], vocabulary)
    steps: list[int] = []
    step = words.automaton.step
    words.automaton.step = lambda state, code: (steps.append(code), step(state, code))[1]  # type: ignore
    matcher = words.start([])
    for _ in range(9000):
        matcher.append([0])
    assert len(steps) == 9000
    assert not matcher.allows(1)
