"""Prompts of a few beginnings, each shared by many: what a prefix cache is for."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from octavo.bench.serving.datasets import DataSet, DatasetOption, WantedPrompts
from octavo.bench.serving.exchange import LoadRequest
from octavo.bench.serving.synthetic_prompts import prompt_of, tokens_of
from octavo.errors import InvalidRequestError


def calls(wanted: WantedPrompts) -> list[LoadRequest]:
    """Each beginning as often as the others, in random order."""
    options = wanted.options
    if options["prefix_repetition_num_prefixes"] < 1:
        raise InvalidRequestError("--prefix-repetition-num-prefixes is at least 1")
    draw = random.Random(f"prefix repetition {wanted.seed}")
    heads = [
        tokens_of(draw, options["prefix_repetition_prefix_len"])
        for _ in range(options["prefix_repetition_num_prefixes"])
    ]
    found = []
    for number in range(wanted.count):
        tail = tokens_of(draw, options["prefix_repetition_suffix_len"])
        prompt = prompt_of([*heads[number % len(heads)], *tail], wanted.ids)
        found.append(LoadRequest(prompt, options["prefix_repetition_output_len"]))
    draw.shuffle(found)
    return found


def shared(options: Mapping[str, Any]) -> float:
    """What a prompt's beginning is of it."""
    head, tail = options["prefix_repetition_prefix_len"], options["prefix_repetition_suffix_len"]
    return float(head / max(head + tail, 1))


DATA = DataSet(
    ("prefix_repetition",),
    "random tokens after one of a few beginnings",
    (
        DatasetOption("prefix_repetition_prefix_len", 256, "Tokens of each beginning."),
        DatasetOption("prefix_repetition_suffix_len", 256, "Tokens after it, which no other prompt has."),
        DatasetOption("prefix_repetition_num_prefixes", 10, "Beginnings that there are."),
        DatasetOption("prefix_repetition_output_len", 128, "Tokens to ask for."),
    ),
    calls,
    shared,
)
