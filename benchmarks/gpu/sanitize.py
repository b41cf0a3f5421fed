"""compute-sanitizer over every check, in tiny shapes: memory errors, and races in shared memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

TOOLS = ("memcheck", "racecheck")
FOUND = 86
"""What compute-sanitizer exits with where it found something: no other program of the run does."""

Report = tuple[str, bool | None, str]
"""(tool, whether it found nothing; None: it did not come to an end, why)."""


def find() -> str | None:
    """compute-sanitizer's path: on PATH, or where CUDA installs it."""
    usual = Path("/usr/local/cuda/bin/compute-sanitizer")
    return shutil.which("compute-sanitizer") or (str(usual) if usual.exists() else None)


def sanitize(
    program: str | None, device: str, dtype: str, limit_s: float = 180.0, command: Sequence[str] | None = None
) -> Iterator[Report]:
    """Run each tool over `python -m gpu --tiny --checks-only` in a process of its own.

    Args:
        program: what find() says.
        limit_s: of each tool, which tiny shapes' kernels mostly spend in the compiler; a run that takes
            longer is ended and counts as neither clean nor not.
        command: what to run instead (tests).
    """
    if program is None:
        yield "compute-sanitizer", None, "not installed here: nothing was sanitized"
        return
    what = command or [
        sys.executable, "-m", "gpu", "--tiny", "--checks-only", "--no-write", "--device", device,
        "--dtype", dtype,
    ]  # fmt: skip
    for tool in TOOLS:
        line = [program, "--tool", tool, "--error-exitcode", str(FOUND), *what]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            yield tool, None, f"ran past {limit_s:g} s"
            continue
        except OSError as error:
            yield tool, None, f"{program} cannot run: {error.strerror}"
            continue
        said = (done.stdout + done.stderr).strip().splitlines()
        last = said[-1] if said else ""
        if done.returncode in (0, FOUND):
            yield tool, done.returncode == 0, last
        else:
            yield tool, None, f"the checks under it exited with {done.returncode}: {last}"
