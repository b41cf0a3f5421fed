"""Traces: who asks for how much, and when. Read from files, or drawn at random."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from octavo.errors import InvalidRequestError

HASH_TOKENS = 512
"""Tokens that a hash id of a Mooncake trace stands for."""
_OWN = 1 << 40
"""Token ids from here on belong to one request alone. No model runs, so no vocabulary bounds them."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        arrival_s: seconds from the trace's beginning.
        prompt_tokens, output_tokens: how many, at least one each.
        priority: lower is more urgent.
        blocks: ids of the prompt's blocks of HASH_TOKENS tokens, the last one perhaps partial: equal
            ids at the beginning are an equal prefix. Empty: the prompt shares nothing.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    blocks: tuple[int, ...] = ()


def prompt_ids(request: TraceRequest, number: int) -> list[int]:
    """Token ids that share with other prompts what the trace says they share.

    Args:
        number: the request's own, which nobody else has.
    """
    length = request.prompt_tokens
    if not request.blocks:
        start = _OWN + (number << 24)
        return list(range(start, start + length))
    ids: list[int] = []
    for block in request.blocks:
        ids += range(block * HASH_TOKENS, (block + 1) * HASH_TOKENS)
    start = _OWN + (number << 24)
    return ids[:length] + list(range(start, start + length - len(ids)))


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests of a file, in order of arrival, the first at 0 s.

    JSON lines as in Mooncake's traces (timestamp in ms, input_length, output_length, and optionally
    hash_ids and priority), or CSV as in Azure's (TIMESTAMP as a date, ContextTokens, GeneratedTokens).

    Raises:
        InvalidRequestError: the file holds no requests, or a line is none; it is named.
    """
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        first = file.readline()
        file.seek(0)
        rows: Iterator[tuple[int, Any]]
        parse: Callable[[Any], TraceRequest]
        if first.lstrip().startswith("{"):
            parse, rows = _from_json, ((n, text) for n, text in enumerate(file, 1) if text.strip())
        else:
            parse, rows = _from_csv, iter(enumerate(csv.DictReader(file), 2))
        found: list[TraceRequest] = []
        for line, row in rows:
            try:
                found.append(parse(row))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
                raise InvalidRequestError(f"{path}: line {line}: {reason}", "trace") from None
    if not found:
        raise InvalidRequestError(f"{path} holds no requests", "trace")
    found.sort(key=lambda request: request.arrival_s)
    begin = found[0].arrival_s
    return [replace(request, arrival_s=request.arrival_s - begin) for request in found]


def _from_json(line: str) -> TraceRequest:
    row: dict[str, Any] = json.loads(line)
    return _request(
        float(row["timestamp"]) / 1000,
        row["input_length"],
        row["output_length"],
        row.get("priority", 0),
        tuple(int(block) for block in row.get("hash_ids", ())),
    )


def _from_csv(row: dict[str, str]) -> TraceRequest:
    # Seven digits of a second are one more than Python reads.
    arrival = datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=UTC).timestamp()
    return _request(arrival, row["ContextTokens"], row["GeneratedTokens"])


def _request(
    arrival: float, prompt: Any, output: Any, priority: Any = 0, blocks: tuple[int, ...] = ()
) -> TraceRequest:
    request = TraceRequest(arrival, int(prompt), int(output), int(priority), blocks)
    if request.prompt_tokens < 1 or request.output_tokens < 1:
        raise ValueError("a request has at least one token of prompt and one of output")
    if min(blocks, default=0) < 0:
        raise ValueError("hash_ids are not negative")
    return request


def poisson(
    count: int,
    rate: float,
    shapes: Sequence[tuple[float, tuple[int, int], tuple[int, int]]],
    seed: int = 0,
) -> list[TraceRequest]:
    """count requests that arrive independently of each other.

    Args:
        rate: requests a second; infinite: all at once.
        shapes: (weight, (least, most) prompt tokens, (least, most) output tokens), one drawn by weight
            for each request, and its lengths evenly from the ranges.

    Raises:
        InvalidRequestError: the rate is not above 0.
    """
    _check_rate(rate)
    draw = random.Random(f"poisson {count} {rate} {seed}")
    weights = [shape[0] for shape in shapes]
    now, found = 0.0, []
    for _ in range(count):
        now += draw.expovariate(rate) if rate != float("inf") else 0.0
        _, prompt, output = draw.choices(shapes, weights)[0]
        found.append(TraceRequest(now, draw.randint(*prompt), draw.randint(*output)))
    return found


def conversations(count: int, rate: float, max_model_len: int, seed: int = 0) -> list[TraceRequest]:
    """A chat service's mix: log-normal lengths, cut to fit.

    Prompts have a median of 180 tokens, answers of 200, and long tails (sigma 1.1 and 0.9): between
    the conversation sets that papers on serving draw from (ShareGPT: means of 161 and 338; Azure's
    conversation trace: medians of about 1,000 and 130).

    Raises:
        InvalidRequestError: the rate is not above 0.
    """
    _check_rate(rate)
    draw = random.Random(f"conversations {count} {rate} {seed}")
    now, found = 0.0, []
    for _ in range(count):
        now += draw.expovariate(rate)
        prompt = min(max(int(draw.lognormvariate(5.193, 1.1)), 4), max_model_len - 2)
        output = min(max(int(draw.lognormvariate(5.298, 0.9)), 1), max_model_len - prompt)
        found.append(TraceRequest(now, prompt, output))
    return found


def _check_rate(rate: float) -> None:
    if not rate > 0:  # nor is NaN
        raise InvalidRequestError(f"requests a second must be above 0, not {rate}", "rate")
