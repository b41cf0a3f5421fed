"""Stop strings: found whatever the split, and no character is held back for nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.tokenizer.stop import StopStrings

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
TEXT = st.text("abc", max_size=30)
CUTS = st.lists(st.integers(0, 30), max_size=10)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that ends first (the longest of those), and that string."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(matcher: StopStrings, pieces: list[str]) -> tuple[str, str | None]:
    out, found = "", None
    for piece in pieces:
        safe, found = matcher.feed(piece)
        out += safe
        if found is not None:
            break
    return out + ("" if found is not None else matcher.flush()), found


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


@settings(max_examples=1000)
@given(text=TEXT, stops=STOPS, cuts=CUTS)
def test_any_split_gives_the_same(text: str, stops: list[str], cuts: list[int]) -> None:
    assert run(StopStrings(stops), pieces_of(text, cuts)) == naive(text, stops)


@settings(max_examples=500)
@given(text=TEXT, stops=STOPS, cuts=CUTS)
def test_included(text: str, stops: list[str], cuts: list[int]) -> None:
    before, found = naive(text, stops)
    assert run(StopStrings(stops, include=True), pieces_of(text, cuts)) == (before + (found or ""), found)


@settings(max_examples=1000)
@given(text=TEXT, stops=STOPS)
def test_holds_back_exactly_what_may_begin_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    out = ""
    for i, char in enumerate(text):
        safe, found = matcher.feed(char)
        out += safe
        if found is not None:
            return
        seen = text[: i + 1]
        begins = [k for k in range(len(seen) + 1) if any(s.startswith(seen[len(seen) - k :]) for s in stops)]
        assert len(seen) - len(out) == max(begins, default=0)


def test_after_a_match_nothing_comes() -> None:
    matcher = StopStrings(["END"])
    assert matcher.feed("a EN") == ("a ", None)
    assert matcher.feed("D and more") == ("", "END")
    assert matcher.feed("text") == ("", "END")
    assert matcher.flush() == ""


@pytest.mark.parametrize("stops", [[], [""]])
def test_without_stops_all_passes(stops: list[str]) -> None:
    matcher = StopStrings(stops)
    assert matcher.feed("anything") == ("anything", None)
    assert matcher.flush() == ""


def test_a_failed_beginning_is_let_go() -> None:
    matcher = StopStrings(["</s>", "\n\n"])
    assert [matcher.feed(c)[0] for c in "a</b\nc"] == ["a", "", "", "</b", "", "\nc"]


def test_long_stops_cost_no_more_than_their_length() -> None:
    matcher = StopStrings(["a" * 20_000 + "b"])
    out = "".join(matcher.feed("a" * 100)[0] for _ in range(2_000))
    assert len(out) == 180_000
    assert len(matcher.flush()) == 20_000
