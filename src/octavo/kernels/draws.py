"""Draws: what a step's sampled rows ask of a backend's sampler, and what comes back.

The messages between sampling/, which knows what each row asks for, and what draws: csrc/sample.h on the
host, and kernels/cuda/sample.py where the logits are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from octavo.kernels.forward_batch import ForwardBatch

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

ROW = np.dtype(
    [
        ("seed", np.uint64),
        ("min_position", np.int64),  # up to this position stop ids are banned (min_tokens)
        ("top_p", np.float64),  # 1: all
        ("typical_p", np.float64),  # 1: all
        ("temperature", np.float32),  # 0: greedy
        ("min_p", np.float32),  # 0: all
        ("repetition_penalty", np.float32),  # 1: none
        ("frequency_penalty", np.float32),  # 0: none
        ("presence_penalty", np.float32),  # 0: none
        ("top_k", np.int32),  # 0: all
        ("sample_index", np.uint32),
        ("num_logprobs", np.int32),  # -1: not asked for; 0: the drawn token's only
    ],
    align=True,
)
"""The numbers of one row: what SamplingRows keeps and samplers read (C layout, aligned)."""


def drawn_free(rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether such a row [R] of dtype ROW is drawn without its mask first (Sampler, step 7).

    A greedy one may be too: the likeliest token, if it is allowed, is the likeliest of those allowed.
    """
    plain = (rows["min_p"] == 0) & (rows["top_k"] == 0) & (rows["top_p"] == 1)
    plain &= rows["typical_p"] == 1
    found: npt.NDArray[np.bool_] = plain | (rows["temperature"] == 0)
    return found


_NO_TOKENS, _NO_VALUES = np.zeros(0, np.int32), np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class TokenLists:
    """One list of (token, value) per row, stored end to end; most rows' lists are empty.

    Attributes:
        starts [R + 1] int64: row r owns entries starts[r] <= e < starts[r + 1].
        tokens [E] int32: no token twice in one row.
        values [E] float32: what they mean is said where the lists are used.
    """

    starts: I64
    tokens: I32
    values: F32

    @classmethod
    def of(cls, lists: Sequence[tuple[I32, F32] | None]) -> TokenLists:
        """Concatenate one (tokens, values) per row; None is an empty list."""
        return cls.at(len(lists), dict(enumerate(lists)))

    @classmethod
    def at(cls, rows: int, lists: Mapping[int, tuple[I32, F32] | None]) -> TokenLists:
        """The lists of some of the rows, by index and in its order; the others' are empty."""
        full = {index: pair for index, pair in lists.items() if pair is not None}
        if not full:
            return cls.none(rows)
        starts = np.zeros(rows + 1, np.int64)
        for index, pair in full.items():
            starts[index + 1] = len(pair[0])
        np.cumsum(starts, out=starts)
        tokens = np.concatenate([pair[0] for pair in full.values()])
        return cls(starts, tokens, np.concatenate([pair[1] for pair in full.values()]))

    @classmethod
    def none(cls, rows: int) -> TokenLists:
        """An empty list for each row."""
        return cls(np.zeros(rows + 1, np.int64), _NO_TOKENS, _NO_VALUES)

    def row(self, index: int) -> tuple[I32, F32]:
        span = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return self.tokens[span], self.values[span]

    @property
    def empty(self) -> bool:
        return not len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Boost:
    """A set of tokens of each row whose logits get the row's delta; it may hold half of the vocabulary.

    Attributes:
        bits [R, ceil(V / 32)] uint32: bit t % 32 of word t // 32 is set where token t is in the set.
        deltas [R] float32: finite; 0: the row has no set.
    """

    bits: U32
    deltas: F32


def idle_rows(count: int) -> npt.NDArray[Any]:
    """Records [count] that ask for nothing: greedy, of all tokens."""
    rows = np.zeros(count, ROW)
    rows["top_p"], rows["typical_p"], rows["repetition_penalty"], rows["num_logprobs"] = 1, 1, 1, -1
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """Of R rows, in the order of the logits' rows; they stay while the same rows are drawn for.

    Attributes:
        records [R] of dtype ROW.
        inverses [R]: 1 / temperature in f32, at most the largest float; 0: greedy.
    """

    records: npt.NDArray[Any]
    inverses: F32

    @classmethod
    def of(cls, records: npt.NDArray[Any]) -> Numbers:
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.minimum(np.float32(1) / records["temperature"], np.finfo(np.float32).max)
        return cls(records, np.where(records["temperature"] > 0, inverse, np.float32(0)).astype(np.float32))

    @property
    def greedy(self) -> bool:
        return not self.inverses.any()

    @property
    def narrows(self) -> bool:
        """Whether any row has a top_k, top_p or typical_p."""
        return bool((self.records["top_k"] > 0).any() or (self.records["top_p"] < 1).any()) or self.typical

    @property
    def typical(self) -> bool:
        """Whether any row has a typical_p."""
        return bool((self.records["typical_p"] < 1).any())

    @property
    def most(self) -> int:
        """The largest of num_logprobs."""
        return int(self.records["num_logprobs"].max(initial=-1))


@dataclass(frozen=True, slots=True, eq=False)
class RowLogprobs:
    """Log-probabilities of R rows' tokens, for rows that ask for them.

    Attributes:
        logprobs [R], ranks [R]: of each row's token.
        top_tokens [R, most], top_logprobs [R, most]: the likeliest, best first; -1 after the last.
    """

    logprobs: F64
    ranks: I64 | I32
    top_tokens: I32
    top_logprobs: F64

    @classmethod
    def empty(cls, rows: int, most: int) -> RowLogprobs:
        """For a sampler to write to."""
        shape = rows, most
        return cls(np.empty(rows), np.empty(rows, np.int64), np.full(shape, -1, np.int32), np.empty(shape))


class Asked(NamedTuple):
    """Places of a step's rows whose tokens somebody is asked about.

    Attributes:
        refuses: is called with (place, token), in any order, each once and on the calling thread, while
            other rows are still drawn. A row whose token it refuses is drawn again, under the mask that it
            leaves in `mask`.
        mask [ceil(vocab / 32)]: where it leaves that mask.
    """

    places: Sequence[int]
    refuses: Callable[[int, int], bool]
    mask: U32


class Scored(NamedTuple):
    """Places of a step's rows whose log-probabilities go to `scores` [len(places)], in this order."""

    places: Sequence[int]
    scores: RowLogprobs


class Lifted(NamedTuple):
    """Places of a step's rows of whose logits a set of tokens is raised, or lowered.

    Attributes:
        table [., ceil(vocab / 32)]: sets, as the bits of Boost.
        lines [len(places)]: each row's set.
        deltas [len(places)]: what its logits get.
        made: green lists (green_list.py) that the step writes to the table before it draws: each one's seed,
            how many tokens it has, and its line, which no other has.
    """

    places: Sequence[int]
    table: U32
    lines: npt.NDArray[np.int32]
    deltas: F32
    made: Sequence[tuple[int, int, int]]


class Edits(Protocol):
    """What changes R rows' logits before their draws, as sampling.sampling_batch.SamplingBatch tells."""

    @property
    def bias(self) -> TokenLists: ...
    @property
    def banned(self) -> TokenLists: ...
    @property
    def seen(self) -> TokenLists: ...
    @property
    def mask(self) -> U32 | None: ...
    @property
    def boost(self) -> Boost | None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """A step's draws. edits None: no row's logits are changed."""

    numbers: Numbers
    positions: I64
    edits: Edits | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """What came of R draws.

    Attributes:
        tokens [R]: a token, or -1: none is allowed, -2: the logits hold NaN, -3: infinity.
        scores: None: no row asked for any.
    """

    tokens: I32
    scores: RowLogprobs | None = None


class Pending(Protocol):
    """Draws under way."""

    def result(self) -> Drawn:
        """Wait for them. May be called again."""
        ...


class Launched(Protocol):
    """A forward under way, whose logits stay where they are."""

    def draw(self, draws: Draws) -> Pending:
        """Draw from its logits when they are there; does not wait. Once, before the next launch."""
        ...

    def logits(self) -> F32:
        """Wait for the logits [R, V]."""
        ...


class DeviceSteps(Protocol):
    """A program whose tokens stay on the device and feed the next step: nothing waits but result().

    Steps run in the order of their launches, each after everything that was launched before.
    """

    def launch(
        self, batch: ForwardBatch, sources: I32, owners: Sequence[int], draws: Draws | None = None
    ) -> Launched:
        """Start a forward.

        Args:
            sources [T]: the row (of the runner's) whose latest drawn token this token is; -1: token_ids
                has it.
            owners [R]: the row that each drawn token belongs to.
            draws: known already: they may become part of the captured program. draw() must be called
                with the same ones.
        """
        ...

    def prepare(self) -> None:
        """Do now, before anybody waits, what the first step would have to do: compile kernels."""
        ...

    def lacks(self, draws: Draws) -> str | None:
        """Why these draws are left to the host, in a few words; None: the device does them."""
        ...


class RowSampler(Protocol):
    """A backend's sampler, by arrays alone; sampling/native.py calls it and says what they mean."""

    def sample(
        self,
        logits: F32,
        records: npt.NDArray[np.uint8],
        positions: npt.NDArray[np.int64],
        edits: Edits | None = None,
        scores: RowLogprobs | None = None,
        which: npt.NDArray[np.int32] | None = None,
    ) -> list[int]:
        """Draw R tokens; an error's number stands in the place of one (sampling/native.py: ERRORS).

        Args:
            logits [L, vocab].
            records [R]: of dtype ROW, as bytes.
            positions [R].
            edits: None: no row's logits are changed.
            scores: written to where records ask for log-probabilities; None: none does.
            which [R]: each row's place in the logits; None: L = R.
        """
        ...

    def score(self, logits: F32, tokens: npt.NDArray[np.int32], scores: RowLogprobs) -> list[int]:
        """Write what `scores` has room for, of given tokens [R]; below 0: these logits do not say."""
        ...


class RowDecoder(Protocol):
    """A backend's own way through a step in which every row computes one token and draws the next."""

    def step(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        left: Sequence[int] = (),
        asked: Asked | None = None,
        scored: Scored | None = None,
        lifted: Lifted | None = None,
    ) -> list[int]:
        """Compute the token at position starts[i] of each row, draw and append the one after it.

        Args:
            left: places in `rows` whose draws are the caller's, from logits(). No place is of two kinds:
                left, asked about, scored or lifted.
            asked: what its `refuses` raises ends the step, and nothing is appended.
            scored: only these rows, and those that are left, may ask for log-probabilities.

        Returns:
            The tokens; in the place of one what RowSampler.sample gives for an error: that row stays
            as it was. At the places that are left: any number below 0.
        """
        ...

    def verify(
        self, rows: Sequence[int], starts: Sequence[int], drafts: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """As step, but each row also computes its drafts, which follow its token as a chain.

        It draws after its token, and goes on after each draft that is what it has drawn.

        Returns:
            What each row has drawn, which is appended; or an error alone, as in step.
        """
        ...

    def logits(self) -> F32:
        """Of the last step, [its rows, vocab]: complete where rows were left, elsewhere anything."""
        ...

    def redraw(self, indices: Sequence[int], mask: npt.NDArray[np.uint32]) -> list[int]:
        """Draw again for some rows of the last step, whose tokens were refused; the new ones replace them.

        Args:
            indices: places that were asked about, each once, and of none that has been drawn again.
            mask [len(indices), ceil(vocab / 32)]: it forbids the token that was drawn.

        Returns:
            The tokens, or errors, as step does; an error leaves the row without the token.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DecodeRows:
    """What a RowDecoder reads and writes of rows: arrays that others change between steps, C-contiguous.

    Attributes:
        tokens [rows, T]: each row's known tokens; those drawn are appended.
        lengths [rows]: how many of them are known; kept up likewise.
        pages [rows, P]: each row's page table; sliding_pages [rows, P]: the same of sliding pages, if any.
        records [rows]: as the sampler reads them.
    """

    tokens: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    pages: npt.NDArray[np.int32]
    page_size: int
    records: npt.NDArray[Any]
    sliding_pages: npt.NDArray[np.int32] | None = None
