"""Traces from files and at random."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from octavo.bench.trace import HASH_TOKENS, TraceRequest, conversations, poisson, prompt_ids, read_trace
from octavo.errors import InvalidRequestError


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    return path


def test_json_lines(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 2500, "input_length": 600, "output_length": 7, "hash_ids": [4, 5]},
        {"timestamp": 500, "input_length": 3, "output_length": 1, "priority": 2},
    ]
    path = written(tmp_path, "\n\n".join(json.dumps(row) for row in rows) + "\n")
    assert read_trace(path) == [
        TraceRequest(0.0, 3, 1, priority=2),
        TraceRequest(2.0, 600, 7, blocks=(4, 5)),
    ]


def test_csv(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
        "2023-11-16 18:15:50.1805900,396,109\r\n"
    )
    assert read_trace(written(tmp_path, text)) == [TraceRequest(0.0, 374, 44), TraceRequest(3.5, 396, 109)]


GOOD = '{"timestamp": 0, "input_length": 3, "output_length": 1}\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no requests"),
        ("\n\n", "holds no requests"),
        (GOOD + "{\n", "line 2"),
        (GOOD + "[]\n", "line 2"),
        ('{"timestamp": 0, "input_length": 3}', "line 1: output_length is missing"),
        (GOOD + '{"timestamp": 0, "input_length": 0, "output_length": 1}', "line 2: a request has at least"),
        ('{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [-1]}', "hash_ids"),
        ('{"timestamp": "x", "input_length": 3, "output_length": 1}', "line 1"),
        ("when,what\n1,2\n", "line 2: TIMESTAMP is missing"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,1\n", "line 2"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        read_trace(written(tmp_path, text))


def test_prompts_are_as_long_as_they_should_be_and_share_their_blocks_alone() -> None:
    lengths = (5, HASH_TOKENS - 1, HASH_TOKENS, HASH_TOKENS + 1, 3 * HASH_TOKENS)
    own = [prompt_ids(TraceRequest(0.0, length, 1), n) for n, length in enumerate(lengths)]
    assert [len(ids) for ids in own] == list(lengths)
    assert len({ids[0] for ids in own}) == len(own)
    one = prompt_ids(TraceRequest(0.0, 700, 1, blocks=(3, 8)), 1)
    two = prompt_ids(TraceRequest(0.0, 700, 1, blocks=(3, 9)), 2)
    short = prompt_ids(TraceRequest(0.0, 700, 1, blocks=(3,)), 3)
    assert one[:HASH_TOKENS] == two[:HASH_TOKENS] == short[:HASH_TOKENS]
    assert not {*one[HASH_TOKENS:]} & {*two[HASH_TOKENS:], *short[HASH_TOKENS:]}
    assert {len(one), len(two), len(short)} == {700}


def test_arrivals_at_random() -> None:
    shapes = ((0.8, (1, 4), (5, 6)), (0.2, (100, 200), (7, 8)))
    trace = poisson(4000, 10.0, shapes, seed=1)
    assert trace == poisson(4000, 10.0, shapes, seed=1) != poisson(4000, 10.0, shapes, seed=2)
    assert trace[-1].arrival_s == pytest.approx(400, rel=0.1)
    long = [r for r in trace if r.prompt_tokens >= 100]
    assert len(long) == pytest.approx(800, rel=0.1)
    assert {r.output_tokens for r in long} == {7, 8}
    assert all(r.arrival_s == 0.0 for r in poisson(9, float("inf"), shapes))


@pytest.mark.parametrize("rate", [float("nan"), 0.0, -1.0])
def test_no_rate(rate: float) -> None:
    for make in (lambda: poisson(3, rate, [(1.0, (4, 8), (1, 2))]), lambda: conversations(3, rate, 64)):
        with pytest.raises(InvalidRequestError, match="must be above 0"):
            make()


def test_conversations_fit_and_have_their_medians() -> None:
    trace = conversations(4000, 10.0, 2048)
    assert statistics.median(r.prompt_tokens for r in trace) == pytest.approx(180, rel=0.1)
    assert statistics.median(r.output_tokens for r in trace) == pytest.approx(200, rel=0.1)
    assert max(r.prompt_tokens + r.output_tokens for r in trace) <= 2048
    assert min(min(r.prompt_tokens, r.output_tokens) for r in trace) >= 1
