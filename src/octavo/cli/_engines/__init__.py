"""Other engines' flags of a server, one table a file; docs/reference/flags.md is made from them.

Each file says of the flags that its engine's launcher has what `octavo serve` does:

    NAME    the engine
    LINES   how its users start a server, as they type it, without the program's name
    SAME    flags that Octavo's command has, too, with this meaning, separated by spaces
    FLAGS   {flag, or several separated by spaces: Mapped, NoEffect or Refused}
    NOTES   {flag: what it means here, where Octavo has the name and means another thing}
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from octavo.errors import InvalidRequestError, UnsupportedError


@dataclass(frozen=True, slots=True)
class Mapped:
    """A flag that Octavo calls otherwise.

    Attributes:
        flag: Octavo's.
        made: what becomes of the value. A text: the flag has none, and Octavo's gets this one.
        bare: neither has a value.
        note: where the two differ.
    """

    flag: str
    made: Callable[[str], str] | str | None = None
    bare: bool = False
    note: str = ""

    @property
    def takes(self) -> bool:
        return not self.bare and not isinstance(self.made, str)

    def spelled(self, value: str | None) -> list[str]:
        """The same in Octavo's words."""
        if self.bare:
            return [self.flag]
        if isinstance(self.made, str):
            return [self.flag, self.made]
        text = value or ""
        return [self.flag, self.made(text) if self.made else text]


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A flag that is taken and left out, which is said: it tunes what Octavo does not have, or does anyway.

    Attributes:
        takes: it has a value; None: it may have one.
        attached: the value may stand behind it without a space.
    """

    why: str
    takes: bool | None = True
    attached: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """A flag that asks for what Octavo does not do.

    Attributes:
        neutral: values that ask for what happens anyway.
        takes: it has a value.
    """

    why: str
    neutral: tuple[str, ...] = ()
    takes: bool = True

    def check(self, name: str, value: str | None) -> None:
        """
        Raises:
            UnsupportedError: the value asks for something.
        """
        if value is None or not any(_equal(value, each) for each in self.neutral):
            taken = f" ({' or '.join(self.neutral)} is taken)" if self.neutral else ""
            raise UnsupportedError(f"{name} is not supported: {self.why}{taken}")


def _equal(value: str, neutral: str) -> bool:
    """The same word, or the same number: .50 is 0.5."""
    try:
        return float(value) == float(neutral)
    except ValueError:
        return value.lower() == neutral


Meaning = Mapped | NoEffect | Refused


@cache
def engines() -> Mapping[str, ModuleType]:
    """Every table by its file's name."""
    found = pkgutil.iter_modules(__path__)
    return {each.name: importlib.import_module(f"{__name__}.{each.name}") for each in found}


@cache
def only_of(engine: str) -> frozenset[str]:
    """The flags that this engine's launcher has, and no other's."""
    names = {
        table.NAME: {*table.SAME.split(), *(name for line in table.FLAGS for name in line.split())}
        for table in engines().values()
    }
    return frozenset(names[engine].difference(*(names[other] for other in names if other != engine)))


@cache
def meanings() -> Mapping[str, tuple[str, Meaning]]:
    """(engine, what is done) of every flag that Octavo's own command has not."""
    return {
        name: (table.NAME, meaning)
        for table in engines().values()
        for names, meaning in table.FLAGS.items()
        for name in names.split()
    }


def translated(words: Sequence[str], own: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """(a command line in Octavo's own flags, what has no effect, or another meaning than its engine's).

    Args:
        own: the command's flags, and whether each has a value.

    Raises:
        UnsupportedError: a flag asks for what Octavo does not do. InvalidRequestError: it lacks its value.
    """
    every = list(pieces(words, own))
    notes = _other_meanings({word.partition("=")[0] for word in words})
    made = [word for piece in every for word in piece.made]
    return made, [*notes, *(piece.note for piece in every if piece.note)]


def _other_meanings(names: Set[str]) -> list[str]:
    return [
        f"{name} is not {table.NAME}'s: {table.NOTES[name]}"
        for table in engines().values()
        for name in (names & table.NOTES.keys()) - set(table.SAME.split())
        if names & only_of(table.NAME)
    ]


@dataclass(frozen=True, slots=True)
class Piece:
    """A flag with its value, or another word of a command line.

    Attributes:
        typed: the flag's name as it was typed; empty: it is none.
        made: the same in Octavo's own flags. note: what is to be said of it.
    """

    typed: str
    made: list[str]
    note: str = ""


def pieces(words: Iterable[str], own: Mapping[str, bool]) -> Iterator[Piece]:
    """A command line one by one. Arguments and errors are translated()'s."""
    waiting = deque(words)
    while waiting:
        word = waiting.popleft()
        name, equals, value = word.partition("=")
        if word == "--":
            yield Piece("", [word, *waiting])
            return
        if name.startswith("--"):  # vLLM's may be written with underscores
            name = name.replace("_", "-")
        short = meanings().get(word[:2], ("", None))[1]
        if isinstance(short, NoEffect) and short.attached and word not in meanings():
            name, equals, value = word[:2], "=", word[2:]
        if name in own or name not in meanings():
            made = [name + equals + value if name in own else word]
            if own.get(name) and not equals and waiting:
                made.append(waiting.popleft())
            yield Piece(name if name in own else "", made)
            continue
        engine, meaning = meanings()[name]
        given = value if equals else _value(waiting, name, meaning.takes)
        if isinstance(meaning, Mapped):
            yield Piece(name, meaning.spelled(given))
        elif isinstance(meaning, Refused):
            meaning.check(name, given)
        else:
            yield Piece(name, [], f"{name} ({engine}) has no effect: {meaning.why}")


def _value(waiting: deque[str], name: str, takes: bool | None) -> str | None:
    """The word behind a flag, if it is the flag's."""
    if takes is False:
        return None
    if waiting and (takes or not waiting[0].startswith("-")):
        return waiting.popleft()
    if takes:
        raise InvalidRequestError(f"{name} needs a value")
    return None
