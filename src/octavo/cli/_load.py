"""Loading an engine for a command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from octavo.cli._flags import EngineChoice
from octavo.cli._progress import byte_progress, saying

if TYPE_CHECKING:
    from octavo.llm import AsyncLLM


def fetch(model: str, quiet: bool = False) -> None:
    """Pull the model if it is an alias or a hub id that is not in the cache yet, with a progress bar.

    Raises:
        OctavoError: there is no such model, or it cannot be pulled.
    """
    from octavo.checkpoints import sources

    if sources.is_remote(model):
        with byte_progress(f"pulling {model}", quiet) as progress:
            sources.resolve(model, progress=progress)


def load(engine: EngineChoice, progress: Callable[[str, float], None] | None = None) -> AsyncLLM:
    """The engine that the flags ask for.

    Args:
        progress: called with (phase, seconds it took).

    Raises:
        OctavoError: a flag or the model is wrong.
    """
    from octavo.llm import AsyncEngineArgs, AsyncLLM

    args = AsyncEngineArgs(model=engine.model, **engine.options)
    llm = AsyncLLM.from_engine_args(args, progress=progress)
    if progress is None:
        say_facts(llm.facts)
    return llm


@contextmanager
def loaded(engine: EngineChoice, quiet: bool) -> Generator[AsyncLLM, None, None]:
    """The engine that the flags ask for, its model pulled if need be. It is shut down at the end.

    Args:
        quiet: without a progress bar.

    Raises:
        OctavoError: see fetch() and load().
    """
    fetch(engine.model, quiet)
    with saying(f"loading {engine.model}", quiet, after_s=3.0):
        llm = load(engine)
    try:
        yield llm
    finally:
        llm.shutdown()


def say_facts(facts: Mapping[str, str]) -> None:
    """Say on stderr how far the context was shortened, and which GPU is used, or why one that may be there is
    not; where there is no driver, GPUs are not spoken of."""
    from octavo.kernels.cuda.device import NO_DRIVER

    device = facts.get("device")
    if device and NO_DRIVER not in device:
        print(f"device: {device}", file=sys.stderr)
    if (context := facts.get("context")) is not None:
        print(f"context: {context}", file=sys.stderr)
