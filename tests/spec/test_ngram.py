"""spec/ngram.py: prompt lookup, predictions, and what a token costs."""

from __future__ import annotations

import random

import pytest

from octavo.errors import InvalidRequestError
from octavo.spec import Begin, Proposer, Wanted, method
from support.lines import lines_of

NGRAM = method("ngram")


def ngram(least: int = 2, most: int = 5, max_model_len: int = 4096) -> Proposer:
    options = NGRAM.settings({"prompt_lookup_min": least, "prompt_lookup_max": most})
    return NGRAM.make(Wanted(4, max_model_len, options=options))


def drafted(proposer: Proposer, row: int = 0, count: int = 4) -> tuple[int, ...]:
    draft = proposer.propose({row: count}).get(row)
    assert draft is None or draft.is_chain
    return () if draft is None else draft.tokens


@pytest.mark.parametrize(
    ("tokens", "least", "most", "expected"),
    [
        ([1, 2, 3, 4, 5, 9, 1, 2], 2, 5, (3, 4, 5, 9)),
        ([1, 2, 3, 4], 2, 5, ()),  # nothing stood there before
        ([1, 2, 3, 9, 2], 2, 5, ()),  # one token alone is none of two
        ([1, 2, 3, 9, 2], 1, 5, (3, 9, 2, 3)),  # and repeats itself from there on
        ([1, 2, 3, 7, 2, 4, 1, 2], 2, 5, (3, 7, 2, 4)),
        ([5, 1, 2, 3, 8, 1, 2, 4, 5, 1, 2], 2, 5, (3, 8, 1, 2)),  # three match there, two later
        ([5, 1, 2, 3, 8, 1, 2, 4, 5, 1, 2], 2, 2, (4, 5, 1, 2)),  # of equal ones the latest
        ([7, 7, 7], 2, 5, (7, 7, 7, 7)),
        ([], 2, 5, ()),
    ],
)
def test_lookup(tokens: list[int], least: int, most: int, expected: tuple[int, ...]) -> None:
    proposer = ngram(least, most)
    proposer.start(0, Begin(tokens, len(tokens)))
    assert drafted(proposer) == expected


def test_a_row_goes_on_and_ends() -> None:
    proposer = ngram()
    proposer.start(0, Begin([1, 2, 3, 4, 5, 6], 6))
    proposer.start(1, Begin([1, 2], 2))
    assert drafted(proposer, 0) == ()
    proposer.observe(0, [2])
    assert drafted(proposer, 0) == ()
    proposer.observe(0, [3])
    assert drafted(proposer, 0) == (4, 5, 6, 2)
    proposer.observe(0, [4, 5])
    assert drafted(proposer, 0, 2) == (6, 2)
    assert drafted(proposer, 1) == ()  # a row's text is its own
    proposer.remove(0)
    proposer.remove(0)
    proposer.start(0, Begin([2, 3], 2))
    assert drafted(proposer, 0) == ()


def test_a_place_that_was_right_is_followed_beyond_the_longest_ngram() -> None:
    first, second = [9, 1, 2, 3, 4, 10], [8, 1, 2, 3, 4, 20]
    proposer = ngram(2, 3)
    proposer.start(0, Begin([9, 9, *first, 0, *second, 0, 9, 9], 16))
    proposer.observe(0, [9, 1])
    for token in (2, 3, 4):
        proposer.propose({0: 4})
        proposer.observe(0, [token])
    assert drafted(proposer, 0, 1) == (10,)
    proposer.observe(0, [20])
    assert drafted(proposer, 0, 1) == (0,)  # it was wrong, so the longest match is looked up again


@pytest.mark.parametrize("generated", [[], [30], [30, 31, 77, 33, 34]])
def test_a_prediction_is_drafted(generated: list[int]) -> None:
    prompt, prediction = [1, 2, 33, 34, 9, 4, *range(100, 120)], [30, 31, 32, 33, 34, 35, 36, 37]
    proposer = ngram()
    proposer.start(0, Begin(prompt, len(prompt), prediction))
    proposer.observe(0, generated)
    resumed = ngram()
    resumed.start(0, Begin([*prompt, *generated], len(prompt), prediction))
    rest = prediction[len(generated) :]
    assert drafted(proposer) == drafted(resumed) == tuple(rest[:4])


def test_support_grows_with_the_match() -> None:
    proposer = ngram()
    proposer.start(0, Begin([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2], 11))
    supports = []
    for token in (3, 4, 5, 6, 7, 8):
        supports.append(proposer.propose({0: 4})[0].support)
        proposer.observe(0, [token])
    assert supports == [2, 2, 3, 3, 3, 3]


@pytest.mark.parametrize("every", [2, 5, 17, 100, 300])
def test_a_row_that_is_seldom_asked_finds_what_stood_there(every: int) -> None:
    draw = random.Random(every)
    often, seldom = ngram(), ngram()
    for each in (often, seldom):
        each.start(0, Begin([1, 2, 3, 1, 2], 5))
    for step in range(1, 601):
        token = draw.randrange(40) if step < 400 else step % 5
        for each in (often, seldom):
            each.observe(0, [token])
        found = drafted(often)
        if step % every == 0:
            assert bool(drafted(seldom)) == bool(found)
            assert step < 410 or drafted(seldom) == found == tuple((step + i) % 5 for i in range(1, 5))


@pytest.mark.usefixtures("python_texts")
def test_what_is_not_looked_up_costs_few_lines() -> None:
    def lines(ask: bool) -> int:
        proposer = ngram()
        proposer.start(0, Begin([1, 2, 3], 3))

        def serve() -> None:
            for token in range(640):
                proposer.observe(0, [token % 50])
                if ask:
                    proposer.propose({0: 5})

        return lines_of(serve)

    assert 6 * lines(False) <= lines(True)


@pytest.mark.usefixtures("python_texts")
def test_lines_of_a_request_at_most_double_with_its_length() -> None:
    def lines(count: int) -> int:
        draw = random.Random(0)
        prompt = [draw.randrange(8) for _ in range(count)]

        def serve() -> None:
            proposer = ngram(max_model_len=1 << 15)
            proposer.start(0, Begin(prompt, count))
            for _ in range(count):
                proposer.observe(0, [draw.randrange(8)])
                proposer.propose({0: 5})

        return lines_of(serve)

    assert lines(4000) <= 2.1 * lines(2000)


@pytest.mark.parametrize("count", [10, 3000, 9000])
def test_bytes_are_counted_and_bounded(count: int) -> None:
    proposer = ngram(max_model_len=4096)
    empty = proposer.nbytes
    for row in range(4):
        proposer.start(row, Begin(list(range(min(count, 4096))), 8, list(range(count))))
    bound = NGRAM.bound(Wanted(4, 4096, options=NGRAM.settings({})))
    assert 0 == empty < proposer.nbytes <= bound
    for row in range(4):
        proposer.remove(row)
    assert proposer.nbytes == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompt_lookup_max": 0}, "prompt_lookup_max must be a whole number from 1 to 32, not 0"),
        ({"prompt_lookup_min": 2.5}, "prompt_lookup_min must be a whole number"),
        ({"prompt_lookup_min": True}, "prompt_lookup_min must be a whole number"),
        ({"prompt_lookup_min": 7}, "prompt_lookup_min 7 is above prompt_lookup_max 5"),
        ({"window": 7}, "speculative_config has no 'window' with this method; it takes: prompt_lookup_max"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        NGRAM.make(Wanted(1, 64, options=NGRAM.settings(given)))
    assert caught.value.param == "speculative_config"


def test_the_shortest_is_never_above_the_longest_by_itself() -> None:
    proposer = NGRAM.make(Wanted(1, 64, options=NGRAM.settings({"prompt_lookup_max": 1})))
    proposer.start(0, Begin([3, 4, 3], 3))
    assert drafted(proposer, 0, 2) == (4, 3)
