"""SentencePiece BPE from tokens with scores, as GGUF's model "llama" stores it.

SentencePiece joins, again and again, the two neighbours whose joint piece has the highest score.
That is BPE whose merges are all ways to cut a piece into two pieces, ranked by the score of the
whole. Source: SentencePiece, bpe_model.cc.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers

from octavo.tokenizer.token_bytes import SPACE

NORMAL, UNKNOWN, USER_DEFINED = 1, 2, 4
WORTH_CACHING = 64_000
"""Words from which on ranking the merges takes longer than reading them."""


def merges_from_scores(
    ids: Mapping[str, int], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """All (left, right) whose parts and whole are pieces, best score of the whole first."""
    # Half a million merges out of two million cuts: pieces are sorted, not merges, and no tuple is
    # made for a cut that fails.
    usable = {token: i for token, i in ids.items() if types[i] in (NORMAL, USER_DEFINED)}
    merges: list[tuple[str, str]] = []
    ranked = sorted(((-scores[i], token) for token, i in usable.items() if len(token) > 1), key=itemgetter(0))
    for _, alike in groupby(ranked, key=itemgetter(0)):
        found = []
        for _, token in alike:
            for cut in range(1, len(token)):
                left = token[:cut]
                if left in usable:
                    right = token[cut:]
                    if right in usable:
                        found.append((usable[left], usable[right], left, right))
        found.sort()
        merges += [(left, right) for _, _, left, right in found]
    return merges


def cached_merges(
    ids: Mapping[str, int], scores: Sequence[float], types: Sequence[int], folder: Path | None
) -> list[tuple[str, str]]:
    """merges_from_scores, kept in folder for the next start: a vocabulary of 262k words takes a second.

    A cache that cannot be read or written costs that second, nothing else.
    """
    if folder is None or len(ids) < WORTH_CACHING:
        return merges_from_scores(ids, scores, types)
    tokens = list(ids)
    digest = hashlib.sha256("\0".join(tokens).encode())
    for numbers in (np.array(list(ids.values()), np.int64), np.array(scores), np.array(types)):
        digest.update(numbers.tobytes())
    file = folder / f"{digest.hexdigest()}.npy"
    try:
        pairs = np.load(file, allow_pickle=False)
        if pairs.dtype == np.int32 and pairs.shape[1:] == (2,) and pairs.min(initial=0) >= 0:
            names = np.array(tokens, object)
            return list(zip(names[pairs[:, 0]].tolist(), names[pairs[:, 1]].tolist(), strict=True))
    except (OSError, ValueError, EOFError, IndexError):
        pass  # none yet, or a broken one: made anew below
    merges = merges_from_scores(ids, scores, types)
    place = {token: i for i, token in enumerate(tokens)}
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".new", delete=False) as draft:
            try:
                np.save(draft, np.array([(place[a], place[b]) for a, b in merges], np.int32).reshape(-1, 2))
                draft.flush()
                os.replace(draft.name, file)
            except OSError:  # a full disk is not to be filled further by what cannot be used
                os.unlink(draft.name)
                raise
    return merges


def build_spm(
    metadata: Mapping[str, Any],
    ids: dict[str, int],
    scores: Sequence[float],
    types: Sequence[int],
    cache: Path | None = None,
) -> tokenizers.Tokenizer:
    """The backend, without its added tokens. Characters outside the vocabulary fall back to bytes.

    cache: a folder where merges are kept from one start to the next.
    """
    unknown = next((token for token, i in ids.items() if types[i] == UNKNOWN), None)
    model = models.BPE(
        vocab=ids,
        merges=cached_merges(ids, scores, types, cache),
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
