"""A trace replayed: lengths, times of arrival and shared beginnings as they were; the tokens are random."""

from __future__ import annotations

import random

from octavo.bench.serving.datasets import DataSet, DatasetOption, WantedPrompts
from octavo.bench.serving.exchange import LoadRequest
from octavo.bench.serving.synthetic_prompts import prompt_of, tokens_of
from octavo.bench.trace import HASH_TOKENS, TraceRequest, read_trace
from octavo.errors import InvalidRequestError


def calls(wanted: WantedPrompts) -> list[LoadRequest]:
    """The trace's first requests."""
    most_in, most_out = (int(wanted.options[name]) for name in ("trace_input_max", "trace_output_max"))
    if min(most_in, most_out) < 0:
        raise InvalidRequestError("--trace-input-max and --trace-output-max are not negative")
    found = []
    for number, request in enumerate(read_trace(wanted.file())[: wanted.count]):
        prompt = min(request.prompt_tokens, most_in or request.prompt_tokens)
        output = min(request.output_tokens, most_out or request.output_tokens)
        tokens = _tokens(request, prompt, wanted.seed, number)
        found.append(LoadRequest(prompt_of(tokens, wanted.ids), output, request.arrival_s))
    return found


def _tokens(request: TraceRequest, length: int, seed: int, number: int) -> list[int]:
    """So many tokens; blocks of the same id are the same ones, of one seed."""
    found: list[int] = []
    for block in request.blocks:
        if len(found) < length:
            found += tokens_of(random.Random(f"block {seed} {block}"), HASH_TOKENS)
    rest = max(length - len(found), 0)
    return [*found[:length], *tokens_of(random.Random(f"trace {seed} {number}"), rest)]


DATA = DataSet(
    ("trace", "mooncake", "azure"),
    "a file of requests as octavo plan --trace takes it, replayed at its times",
    (
        DatasetOption("trace_input_max", 0, "Cut prompts to so many tokens; 0: as they are."),
        DatasetOption("trace_output_max", 0, "Ask for so many tokens at most; 0: as they are."),
    ),
    calls,
    lambda _options: 1.0,  # (as much as the trace says)
)
