"""Chat templates of which nothing is proven (see template_proof.py), rendered where they can be killed."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Mapping
from typing import Any

from octavo.confined import Confined, JobKilledError, UnavailableError
from octavo.errors import InvalidRequestError, OverloadedError
from octavo.tokenizer.chat import render
from octavo.tokenizer.chat_environment import compile_template

CPU_S = 0.75
"""Of a processor: the longest chats take some 0.1 s."""
MEMORY = 128 << 20
AT_ONCE = 2


class ConfinedTemplate:
    """Renders in a confined process, which starts with the first chat. Thread-safe; its caller waits.

    Args:
        source: of the template.
    """

    def __init__(self, source: str) -> None:
        self._process = Confined("octavo.tokenizer.confined_template:prepare", lambda: source, MEMORY)
        self._places = threading.BoundedSemaphore(AT_ONCE)

    def render(self, variables: Mapping[str, Any] | None) -> str:
        """The text for these; None: only see whether the template compiles.

        Raises:
            InvalidRequestError: as chat.render(), it takes too long or too much memory, or the variables
                are no JSON. OverloadedError: no process can be started.
        """
        try:
            with self._places:
                text: str = self._process.run(variables, CPU_S)
        except JobKilledError:
            problem = f"takes more than {CPU_S:g} s of a processor, or too much memory, for these messages"
            raise InvalidRequestError(f"the chat template {problem}", "messages") from None
        except UnavailableError:
            raise OverloadedError("no chat can be rendered at the moment; try again later") from None
        except TypeError:
            problem = "chat_template_kwargs must be plain JSON for this model's template"
            raise InvalidRequestError(problem, "chat_template_kwargs") from None
        return text


def prepare(given: Any) -> Callable[[Any], str]:
    """In the process: the template, compiled without computing anything of it, and what renders it.

    Args:
        given: its source.
    """
    try:
        template = compile_template(given, datetime.datetime.now, fold=False)
    except InvalidRequestError as error:
        refused = error  # every chat is told

        def refuse(variables: Any) -> str:
            raise refused

        return refuse
    return lambda variables: "" if variables is None else render(template, variables)
