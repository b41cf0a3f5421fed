"""DeviceSampler: a step's draws where its logits are: the order of the kernels of draw, edits and logprobs.

    logits --(copy, edits)--> peaks -> head [-> top_k, top_p [-> typical]] -> sums -> race -> tokens
    tokens -> pinned memory, and latest[row], for the next step

Four kinds of draws differ in what is launched: GREEDY ends after head, RACE leaves out all that narrows,
NARROW typical alone, and TYPICAL has all. Arrays that a captured program reads have fixed addresses (Slate).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch

from octavo.kernels.cuda import draw, logprobs
from octavo.kernels.cuda import edits as edits_kernels
from octavo.kernels.cuda.draw_math import CHUNK
from octavo.kernels.cuda.errors import step_errors
from octavo.kernels.cuda.lane import Lane
from octavo.kernels.cuda.launch import cdiv, next_power_of_2
from octavo.kernels.draws import ROW, Drawn, Draws, Edits, Numbers, RowLogprobs, TokenLists, idle_rows

GROUP = 16
"""Chunks of a program that reads whole rows."""
BLOCK = 2048
MAX_LOGPROBS = 64
"""Likeliest tokens of a row that the device reports."""
MAX_CHUNKS = 4096
"""Of a vocabulary: a program holds a number for each."""


class Kind(IntEnum):
    GREEDY = 0
    RACE = 1
    NARROW = 2
    TYPICAL = 3

    @classmethod
    def of(cls, numbers: Numbers) -> Kind:
        if numbers.greedy or not numbers.narrows:
            return cls.GREEDY if numbers.greedy else cls.RACE
        return cls.TYPICAL if numbers.typical else cls.NARROW


_TYPES = {
    "u8": torch.int64, "i8": torch.int64, "f8": torch.float64, "u4": torch.int32, "i4": torch.int32,
    "f4": torch.float32,
}  # fmt: skip
FIELDS: Mapping[str, torch.dtype] = {
    **{name: _TYPES[ROW[name].str[1:]] for name in ROW.names or ()},
    "positions": torch.int64,
    "inverses": torch.float32,
    "owners": torch.int32,
}
"""Of a Slate: each number of a row's record, and what a step adds to them."""
_IDLE = idle_rows(1)[0]


class Slate:
    """The numbers of up to `rows` draws, on the host and on the device; padding is greedy and nobody's."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows = rows
        self._lane = Lane({name: (kind, (rows,)) for name, kind in FIELDS.items()}, device)
        self.device = self._lane.device

    def write(self, draws: Draws | None, owners: Any) -> None:
        """Start moving a step's numbers; draws None: only whose they will be."""
        host = self._lane.writable()
        count = len(owners)
        host["owners"][:count], host["owners"][count:] = owners, -1
        if draws is not None:
            records, signed = draws.numbers.records, {"u8": np.int64, "u4": np.int32}
            for name in ROW.names or ():
                column = records[name]
                host[name][:count] = column.view(signed.get(column.dtype.str[1:], column.dtype))
                host[name][count:] = _IDLE[name]
            host["positions"][:count] = draws.positions
            host["inverses"][:count], host["inverses"][count:] = draws.numbers.inverses, 0
        self._lane.send()


@dataclass(slots=True, eq=False)
class Workspace:
    """What the kernels leave for each other, [rows, ...]; made anew for each draw, or once for a graph."""

    peak: torch.Tensor
    best: torch.Tensor
    sums: torch.Tensor
    code: torch.Tensor
    top: torch.Tensor
    likeliest: torch.Tensor
    threshold: torch.Tensor
    last: torch.Tensor
    upper: torch.Tensor

    @classmethod
    def of(cls, rows: int, chunks: int, device: torch.device) -> Workspace:
        def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        i32, f32 = torch.int32, torch.float32
        return cls(
            empty(rows, chunks, dtype=f32), empty(rows, chunks, dtype=i32),
            empty(rows, chunks, dtype=torch.float64), empty(rows, dtype=i32), empty(rows, dtype=f32),
            empty(rows, dtype=i32), empty(rows, dtype=f32), empty(rows, dtype=i32),
            empty(rows, dtype=f32),
        )  # fmt: skip


class DeviceSampler:
    """Draws for the rows of one model, and keeps each row's latest token.

    Args:
        max_rows: rows of the runner that own draws.

    Attributes:
        latest [max_rows] int32: the token that each row's last draw gave.
    """

    def __init__(self, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self.vocab_size, self.device = vocab_size, device
        self.chunks = cdiv(vocab_size, CHUNK.value)
        self.latest = torch.zeros(max_rows, dtype=torch.int32, device=device)

    def lacks(self, draws: Draws) -> str | None:
        if draws.numbers.most > MAX_LOGPROBS:
            return f"more than {MAX_LOGPROBS} log-probabilities of a token"
        if self.chunks > MAX_CHUNKS:
            return f"a vocabulary of more than {MAX_CHUNKS * CHUNK.value} tokens"
        return None

    def draw(self, logits: torch.Tensor, draws: Draws, slate: Slate) -> torch.Tensor:
        """Launch the draws of logits' rows [R, V], after their edits: their tokens [R], or codes."""
        kind, edits = Kind.of(draws.numbers), draws.edits
        if edits is None:
            return self.tokens(logits, slate, kind, logits)
        edited = self.edit(logits, edits, slate)
        if edits.mask is None:
            return self.tokens(logits, slate, kind, edited)
        mask, free = self._moved(edits.mask.view(np.int32)), None
        if kind is not Kind.GREEDY:
            free = self.tokens(logits, slate, Kind.RACE, edited)
        self._launch(
            edits_kernels.mask_kernel, (len(edited), cdiv(self.vocab_size, 1024)), edited, mask,
            edited.stride(0), mask.shape[1], self.vocab_size, BLOCK=1024,
        )  # fmt: skip
        tokens = self.tokens(logits, slate, kind, edited, again=True)
        if free is not None:
            at = slate.device
            self._launch(
                draw.choose_kernel, (len(edited),), free, mask, mask.shape[1], at["inverses"], at["top_k"],
                at["top_p"], at["typical_p"], at["min_p"], at["owners"], tokens, self.latest,
            )  # fmt: skip
        return tokens

    def tokens(
        self, logits: torch.Tensor, slate: Slate, kind: Kind, edited: torch.Tensor, again: bool = False
    ) -> torch.Tensor:
        """Launch the draws of logits' rows [R, V]: their tokens [R], or codes.

        Args:
            edited: the logits after edits; the logits themselves where there are none.
            again: rows that nothing narrows draw with the noise of Stream.AGAIN.
        """
        rows, at = logits.shape[0], slate.device
        out = torch.empty(rows, dtype=torch.int32, device=self.device)
        work = Workspace.of(rows, self.chunks, self.device)
        raw_peak = self._peaks(edited, work.peak, work.best)
        if edited is not logits:
            raw_peak, _ = self.peaks(logits)
        self._launch(
            draw.head_kernel, (rows,), raw_peak, work.peak, work.best, at["min_p"], work.code, work.top,
            work.likeliest, work.threshold, work.last, work.upper, at["owners"], out, self.latest,
            self.chunks, self.vocab_size, GREEDY=kind is Kind.GREEDY,
            BLOCK=next_power_of_2(self.chunks),
        )  # fmt: skip
        if kind is not Kind.GREEDY:
            self._race(edited, at, work, kind, out, again)
        return out

    def _race(
        self, z: torch.Tensor, at: Mapping[str, torch.Tensor], work: Workspace, kind: Kind, out: torch.Tensor,
        again: bool,
    ) -> None:  # fmt: skip
        rows, wide = (z.shape[0],), next_power_of_2(self.chunks)
        sizes = z.stride(0), self.vocab_size, self.chunks
        kept = work.code, work.top, at["inverses"]
        limits = work.threshold, work.last
        if kind >= Kind.NARROW:
            scratch = torch.empty((z.shape[0], self.vocab_size), dtype=torch.float32, device=self.device)
            self._launch(
                draw.top_k_kernel, rows, z, scratch, work.peak, *kept, at["top_k"], *limits, *sizes,
                BLOCK=BLOCK, CHUNKS=wide,
            )  # fmt: skip
            self._sums(z, work, at)
            self._launch(
                draw.top_p_kernel, rows, z, scratch, work.sums, *kept, at["top_p"], *limits, *sizes,
                BLOCK=BLOCK,
            )  # fmt: skip
            if kind is Kind.TYPICAL:
                logs = torch.empty_like(work.sums)
                self._sums(z, work, at)
                self._sums(z, work, at, logs)
                self._launch(
                    draw.typical_kernel, rows, z, scratch, work.sums, logs, *kept, at["typical_p"], *limits,
                    work.upper, *sizes, BLOCK=BLOCK,
                )  # fmt: skip
        self._sums(z, work, at)
        self._launch(
            draw.race_kernel, rows, z, work.sums, work.code, work.top, work.likeliest, at["inverses"],
            *limits, work.upper, at["seed"], at["sample_index"], at["positions"], at["owners"], out,
            self.latest, at["top_k"], at["top_p"], at["typical_p"], at["min_p"], *sizes, AGAIN=again,
            CHUNKS=wide,
        )  # fmt: skip

    def _sums(
        self,
        z: torch.Tensor,
        work: Workspace,
        at: Mapping[str, torch.Tensor],
        logs: torch.Tensor | None = None,
    ) -> None:
        """Launch the sums of kept weights. logs [R, chunks]: of their products with their logs, to there."""
        self._launch(
            draw.sums_kernel, (z.shape[0], cdiv(self.chunks, GROUP)), z, work.sums if logs is None else logs,
            work.code, work.top, at["inverses"], work.threshold, work.last, work.upper, z.stride(0),
            self.vocab_size, self.chunks, GROUP=GROUP, LOGS=logs is not None,
        )  # fmt: skip

    def peaks(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each chunk's largest logit, and the lowest id that has it: [R, chunks] both."""
        shape = z.shape[0], self.chunks
        peak = torch.empty(shape, dtype=torch.float32, device=self.device)
        best = torch.empty(shape, dtype=torch.int32, device=self.device)
        self._peaks(z, peak, best)
        return peak, best

    def _peaks(self, z: torch.Tensor, peak: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        self._launch(
            draw.peaks_kernel, (z.shape[0], cdiv(self.chunks, GROUP)), z, peak, best, z.stride(0),
            self.vocab_size, self.chunks, GROUP=GROUP,
        )  # fmt: skip
        return peak

    def edit(self, logits: torch.Tensor, edits: Edits, slate: Slate) -> torch.Tensor:
        """A copy of the logits, edited (logits.edit), but for the mask: it may come last as well."""
        z = logits.clone()
        rows, stride = z.shape[0], z.stride(0)
        penalties = [slate.device[f"{kind}_penalty"] for kind in ("repetition", "frequency", "presence")]

        def listed(lists: TokenLists, mode: int) -> None:
            if not lists.empty:
                moved = (self._moved(each) for each in (lists.starts, lists.tokens, lists.values))
                self._launch(
                    edits_kernels.list_kernel, (rows,), z, *moved, *penalties, stride, MODE=mode, BLOCK=256,
                )  # fmt: skip

        listed(edits.bias, 0)
        if edits.boost is not None:
            bits, deltas = self._moved(edits.boost.bits.view(np.int32)), self._moved(edits.boost.deltas)
            self._launch(
                edits_kernels.boost_kernel, (rows, cdiv(self.vocab_size, 1024)), z, bits, deltas, stride,
                bits.shape[1], self.vocab_size, BLOCK=1024,
            )  # fmt: skip
        listed(edits.banned, 1)
        listed(edits.seen, 2)
        return z

    def logprobs(self, logits: torch.Tensor, tokens: torch.Tensor, slate: Slate, most: int) -> DeviceLogprobs:
        """Launch what log-probabilities need, after the draw."""
        rows, at = logits.shape[0], slate.device
        peak, best = self.peaks(logits)
        sums = torch.empty((rows, self.chunks), dtype=torch.float64, device=self.device)
        sizes = logits.stride(0), self.vocab_size, self.chunks
        self._launch(
            logprobs.chunk_exp_kernel, (rows, cdiv(self.chunks, GROUP)), logits, peak, sums,
            at["num_logprobs"], *sizes, GROUP=GROUP,
        )  # fmt: skip
        made = DeviceLogprobs(
            torch.zeros(rows, dtype=torch.float64, device=self.device),
            torch.zeros(rows, dtype=torch.int32, device=self.device),
            torch.full((rows, most), -1, dtype=torch.int32, device=self.device),
            torch.zeros((rows, most), dtype=torch.float64, device=self.device),
        )
        self._launch(
            logprobs.score_kernel, (rows,), logits, peak, best, sums, at["num_logprobs"], tokens,
            made.logprobs, made.ranks, made.top_tokens, made.top_logprobs, most, *sizes, BLOCK=BLOCK,
            CHUNKS=next_power_of_2(self.chunks),
        )  # fmt: skip
        return made

    def _moved(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """A small array of this step; its pinned memory is kept until the copy has ended (by torch)."""
        there = torch.from_numpy(np.array(array))
        if self.device.type == "cuda":
            there = there.pin_memory()
        return there.to(self.device, non_blocking=True)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        kernel[grid](*args, **options, enable_fp_fusion=False)


class DeviceLogprobs(NamedTuple):
    """On the device: as kernels.draws.RowLogprobs has them."""

    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_tokens: torch.Tensor
    top_logprobs: torch.Tensor


class Copied:
    """Tokens, and scores where there are any, on their way to pinned memory. A draws.Pending."""

    def __init__(self, tokens: torch.Tensor, scores: DeviceLogprobs | None) -> None:
        on_device = [tokens, *(scores or ())]
        cuda = tokens.device.type == "cuda"
        self._host = [torch.empty(each.shape, dtype=each.dtype, pin_memory=cuda) for each in on_device]
        for host, each in zip(self._host, on_device, strict=True):
            host.copy_(each, non_blocking=True)
        self._event: Any = None
        if cuda:
            make: Any = torch.cuda.Event  # torch has no types for it
            self._event = make()
            self._event.record()

    def result(self) -> Drawn:
        if self._event is not None:
            with step_errors():
                self._event.synchronize()
            self._event = None
        tokens, *scores = (each.numpy() for each in self._host)
        return Drawn(tokens, RowLogprobs(*scores) if scores else None)


def feed(token_ids: torch.Tensor, sources: torch.Tensor, latest: torch.Tensor) -> None:
    """Put rows' latest tokens where the batch has none: token_ids[t] = latest[sources[t]]."""
    count = token_ids.shape[0]
    grid = (cdiv(count, 1024),)
    draw.feed_kernel[grid](token_ids, sources, latest, count, BLOCK=1024)
