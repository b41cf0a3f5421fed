"""Stop strings: found whatever the split, and no character is held back for nothing."""

from __future__ import annotations

import gc
import itertools
import threading
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.tokenizer.stop import StopAutomaton, StopStrings, prepared, stop_automaton
from support.growth import LINEAR, growth

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


def many(characters: int) -> list[str]:
    """Strings of 256 characters that begin differently: as many nodes as characters."""
    return [
        "".join(chr(0x3400 + (i * 256 + j) % 20_000) for j in range(256)) for i in range(characters // 256)
    ]


def test_completions_share_one_automaton() -> None:
    """However many completions and prompts look for the same strings at a time."""
    stops = many(16_384)
    tracemalloc.start()
    try:
        first = StopStrings(stops)
        alone = tracemalloc.get_traced_memory()[0]
        others = [StopStrings(list(stops), include=bool(i % 2)) for i in range(127)]
        together = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len({id(each.automaton) for each in [first, *others]}) == 1
    assert alone < 300 * 16_384, "bytes a character"
    assert together - alone < 1000 * 127


def test_each_completion_has_a_state_of_its_own() -> None:
    one, other = StopStrings(["abc"]), StopStrings(["abc"])
    assert one.feed("ab") == ("", None)
    assert other.feed("c") == ("c", None)
    assert one.feed("c") == ("", "abc")


def test_an_automaton_goes_with_its_last_user() -> None:
    used = StopStrings(["once", "only"])
    name = id(used.automaton)
    assert id(stop_automaton(("once", "only"))) == name
    del used
    gc.collect()
    from octavo.tokenizer import stop

    assert ("once", "only") not in stop._in_use


def test_threads_that_want_the_same_make_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    init = StopAutomaton.__init__

    def counted(self: StopAutomaton, strings: list[str]) -> None:
        made.append(1)
        init(self, strings)

    monkeypatch.setattr(StopAutomaton, "__init__", counted)
    stops, found = many(4096), list[StopAutomaton]()
    threads = [threading.Thread(target=lambda: found.append(prepared(stops))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len({id(each) for each in found}) == 1


@pytest.mark.parametrize(
    "strings", [many, lambda size: ["a" * (size - 1) + "b"], lambda size: ["ab" * (size // 2)]]
)
def test_an_automaton_costs_in_proportion_to_its_strings(strings: object) -> None:
    assert callable(strings)
    assert growth(lambda size: StopAutomaton(strings(size)), 2048) < LINEAR
