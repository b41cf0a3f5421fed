"""Watermarks: the green list that follows each token, and the test whether a text has many green tokens.

Kirchenbauer et al., "A Watermark for Large Language Models" (ICML 2023): algorithm 2 writes, equation 3
detects. Lists are those of TGI on a CPU and of transformers' WatermarkLogitsProcessor ("lefthash", width 1):
each side detects what the other has written.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.errors import InvalidRequestError
from octavo.kernels.green_list import green_list
from octavo.params.watermark import WatermarkParams
from octavo.sampling.sampling_batch import U32, Boost

CACHE_BYTES = 32 * 2**20


class GreenLists:
    """The green lists of one vocabulary; those used last are kept.

    Args:
        vocab_size: width of the logits, which may be more than the tokenizer has.
        most_bytes: of lists that are kept; one is kept in any case.

    Attributes:
        hits, misses: lists that were found, and that were made.
    """

    def __init__(self, vocab_size: int, most_bytes: int = CACHE_BYTES) -> None:
        self.vocab_size = vocab_size
        self._most = max(1, most_bytes // (4 * -(-vocab_size // 32)))
        self._lists: OrderedDict[tuple[int, int], U32] = OrderedDict()
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._lists)

    @property
    def counts(self) -> dict[str, int]:
        """Lists that were kept (hit), and that were made."""
        return {"hit": self.hits, "made": self.misses}

    def after(self, token: int, wanted: WatermarkParams) -> U32:
        """Bits [ceil(V / 32)] of the tokens that are green after this one; they are only read."""
        seed = wanted.hashing_key * token % (2**64 - 1) & 0xFFFFFFFF  # (as transformers; 32 bits count)
        key = seed, int(self.vocab_size * wanted.gamma)
        found = self._lists.get(key)
        if found is not None:
            self.hits += 1
            self._lists.move_to_end(key)
            return found
        self.misses += 1
        if len(self._lists) >= self._most:
            self._lists.popitem(last=False)
        self._lists[key] = made = green_list(seed, self.vocab_size, key[1])
        return made

    def boost(self, rows: int, marked: Mapping[int, tuple[WatermarkParams, int]]) -> Boost | None:
        """What a batch of so many rows adds to its logits.

        Args:
            marked: index of each row with a watermark -> (what it asks for, the token before the draw).
        """
        if not marked:
            return None
        bits = np.zeros((rows, -(-self.vocab_size // 32)), np.uint32)
        deltas = np.zeros(rows, np.float32)
        for index, (wanted, token) in marked.items():
            bits[index], deltas[index] = self.after(token, wanted), wanted.delta
        return Boost(bits, deltas)


class Marked:
    """A row's watermark, and the last token that the row has. Of a row without any token nothing is green."""

    def __init__(self, wanted: WatermarkParams, token_ids: Sequence[int]) -> None:
        self.wanted = wanted
        self.last = token_ids[-1]

    @classmethod
    def of(cls, given: object, token_ids: Sequence[int]) -> Marked | None:
        """What SamplingParams.watermark asks for; None: nothing."""
        wanted = WatermarkParams.of(given)
        return None if wanted is None else cls(wanted, token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        if token_ids:
            self.last = token_ids[-1]

    def before(self, ahead: Sequence[int] = ()) -> tuple[WatermarkParams, int]:
        """(what is asked for, the token before a draw that follows the drafts `ahead`)."""
        return self.wanted, ahead[-1] if ahead else self.last


@dataclass(frozen=True, slots=True)
class Detection:
    """What a text's tokens say.

    Attributes:
        tokens: that were counted; green: of those.
        z: how many standard deviations that is above gamma * tokens, which unmarked text has on average.
        p: the probability that unmarked text has a z as large, by the normal distribution.
    """

    tokens: int
    green: int
    z: float
    p: float


def detect(
    token_ids: Sequence[int], lists: GreenLists, wanted: WatermarkParams, *, repeated: bool = False
) -> Detection:
    """Test whether these tokens follow the watermark; the first only says what is green after it.

    Args:
        token_ids: of the answer alone, without prompt and begin-of-text token.
        repeated: count a pair of neighbours each time that it comes. Otherwise it counts once: a text that
            repeats itself says the same thing again, and its z is no normal number.

    Raises:
        InvalidRequestError: fewer than 2 tokens, or one beyond the vocabulary.
    """
    pairs = list(itertools.pairwise(token_ids))
    if not pairs:
        raise InvalidRequestError(f"the text has {len(token_ids)} token(s), and a watermark shows from 2 on")
    worst = max(token_ids)
    if worst >= lists.vocab_size or min(token_ids) < 0:
        raise InvalidRequestError(
            f"token {worst} is beyond the vocabulary of {lists.vocab_size}: name the model that wrote it"
        )
    if not repeated:
        pairs = list(dict.fromkeys(pairs))
    green = sum(bool(lists.after(before, wanted)[token // 32] >> (token % 32) & 1) for before, token in pairs)
    count, gamma = len(pairs), wanted.gamma
    z = (green - gamma * count) / math.sqrt(count * gamma * (1 - gamma))
    return Detection(count, green, z, 0.5 * math.erfc(z / math.sqrt(2)))
