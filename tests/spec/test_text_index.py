"""spec/text_index.py against a search of the whole text."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from octavo.spec.text_index import SEPARATOR, SMALLEST, STEPS, TextIndex, most_bytes, with_prediction
from support.lines import lines_of


def text_of(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(vocabulary) for _ in range(count)]


def searched(text: Sequence[int], tail: Sequence[int], level: int, first: int = 0) -> list[tuple[int, int]]:
    """matches() of one level by looking at every place, the latest first."""
    found = []
    for place in range(len(text) - 1, first, -1):
        length = 0
        while length < min(len(tail), place - first) and text[place - 1 - length] == tail[-1 - length]:
            length += 1
        if length >= level and text[place] != SEPARATOR:
            found.append((place, length))
    return found


@pytest.mark.parametrize("levels", [(1,), (2,), (2, 5), (2, 4, 8)])
@pytest.mark.parametrize("vocabulary", [3, 40])
@pytest.mark.parametrize("at_once", [0, 40, 500])
def test_it_finds_what_a_search_finds(levels: tuple[int, ...], vocabulary: int, at_once: int) -> None:
    text = text_of(600, vocabulary)
    index = TextIndex(levels, 4096)
    index.extend(text[:at_once])
    for end in range(at_once, len(text)):
        index.extend((text[end],))
        tail = index.tail(12)
        assert tail == text[max(end - 11, 0) : end + 1]
        found = list(index.matches(index.keys, tail))
        for level in reversed(levels):
            expected = searched(text[: end + 1], tail, level) if len(tail) >= level else []
            if expected:
                break
        # A chain may hold places of other runs, so fewer than STEPS of the right ones may be reached.
        assert found == expected[: len(found)]
        assert found or not expected
        if vocabulary == 40 and levels[0] > 1:
            assert len(found) == min(len(expected), STEPS - 1) or len(found) >= STEPS // 2


@pytest.mark.parametrize("chunk", [1, 7, 33, 100, 1000])
def test_however_a_text_comes_it_is_indexed_alike(chunk: int) -> None:
    text = text_of(3000, 20)
    one, many = TextIndex((2, 4), 8192), TextIndex((2, 4), 8192)
    for token in text:
        one.extend((token,))
    for start in range(0, len(text), chunk):
        many.extend(text[start : start + chunk])
    assert (one.count, one.keys, one.tail(3000)) == (many.count, many.keys, many.tail(3000))
    tail = one.tail(8)
    assert list(one.matches(one.keys, tail)) == list(many.matches(many.keys, tail))


@pytest.mark.parametrize("chunk", [1, 50, 700])
def test_the_oldest_make_room(chunk: int) -> None:
    text = text_of(5000, 6)
    index = TextIndex((2, 4), 512)
    bytes_at_most = most_bytes(512, 2)
    for start in range(0, len(text), chunk):
        index.extend(text[start : start + chunk])
        assert index.nbytes <= bytes_at_most
        assert len(index) <= 512
    assert index.count == 5000
    assert index.first == 5000 - 512
    tail = index.tail(8)
    found = list(index.matches(index.keys, tail))
    expected = searched(text, tail, 4, index.first) or searched(text, tail, 2, index.first)
    assert found
    assert found == expected[: len(found)]


def test_places_keep_their_numbers_while_tables_grow() -> None:
    index = TextIndex((2,), 1 << 16)
    text = text_of(10 * SMALLEST, 1000)
    for place, token in enumerate(text):
        index.extend((token,))
        assert index.token(place) == token
    assert [index.token(place) for place in range(len(text))] == text


def test_what_is_forgotten_is_not_found() -> None:
    index = TextIndex((2,), 1024)
    index.extend([1, 2, 3, 9, 9, 1, 2])
    assert list(index.matches(index.keys, index.tail(4))) == [(2, 2)]
    index.forget_before(1)
    assert list(index.matches(index.keys, index.tail(4))) == []


def test_no_match_reaches_across_a_separator() -> None:
    index = TextIndex((2,), 1024)
    index.extend([1, 2, SEPARATOR, 5, 1, 2, 7, 1, 2])
    assert list(index.matches(index.keys, index.tail(8))) == [(6, 2)]
    assert index.following(6, 8) == [7, 1, 2, 7, 1, 2, 7, 1]
    assert index.following(4, 8) == [1, 2, 7, 1, 2, 1, 2, 7]
    assert index.following(0, 8) == [1, 2]


def test_a_text_is_looked_up_in_another_one() -> None:
    own, other = TextIndex((2, 4), 256), TextIndex((2, 4), 256)
    other.extend([8, 1, 2, 3, 4, 5, SEPARATOR])
    own.extend([7, 1, 2, 3, 4])
    assert list(other.matches(own.keys, own.tail(16))) == [(5, 4)]
    own.extend((5,))  # what follows there is a separator
    assert list(other.matches(own.keys, own.tail(16))) == []


@pytest.mark.parametrize("vocabulary", [1, 50_000])
def test_lines_of_a_token_do_not_grow_with_the_text(vocabulary: int) -> None:
    def lines(count: int) -> int:
        index = TextIndex((2, 4, 8, 16), 1 << 16)
        index.extend(text_of(count, vocabulary))

        def grow() -> None:
            for token in text_of(64, vocabulary, seed=1):
                index.extend((token,))
                list(index.matches(index.keys, index.tail(24)))

        return lines_of(grow)

    # Seven eighths of a table each: the fuller it is, the more runs share a chain.
    assert lines(28_672) <= 1.1 * lines(448)


def test_bytes_double_with_the_text() -> None:
    small, large = TextIndex((2, 4), 1 << 20), TextIndex((2, 4), 1 << 20)
    small.extend(text_of(3000, 9))
    large.extend(text_of(6000, 9))
    assert small.nbytes == 4096 * 4 * 5
    assert large.nbytes <= 2.5 * small.nbytes


def test_a_prediction_stands_where_it_is_found_first() -> None:
    prompt, prediction = [1, 2, 3, 4], [5, 6, 7]
    assert with_prediction([*prompt, 8], 4, ()) == [*prompt, 8]
    text = with_prediction([*prompt, 8], 4, prediction)
    assert text == [*prompt, SEPARATOR, *prompt, *prediction, SEPARATOR, *prompt, 8]
