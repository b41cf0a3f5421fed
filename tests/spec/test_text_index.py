"""spec/text_index.py against a search of the whole text."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from octavo.kernels.select import native_available
from octavo.spec.text_index import (
    SEPARATOR,
    SMALLEST,
    STEPS,
    Text,
    TextIndex,
    most_bytes,
    new_text,
    with_prediction,
)
from support.growth import LINEAR, growth
from support.lines import lines_of

Make = Callable[[Sequence[int], int], Text]


@pytest.fixture(params=["python", "native"])
def make(request: pytest.FixtureRequest) -> Make:
    if request.param == "python":
        return TextIndex
    if not native_available():
        pytest.skip("the extension was not built")
    assert not isinstance(new_text((2,), 64), TextIndex)
    return new_text


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
def test_it_finds_what_a_search_finds(
    make: Make, levels: tuple[int, ...], vocabulary: int, at_once: int
) -> None:
    text = text_of(600, vocabulary)
    index = make(levels, 4096)
    index.extend(text[:at_once])
    for end in range(at_once, len(text)):
        index.extend((text[end],))
        tail = index.tail(12)
        assert tail == text[max(end - 11, 0) : end + 1]
        found = list(index.matches(index.keys, tail, STEPS))
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
def test_however_a_text_comes_it_is_indexed_alike(make: Make, chunk: int) -> None:
    text = text_of(3000, 20)
    one, many = make((2, 4), 8192), make((2, 4), 8192)
    for token in text:
        one.extend((token,))
    for start in range(0, len(text), chunk):
        many.extend(text[start : start + chunk])
    assert (one.count, one.keys, one.tail(3000)) == (many.count, many.keys, many.tail(3000))
    tail = one.tail(8)
    assert list(one.matches(one.keys, tail, STEPS)) == list(many.matches(many.keys, tail, STEPS))


@pytest.mark.parametrize("chunk", [1, 50, 700])
def test_the_oldest_make_room(make: Make, chunk: int) -> None:
    text = text_of(5000, 6)
    index = make((2, 4), 512)
    bytes_at_most = most_bytes(512, 2)
    for start in range(0, len(text), chunk):
        index.extend(text[start : start + chunk])
        assert index.nbytes <= bytes_at_most
        assert len(index) <= 512
    assert index.count == 5000
    assert index.first == 5000 - 512
    tail = index.tail(8)
    found = list(index.matches(index.keys, tail, STEPS))
    expected = searched(text, tail, 4, index.first) or searched(text, tail, 2, index.first)
    assert found
    assert found == expected[: len(found)]


def test_places_keep_their_numbers_while_tables_grow(make: Make) -> None:
    index = make((2,), 1 << 16)
    text = text_of(10 * SMALLEST, 1000)
    for place, token in enumerate(text):
        index.extend((token,))
        assert index.token(place) == token
    assert [index.token(place) for place in range(len(text))] == text


def test_what_is_forgotten_is_not_found(make: Make) -> None:
    index = make((2,), 1024)
    index.extend([1, 2, 3, 9, 9, 1, 2])
    assert list(index.matches(index.keys, index.tail(4), STEPS)) == [(2, 2)]
    index.forget_before(1)
    assert list(index.matches(index.keys, index.tail(4), STEPS)) == []


def test_no_match_reaches_across_a_separator(make: Make) -> None:
    index = make((2,), 1024)
    index.extend([1, 2, SEPARATOR, 5, 1, 2, 7, 1, 2])
    assert list(index.matches(index.keys, index.tail(8), STEPS)) == [(6, 2)]
    assert index.following(6, 8) == [7, 1, 2, 7, 1, 2, 7, 1]
    assert index.following(4, 8) == [1, 2, 7, 1, 2, 1, 2, 7]
    assert index.following(0, 8) == [1, 2]


@pytest.mark.parametrize("capacity", [16, 4096])
def test_a_place_is_followed_as_far_as_the_text_goes_on_as_it_did_there(make: Make, capacity: int) -> None:
    draw, followed = random.Random(capacity), 0
    index, text = make((2,), capacity), [1, 1]
    index.extend(text)
    place = matched = forgotten = 0
    for _ in range(800):
        if place and draw.random() < 0.1:
            forgotten = draw.randrange(place, len(text))
            index.forget_before(forgotten)
        tokens = [draw.randrange(2) for _ in range(draw.randrange(4))]
        if draw.random() < 0.05:
            tokens.append(SEPARATOR)
        end, expected = place + len(tokens), place > 0 and (text + tokens)[place:][: len(tokens)] == tokens
        text += tokens
        # A place that is no longer held, or after which nothing or a separator stands, is none.
        expected = (
            expected
            and end > max(len(text) - capacity, forgotten)
            and end < len(text)
            and text[end] != SEPARATOR
        )
        known, (place, matched) = matched, index.follow(place, matched, tokens)
        assert (place, matched) == ((end, known + len(tokens)) if expected else (0, 0))
        followed += expected and bool(tokens)
        if not place:
            place, matched = draw.choice([*index.matches(index.keys, index.tail(8), STEPS), (0, 0)])
    assert followed > 50
    assert index.first == max(len(text) - capacity, forgotten)
    assert index.tail(len(text)) == text[index.first :]


def test_a_text_is_looked_up_in_another_one(make: Make) -> None:
    own, other = make((2, 4), 256), make((2, 4), 256)
    other.extend([8, 1, 2, 3, 4, 5, SEPARATOR])
    own.extend([7, 1, 2, 3, 4])
    assert list(other.matches(own.keys, own.tail(16), STEPS)) == [(5, 4)]
    own.extend((5,))  # what follows there is a separator
    assert list(other.matches(own.keys, own.tail(16), STEPS)) == []


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


def test_both_find_the_same() -> None:
    if not native_available():
        pytest.skip("the extension was not built")
    draw = random.Random(0)
    for levels, capacity, vocabulary in (((2, 4, 8, 16), 4096, 3), ((1,), 200, 2), ((2, 5), 512, 9)):
        texts = TextIndex(levels, capacity), new_text(levels, capacity)
        for _ in range(400):
            new = [draw.randrange(-1, vocabulary) for _ in range(draw.choice([1, 1, 2, 9, 17, 60]))]
            for text in texts:
                text.extend(new)
            one, other = ((text.count, text.first, len(text), text.keys, text.nbytes) for text in texts)
            assert one == other
            tail, most = texts[0].tail(draw.choice([1, 6, 24])), draw.choice([3, STEPS])
            found = list(texts[0].matches(texts[0].keys, tail, most))
            assert found == list(texts[1].matches(texts[1].keys, tail, most))
            for place, _ in found:
                count = draw.randrange(40)
                assert texts[0].following(place, count) == texts[1].following(place, count)
                assert texts[0].token(place) == texts[1].token(place)


@pytest.mark.parametrize("vocabulary", [1, 50_000])
def test_the_time_of_a_text_is_linear(make: Make, vocabulary: int) -> None:
    tokens = text_of(1 << 15, vocabulary)

    def entered(count: int) -> None:
        text = make((2, 4, 8, 16), 1 << 15)
        for start in range(0, count, 8):
            text.extend(tokens[start : start + 8])
            list(text.matches(text.keys, text.tail(24), 8))

    assert growth(entered, 1 << 11) < LINEAR


@pytest.mark.parametrize(
    ("levels", "capacity"), [((), 64), ((0,), 64), ((4, 2), 64), ((2, 2), 64), ((2,), 0), ((2,), 1 << 31)]
)
def test_the_extension_refuses_what_is_no_text(levels: tuple[int, ...], capacity: int) -> None:
    if not native_available():
        pytest.skip("the extension was not built")
    with pytest.raises(ValueError, match="text"):
        new_text(levels, capacity)


def test_the_extension_reads_no_place_that_is_none() -> None:
    if not native_available():
        pytest.skip("the extension was not built")
    text = new_text((2,), 64)
    text.extend(range(10))
    for place in (-(1 << 40), -1, 10, 1 << 40):
        assert (text.token(place), text.following(place, 4)) == (SEPARATOR, [])
    assert text.following(3, -1) == text.tail(-5) == text.tail(0) == []
    assert text.tail(1 << 40) == list(range(10))
    text.forget_before(1 << 40)
    assert (len(text), text.first) == (0, 10)
    with pytest.raises(ValueError, match="levels"):
        text.matches([1, 2], [1, 2], 4)


def test_bytes_double_with_the_text(make: Make) -> None:
    small, large = make((2, 4), 1 << 20), make((2, 4), 1 << 20)
    small.extend(text_of(3000, 9))
    large.extend(text_of(6000, 9))
    assert small.nbytes == 4096 * 4 * 5
    assert large.nbytes <= 2.5 * small.nbytes


def test_a_prediction_stands_where_it_is_found_first() -> None:
    prompt, prediction = [1, 2, 3, 4], [5, 6, 7]
    assert with_prediction([*prompt, 8], 4, ()) == [*prompt, 8]
    text = with_prediction([*prompt, 8], 4, prediction)
    assert text == [*prompt, SEPARATOR, *prompt, *prediction, SEPARATOR, *prompt, 8]
