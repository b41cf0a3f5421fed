"""Proposer: who drafts tokens that may follow; and what a file of this folder says of its proposer.

A proposer never decides what is generated. The model computes every drafted token, draws where plain
decoding would draw, and keeps a draft only as far as it was drawn anyway. So a proposer may forget, guess
wrongly or hold tables that are out of date: that costs time, and never changes an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from octavo.errors import InvalidRequestError
from octavo.params.drafts import Draft

if TYPE_CHECKING:  # a command that prints its help reads this file, and needs no numpy
    from octavo.kernels.ops import Forward, KVCache
    from octavo.models.registry import Model

Number = int | float


@dataclass(frozen=True, slots=True)
class Begin:
    """A request enters a row, for the first time or again after a preemption.

    Attributes:
        tokens: all that are known, the prompt and what was generated.
        num_prompt_tokens: how many of them are the prompt.
        prediction: what the caller expects to be generated (OpenAI's `prediction`); empty: nothing.
        salt: of the namespace in which the request shares what is computed; equal ones share tables, None
            is shared by all that name none.
    """

    tokens: Sequence[int]
    num_prompt_tokens: int
    prediction: Sequence[int] = ()
    salt: str | None = None


class Proposer(Protocol):
    """Drafts for rows. One thread calls it, in the order of the steps."""

    @property
    def nbytes(self) -> int:
        """Bytes of its tables now, what they have reserved included."""
        ...

    def start(self, row: int, begin: Begin) -> None:
        """A request enters the row, which was free."""
        ...

    def remove(self, row: int) -> None:
        """The row's request has ended or was preempted; a row that is unknown stays so."""
        ...

    def observe(self, row: int, tokens: Sequence[int]) -> None:
        """The row has got these tokens, whether they had been drafted or not."""
        ...

    def propose(self, most: Mapping[int, int]) -> dict[int, Draft]:
        """Drafts that may follow all that is known of these rows.

        Args:
            most: row -> tokens that its draft may have.

        Returns:
            row -> a draft with at least one token; rows for which it has none are not in it.
        """
        ...

    def reset(self) -> None:
        """Forget what outlives a request."""
        ...


@dataclass(frozen=True, slots=True)
class Option:
    """A number of speculative_config that one proposer takes.

    Attributes:
        least, most: its bounds, both allowed. default: an int where it must be whole, a bool where it says
            whether.
    """

    default: Number
    least: Number
    most: Number
    about: str

    def checked(self, name: str, value: object) -> Number:
        """
        Raises:
            InvalidRequestError: the value is no such number.
        """
        if isinstance(self.default, bool):
            if not isinstance(value, (bool, int)) or value not in (0, 1):
                raise _wrong(f"{name} must be true or false, not {value!r}")
            return bool(value)
        kinds = (int,) if isinstance(self.default, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not self.least <= value <= self.most:
            kind = "a whole number" if kinds == (int,) else "a number"
            bounds = f"{kind} from {self.least} to {self.most}" if self.least < self.most else f"{self.most}"
            raise _wrong(f"{name} must be {bounds}, not {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the runtime asks of a proposer that it makes.

    Attributes:
        max_num_seqs, max_model_len: rows, and tokens of the longest.
        trees: the runtime verifies trees; otherwise every draft is a chain.
        options: of speculative_config, each that Registration.options names.
        rejecting: the runtime verifies drafts by the p/q test. A proposer that draws its drafts draws them
            from Stream.DRAFT and gives their distribution as Draft.q; drafts without one count as chosen.
    """

    max_num_seqs: int
    max_model_len: int
    trees: bool = False
    options: Mapping[str, Number] = field(default_factory=dict)
    rejecting: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Drafting:
    """A forward whose logits say what may follow. runtime/model_drafts.py makes a proposer of it.

    Attributes:
        forward: (a cache whose first layers are the target's) -> model code, which gives logits.
        vocab_size: tokens that it knows. max_position: tokens of the longest sequence that it was made for.
        shares_kv: it has no keys and values of its own: it reads those of the target's first layers.
    """

    forward: Callable[[KVCache], Forward]
    vocab_size: int
    max_position: int
    shares_kv: bool = False


FindDrafting: TypeAlias = "Callable[[Model, Model | None, Mapping[str, Number]], Drafting]"
"""(target, the model that speculative_config names, options) -> what drafts."""


def _made_of_a_model(wanted: Wanted) -> Proposer:
    raise TypeError("this method's drafts come from a model: runtime/model_drafts.py makes its proposer")


def _no_tables(wanted: Wanted) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Registration:
    """What a file of spec/ says of its proposer; the file's name is the method's.

    Attributes:
        about: what it does in a few words, for --help and the docs.
        make: builds it.
        bound: bytes that its tables never exceed, for the memory plan.
        options: names of speculative_config that it takes.
        drafting: what drafts, where that is a model; make and bound are not called then. None: tables do.
        names_model: speculative_config names a model, which is loaded beside the target.
    """

    about: str
    make: Callable[[Wanted], Proposer] = _made_of_a_model
    bound: Callable[[Wanted], int] = _no_tables
    options: Mapping[str, Option] = field(default_factory=dict)
    drafting: FindDrafting | None = None
    names_model: bool = False

    def settings(self, given: Mapping[str, object], common: Sequence[str] = ()) -> dict[str, Number]:
        """Each option's number, the default where none is given.

        Args:
            common: what every method takes beside its own, for the message.

        Raises:
            InvalidRequestError: a name that it does not take, or a number out of bounds.
        """
        for name in given:
            if name not in self.options:
                known = ", ".join([*sorted(self.options), *common]) or "none"
                raise _wrong(f"has no {name!r} with this method; it takes: {known}")
        return {
            name: option.checked(name, given[name]) if name in given else option.default
            for name, option in self.options.items()
        }


def _wrong(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"speculative_config {what}", "speculative_config")
