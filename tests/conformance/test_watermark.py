"""Answers of each API with `watermark`, from the real model, and the detector's word on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from octavo import WatermarkDetector
from octavo.errors import InvalidRequestError
from support.served import KEY, Served

STORY = "Tell me a long story about a dragon who finds a library."
BEGUN = "The old lighthouse keeper opened the letter and"
ASK = {"temperature": 1, "max_tokens": 120}
HI = [{"role": "user", "content": STORY}]
APIS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({"messages": HI, "seed": 3, **ASK}, "choices/0/message/content"),
    "/v1/completions": ({"prompt": BEGUN, "seed": 3, **ASK}, "choices/0/text"),
    "/v1/responses": (
        {"input": STORY, "seed": 3, "temperature": 1, "max_output_tokens": 120}, "output/0/content/0/text"
    ),
    "/v1/messages": ({"messages": HI, "model": "smollm2", **ASK}, "content/0/text"),
    "/generate": (
        {"inputs": BEGUN, "parameters": {"seed": 3, "temperature": 1, "max_new_tokens": 120}},
        "generated_text",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "anthropic-version": "2023-06-01"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=120) as client:
        yield client


def with_mark(path: str, mark: Any) -> dict[str, Any]:
    body = APIS[path][0]
    if "parameters" in body:
        return {**body, "parameters": {**body["parameters"], "watermark": mark}}
    return {**body, "watermark": mark}


def text_of(path: str, answer: Any) -> str:
    for key in APIS[path][1].split("/"):
        answer = answer[int(key) if key.isdigit() else key]
    return str(answer)


@pytest.mark.parametrize("path", APIS)
def test_marked_answers_are_told_by_their_tokens(client: httpx.Client, path: str) -> None:
    """Nearly all of them are green, as messages have no seed and TGI's mark has no strength of its own."""
    detector = WatermarkDetector("smollm2")
    reply = client.post(path, json=with_mark(path, True if path == "/generate" else {"delta": 10}))
    assert reply.status_code == 200, reply.text
    assert detector.detect(text_of(path, reply.json())).z > (3 if path == "/generate" else 4)
    plain = client.post(path, json=with_mark(path, False))
    assert detector.detect(text_of(path, plain.json())).z < 4


@pytest.mark.parametrize("path", [path for path in APIS if path != "/generate"])
@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ({"gamma": 2}, "watermark.gamma must be"),
        ({"delta": "much"}, "watermark.delta must be"),
        ({"hashing_key": 0}, "watermark.hashing_key must be"),
        ({"seeding_scheme": "selfhash"}, "unknown field watermark.seeding_scheme"),
    ],
)
def test_a_member_that_is_wrong_is_refused_by_name(
    client: httpx.Client, path: str, mark: dict[str, Any], said: str
) -> None:
    for stream in (False, True):
        reply = client.post(path, json={**with_mark(path, mark), "stream": stream})
        assert reply.status_code == 400
        assert said in reply.text


def test_not_with_a_beam_search(client: httpx.Client) -> None:
    body = {
        **APIS["/v1/completions"][0],
        "use_beam_search": True,
        "n": 2,
        "temperature": 0,
        "watermark": True,
    }
    body.pop("seed")
    reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 400
    assert "watermark True cannot be had with a beam search" in reply.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([-1, 3], "token -1 is not in the vocabulary of 49152"),
        ([1, 49152], "token 49152 is not in the vocabulary of 49152"),
        ([1.5, 2.0], "text must be a text or token ids"),
        (None, "text must be a text or token ids, not None"),
        (b"bytes", "text must be a list of token ids"),
        (5, "text must be a list of token ids"),
    ],
)
def test_a_detector_names_what_is_neither_text_nor_ids(given: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        WatermarkDetector("smollm2").detect(given)
