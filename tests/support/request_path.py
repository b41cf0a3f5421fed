"""One streamed chat request, in process, under the profiler: which files of src/octavo it enters on any
thread, which async generators, and as which objects it lives. Prints JSON; run in a process of its own.

- files: every file with a function that was called or resumed between the request and the last byte of its
  answer; lines: those of these files, whole. One request has been answered before, so that nothing is
  counted that only the first one needs.
- calls: [thread, file, function], each once, in the order in which they were first entered.
- generators: functions of src/octavo that were entered and are async generators, or coroutines that take
  what one yields with `async for`: the levels that each piece of the answer passes on its way out.
- objects: classes of src/octavo of which an instance was called, passed or returned, and which held in a
  field of its own the request's messages, its prompt's tokens, or its sampling parameters together with
  its id. Two-dimensional arrays with the prompt's tokens as a row are one object, "a row", whoever has
  them. RequestOutput is the answer, not the request.
"""

from __future__ import annotations

import asyncio
import dis
import inspect
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import octavo
from octavo import AsyncEngineArgs, AsyncLLM
from octavo.server.app import create_app
from octavo.server.state import ServerSettings

SOURCE = Path(octavo.__file__).resolve().parent
TEXT = "Name a colour."
PATH = "/v1/chat/completions"
ANSWERS = ("RequestOutput",)


@dataclass
class Trace:
    """What the profiler has seen while `on`."""

    on: bool = False
    calls: dict[tuple[str, str, str], None] = field(default_factory=dict)
    generators: set[str] = field(default_factory=set)
    kept: dict[int, object] = field(default_factory=dict)
    held: dict[str, list[object]] = field(default_factory=dict)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not self.on or not code.co_filename.startswith(str(SOURCE)):
            return
        if event == "call":
            file = Path(code.co_filename).relative_to(SOURCE).as_posix()
            self.calls[threading.current_thread().name, file, code.co_qualname] = None
            if is_level(code):
                self.generators.add(code.co_qualname)
            for value in list(frame.f_locals.values()):
                self.see(value)
        elif event == "return":
            self.see(argument)

    def see(self, value: object) -> None:
        """Note what the object's fields hold now; it is kept, so that no other gets its id()."""
        kind = type(value)
        if kind.__module__.split(".")[0] == "octavo":
            self.kept[id(value)] = value
            self.held.setdefault(kind.__qualname__, []).extend(map(copied, fields_of(value)))


def is_level(code: CodeType) -> bool:
    """The function is an async generator, or a coroutine with an `async for`."""
    if code.co_flags & inspect.CO_ASYNC_GENERATOR:
        return True
    iterates = any(instruction.opname == "GET_ANEXT" for instruction in dis.get_instructions(code))
    return bool(code.co_flags & inspect.CO_COROUTINE) and iterates


def copied(value: object) -> object:
    """Arrays and lists change later."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.ndim == 2 and value.dtype.kind == "i" and value.size < 10**6 else None
    if isinstance(value, (list, tuple)):
        plain = all(isinstance(item, (int, dict)) or hasattr(item, "model_dump") for item in value)
        return list(value) if plain else None
    return value


def fields_of(value: object) -> Iterator[object]:
    yield from list(getattr(value, "__dict__", {}).values())
    for cls in type(value).__mro__:
        for name in getattr(cls, "__slots__", ()):
            if hasattr(value, name):
                yield getattr(value, name)


def of_request(held: object, request_id: str, prompt: list[int]) -> str:
    """What of the request this field holds, or nothing."""
    if isinstance(held, str) and request_id in held:
        return "id"
    if type(held).__name__ == "SamplingParams":
        return "params"
    if isinstance(held, list) and held[: len(prompt)] == prompt:
        return "tokens"
    if isinstance(held, list) and held and TEXT in str(held[-1]):
        return "messages"
    if isinstance(held, np.ndarray) and held.shape[1] >= len(prompt):
        return "row" if (held[:, : len(prompt)] == prompt).all(axis=1).any() else ""
    return ""


async def post(app: Any, body: dict[str, object]) -> bytes:
    """The body of the answer, the request having come whole."""
    data, sent = json.dumps(body).encode(), []
    inbox = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> dict[str, object]:
        if inbox:
            return inbox.pop()
        await asyncio.Event().wait()
        raise AssertionError("nothing wakes it")

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("x", 0),
        "client": ("x", 0),
        "state": {},
        "headers": headers,
    }
    await app(scope, receive, send)
    return b"".join(message.get("body", b"") for message in sent)  # type: ignore[misc]


async def trace(model: str) -> dict[str, object]:
    seen = Trace()
    threading.setprofile(seen)
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model, threads=1, max_model_len=512, max_num_seqs=4))
    app = create_app(llm, ServerSettings())
    body = {
        "model": llm.served_model_name,
        "temperature": 0,
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    await post(app, body | {"messages": [{"role": "user", "content": "Say hello."}]})
    sys.setprofile(seen)
    seen.on = True
    answer = await post(app, body | {"messages": [{"role": "user", "content": TEXT}]})
    seen.on = False
    sys.setprofile(None)
    llm.shutdown()
    events = [line[6:] for line in answer.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", answer[-300:]
    last = json.loads(events[-2])
    length = last["usage"]["prompt_tokens"]
    every = [held for values in seen.held.values() for held in values]
    prompt = next(
        h for h in every if isinstance(h, list) and len(h) == length and all(type(i) is int for i in h)
    )
    request_id = last["id"].split("-")[-1]
    files = sorted({file for _, file, _ in seen.calls})
    return {
        "files": files,
        "lines": sum(len((SOURCE / file).read_text("utf-8").splitlines()) for file in files),
        "calls": list(seen.calls),
        "generators": sorted(seen.generators),
        "objects": sorted(objects_of(seen.held, request_id, prompt)),
    }


def objects_of(held: dict[str, list[object]], request_id: str, prompt: list[int]) -> Iterator[str]:
    """Names of the classes that the request lives as, by what their fields were seen to hold."""
    rows = False
    for name, values in held.items():
        found = {of_request(value, request_id, prompt) for value in values}
        rows = rows or "row" in found
        whole = found & {"messages", "tokens"} or {"id", "params"} <= found
        if whole and name not in ANSWERS:
            yield name
    if rows:
        yield "a row"


if __name__ == "__main__":
    print(json.dumps(asyncio.run(trace(sys.argv[1])), indent=1))
