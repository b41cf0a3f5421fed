"""How text is cut into words before byte-level BPE, by the name GGUF gives it (tokenizer.ggml.pre).

Each is a list of patterns applied in turn, to the pieces the former ones left; matches and what
lies between them become pieces. The names are llama.cpp's; the patterns are those of the original
tokenizers: GPT-2 (encoder.py), Llama 3 and Qwen2 (tokenizer.json), StarCoder, Falcon, Tekken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Patterns, and what comes with the name: NFC first, whole words before merges, a leading BOS."""

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


_DIGITS = Rule((r"\p{N}", GPT2))
_PLAIN = Rule((GPT2,))
_LLAMA3 = Rule((LLAMA3,), ignore_merges=True, adds_bos=True)

RULES: dict[str, Rule] = {
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "mpt": _PLAIN,
    "olmo": _PLAIN,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "dbrx": Rule((LLAMA3,)),
    "smaug-bpe": Rule((LLAMA3,)),
    "qwen2": Rule((QWEN2,), nfc=True),
    "deepseek-r1-qwen": Rule((QWEN2,)),
    "stablelm2": Rule((QWEN2,)),
    "falcon": Rule((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")),
    "tekken": Rule((TEKKEN,), ignore_merges=True, adds_bos=True),
}


@dataclass(frozen=True, slots=True)
class PreTokenizerParts:
    """A rule as objects of the tokenizers library."""

    normalizer: Normalizer | None
    splitter: PreTokenizer
    ignore_merges: bool
    adds_bos: bool


def pretokenizer(name: str) -> PreTokenizerParts:
    """The parts of the pre-tokenizer that tokenizer.ggml.pre names.

    Raises:
        CheckpointError: no rule has that name; guessing one would change every answer a little.
    """
    from tokenizers import Regex, normalizers, pre_tokenizers

    rule = RULES.get(name)
    if rule is None:
        raise CheckpointError(
            f"the pre-tokenizer {name!r:.80} is not supported; supported: {', '.join(RULES)}"
        )
    steps: list[PreTokenizer] = [pre_tokenizers.Split(Regex(p), "isolated") for p in rule.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return PreTokenizerParts(
        normalizers.NFC() if rule.nfc else None,
        pre_tokenizers.Sequence(steps),
        rule.ignore_merges,
        rule.adds_bos,
    )
