"""Tokenizer: its small questions, folders against transformers, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models
from transformers import AutoTokenizer

from octavo.errors import CheckpointError, InvalidRequestError
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.folder import from_folder
from octavo.tokenizer.gguf import from_gguf
from octavo.tokenizer.token_bytes import byte_alphabet

Make = Callable[..., dict[str, Any]]
TEXTS = ["Hello world, it's 2024!", "  漢字 🙂\n\n", "<|im_start|>user\nhi<|im_end|>\n", ""]


def test_smollm2(smollm2_tokenizer: Tokenizer) -> None:
    t = smollm2_tokenizer
    assert (t.vocab_size, t.bos_token_id, t.eos_token_id) == (49152, 1, 2)
    assert t.stop_token_ids == (0, 2)  # <|endoftext|> and <|im_end|>
    assert t.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert t.chat_template is not None
    assert "<|im_start|>" in t.chat_template
    assert t.is_special(1)
    assert not t.is_special(500)
    assert t.encode("<|im_end|>") == [2]
    assert t.token_id("<|im_end|>") == 2
    assert t.token_id("no such token") is None


def test_tokens_stand_for_bytes(toy: Tokenizer, toy_metadata: Make) -> None:
    tokens = toy_metadata()["tokenizer.ggml.tokens"]
    assert toy.vocab_size == len(tokens)
    assert toy.token_bytes(tokens.index("Ġhe")) == b" he"
    assert [toy.token_bytes(i) for i in range(256)] == [bytes([b]) for b in byte_alphabet()]
    part = [list(byte_alphabet()).index(b) for b in "字".encode()]
    assert toy.token_text(part[0]) == "�"
    assert toy.token_bytes(len(tokens)) == b""
    assert toy.token_bytes(-1) == b""
    assert toy.decode([part[0], part[1], len(tokens) + 5, part[2]]) == "字"


def test_skipping_special_tokens(toy: Tokenizer) -> None:
    ids = toy.encode("hello<end>{user}<turn>")
    assert toy.decode(ids) == "hello{user}"
    assert toy.decode(ids, skip_special_tokens=False) == "hello<end>{user}<turn>"
    assert len(ids) == 4


def test_named_ends_are_stops(toy_metadata: Make) -> None:
    metadata = toy_metadata(eot_token_id=0, eom_token_id=1)
    eos = metadata["tokenizer.ggml.eos_token_id"]
    assert from_gguf(metadata).stop_token_ids == (0, 1, eos)
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|eot_id|>", "<|im_end|>"]
    types = [*metadata["tokenizer.ggml.token_type"], 3, 1]  # the last one is an ordinary token: no stop
    made = from_gguf(toy_metadata(tokens=tokens, token_type=types))
    assert made.stop_token_ids == (eos, len(tokens) - 2)


def test_eos_can_be_appended(toy_metadata: Make) -> None:
    metadata = toy_metadata(add_bos_token=True, add_eos_token=True)
    bos, eos = (metadata[f"tokenizer.ggml.{n}_token_id"] for n in ("bos", "eos"))
    made = from_gguf(metadata)
    ids = made.encode("hello")
    assert (ids[0], ids[-1], len(ids)) == (bos, eos, 3)
    assert made.encode("hello", add_special_tokens=False) == ids[1:-1]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", None, 3, b"bytes"])
def test_what_is_no_text_is_refused(text: Any, toy: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="not valid Unicode text"):
        toy.encode(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "holds no tokenizer"),
        ({"model": "bert"}, "tokenizer 'bert' is not supported; supported: gpt2, llama"),
        ({"tokens": None}, "tokenizer.ggml.tokens is not a list of strings"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens is not a list of strings"),
        ({"tokens": ["a", "a"], "token_type": None}, "names a token twice"),
        ({"token_type": [1]}, "token_type does not hold"),
        ({"token_type": [float("nan")] * 264}, "token_type does not hold integers"),
        ({"merges": None}, "tokenizer.ggml.merges is not a list of strings"),
        ({"merges": ["h zz"]}, "the file's tokenizer is broken"),
        ({"merges": ["nospace"]}, "the file's tokenizer is broken"),
        ({"eos_token_id": 10_000}, "eos_token_id 10000 of 264 tokens"),
        ({"bos_token_id": -1}, "bos_token_id -1"),
        ({"bos_token_id": "x"}, "bos_token_id 'x'"),
    ],
)
def test_broken_metadata_is_refused_by_name(
    changes: dict[str, Any], message: str, toy_metadata: Make
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        from_gguf(toy_metadata(**changes))
    assert "\n" not in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path, smollm2_tokenizer: Tokenizer) -> Path:
    smollm2_tokenizer.backend.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    eos = {"__type": "AddedToken", "content": "<|im_end|>", "special": True}
    configure(tmp_path, eos_token=eos, bos_token="<|im_start|>", chat_template="T")
    return tmp_path


def write(folder: Path, name: str, **values: Any) -> None:
    (folder / name).write_text(json.dumps(values))


def configure(folder: Path, **values: Any) -> None:
    file = folder / "tokenizer_config.json"
    write(folder, file.name, **json.loads(file.read_text()) | values)


def test_a_folder_reads_like_transformers(folder: Path, smollm2_tokenizer: Tokenizer) -> None:
    ours, theirs = from_folder(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text) == smollm2_tokenizer.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, False) == theirs.decode(ids) == text
    assert (ours.eos_token_id, ours.bos_token_id) == (theirs.eos_token_id, theirs.bos_token_id) == (2, 1)
    assert ours.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert ours.stop_token_ids == (2,)
    assert ours.chat_template == "T"


def test_generation_config_adds_stops(folder: Path) -> None:
    write(folder, "config.json", eos_token_id=5)
    assert from_folder(folder).stop_token_ids == (2, 5)
    write(folder, "generation_config.json", eos_token_id=[0, 2, None])
    assert from_folder(folder).stop_token_ids == (0, 2)
    configure(folder, eos_token=None)
    assert from_folder(folder).eos_token_id == 0
    write(folder, "generation_config.json", eos_token_id="x")
    with pytest.raises(CheckpointError, match="eos_token_id must be token ids, not 'x'"):
        from_folder(folder)
    write(folder, "generation_config.json", eos_token_id=["x" * 20_000])
    with pytest.raises(CheckpointError) as caught:
        from_folder(folder)
    assert len(str(caught.value)) < 200, "an error is read by people"


def test_what_only_the_library_takes_for_json_is_one_line(tmp_path: Path) -> None:
    """Its parser skips a first member that has no value; Python's does not. Found by fuzzing."""
    token = dict.fromkeys(("single_word", "lstrip", "rstrip"), False) | {
        "id": 2, "content": "<end>", "normalized": True, "special": True,
    }  # fmt: skip
    model = {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"}
    parts = {"version": "1.0", "added_tokens": [token], "normalizer": {"type": "Lowercase"}, "model": model}
    text = json.dumps(parts).replace('"version": "1.0"', '"versio1.0"')
    assert tokenizers.Tokenizer.from_str(text).get_vocab_size() == 3
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not valid JSON"):
        from_folder(tmp_path)


def test_where_the_chat_template_is_found(folder: Path) -> None:
    configure(
        folder, chat_template=[{"name": "tool_use", "template": "U"}, {"name": "default", "template": "D"}]
    )
    assert from_folder(folder).chat_template == "D"
    configure(folder, chat_template=None)
    assert from_folder(folder).chat_template is None
    write(folder, "chat_template.json", chat_template="J")
    assert from_folder(folder).chat_template == "J"
    (folder / "chat_template.jinja").write_text("F")
    assert from_folder(folder).chat_template == "F"


def test_a_length_limit_in_the_file_is_not_obeyed(folder: Path, smollm2_tokenizer: Tokenizer) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    limit = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    write(folder, "tokenizer.json", **data | {"truncation": limit})
    ids = from_folder(folder).encode(TEXTS[0])
    assert ids == smollm2_tokenizer.encode(TEXTS[0])
    assert len(ids) > 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json is not a tokenizer"),
        ("tokenizer.json", '{"model": {"type": "Odd"}}', "tokenizer.json is not a tokenizer"),
        ("tokenizer_config.json", "[]", "does not hold a JSON object"),
        ("tokenizer_config.json", "x", "is not valid JSON"),
        ("generation_config.json", "[" * 100_000, "is not valid JSON"),
    ],
)
def test_broken_folders(name: str, content: str, message: str, folder: Path) -> None:
    (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        from_folder(folder)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="is not UTF-8"):
        from_folder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer.json"):
        from_folder(folder)


def test_decoders_that_are_not_known_are_refused(toy_metadata: Make) -> None:
    backend = from_gguf(toy_metadata()).backend
    for decoder in (decoders.WordPiece(), decoders.Replace("_", " "), decoders.CTC()):
        backend.decoder = decoder
        with pytest.raises(CheckpointError, match=r"decoder \w+ is not supported"):
            Tokenizer(backend)


def test_metaspace_decoder(toy_metadata: Make) -> None:
    backend = from_gguf(
        toy_metadata(
            tokens=["▁a", "b"], token_type=None, merges=[], pre="gpt-2", eos_token_id=None, bos_token_id=None
        )
    ).backend
    for scheme, text in {"always": "ab a", "never": " ab a"}.items():
        backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
        made = Tokenizer(backend)
        assert made.decode([0, 1, 0]) == text == backend.decode([0, 1, 0])


PIECES = st.text("ab ▁<0x1>Ġ$:", max_size=6)


@settings(max_examples=100)
@given(data=st.data())
def test_any_metadata_works_or_is_refused(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(PIECES, max_size=12, unique=True))
    count = len(tokens)
    metadata = {
        "model": data.draw(st.sampled_from(["gpt2", "llama"])),
        "tokens": tokens,
        "scores": data.draw(st.lists(st.floats(), min_size=count, max_size=count)),
        "token_type": data.draw(st.lists(st.integers(-1, 7), min_size=count, max_size=count)),
        "merges": data.draw(st.lists(PIECES, max_size=4)),
        "pre": data.draw(st.sampled_from(["gpt-2", "llama-bpe"])),
        "bos_token_id": data.draw(st.integers(0, count)),
    }
    made = outcome({f"tokenizer.ggml.{k}": v for k, v in metadata.items()})
    if made is not None:
        for text in ("", "a b ab", "aaaa▁ $A:"):
            assert isinstance(made.decode(made.encode(text)), str)


def outcome(metadata: dict[str, Any]) -> Tokenizer | None:
    """The tokenizer, or None where it is refused. Anything but a CheckpointError escapes."""
    try:
        return from_gguf(metadata)
    except CheckpointError:
        return None


def save_words(folder: Path, words: dict[str, int], **config: Any) -> Path:
    backend = tokenizers.Tokenizer(models.WordLevel({}, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    value = json.loads(backend.to_str())
    value["model"]["vocab"] = words
    (folder / "tokenizer.json").write_text(json.dumps(value))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_text_that_the_vocabulary_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Without its unknown token the library raises a bare Exception."""
    made = from_folder(save_words(tmp_path, {"a": 0}))
    assert made.encode("a") == [0]
    with pytest.raises(InvalidRequestError, match="this model's tokenizer: WordLevel error: Missing"):
        made.encode("b")


def test_an_id_that_no_vocabulary_has_takes_no_memory(tmp_path: Path) -> None:
    made = from_folder(save_words(tmp_path, {"a": 0, "b": 2**32 - 1}))
    with pytest.raises(CheckpointError, match="has a token 4294967295; ids below 4194304 are taken"):
        _ = made.vocab_size


def test_half_a_character_is_no_special_token(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a special token holds half of a surrogate pair"):
        from_folder(save_words(tmp_path, {"a": 0}, eos_token="\ud800"))


def test_a_panic_of_the_library_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no Exception, so nobody up there would catch it."""

    class PanicException(BaseException):
        pass

    def panic(*_: object, **__: object) -> None:
        raise PanicException("range end index 9 out of range")

    made = from_folder(save_words(tmp_path, {"a": 0}))
    monkeypatch.setattr(made, "backend", SimpleNamespace(encode=panic))
    with pytest.raises(InvalidRequestError, match="this model's tokenizer: range end index 9"):
        made.encode("a")
    monkeypatch.setattr(tokenizers.Tokenizer, "from_str", panic)
    with pytest.raises(CheckpointError, match="is not a tokenizer: range end index 9"):
        from_folder(tmp_path)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_none(
    tmp_path: Path, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise kind

    made = from_folder(save_words(tmp_path, {"a": 0}))
    monkeypatch.setattr(made, "backend", SimpleNamespace(encode=interrupt))
    with pytest.raises(kind):
        made.encode("a")
