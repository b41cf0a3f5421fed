"""Bad words: none appears, however it is cut into tokens, and nothing else is refused."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.params import SamplingParams
from octavo.sampling.constraints import full_mask
from octavo.sampling.logits import allowed
from octavo.structured import ConstraintCompiler
from octavo.structured.bad_words import BadWords, Vocabulary
from support.grammars import ByteTokenizer

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
