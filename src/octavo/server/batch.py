"""Batch files: OpenAI's JSONL of requests in, a line for each answer out; resumable.

    in   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    out  {"id": ..., "custom_id": "a", "response": {"status_code": 200, "request_id", "body"}, "error": null}

Lines come out as they are ready. What the output file holds already is not done again, and a last line
that was cut off (the process was killed) is taken away first.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from starlette.types import ASGIApp

from octavo.errors import InvalidRequestError
from octavo.server.inprocess import post

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
Progress = Callable[[int, int], None]
"""Called with (requests answered, requests in all)."""


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Requests that were answered well, that failed, and that the output held before."""

    done: int
    failed: int
    skipped: int


def read_requests(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, request) of each line that is not blank.

    Raises:
        InvalidRequestError: a line that is no JSON object with a custom_id; it is named.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                raise InvalidRequestError(f"{path.name}, line {number} is not JSON") from None
            if not isinstance(value, dict) or not isinstance(value.get("custom_id"), str):
                raise InvalidRequestError(f"{path.name}, line {number} has no custom_id")
            yield number, value


def check(path: Path) -> int:
    """How many requests a file holds.

    Raises:
        InvalidRequestError: a line is malformed, or two have the same custom_id.
    """
    seen: dict[str, int] = {}
    for number, request in read_requests(path):
        name = request["custom_id"]
        if name in seen:
            raise InvalidRequestError(
                f"{path.name}: lines {seen[name]} and {number} have the same custom_id {name[:60]!r}"
            )
        seen[name] = number
    return len(seen)


def answered(path: Path) -> set[str]:
    """The custom_ids that an output file holds; a line that was cut off is removed from it.

    Raises:
        InvalidRequestError: it is no file of answers.
    """
    if not path.exists():
        return set()
    names: set[str] = set()
    end = 0
    with path.open("r+b") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                names.add(json.loads(line)["custom_id"])
            except (ValueError, KeyError, TypeError):
                raise InvalidRequestError(f"{path.name}, line {number} is no answer of a batch") from None
            end += len(line)
        file.truncate(end)
    return names


async def run(
    app: ASGIApp, source: Path, target: Path, at_once: int, progress: Progress, token: str | None = None
) -> BatchTotals:
    """Answer what is not answered yet.

    Args:
        at_once: so many requests are with the engine together.

    Raises:
        InvalidRequestError: a file is malformed; nothing was done.
    """
    total = check(source)
    known = answered(target)
    counts = {True: 0, False: 0}
    places = asyncio.Semaphore(at_once)
    skipped = 0

    async def one(request: dict[str, Any], file: BinaryIO) -> None:
        try:
            line, good = await _answer(app, request, token)
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            counts[good] += 1
            progress(skipped + sum(counts.values()), total)
        finally:
            places.release()

    with target.open("ab") as file:
        async with asyncio.TaskGroup() as group:
            for _, request in read_requests(source):
                if request["custom_id"] in known:
                    skipped += 1
                    continue
                await places.acquire()
                group.create_task(one(request, file))
    return BatchTotals(counts[True], counts[False], skipped)


async def _answer(app: ASGIApp, request: dict[str, Any], token: str | None) -> tuple[dict[str, Any], bool]:
    """(the line, whether it is an answer and no error)."""
    line: dict[str, Any] = {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": request["custom_id"],
        "response": None,
        "error": None,
    }
    wrong = _wrong(request)
    if wrong is not None:
        line["error"] = {"code": "invalid_request", "message": wrong}
        return line, False
    status, body = await post(app, request["url"], request["body"], token)
    name = body.get("id") if isinstance(body, dict) else None
    line["response"] = {"status_code": status, "request_id": name or line["id"], "body": body}
    return line, status == 200


def _wrong(request: dict[str, Any]) -> str | None:
    body = request.get("body")
    if request.get("method", "POST") != "POST":
        return "method must be POST"
    if request.get("url") not in URLS:
        return f"url must be one of {', '.join(URLS)}"
    if not isinstance(body, dict):
        return "body must be an object"
    return "stream must not be set in a batch" if body.get("stream") else None
