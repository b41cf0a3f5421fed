"""TGI's published examples, sent as they stand: each is taken, and answered in the published shape.

published.json has the requests, and the members and types of the answers' objects: `name?` may be missing,
`[Token]` is a list. No member is there that it does not name, but for those of OURS.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import OverloadedError, RequestFailedError
from octavo.server.app import create_app
from octavo.server.tgi.protocol import GenerateBody, GenerateParameters
from support.asgi import Reply, call
from support.fake_engine import FakeEngine

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
SHAPES: dict[str, dict[str, str]] = PUBLISHED["shapes"]
EXAMPLES: list[dict[str, Any]] = PUBLISHED["examples"]
TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
OURS = {"Info": {"model_dtype", "model_device_type", "max_input_length"}}
"""Members of later and earlier versions than the published document."""
REASONS = ("length", "eos_token", "stop_sequence")


def misfits(value: Any, shape: str, where: str = "") -> Iterator[str]:
    """Where a value is not of a shape."""
    if " or " in shape:
        every = [list(misfits(value, each, where)) for each in shape.split(" or ")]
        if all(every):
            yield from every[0]
    elif shape.startswith("["):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for i, each in enumerate(value):
            yield from misfits(each, shape[1:-1], f"{where}[{i}]")
    elif shape == "FinishReason":
        if value not in REASONS:
            yield f"{where} is {value!r}"
    elif shape in TYPES:
        if not isinstance(value, TYPES[shape]) or (isinstance(value, bool) and shape != "boolean"):
            yield f"{where} is {value!r}, no {shape}"
    elif not isinstance(value, Mapping):
        yield f"{where} is no {shape}"
    else:
        known = {name.rstrip("?"): inner for name, inner in SHAPES[shape].items()}
        for name in value.keys() - known.keys() - OURS.get(shape, set()):
            yield f"{where}.{name} is no member of {shape}"
        for name, inner in known.items():
            if name in value:
                yield from misfits(value[name], inner, f"{where}.{name}")
            elif f"{name}?" not in SHAPES[shape]:
                yield f"{where}.{name} is missing"


async def asked(example: Mapping[str, Any]) -> Reply:
    """What a server with a scripted engine says, which fails where the example wants it to."""
    engine, fails = FakeEngine(reply="Hello", max_model_len=512), example.get("fails")
    if fails == "step":
        engine.fail_after = (2, RequestFailedError("no memory for a step"))
    elif fails == "crowd":
        engine.full = OverloadedError("too many wait", 3)
    elif fails == "cut":
        engine.hold = asyncio.Event()
    app = create_app(engine)
    body = example.get("body")
    running = asyncio.create_task(call(app, "GET" if body is None else "POST", example["path"], body))
    if fails == "cut":
        while not engine.calls:
            await asyncio.sleep(0.01)
        await engine.drain(0.1)
    return await running


@pytest.mark.parametrize("example", EXAMPLES, ids=[each["of"] for each in EXAMPLES])
def test_a_published_request_has_the_published_answer(example: dict[str, Any]) -> None:
    reply = asyncio.run(asked(example))
    assert reply.status == example.get("status", 200), reply.body
    if example.get("chat"):
        assert [each["object"] for each in reply.events()] == ["chat.completion.chunk"] * len(reply.events())
        return
    if "event" in example:
        lines = reply.body.decode().split("\n\n")[:-1]
        assert lines
        for line in lines:
            assert list(misfits(json.loads(line.removeprefix("data:")), example["event"])) == []
        return
    assert list(misfits(reply.json(), example["answer"])) == []
    if "error_type" in example:
        assert reply.json()["error_type"] == example["error_type"]


def test_every_published_parameter_is_sent() -> None:
    first = EXAMPLES[0]["body"]
    own = {"stream", "add_special_tokens", "model", "priority", "cache_salt"}
    assert set(first) == set(GenerateBody.model_fields) - own
    assert set(first["parameters"]) == set(GenerateParameters.model_fields) | {"adapter_id"}


def test_the_judge_sees_what_differs() -> None:
    token = {"id": 1, "text": "a", "logprob": -0.5, "special": False}
    assert list(misfits([token, {**token, "logprob": None}], "[Token]")) == []
    for wrong, said in (
        ({**token, "special": 0}, ".special is 0, no boolean"),
        ({**token, "id": True}, ".id is True, no integer"),
        ({**token, "logprob": "x"}, ".logprob is 'x', no number"),
        ({**token, "bytes": []}, ".bytes is no member of Token"),
        ({"id": 1, "text": "a", "special": False}, ".logprob is missing"),
    ):
        assert said in list(misfits(wrong, "Token"))
    whole = {"generated_text": "a", "details": {"finish_reason": "stop"}}
    assert ".details.finish_reason is 'stop'" in list(misfits(whole, "GenerateResponse"))
