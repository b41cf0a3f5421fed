"""EngineStats: what the engine has done and does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since start, and the state of now.

    Attributes:
        running, waiting: sequences (each of n counts).
        kv_usage: share of the page pool held by running requests, 0..1; of local pages, if that is more.
        prefix_queries, prefix_hits: tokens looked up in the prefix cache, and found.
        external_prefix_queries, external_prefix_hits: of those that were not, tokens looked up in its
            tier on disk, and found.
        prompt_tokens: of prompts that got a first token, once a prompt.
    """

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    generated_tokens: int
    steps: int
    external_prefix_queries: int = 0
    external_prefix_hits: int = 0
