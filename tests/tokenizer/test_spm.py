"""SentencePiece vocabularies from GGUF, against the sentencepiece package."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import CheckpointError
from octavo.prompts import chat_ids
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.chat import ChatTemplate
from octavo.tokenizer.gguf import from_gguf
from octavo.tokenizer.tokenizer import IncrementalDetokenizer

Pair = tuple[Any, Tokenizer]


def trained(prefix: bool) -> Any:
    """A real SentencePiece model, trained on this folder's own source."""
    lines = [line for p in sorted(Path(__file__).parent.glob("*.py")) for line in p.read_text().splitlines()]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=900,
        model_type="bpe",
        byte_fallback=True,
        add_dummy_prefix=prefix,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<user>"],
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def metadata_of(model: Any, prefix: bool) -> dict[str, Any]:
    def kind(i: int) -> int:
        tests = [(model.is_unknown, 2), (model.is_control, 3), (model.is_byte, 6)]
        return next((code for test, code in tests if test(i)), 4 if model.id_to_piece(i) == "<user>" else 1)

    size = range(model.get_piece_size())
    found = {
        "model": "llama",
        "tokens": [model.id_to_piece(i) for i in size],
        "scores": [model.get_score(i) for i in size],
        "token_type": [kind(i) for i in size],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_space_prefix": prefix,
    }
    return {f"tokenizer.ggml.{k}": v for k, v in found.items()}


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "plain"])
def pair(request: pytest.FixtureRequest) -> Pair:
    model = trained(request.param)
    return model, from_gguf(metadata_of(model, request.param))


@settings(max_examples=300)
@given(
    text=st.text(st.sampled_from("abcdefinorst  \n\t.,(_é字🙂▁") | st.characters(codec="utf-8"), max_size=40)
)
def test_ids_and_text_equal_sentencepiece(text: str, pair: Pair) -> None:
    model, ours = pair
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == model.encode(text)
    assert ours.decode(ids) == model.decode(ids)


def test_bos_is_added_and_left_out_of_text(pair: Pair) -> None:
    _, ours = pair
    assert ours.encode("import")[0] == ours.bos_token_id == 1
    assert ours.decode(ours.encode("import re")) == "import re"
    assert ours.decode(ours.encode("import"), skip_special_tokens=False).startswith("<s>")
    assert ours.stop_token_ids == (2,)


def test_bytes_make_characters_across_tokens(pair: Pair) -> None:
    _, ours = pair
    ids = [ours.token_id(f"<0x{b:02X}>") for b in "🙂".encode()]
    assert None not in ids
    deltas = IncrementalDetokenizer(ours)
    assert [deltas.push(i) for i in ids if i is not None] == ["", "", "", "🙂"]


def test_a_stream_keeps_the_space_after_a_prompt() -> None:
    ours = from_gguf(metadata_of(trained(True), True))
    ids = ours.encode("import re", add_special_tokens=False)
    begin, rest = ids[:1], ids[1:]
    fresh, continued = IncrementalDetokenizer(ours), IncrementalDetokenizer(ours, begin)
    text = "".join(map(fresh.push, ids))
    assert text == "import re"
    assert ours.decode(begin) + "".join(map(continued.push, rest)) == text
    assert next(d for d in map(IncrementalDetokenizer(ours).push, ids) if d)[0] != " "


@pytest.mark.parametrize("key", ["tokens", "scores"])
def test_what_is_missing_is_named(key: str) -> None:
    metadata = metadata_of(trained(True), True)
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.{key}"):
        from_gguf(metadata)


def test_scores_decide_not_the_order_of_ids() -> None:
    """ "ab" + "c" or "a" + "bc": whichever pair scores higher is joined first."""
    tokens = ["<unk>", "a", "b", "c", "ab", "bc"]
    for (ab, bc), expected in {(-1.0, -2.0): ["ab", "c"], (-2.0, -1.0): ["a", "bc"]}.items():
        metadata = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0, -9.0, -9.0, -9.0, ab, bc],
            "tokenizer.ggml.token_type": [2, 1, 1, 1, 1, 1],
            "tokenizer.ggml.add_space_prefix": False,
            "tokenizer.ggml.add_bos_token": False,
        }
        ids = from_gguf(metadata).encode("abc")
        assert [tokens[i] for i in ids] == expected
        assert list(itertools.chain(*expected)) == list("abc")


@pytest.mark.parametrize("content", ["a</s>b <s>", "</s>", "import </s></s> <unk> é"])
def test_control_tokens_that_a_user_types_stay_text(content: str, pair: Pair) -> None:
    _, ours = pair
    template = ChatTemplate("<s>{% for m in messages %}{{ m.content }}</s>{% endfor %}")
    messages = [{"role": "user", "content": content}]
    text, ids = chat_ids(template, ours, messages)
    assert text == template.render(messages)
    assert [i for i in ids if ours.is_special(i)] == [1, 2]
    assert ours.decode(ids, skip_special_tokens=False).replace("<s> ", "<s>") == text
