"""Buckets: the fixed shapes in which steps are recorded, and their arrays at fixed addresses.

    decode     1  2  4  8  16  24  32 ... max_sequences     sequences of one token each
    verify     the same sizes, of tokens; sequences and the longest one's tokens by powers of two

A row of padding has slot -1, so nothing of it is stored, and a context of 0, so nothing is read. In a
verify step sequences of padding have no tokens, and tokens of padding are of no sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from octavo.kernels.cuda.device_batch import DeviceBatch, Staging
from octavo.kernels.cuda.device_batch import words_of as tree_words
from octavo.kernels.cuda.launch import next_power_of_2
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import Limits

MAX_QUERY = 64
"""Tokens of one sequence in a verify step that is recorded; longer ones run eagerly."""


def buckets(most: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then multiples of 8 to 64, of 16 to 256, of 64 above; the last is most."""
    sizes = {1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(320, most, 64)}
    return (*sorted(s for s in sizes if s < most), most)


def bucket_of(sizes: tuple[int, ...], wanted: int) -> int:
    """The smallest bucket that holds so many."""
    return sizes[bisect_left(sizes, wanted)]


@dataclass(frozen=True, slots=True)
class Form:
    """The shape of a recorded step.

    Attributes:
        sequences, tokens: the most of each.
        query: the most tokens of one sequence; 1: a decode step.
        words: 64-bit words of a token's tree mask; 0: no sequence has a tree.
    """

    sequences: int
    tokens: int
    query: int = 1
    words: int = 0

    @property
    def decodes(self) -> bool:
        return self.query == 1 and not self.words

    def __str__(self) -> str:
        if self.decodes:
            return f"decode {self.sequences}"
        trees = ", trees" if self.words else ""
        return f"verify {self.tokens} of {self.sequences}, {self.query} each{trees}"


class Forms:
    """Which form a batch has, within a program's limits."""

    def __init__(self, limits: Limits) -> None:
        self._sequences = limits.max_sequences
        self._decode = buckets(min(limits.max_sequences, limits.max_sampled))
        self._tokens = buckets(min(limits.max_tokens, limits.max_sampled))

    def of(self, batch: ForwardBatch) -> Form | None:
        """None: it is not recorded. Recorded is what samples every token: decode and verify steps."""
        rows, tokens = batch.num_sequences, batch.num_tokens
        if batch.cross_lens is not None or tokens != batch.num_sampled or not tokens:
            return None
        if batch.extras is not None and batch.extras.replaced is not None:  # of prompts, and of any number
            return None
        if batch.tree_masks is None and tokens == rows:
            size = bucket_of(self._decode, rows)
            return Form(size, size)
        longest = int(np.diff(batch.query_start).max())
        if longest > MAX_QUERY:
            return None
        sequences = min(next_power_of_2(rows), self._sequences)
        words = 0 if batch.tree_masks is None else batch.tree_masks.shape[1]
        return Form(sequences, bucket_of(self._tokens, tokens), next_power_of_2(longest), words)


def shapes(form: Form, limits: Limits) -> dict[str, tuple[int, ...]]:
    """Of a bucket's arrays."""
    of_tokens = dict.fromkeys(("token_ids", "positions", "slots", "sampled"), (form.tokens,))
    tables = form.sequences, limits.max_pages_per_sequence
    trees = {"trees": (form.tokens, 2 * form.words)} if form.words else {}
    sliding = {"sliding_slots": (form.tokens,), "sliding_tables": tables} if limits.sliding else {}
    if "rope_positions" in limits.extras:
        of_tokens["rope_positions"] = (form.tokens,)
    return {
        **of_tokens, "context_lens": (form.sequences,), "query_start": (form.sequences + 1,),
        "page_tables": tables, **trees, **sliding,
    }  # fmt: skip


def pad(batch: ForwardBatch | None, host: dict[str, Any], form: Form) -> None:
    """Write a batch of this form into a bucket's host arrays; the rest of it is nobody's."""
    host["sampled"][...] = np.arange(form.tokens)
    if batch is None:
        for name in _slots(host):
            host[name][...] = -1
        host["query_start"][...] = np.arange(form.sequences + 1) if form.decodes else 0
        return
    rows, tokens = batch.num_sequences, batch.num_tokens
    for name in ("token_ids", "positions"):
        host[name][:tokens], host[name][tokens:] = getattr(batch, name), 0
    for name in _slots(host):
        host[name][:tokens], host[name][tokens:] = getattr(batch, name), -1
    if "rope_positions" in host:
        own = None if batch.extras is None else batch.extras.rope_positions
        host["rope_positions"][:tokens] = batch.positions if own is None else own
        host["rope_positions"][tokens:] = 0
    host["context_lens"][:rows], host["context_lens"][rows:] = batch.context_lens, 0
    host["page_tables"][:rows, : batch.page_tables.shape[1]] = batch.page_tables
    if "sliding_tables" in host:
        host["sliding_tables"][:rows, : batch.page_tables.shape[1]] = batch.sliding_tables
    host["sampled"][:tokens] = batch.sampled
    starts = host["query_start"]
    starts[: rows + 1] = batch.query_start
    starts[rows + 1 :] = np.arange(rows + 1, form.sequences + 1) if form.decodes else tokens
    if batch.tree_masks is not None:
        host["trees"][:tokens], host["trees"][tokens:] = tree_words(batch.tree_masks), 0


def _slots(host: dict[str, Any]) -> list[str]:
    return [name for name in ("slots", "sliding_slots") if name in host]


class Bucket:
    """Arrays at fixed addresses for steps of one form, all of it padding at first."""

    def __init__(self, form: Form, limits: Limits, page_size: int, device: torch.device) -> None:
        self.form = form
        self._staging = Staging(shapes(form, limits), device)
        self.batch: DeviceBatch = self._staging.batch(form.query, limits.max_pages_per_sequence * page_size)
        self.write(None)

    def write(self, batch: ForwardBatch | None) -> None:
        """Start moving a batch into the arrays."""
        pad(batch, self._staging.writable(), self.form)
        self._staging.send()
