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
from octavo.kernels.draws import Lifted
from octavo.kernels.green_list import green_list
from octavo.params.watermark import WatermarkParams
from octavo.sampling.sampling_batch import U32, Boost

CACHE_BYTES = 32 * 2**20
Marks = Mapping[int, tuple[WatermarkParams, int]]
_Key = tuple[int, int]
"""A list's seed, and how many tokens it has."""


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
        words = -(-vocab_size // 32)
        # Memory that is not written yet is not taken yet.
        self._table = np.empty((max(1, most_bytes // (4 * words)), words), np.uint32)
        self._lines: OrderedDict[_Key, int] = OrderedDict()  # in the table, by use
        self._asked: set[_Key] = set()  # of lists that somebody was to make, and has not told of
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def counts(self) -> dict[str, int]:
        """Lists that were kept (hit), and that were made."""
        return {"hit": self.hits, "made": self.misses}

    def after(self, token: int, wanted: WatermarkParams) -> U32:
        """Bits [ceil(V / 32)] of the tokens that are green after this one; valid until the next call."""
        key = self._key(token, wanted)
        lines, missing = self._found([key])
        bits: U32 = self._table[lines[0]]
        for seed, count in missing:
            bits[:] = green_list(seed, self.vocab_size, count)
        return bits

    def boost(self, rows: int, marked: Marks) -> Boost | None:
        """What a batch of so many rows adds to its logits.

        Args:
            marked: index of each row with a watermark -> (what it asks for, the token before the draw).
        """
        if not marked:
            return None
        bits = np.zeros((rows, self._table.shape[1]), np.uint32)
        deltas = np.zeros(rows, np.float32)
        for index, (wanted, token) in marked.items():
            bits[index], deltas[index] = self.after(token, wanted), wanted.delta
        return Boost(bits, deltas)

    def lifted(self, marked: Marks) -> Lifted:
        """What a step of the decoder adds to its logits. Whoever has made the lists calls made().

        Args:
            marked: place of each row with a watermark -> as in boost().
        """
        keys = [self._key(token, wanted) for wanted, token in marked.values()]
        table = self._table
        if len(keys) <= len(table):
            lines, missing = self._found(keys)
            self._asked |= missing.keys()
        else:  # more than are kept
            missing = {key: line for line, key in enumerate(dict.fromkeys(keys))}
            lines, table = [missing[key] for key in keys], np.empty((len(missing), table.shape[1]), np.uint32)
            self.misses += len(missing)
            self.hits += len(keys) - len(missing)
        deltas = np.array([wanted.delta for wanted, _ in marked.values()], np.float32)
        made = [(*key, line) for key, line in missing.items()]
        return Lifted(list(marked), table, np.array(lines, np.int32), deltas, made)

    def made(self) -> None:
        """The lists of the last lifted() stand in the table. After a step that has failed they may not."""
        self._asked.clear()

    def _key(self, token: int, wanted: WatermarkParams) -> _Key:
        seed = wanted.hashing_key * token % (2**64 - 1) & 0xFFFFFFFF  # (as transformers; 32 bits count)
        return seed, int(self.vocab_size * wanted.gamma)

    def _found(self, keys: Sequence[_Key]) -> tuple[list[int], dict[_Key, int]]:
        """(the line of each of these lists, which are at most as many as are kept; of those to be made)."""
        lines, full = self._lines, len(self._table)
        missing: dict[_Key, int] = {}
        for key in keys:
            if key in lines:
                lines.move_to_end(key)
            if key not in lines or key in self._asked:
                missing[key] = -1
        for key in missing:
            if key not in lines:
                lines[key] = len(lines) if len(lines) < full else lines.popitem(last=False)[1]
            missing[key] = lines[key]
        self.misses += len(missing)
        self.hits += len(keys) - len(missing)
        return [lines[key] for key in keys], missing


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
    worst = min(token_ids) if min(token_ids) < 0 else max(token_ids)
    if not 0 <= worst < lists.vocab_size:
        raise InvalidRequestError(
            f"token {worst} is not in the vocabulary of {lists.vocab_size}: name the model that wrote it"
        )
    if not repeated:
        pairs = list(dict.fromkeys(pairs))
    green = sum(bool(lists.after(before, wanted)[token // 32] >> (token % 32) & 1) for before, token in pairs)
    count, gamma = len(pairs), wanted.gamma
    z = (green - gamma * count) / math.sqrt(count * gamma * (1 - gamma))
    return Detection(count, green, z, 0.5 * math.erfc(z / math.sqrt(2)))
