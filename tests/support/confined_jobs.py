"""Jobs for confined processes that do what strangers' work might do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, cast

from octavo.errors import InvalidRequestError, UnsupportedError


def prepare(given: Any) -> Callable[[Any], Any]:
    """A job is a list: what to do, and with what."""
    seen: list[Any] = []

    def run(job: Any) -> Any:
        what, value = job
        match what:
            case "echo":
                return [given, value]
            case "remember":
                seen.append(value)
                return seen
            case "environment":
                return dict(os.environ)
            case "spin":
                while True:
                    pass
            case "spin in C":
                return sum(range(10**12))
            case "sleep":
                signal.pause()
            case "fill":
                return len(bytearray(value))
            case "answer":
                return "x" * value
            case "write":
                with open(value, "w") as file:
                    file.write("x")
            case "crash":
                os.abort()
            case "leave":
                os._exit(0)
            case "refuse":
                raise InvalidRequestError("no", value)
            case "not support":
                raise UnsupportedError("not yet", value)
            case "fail":
                raise KeyError(value)
            case "panic":
                raise BaseException(value)
        return None

    return run


def prepare_warm(given: Any) -> Callable[[Any], Any]:
    """As prepare(), warmed up by a job of its own, which fails or ends the process as `given` says."""
    run: Any = prepare(given)

    def warm_up() -> None:
        run(["remember", "warm"])
        if given == "fails":
            raise ValueError(given)
        if given == "ends":
            os._exit(1)

    run.warm_up = warm_up
    return cast("Callable[[Any], Any]", run)


def broken(given: Any) -> Callable[[Any], Any]:
    """Never gets ready."""
    raise ValueError(given)
