"""Streaming text: the deltas are decode()'s text, for any ids, any split, any prompt."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.tokenizer import Tokenizer
from octavo.tokenizer.tokenizer import IncrementalDetokenizer

# Bytes of multi-byte characters often enough that they meet, and any other token.
TOY_IDS = st.lists(st.integers(0, 270) | st.integers(94, 255), max_size=40)


def stream(
    tokenizer: Tokenizer, ids: list[int], skip: bool = True, prompt: list[int] | None = None
) -> list[str]:
    deltas = IncrementalDetokenizer(tokenizer, prompt or [], skip)
    return [*(deltas.push(i) for i in ids), deltas.flush()]


@settings(max_examples=500)
@given(ids=TOY_IDS, skip=st.booleans())
def test_deltas_add_up_to_decode(ids: list[int], skip: bool, toy: Tokenizer) -> None:
    assert "".join(stream(toy, ids, skip)) == toy.decode(ids, skip)


@settings(max_examples=200)
@given(ids=st.lists(st.integers(0, 49200), max_size=40), skip=st.booleans())
def test_on_smollm2(ids: list[int], skip: bool, smollm2_tokenizer: Tokenizer) -> None:
    assert "".join(stream(smollm2_tokenizer, ids, skip)) == smollm2_tokenizer.decode(ids, skip)


@settings(max_examples=500)
@given(ids=TOY_IDS, cut=st.integers(0, 40), skip=st.booleans())
def test_a_prompt_is_not_repeated(ids: list[int], cut: int, skip: bool, toy: Tokenizer) -> None:
    """The prompt's whole characters are not in the deltas; one that it left unfinished is."""
    prompt, rest = ids[:cut], ids[cut:]
    before = "".join(map(IncrementalDetokenizer(toy, (), skip).push, prompt))
    assert before + "".join(stream(toy, rest, skip, prompt)) == toy.decode(ids, skip)


def test_a_character_comes_with_its_last_byte(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("é🙂")
    deltas = stream(smollm2_tokenizer, ids)
    assert "".join(deltas) == "é🙂"
    assert all(d in ("", "é", "🙂") for d in deltas)


def test_what_stays_open_is_a_replacement_character(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("漢")
    assert len(ids) > 1
    deltas = IncrementalDetokenizer(smollm2_tokenizer)
    assert "".join(map(deltas.push, ids[:-1])) == ""
    assert deltas.flush() == "�"
    assert deltas.flush() == ""


def test_special_tokens(toy: Tokenizer) -> None:
    ids = toy.encode("he<end>{user}<turn>")
    assert stream(toy, ids) == ["he", "", "{user}", "", ""]
    assert stream(toy, ids, skip=False) == ["he", "<end>", "{user}", "<turn>", ""]
