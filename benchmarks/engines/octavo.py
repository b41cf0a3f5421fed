"""Octavo, stepped as LLM.generate steps it."""

from __future__ import annotations

from typing import Any

import octavo
from engines.base import Timing
from octavo.bench.driver import Driver

MOST_STREAMS = 32


class Engine:
    """options: LLM's own, such as {"isa": "avx2"}."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        given = {"max_num_seqs": MOST_STREAMS, **options, "enable_prefix_caching": False}
        self._driver = Driver(model, threads=threads, **given)
        self.version = octavo.__version__
        isa = self._driver.loaded.backend.isa
        self.notes = " ".join([f"isa={isa}", *(f"{name}={value}" for name, value in options.items())])

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        run = self._driver.run(prompts, new_tokens)
        return Timing(run.prompt_tokens, run.prompt_s, sum(s.tokens for s in run.decode), run.decode_s)
