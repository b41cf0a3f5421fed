"""Watermarks: the green list that follows each token, and the test whether a text has many green tokens.

Kirchenbauer et al., "A Watermark for Large Language Models" (ICML 2023): algorithm 2 writes, equation 3
detects. Lists are those of TGI on a CPU and of transformers' WatermarkLogitsProcessor ("lefthash", width 1):
each side detects what the other has written.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.errors import InvalidRequestError
from octavo.kernels.green_list import green_list
from octavo.params.watermark import WatermarkParams
from octavo.sampling.sampling_batch import U32, Boost

CACHE_BYTES = 32 * 2**20
Make = Callable[[Sequence[int], int, U32, Sequence[int]], None]
_Key = tuple[int, int]
"""A list's seed, and how many tokens it has."""


class GreenLists:
    """The green lists of one vocabulary; those used last are kept.

    Args:
        vocab_size: width of the logits, which may be more than the tokenizer has.
        most_bytes: of lists that are kept; one is kept in any case.

    Attributes:
        make: makes lists, as RowSampler.green_lists; a backend's own has several threads.
        hits, misses: lists that were found, and that were made.
    """

    def __init__(self, vocab_size: int, most_bytes: int = CACHE_BYTES) -> None:
        self.vocab_size = vocab_size
        words = -(-vocab_size // 32)
        # Memory that is not written yet is not taken yet.
        self._table = np.empty((max(1, most_bytes // (4 * words)), words), np.uint32)
        self._lines: OrderedDict[_Key, int] = OrderedDict()  # in the table, by use
        self.make: Make = self._make
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def counts(self) -> dict[str, int]:
        """Lists that were kept (hit), and that were made."""
        return {"hit": self.hits, "made": self.misses}

    def after(self, token: int, wanted: WatermarkParams) -> U32:
        """Bits [ceil(V / 32)] of the tokens that are green after this one."""
        (line,) = self._found([self._key(token, wanted)])
        bits: U32 = self._table[line].copy()
        return bits

    def boost(self, rows: int, marked: Mapping[int, tuple[WatermarkParams, int]]) -> Boost | None:
        """What a batch of so many rows adds to its logits.

        Args:
            marked: index of each row with a watermark -> (what it asks for, the token before the draw).
        """
        if not marked:
            return None
        indices = list(marked)
        bits = self._bits([self._key(token, wanted) for wanted, token in marked.values()])
        deltas = np.zeros(rows, np.float32)
        deltas[indices] = [wanted.delta for wanted, _ in marked.values()]
        if indices == list(range(rows)):
            return Boost(bits, deltas)
        every = np.zeros((rows, bits.shape[1]), np.uint32)
        every[indices] = bits
        return Boost(every, deltas)

    def _key(self, token: int, wanted: WatermarkParams) -> _Key:
        seed = wanted.hashing_key * token % (2**64 - 1) & 0xFFFFFFFF  # (as transformers; 32 bits count)
        return seed, int(self.vocab_size * wanted.gamma)

    def _bits(self, keys: Sequence[_Key]) -> U32:
        """Copies of these lists [N, ceil(V / 32)]: at most as many at a time as are kept."""
        most = len(self._table)
        parts = [self._table[self._found(keys[at : at + most])] for at in range(0, len(keys), most)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _found(self, keys: Sequence[_Key]) -> list[int]:
        """Where these lists are kept, after those that were not have been made, all at once."""
        lines = self._lines
        missing: dict[_Key, None] = {}
        for key in keys:
            if key in lines:
                lines.move_to_end(key)
            else:
                missing[key] = None
        self.misses += len(missing)
        self.hits += len(keys) - len(missing)
        for key in missing:
            full = len(lines) == len(self._table)
            lines[key] = lines.popitem(last=False)[1] if full else len(lines)
        for count in {count for _, count in missing}:
            made = [key for key in missing if key[1] == count]
            self.make([seed for seed, _ in made], count, self._table, [lines[key] for key in made])
        return [lines[key] for key in keys]

    def _make(self, seeds: Sequence[int], count: int, table: U32, lines: Sequence[int]) -> None:
        for seed, line in zip(seeds, lines, strict=True):
            table[line] = green_list(seed, self.vocab_size, count)


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
