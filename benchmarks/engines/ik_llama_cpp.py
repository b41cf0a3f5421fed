"""ik_llama.cpp by its own llama-batched-bench: it has no Python package.

    cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_IQK_FA_ALL_QUANTS=OFF -DLLAMA_CURL=OFF
    cmake --build build --target llama-batched-bench

(With attention over pages of 16 bits alone, which is what runs here: the others take half an hour to build.)

What it computes is the same shape of work (so many streams' prompts, then so many tokens of each), on ids of
its own, without drawing a token: Octavo and llama.cpp draw theirs.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from engines.base import Timing

PADDING = 256
"""Contexts are multiples of this."""
LAST_LINES = 3
"""Of what a failed process said, quoted."""


class Engine:
    """options: "bench" (the program's path), "flash_attn" (1), "ubatch" (512 tokens), "repack" (false: its
    tables as the file has them; true: rows interleaved while it loads), "kv_type" ("f16")."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        self._step = int(options.get("ubatch", 512))
        flash, kv = int(options.get("flash_attn", 1)), str(options.get("kv_type", "f16"))
        self._command = [
            str(Path(options["bench"]).resolve()), "-m", str(Path(model).resolve()),
            "-t", str(threads), "-tb", str(threads), "-fa", str(flash),
            "-b", "2048", "-ub", str(self._step), "-ctk", kv, "-ctv", kv,
        ]  # fmt: skip
        repack = bool(options.get("repack", False))
        if repack:
            self._command.append("-rtr")
        self.version = self._said_version()
        self.notes = f"flash_attn={flash} ubatch={self._step} kv_type={kv} repack={repack} threads={threads}"

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        """One process: it loads the file, warms up with 16 tokens, and says how long both parts took.

        Raises:
            RuntimeError: it ended with an error, or wrote no line of figures.
        """
        streams, length = len(prompts), len(prompts[0])
        steps = new_tokens - 1
        context = -(-streams * (length + steps) // PADDING) * PADDING
        shape = ["-c", str(context), "-npp", str(length), "-ntg", str(steps), "-npl", str(streams)]
        with tempfile.TemporaryDirectory() as folder:  # it leaves a log where it runs
            done = subprocess.run(
                [*self._command, *shape], cwd=folder, capture_output=True, text=True, errors="replace"
            )
        said = done.stdout + done.stderr
        row = re.search(rf"^\|\s*{length} \|\s*{steps} \|\s*{streams} \|(.*)\|$", said, re.MULTILINE)
        if done.returncode or row is None:
            last = " / ".join(said.strip().splitlines()[-LAST_LINES:])
            raise RuntimeError(f"llama-batched-bench ended with {done.returncode}: {last}")
        _, prompt_s, _, decode_s, *_ = (float(cell) for cell in row[1].split("|"))
        return Timing(streams * length, prompt_s, streams * steps, decode_s)

    def _said_version(self) -> str:
        done = subprocess.run(
            [self._command[0], "--version"], capture_output=True, text=True, errors="replace"
        )
        found = re.search(r"version: (.*)", done.stdout + done.stderr)
        return found[1] if found else "unknown"
