"""SentencePiece BPE from tokens with scores, as GGUF's model "llama" stores it.

SentencePiece joins, again and again, the two neighbours whose joint piece has the highest score.
That is BPE whose merges are all ways to cut a piece into two pieces, ranked by the score of the
whole. Source: SentencePiece, bpe_model.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers

from octavo.tokenizer.token_bytes import SPACE

NORMAL, UNKNOWN, USER_DEFINED = 1, 2, 4


def merges_from_scores(
    ids: Mapping[str, int], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """All (left, right) whose parts and whole are pieces, best score of the whole first."""
    usable = {token for token, i in ids.items() if types[i] in (NORMAL, USER_DEFINED)}
    ranked: list[tuple[float, int, int, str, str]] = []
    for token in usable:
        whole = ids[token]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in usable and right in usable:
                ranked.append((-scores[whole], ids[left], ids[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def build_spm(
    metadata: Mapping[str, Any], ids: dict[str, int], scores: Sequence[float], types: Sequence[int]
) -> tokenizers.Tokenizer:
    """The backend, without its added tokens. Characters outside the vocabulary fall back to bytes."""
    unknown = next((token for token, i in ids.items() if types[i] == UNKNOWN), None)
    model = models.BPE(
        vocab=ids,
        merges=merges_from_scores(ids, scores, types),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefixed else spaces
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend
