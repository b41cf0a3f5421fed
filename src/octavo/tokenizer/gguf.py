"""A Tokenizer from the tokenizer.ggml.* metadata of a GGUF file.

The model "gpt2" is byte-level BPE with a pre-tokenizer by name (pretokenizers.py), "llama" is
SentencePiece BPE with scores (spm.py). Bytes that a byte-level vocabulary lacks are dropped, as
llama.cpp and transformers do. Source: the GGUF specification, "Tokenizer".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, processors

from octavo.errors import CheckpointError
from octavo.tokenizer.pretokenizers import pretokenizer
from octavo.tokenizer.spm import build_spm
from octavo.tokenizer.tokenizer import Tokenizer, is_foreign, one_line

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Values of tokenizer.ggml.token_type that matter here; 1 is a normal token, 6 a byte."""

_ENDS = (
    "<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>",
    "<|call|>", "<end_of_turn>", "<|end_of_turn|>", "<EOT>", "<|endofturn|>", "<｜end▁of▁sentence｜>",  # noqa: RUF001 - a name
)  # fmt: skip
"""Control tokens that end a turn in some family. A file names only one eos, and often not the chat's."""


_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""What chat templates call a token -> what GGUF calls its id."""


def from_gguf(metadata: Mapping[str, Any], cache: Path | None = None) -> Tokenizer:
    """A Tokenizer from GGUF metadata.

    Args:
        cache: a folder for what takes long to derive (a large SentencePiece vocabulary's merges).

    Raises:
        CheckpointError: no tokenizer in there, a broken one, or a kind that is not supported.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise CheckpointError("the file holds no tokenizer (tokenizer.ggml.model is missing)")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    types = _token_types(metadata, len(tokens))
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise CheckpointError("tokenizer.ggml.tokens names a token twice")
    try:
        if kind == "gpt2":
            backend, adds_bos = _byte_level(metadata, ids)
        elif kind == "llama":
            scores = _numbers(metadata, "tokenizer.ggml.scores", len(tokens))
            backend, adds_bos = build_spm(metadata, ids, scores, types, cache), True
        else:
            raise CheckpointError(f"the tokenizer {kind!r:.80} is not supported; supported: gpt2, llama")
        _add_tokens(backend, tokens, types)
    except CheckpointError:
        raise
    except BaseException as error:
        if not is_foreign(error):
            raise
        raise CheckpointError(f"the file's tokenizer is broken: {one_line(error)}") from None
    return _finish(metadata, backend, tokens, types, adds_bos)


def _finish(
    metadata: Mapping[str, Any],
    backend: tokenizers.Tokenizer,
    tokens: list[str],
    types: Sequence[int],
    adds_bos: bool,
) -> Tokenizer:
    named = {name: _id(metadata, name, len(tokens)) for name in ("bos", "eos", "eot", "eom")}
    _surround(
        backend,
        named["bos"] if _flag(metadata, "tokenizer.ggml.add_bos_token", adds_bos) else None,
        named["eos"] if _flag(metadata, "tokenizer.ggml.add_eos_token", False) else None,
        tokens,
    )
    ends = [i for i in (named["eot"], named["eom"]) if i is not None]
    ends += [i for i in (backend.token_to_id(t) for t in _ENDS) if i is not None and types[i] == CONTROL]
    special = {
        name: tokens[i] for name, key in _NAMED.items() if (i := _id(metadata, key, len(tokens))) is not None
    }
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        bos_token_id=named["bos"],
        eos_token_id=named["eos"],
        stop_token_ids=ends,
        special_tokens=special,
        chat_template=template if isinstance(template, str) else None,
    )


class _Merges(Sequence[tuple[str, str]]):
    """Pairs that are made one by one, as the backend asks for them.

    All 48,900 of SmolLM2's would take 8 MB between what imports leave for good, and most of that would stay
    with the process.
    """

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: Any) -> Any:  # an int; the backend asks for no slices
        line = self._lines[index]
        cut = line.find(" ", 1)
        return line[:cut], line[cut + 1 :]


def _byte_level(metadata: Mapping[str, Any], ids: dict[str, int]) -> tuple[tokenizers.Tokenizer, bool]:
    pre = pretokenizer(str(metadata.get("tokenizer.ggml.pre", "default")))
    merges = _Merges(_strings(metadata, "tokenizer.ggml.merges"))
    model = models.BPE(vocab=ids, merges=merges, ignore_merges=pre.ignore_merges)
    backend = tokenizers.Tokenizer(model)
    if pre.normalizer is not None:
        backend.normalizer = pre.normalizer
    backend.pre_tokenizer = pre.splitter
    backend.decoder = decoders.ByteLevel()
    return backend, pre.adds_bos


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: Sequence[int]) -> None:
    """Control and user-defined tokens are found in the raw text before anything is split."""
    found = [
        AddedToken(token, special=kind != USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) and token
    ]
    backend.add_tokens(found)


def _surround(backend: tokenizers.Tokenizer, bos: int | None, eos: int | None, tokens: list[str]) -> None:
    parts = [("BOS", bos), ("$A", None), ("EOS", eos)]
    used = [name for name, i in parts if name == "$A" or i is not None]
    if used == ["$A"]:
        return
    backend.post_processor = processors.TemplateProcessing(
        single=used,
        special_tokens=[
            {"id": name, "ids": [i], "tokens": [tokens[i]]} for name, i in parts if i is not None
        ],
    )


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"the file's tokenizer is broken: {key} is not a list of strings")
    return value


def _numbers(metadata: Mapping[str, Any], key: str, count: int) -> list[float]:
    value = metadata.get(key)
    if not isinstance(value, list) or len(value) != count or any(isinstance(v, str) for v in value):
        raise CheckpointError(f"the file's tokenizer is broken: {key} does not hold {count} numbers")
    return value


def _token_types(metadata: Mapping[str, Any], count: int) -> list[int]:
    key = "tokenizer.ggml.token_type"
    if key not in metadata:
        return [1] * count
    types = _numbers(metadata, key, count)
    if any(type(kind) is not int for kind in types):
        raise CheckpointError(f"the file's tokenizer is broken: {key} does not hold integers")
    return [int(kind) for kind in types]


def _id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < count:
        raise CheckpointError(
            f"the file's tokenizer is broken: {name}_token_id {value!r:.80} of {count} tokens"
        )
    return value


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    return bool(metadata.get(key, default))
