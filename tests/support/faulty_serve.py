"""`octavo serve` with a fault put into its steps, as a process of its own.

    python faulty_serve.py FAULT TRIGGER serve MODEL ...

The fault begins when the file TRIGGER is there. hang: a step never ends, and TRIGGER.hung is there by then.
fail:N: the next N steps raise. always: all of them do. panic: one raises what is no Exception. storm: at
random steps stand still for a moment, fail one or two in a row, or panic; a file TRIGGER.hang ends it: the
next step never does.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECRET = "/home/operator/private/model.gguf"


class Panic(BaseException):
    """As pyo3_runtime.PanicException."""


def stormy(execute: Callable[..., Any], trigger: str) -> Callable[..., Any]:
    rng, left = random.Random(1), 0

    def mutant(self: Any, plan: Any) -> Any:
        nonlocal left
        time.sleep(0.003)
        if os.path.exists(trigger + ".hang"):
            threading.Event().wait()
        if any(new.request_id == "" for new in plan.new_rows):
            return execute(self, plan)  # the engine's own step: where that fails, it is right to end
        chance = rng.random()
        if os.path.exists(trigger) and chance < 0.06 and not left:
            left = rng.randint(1, 2)
        elif os.path.exists(trigger) and chance < 0.09:
            time.sleep(0.2)
        if left:
            left -= 1
            if rng.random() < 0.5:
                execute(self, plan)  # all of it is done, and nobody hears of it
            raise rng.choice([OSError(5, "a secret", SECRET), Panic("rust"), ValueError(SECRET)])
        return execute(self, plan)

    return mutant


def faulty(execute: Callable[..., Any], fault: str, trigger: str) -> Callable[..., Any]:
    kind, _, number = fault.partition(":")
    if kind == "storm":
        return stormy(execute, trigger)
    most = {"fail": int(number or 0), "panic": 1}.get(kind)
    steps = itertools.count()

    def mutant(self: Any, plan: Any) -> Any:
        time.sleep(0.005)  # so that a crowd is still there when the fault comes
        if os.path.exists(trigger) and (most is None or next(steps) < most):
            if kind == "hang":
                Path(trigger + ".hung").touch()
                threading.Event().wait()
            if kind == "panic":
                raise Panic("rust")
            raise OSError(5, "a secret", SECRET)
        return execute(self, plan)

    return mutant


if __name__ == "__main__":
    from octavo.cli import main
    from octavo.runtime.model_runner import ModelRunner

    ModelRunner.execute = faulty(ModelRunner.execute, sys.argv[1], sys.argv[2])  # type: ignore[method-assign]
    sys.exit(main(sys.argv[3:]))
