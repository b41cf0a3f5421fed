"""A folder's tokenizer as GGUF metadata (tokenizer.ggml.*), proven: what is read back cuts texts alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octavo.errors import UnsupportedError
from octavo.tokenizer.folder import from_folder
from octavo.tokenizer.gguf import from_gguf
from octavo.tokenizer.pretokenizers import GPT2, RULES, Rule

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_SAMPLE = (
    "The quick brown fox jumps over 13 lazy dogs, 12345678 of them; it's what they'll say. I'VE been\n\n\n"
    "\tthere:   and  back!? Ünïcödé, naïve café, Привет мир, 你好世界, こんにちは, مرحبا, 🙂👩‍👩‍👧 "
    "def f(x):\r\n    return x**2 + 0.5e-3  # <b>markup</b> \u00a0 e\u0301"
)  # fmt: skip
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def tokenizer_metadata(folder: Path, words: int) -> dict[str, Any]:
    """What a GGUF file says of the folder's tokenizer.

    Args:
        words: of the model's vocabulary; ids without a word get one that is never used.

    Raises:
        UnsupportedError: GGUF has no words for such a tokenizer here.
        CheckpointError: it has none, or a broken one.
    """
    tokenizer = from_folder(folder)
    source: dict[str, Any] = json.loads((folder / "tokenizer.json").read_bytes())
    model = source["model"]
    if model.get("type") != "BPE":
        raise _refused(f"its model is {model.get('type')}")
    tokens, kinds = _tokens(source, words)
    found: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    if model.get("byte_fallback"):
        found |= _sentencepiece(source, tokens, kinds, merges)
    else:
        found |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": _name(source)}
        found["tokenizer.ggml.merges"] = merges
    for name, text in tokenizer.special_tokens.items():
        if name in _SPECIAL and (number := tokenizer.token_id(text)) is not None:
            found[f"tokenizer.ggml.{_SPECIAL[name]}_token_id"] = number
    around = tokenizer.encode("", add_special_tokens=True)
    found["tokenizer.ggml.add_bos_token"] = bool(around) and around[0] == tokenizer.bos_token_id
    found["tokenizer.ggml.add_eos_token"] = bool(around) and around[-1] == tokenizer.eos_token_id
    if tokenizer.chat_template is not None:
        found["tokenizer.chat_template"] = tokenizer.chat_template
    again = from_gguf(found)
    if again.encode(_SAMPLE) != tokenizer.encode(_SAMPLE):
        raise _refused("texts would be cut otherwise than it cuts them")
    return found


def _refused(why: str) -> UnsupportedError:
    return UnsupportedError(f"this folder's tokenizer cannot be written as GGUF: {why}", "model")


def _tokens(source: dict[str, Any], words: int) -> tuple[list[str], list[int]]:
    vocabulary: dict[str, int] = source["model"]["vocab"]
    added = source.get("added_tokens") or []
    size = max([words, *(n + 1 for n in vocabulary.values()), *(t["id"] + 1 for t in added)])
    if size > words:
        raise _refused(f"it has {size} words, the model {words}")
    tokens, kinds = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    for token, number in vocabulary.items():
        tokens[number], kinds[number] = token, NORMAL
    for token in added:
        tokens[token["id"]] = token["content"]
        kinds[token["id"]] = CONTROL if token.get("special") else USER_DEFINED
    return tokens, kinds


def _sentencepiece(
    source: dict[str, Any], tokens: list[str], kinds: list[int], merges: list[str]
) -> dict[str, Any]:
    """GGUF's model "llama": the earlier a merge, the higher its piece's score."""
    rank: dict[str, int] = {}
    for i, merge in enumerate(merges):
        rank.setdefault(merge.replace(" ", "", 1), i)
    kinds = list(kinds)
    for i, token in enumerate(tokens):
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            kinds[i] = BYTE
        elif token == source["model"].get("unk_token"):
            kinds[i] = UNKNOWN
    scores = [-float(rank[token]) if token in rank else -float(len(merges)) for token in tokens]
    steps = _steps(source.get("normalizer"), "normalizers")
    prefixed = any(step["type"] == "Prepend" for step in steps)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.add_space_prefix": prefixed,
    }


def _name(source: dict[str, Any]) -> str:
    """GGUF's name of how text is cut into words."""
    patterns: list[str] = []
    for step in _steps(source.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "Split":
            patterns.append(step["pattern"].get("Regex") or step["pattern"].get("String"))
        elif step["type"] == "Digits" and step.get("individual_digits"):
            patterns.append(r"\p{N}")
        elif step["type"] == "ByteLevel":
            patterns += [GPT2] if step.get("use_regex", True) else []
        else:
            raise _refused(f"its pre-tokenizer has a step {step['type']}")
    normalizers = _steps(source.get("normalizer"), "normalizers")
    nfc = any(step["type"] == "NFC" for step in normalizers)
    model = source["model"]
    wanted = Rule(tuple(patterns), nfc, bool(model.get("ignore_merges")))
    for name, rule in RULES.items():
        if (rule.patterns, rule.nfc, rule.ignore_merges) == (wanted.patterns, nfc, wanted.ignore_merges):
            return name
    raise _refused("GGUF has no name here for how it cuts text into words")


def _steps(value: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    return list(value[key]) if value["type"] == "Sequence" else [value]
