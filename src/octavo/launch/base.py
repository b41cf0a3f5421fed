"""A program that can be started against a server: how it is called, and what it must be told."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from octavo.errors import OctavoError
from octavo.launch.served import Served

NO_KEY = "none"
"""What programs that insist on a key are given where the server asks for none."""


class NotInstalledError(OctavoError):
    """A program is not on the PATH; the message says how it comes there."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a program is started with, beside what its user has typed.

    Attributes:
        arguments: of its command line, before the user's own, which so have the last word.
        environment: variables that are set, over the user's own.
        secret: those among them that hold the key.
    """

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    secret: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Tool:
    """A program.

    Attributes:
        name: as `octavo launch` calls it.
        program: its executable.
        install: the command that installs it.
        first_prompt: tokens that its own instructions and tools take, roughly: less context is of no use.
        settings: what it is told of a server.
    """

    name: str
    program: str
    install: str
    first_prompt: int
    settings: Callable[[Served], Settings]

    def find(self) -> str:
        """The path of its executable.

        Raises:
            NotInstalledError: it is not on the PATH.
        """
        found = shutil.which(self.program)
        if found is None:
            raise NotInstalledError(f"{self.program} is not installed: {self.install}")
        return found
