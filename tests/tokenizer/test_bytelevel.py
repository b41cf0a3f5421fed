"""Byte-level BPE from GGUF, against a plain implementation and against transformers."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Tokenizer

from octavo.checkpoints.gguf import GGUFCheckpoint
from octavo.errors import CheckpointError
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.gguf import from_gguf
from octavo.tokenizer.pretokenizers import RULES, pretokenizer
from octavo.tokenizer.token_bytes import byte_alphabet, byte_level

TEXTS = [
    "",
    "Hello world",
    "I'll say: it's 1234567 o'clock, isn't it?",
    "  two  spaces,\ttabs \n\n newlines\r\n  \n",
    "漢字かな交じり文と Ελληνικά и русский 👩‍👩‍👧 é é",
    "def f(x):\n    return x**2  # ½ Ⅻ ٣\n",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
]

# What every regex engine knows alike: characters assigned long ago, and no ASCII separators (U+001C
# to U+001F), which Python counts as white space. SmolLM2 lacks some control bytes, so none of them.
OLD_TEXT = st.text(
    st.characters(max_codepoint=0x1FFF, exclude_categories=["Cc", "Cs", "Cn"])
    | st.sampled_from(" \n\t'19aé字🙂"),
    max_size=40,
)


class PlainBPE:
    """BPE as the paper writes it: split, then merge the best-ranked neighbours until none is left."""

    def __init__(self, config: dict[str, Any]) -> None:
        tokens = config["tokenizer.ggml.tokens"]
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {tuple(m.split(" ")): i for i, m in enumerate(config["tokenizer.ggml.merges"])}
        kinds = config["tokenizer.ggml.token_type"]
        special = sorted((t for t, k in zip(tokens, kinds, strict=True) if k == 3), key=len, reverse=True)
        self.special = regex.compile("(" + "|".join(map(regex.escape, special)) + ")")
        self.patterns = [
            regex.compile(r"\p{N}"),
            regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
        ]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(self.special.split(text)):
            ids += [self.ids[part]] if i % 2 else self.words(part)
        return ids

    def words(self, text: str) -> list[int]:
        pieces = [text] if text else []
        for pattern in self.patterns:
            pieces = [p for piece in pieces for p in cuts(pattern, piece)]
        return [i for piece in pieces for i in self.word(piece)]

    def word(self, piece: str) -> list[int]:
        alphabet = byte_alphabet()
        parts = [alphabet[b] for b in piece.encode()]
        while True:
            ranked = [(self.ranks[p], i) for i, p in enumerate(itertools.pairwise(parts)) if p in self.ranks]
            if not ranked:
                return [self.ids[p] for p in parts]
            _, i = min(ranked)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]


def cuts(pattern: regex.Pattern[str], text: str) -> list[str]:
    pieces, end = [], 0
    for match in pattern.finditer(text):
        pieces += [text[end : match.start()], match.group()]
        end = match.end()
    return [p for p in [*pieces, text[end:]] if p]


@pytest.fixture(scope="module")
def plain(smollm2: GGUFCheckpoint) -> PlainBPE:
    return PlainBPE(smollm2.config)


@pytest.fixture(scope="module")
def theirs(smollm2: GGUFCheckpoint) -> GPT2Tokenizer:
    tokens = smollm2.config["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in smollm2.config["tokenizer.ggml.merges"]]
    return GPT2Tokenizer(
        vocab={t: i for i, t in enumerate(tokens)},
        merges=merges,
        extra_special_tokens=["<|im_start|>", "<|im_end|>"],
    )


@pytest.fixture(scope="module")
def as_gpt2(smollm2: GGUFCheckpoint) -> Tokenizer:
    """SmolLM2's vocabulary under GPT-2's rule, which transformers builds from parts as well."""
    return from_gguf(smollm2.config | {"tokenizer.ggml.pre": "gpt-2"})


@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_on_texts(text: str, smollm2_tokenizer: Tokenizer, plain: PlainBPE) -> None:
    ids = smollm2_tokenizer.encode(text)
    assert ids == plain.encode(text)
    assert smollm2_tokenizer.decode(ids, skip_special_tokens=False) == text


@settings(max_examples=300)
@given(text=OLD_TEXT)
def test_smollm2_on_random_text(text: str, smollm2_tokenizer: Tokenizer, plain: PlainBPE) -> None:
    ids = smollm2_tokenizer.encode(text)
    assert ids == plain.encode(text)
    assert smollm2_tokenizer.decode(ids, skip_special_tokens=False) == text


@settings(max_examples=200)
@given(text=st.sampled_from(TEXTS) | OLD_TEXT)
def test_gpt2_encodes_like_transformers(text: str, as_gpt2: Tokenizer, theirs: GPT2Tokenizer) -> None:
    assert as_gpt2.encode(text) == theirs.encode(text)


@settings(max_examples=200)
@given(ids=st.lists(st.integers(0, 49151), max_size=30), skip=st.booleans())
def test_random_ids_decode_like_transformers(
    ids: list[int], skip: bool, smollm2_tokenizer: Tokenizer, theirs: GPT2Tokenizer
) -> None:
    ids = [i for i in ids if i < 3 or not smollm2_tokenizer.is_special(i)]  # transformers was told of three
    assert smollm2_tokenizer.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_alphabet() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet.values())) == 256
    assert (alphabet[0x20], alphabet[0x0A], alphabet[0x41], alphabet[0xAD]) == ("Ġ", "Ċ", "A", "Ń")
    assert byte_level("".join(alphabet.values())) == bytes(alphabet)
    assert byte_level("a b") == b"a b"
    assert byte_level("字") == "字".encode()


SAMPLE = "I'LL pay $3,000 for  12345x… it's\n\n  ok?\r\n"
CUTS = {
    "gpt-2": "I|'|LL| pay| $|3|,|000| for| | 12345|x|…| it|'s|\n\n | ok|?|\r\n",
    "smollm": "I|'|LL| pay| $|3|,|0|0|0| for|  |1|2|3|4|5|x|…| it|'s|\n\n | ok|?|\r\n",
    "llama-bpe": "I|'LL| pay| $|3|,|000| for| | |123|45|x|…| it|'s|\n\n| | ok|?\r\n",
    "qwen2": "I|'LL| pay| $|3|,|0|0|0| for| | |1|2|3|4|5|x|…| it|'s|\n\n| | ok|?\r\n",
    "falcon": "I|'|LL| pay| |$|3|,|000| for| | |123|45|x|…| it|'|s|\n\n | ok|?|\r\n",
    "default": "I|'|LL| pay| |$|3|,|000| for| | |123|45|x|…| it|'|s|\n\n | ok|?|\r\n",
    "tekken": "I|'LL| pay| $|3|,|0|0|0| for| | |1|2|3|4|5|x|…| it|'s|\n\n| | ok|?\r\n",
}
"""Worked out by hand from each rule's patterns."""


@pytest.mark.parametrize("name", CUTS)
def test_words_by_pretokenizer(name: str) -> None:
    pieces = [SAMPLE[a:b] for _, (a, b) in pretokenizer(name).splitter.pre_tokenize_str(SAMPLE)]
    assert "|".join(pieces) == CUTS[name]


@pytest.mark.parametrize("name", RULES)
def test_every_pretokenizer_loses_nothing(name: str, toy_metadata: Callable[..., dict[str, Any]]) -> None:
    tokenizer = from_gguf(toy_metadata(pre=name))
    for text in [*TEXTS, SAMPLE]:
        back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
        assert back == (unicodedata.normalize("NFC", text) if name == "qwen2" else text)


def test_llama_3_starts_with_bos_and_keeps_whole_words(toy_metadata: Callable[..., dict[str, Any]]) -> None:
    metadata = toy_metadata(pre="llama-bpe", merges=["h e"])
    ids = from_gguf(metadata).encode("hello")
    assert ids == [metadata["tokenizer.ggml.bos_token_id"], metadata["tokenizer.ggml.tokens"].index("hello")]
    off = from_gguf(metadata | {"tokenizer.ggml.add_bos_token": False})
    assert off.encode("hello") == ids[1:]


def test_unknown_pretokenizers_are_refused(toy_metadata: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(CheckpointError, match="pre-tokenizer 'novel' is not supported; supported: default"):
        from_gguf(toy_metadata(pre="novel"))
