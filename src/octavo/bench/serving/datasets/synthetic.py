"""Prompts of random tokens, of one length or of several, after a beginning that all share if wanted."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from octavo.bench.serving.datasets import DataSet, DatasetOption, WantedPrompts
from octavo.bench.serving.exchange import LoadRequest
from octavo.bench.serving.synthetic_prompts import length_within, prompt_of, tokens_of
from octavo.errors import InvalidRequestError


def calls(wanted: WantedPrompts) -> list[LoadRequest]:
    """No two prompts alike, equal for equal seeds."""
    options = wanted.options
    ratio = options["random_range_ratio"]
    if not 0 <= ratio < 1:
        raise InvalidRequestError(f"--random-range-ratio is at least 0 and below 1, and not {ratio}")
    draw = random.Random(f"random {wanted.seed}")
    shared = tokens_of(draw, options["random_prefix_len"])
    found = []
    for _ in range(wanted.count):
        own = tokens_of(draw, length_within(draw, options["random_input_len"], ratio))
        output = length_within(draw, options["random_output_len"], ratio)
        found.append(LoadRequest(prompt_of([*shared, *own], wanted.ids), output))
    return found


def shared(options: Mapping[str, Any]) -> float:
    """What a prompt shares, of its shortest."""
    own = options["random_input_len"] * (1 - options["random_range_ratio"])
    return float(options["random_prefix_len"] / max(options["random_prefix_len"] + own, 1))


DATA = DataSet(
    ("random",),
    "random tokens",
    (
        DatasetOption("random_input_len", 1024, "Tokens of a prompt, after what it shares."),
        DatasetOption("random_output_len", 128, "Tokens to ask for."),
        DatasetOption(
            "random_range_ratio", 0.0, "Lengths differ by so much: 0.2 is from 0.8 to 1.2 times as long."
        ),
        DatasetOption("random_prefix_len", 0, "Tokens that all prompts begin with."),
    ),
    calls,
    shared,
)
