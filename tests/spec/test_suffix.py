"""spec/suffix.py: votes, lengths, trees, what is shared and what is not, bytes and lines."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from octavo.spec import Begin, Proposer, Wanted, method
from octavo.spec.suffix import ENOUGH, LEVELS, Answers, _Vote, likeliest_chain
from octavo.spec.text_index import SEPARATOR, TextIndex, most_bytes
from support.lines import lines_of

SUFFIX = method("suffix")


def suffix(trees: bool = False, **given: object) -> Proposer:
    given = {**given, "use_tree_spec": trees}
    options = SUFFIX.settings({f"suffix_decoding_{name}": value for name, value in given.items()})
    return SUFFIX.make(Wanted(4, 4096, trees, options))


def drafted(proposer: Proposer, count: int = 8) -> tuple[int, ...]:
    draft = proposer.propose({0: count}).get(0)
    return () if draft is None else draft.tokens


def answered(
    proposer: Proposer, prompt: Sequence[int], answer: Sequence[int], salt: str | None = None
) -> None:
    """A request that came, got its answer, and went."""
    proposer.start(3, Begin(prompt, len(prompt), salt=salt))
    proposer.observe(3, answer)
    proposer.remove(3)


def test_most_votes_win() -> None:
    often, seldom = [1, 2, 3, 7], [1, 2, 3, 8]
    text = [*often, 20, *often, 21, *seldom, 22, 1, 2, 3]
    proposer = suffix()
    proposer.start(0, Begin(text, len(text)))
    assert drafted(proposer, 1) == (7,)


def test_a_longer_match_has_more_votes() -> None:
    text = [1, 2, 7, 20, 5, 6, 1, 2, 8, 21, 1, 2, 7, 22, 5, 6, 1, 2]
    proposer = suffix()
    proposer.start(0, Begin(text, len(text)))
    assert drafted(proposer, 1) == (8,)  # four tokens match once, two twice: only the longest level is asked


@pytest.mark.parametrize(
    ("matching", "factor", "expected"), [(2, 1.0, 2), (6, 1.0, 6), (6, 0.5, 3), (3, 9.0, 7)]
)
def test_a_draft_is_as_long_as_the_match_allows(matching: int, factor: float, expected: int) -> None:
    text = [*range(100, 100 + matching), *range(1, 8), 50, *range(100, 100 + matching)]
    proposer = suffix(max_spec_factor=factor)
    proposer.start(0, Begin(text, len(text)))
    tokens = drafted(proposer, 7)
    assert tokens == tuple(range(1, 8))[: len(tokens)]
    assert len(tokens) == expected


@pytest.mark.parametrize("chance", [0.2, 0.5, 0.7])
def test_a_draft_ends_where_it_is_too_unlikely(chance: float) -> None:
    text = [1, 2, 3, 10, 11, 12, 13, 14, 15, 1, 2, 3]
    proposer = suffix(min_token_prob=chance, max_spec_factor=9.0)
    proposer.start(0, Begin(text, len(text)))
    likely = [0.75**depth for depth in range(1, 7)]  # three votes of four, again and again
    assert len(drafted(proposer)) == sum(each >= chance for each in likely)


def test_a_tree_has_several_guesses_and_a_chain_one() -> None:
    text = [1, 2, 3, 7, 9, 20, 1, 2, 3, 8, 9, 21, 1, 2, 3, 7, 9, 22, 1, 2, 3]
    chain, tree = suffix(), suffix(trees=True)
    for proposer in (chain, tree):
        proposer.start(0, Begin(text, len(text)))
    draft = tree.propose({0: 4})[0]
    assert draft.paths()[1:] == [(7,), (7, 9), (8,)]
    assert chain.propose({0: 4})[0].is_chain
    assert drafted(chain, 2) == (7, 9)


def likely_chain(votes: Sequence[_Vote], count: int, chance: float) -> list[int]:
    """A draft by counting: at each depth the token with most votes, of equal ones the smallest."""
    found: list[int] = []
    reached, here = 1.0, list(votes)
    while len(found) < count:
        told = [(vote.text.token(vote.place + len(found)), vote) for vote in here]
        sums: dict[int, int] = {}
        for token, vote in told:
            sums[token] = sums.get(token, 0) + vote.weight * (token != SEPARATOR)
        most = max(sums.values(), default=0)
        best = min((token for token, votes_of in sums.items() if votes_of == most), default=SEPARATOR)
        reached = reached * most / (1 + sum(vote.weight for vote in here))
        if best == SEPARATOR or reached < chance:
            break
        found.append(best)
        here = [vote for token, vote in told if token == best]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_chains_are_those_of_counted_votes(seed: int) -> None:
    draw = random.Random(seed)
    lengths = set()
    for _ in range(300):
        text = TextIndex((2,), 64)
        text.extend([draw.randrange(3) for _ in range(30)])
        votes = [_Vote(text, draw.randint(2, 30), draw.randint(2, 40)) for _ in range(draw.randint(1, 4))]
        count, chance = draw.randint(1, 9), draw.choice([0.05, 0.3, 0.6])
        tokens = likeliest_chain(votes, count, chance)
        assert tokens == likely_chain(votes, count, chance)
        lengths.add(len(tokens))
    assert lengths == set(range(10))


def test_others_learn_from_answers_and_not_from_prompts() -> None:
    proposer = suffix()
    answered(proposer, [1, 2, 3], [4, 5, 6, 7])
    proposer.start(0, Begin([9, 2, 3], 3))
    assert drafted(proposer) == (4, 5)  # an answer's first tokens follow the end of its prompt
    proposer.observe(0, [5])
    assert drafted(proposer) == ()
    proposer.observe(0, [6])
    assert drafted(proposer) == (7,)
    other = suffix()
    other.start(3, Begin([1, 2, 3, 4, 5, 6], 6))
    other.remove(3)  # nothing was generated
    other.start(0, Begin([9, 2, 3], 3))
    assert drafted(other) == ()


def test_salts_keep_apart() -> None:
    proposer = suffix()
    answered(proposer, [1, 2], [3, 4, 5], salt="a")
    for salt, expected in ((None, ()), ("b", ()), ("a", (4, 5))):
        proposer.start(0, Begin([2, 3], 2, salt=salt))
        assert drafted(proposer) == expected
        proposer.remove(0)


def test_reset_forgets_what_was_generated_and_what_runs_has_said() -> None:
    proposer = suffix()
    answered(proposer, [1, 2], [3, 4, 5])
    proposer.start(1, Begin([1, 2], 2))
    proposer.observe(1, [3, 4, 6])
    before = proposer.nbytes
    proposer.reset()
    assert proposer.nbytes < before
    proposer.remove(1)
    proposer.start(0, Begin([2, 3], 2))
    assert drafted(proposer) == ()
    answered(proposer, [1, 2], [3, 4, 5])
    assert drafted(proposer) == (4, 5)


def test_a_preempted_request_teaches_once() -> None:
    proposer = suffix()
    answered(proposer, [1, 2], [3, 4, 5])
    proposer.start(3, Begin([1, 2, 3, 4, 5], 2))
    proposer.remove(3)
    proposer.start(3, Begin([1, 2, 3, 4, 5], 2))
    proposer.observe(3, [8])
    proposer.remove(3)
    proposer.start(0, Begin([4, 5], 2))
    assert drafted(proposer) == (8,)


def test_a_prediction_is_drafted() -> None:
    proposer = suffix()
    proposer.start(0, Begin([1, 2, 3], 3, [30, 31, 32, 33]))
    assert drafted(proposer) == (30, 31, 32)  # as many as the prompt's end has tokens
    proposer.observe(0, [30, 99, 31, 32])
    assert drafted(proposer) == (33,)


@pytest.mark.parametrize("every", [2, 5, 17, 100, 300])
def test_a_row_that_is_seldom_asked_gets_the_same_drafts(every: int) -> None:
    draw = random.Random(every)
    often, seldom = suffix(), suffix()
    for each in (often, seldom):
        answered(each, [1], [0, 1, 2, 3] * 9)
        each.start(0, Begin([1, 2, 3, 1, 2], 5))
    for step in range(1, 601):
        token = draw.randrange(9) if step < 400 else step % 5
        for each in (often, seldom):
            each.observe(0, [token])
        found = drafted(often)
        assert step % every or drafted(seldom) == found


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_as_many_answers_are_kept_as_were_asked_for(kept: int) -> None:
    proposer = suffix(max_cached_requests=kept)
    for answer in (10, 20, 30):
        answered(proposer, [answer, answer + 1], [answer + 2, answer + 3])
    found = []
    for answer in (10, 20, 30):
        proposer.start(0, Begin([answer + 1, answer + 2], 2))
        found.append(drafted(proposer) == (answer + 3,))
        proposer.remove(0)
    assert sum(found) == kept
    assert found == sorted(found), "the oldest goes first"


def test_the_salt_that_was_used_least_lately_goes_first() -> None:
    answers = Answers(1024, 100)
    for salt in ("a", "b", "c", "a", "d"):
        answers.add(salt, list(range(400)))
        assert answers.nbytes <= most_bytes(1024, len(LEVELS))
    assert [salt for salt in "abcd" if answers.of(salt) is not None] == ["d"]
    answers.clear()
    for salt in ("a", "b", "c", "a", "d"):
        answers.add(salt, list(range(100)))
    assert [salt for salt in "abcd" if answers.of(salt) is not None] == ["a", "c", "d"]
    assert answers.nbytes == sum(
        text.nbytes + 32 * n for s, n in (("a", 2), ("c", 1), ("d", 1)) if (text := answers.of(s))
    )


@pytest.mark.usefixtures("python_texts")
def test_lines_of_a_token_do_not_grow_with_what_was_said() -> None:
    draw = random.Random(0)

    def lines(count: int) -> int:
        proposer = suffix()
        for _ in range(count):
            answered(proposer, [1, 2], [draw.randrange(30) for _ in range(500)])
        proposer.start(0, Begin([draw.randrange(30) for _ in range(3000)], 3000))

        def go_on() -> None:
            for _ in range(50):
                proposer.propose({0: 8})
                proposer.observe(0, [draw.randrange(30)])

        return lines_of(go_on)

    assert lines(64) <= 1.5 * lines(16)


@pytest.mark.usefixtures("python_texts")
def test_lines_of_requests_at_most_double_with_their_tokens() -> None:
    draw = random.Random(0)

    def lines(count: int) -> int:
        def serve() -> None:
            proposer = suffix(max_cached_tokens=4096)
            for _ in range(count):
                answered(proposer, [1, 2], [draw.randrange(30) for _ in range(200)])

        return lines_of(serve)

    assert lines(60) <= 2.5 * lines(30)


def test_few_places_vote() -> None:
    text = [1, 2] * 200
    proposer = suffix()
    proposer.start(0, Begin(text, len(text)))
    assert len(proposer._votes(proposer._rows[0])) == ENOUGH  # type: ignore[attr-defined]
