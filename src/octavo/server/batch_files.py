"""Batch files: OpenAI's JSONL of requests in, a line for each answer out; resumable.

    in   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    out  {"id": ..., "custom_id": "a", "response": {"status_code": 200, "request_id", "body"}, "error": null}

Lines come out as they are ready; of one that is no request an error, without a custom_id. What the output
holds already is not done again, unless it failed or the request is another one now: `id` holds a digest of
the request. A last line that was cut off (the process was killed) is taken away first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from starlette.types import ASGIApp

from octavo.errors import CapacityError, EngineDeadError, InvalidRequestError
from octavo.server import apis
from octavo.server.inprocess import post

Progress = Callable[[int, int], None]
"""Called with (requests answered, requests in all)."""
MAX_LINE = 64 << 20
"""Bytes of a line, as of a body (cli.run_batch)."""
PATIENCE = 300
"""How often a request that finds the engine full is sent again, each time RETRY_S later."""
RETRY_S = 1.0
_OWN_ID = re.compile(r"batch_req_[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Requests that were answered well, that failed, and that the output held before."""

    done: int
    failed: int
    skipped: int


@dataclass(frozen=True, slots=True)
class WrongLine:
    """A line of a batch that is no request, or one whose custom_id stands above it: its answer is an error.

    Attributes:
        code, message: of that error; the message names the line.
    """

    code: str
    message: str

    @property
    def answer(self) -> dict[str, Any]:
        """The line's own in the output; it has no custom_id that could be told from others'."""
        error = {"code": self.code, "message": self.message}
        return {"id": _id({"message": self.message}), "custom_id": None, "response": None, "error": error}


def read_requests(path: Path) -> Iterator[dict[str, Any] | WrongLine]:
    """What each line that is not blank holds: an object with a custom_id of its own, or something else."""
    seen: dict[str, int] = {}
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
            if len(line) > MAX_LINE:
                _skip_line(file, line)
                yield WrongLine("invalid_request", f"line {number} is longer than {MAX_LINE >> 20} MiB")
            elif line.strip():
                yield _request(line, number, seen)


def _skip_line(file: BinaryIO, begun: bytes) -> None:
    """Read on to the end of a line, of which memory holds no more than a part."""
    while begun and not begun.endswith(b"\n"):
        begun = file.readline(MAX_LINE)


def _request(line: bytes, number: int, seen: dict[str, int]) -> dict[str, Any] | WrongLine:
    """Of one line. seen: lines by their custom_ids, to which this one is added."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return WrongLine("invalid_json_line", f"line {number} is not JSON")
    if not isinstance(value, dict) or not isinstance(name := value.get("custom_id"), str):
        return WrongLine("invalid_request", f"line {number} has no custom_id that is a string")
    if (before := seen.setdefault(name, number)) != number:
        message = f"lines {before} and {number} have the same custom_id {name[:60]!r}"
        return WrongLine("duplicate_custom_id", message)
    return value


def check(path: Path) -> dict[str, str]:
    """The requests of a file: by custom_id the id that the line of its answer gets.

    Raises:
        InvalidRequestError: there are lines, and none of them is a request.
    """
    ids: dict[str, str] = {}
    wrong: WrongLine | None = None
    for request in read_requests(path):
        if isinstance(request, WrongLine):
            wrong = wrong or request
        else:
            ids[request["custom_id"]] = _id(request)
    if wrong is not None and not ids:
        raise InvalidRequestError(f"{path.name} holds no request: {wrong.message}")
    return ids


def _id(request: Mapping[str, Any]) -> str:
    """A digest of the whole request, in whatever order its members stand."""
    text = json.dumps(request, sort_keys=True)
    return f"batch_req_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _answers(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """(line, its object) of each answer; one that was cut off is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            named = isinstance(value, dict) and isinstance(value.get("custom_id"), str)
            if not named and not _is_wrong(value):
                raise InvalidRequestError(f"{path.name}, line {number} is no answer of a batch")
            yield line, value


def _is_wrong(answer: Any) -> bool:
    """Whether it is a WrongLine's."""
    if not isinstance(answer, dict) or answer.keys() != {"id", "custom_id", "response", "error"}:
        return False
    own = _OWN_ID.fullmatch(str(answer["id"])) is not None
    return own and answer["custom_id"] is None and answer["error"] is not None


def _to_redo(answer: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Whether a request failed, or changed since; answers to requests that are gone are left alone."""
    name = answer["custom_id"]
    if name not in wanted:
        return name is None  # a wrong line's: it is told again, if it is still there
    response = answer.get("response")
    good = isinstance(response, dict) and response.get("status_code") == 200 and not answer.get("error")
    own = _OWN_ID.fullmatch(str(answer.get("id")))  # of other ids nobody knows what was asked
    return not good or (own is not None and answer["id"] != wanted[name])


def answered(path: Path, wanted: Mapping[str, str]) -> set[str]:
    """The custom_ids that an output file has answers for.

    Args:
        wanted: see check().

    Raises:
        InvalidRequestError: it is no file of answers.
    """
    return {answer["custom_id"] for _, answer in _answers(path) if not _to_redo(answer, wanted)}


def discard(path: Path, wanted: Mapping[str, str]) -> None:
    """Take away the lines that are done again, and one that was cut off: at once, or not at all."""
    path = path.resolve()
    kept = sum(len(line) for line, answer in _answers(path) if not _to_redo(answer, wanted))
    if not path.exists() or kept == path.stat().st_size:
        return
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as file:
            shutil.copymode(path, beside)  # before a byte is in it: nobody may read more than before
            file.writelines(line for line, answer in _answers(path) if not _to_redo(answer, wanted))
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


async def run(
    app: ASGIApp,
    source: Path,
    target: Path,
    at_once: int,
    progress: Progress,
    token: str | None = None,
    failure: Callable[[], str | None] = lambda: None,
) -> BatchTotals:
    """Answer what is not answered yet, failed before, or changed since.

    Args:
        at_once: so many requests are with the engine together.
        failure: why the engine died, if it did.

    Raises:
        InvalidRequestError: there is no request, or the target is no file of answers; nothing was done.
        EngineDeadError: the engine has died. What it has not answered has no line, and is done the next time.
        CapacityError: an answer could not be written. The next time goes on after the last whole one.
    """
    wanted = check(source)
    known = answered(target, wanted)
    discard(target, wanted)
    counts = {True: 0, False: 0}
    places, skipped = asyncio.Semaphore(at_once), 0
    urls = [path.path for path in apis.table(apis.find()).values() if path.rules.batched]

    def write(line: dict[str, Any], good: bool) -> None:
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        counts[good] += 1
        done = skipped + sum(counts.values())
        progress(done, max(len(wanted), done))  # there, wrong lines are not counted beforehand

    async def one(request: dict[str, Any]) -> None:
        try:
            line, good = await _answer(app, request, urls, token)
            if not good and (why := failure()) is not None:
                raise EngineDeadError(why)
            write(line, good)
        finally:
            places.release()

    file = target.open("ab")
    try:
        with file:
            async with asyncio.TaskGroup() as group:
                for request in read_requests(source):
                    if isinstance(request, WrongLine):
                        write(request.answer, False)
                        continue
                    if request["custom_id"] in known:  # answered by an earlier run
                        skipped += 1
                        continue
                    await places.acquire()
                    group.create_task(one(request))
    except* EngineDeadError as errors:
        raise errors.exceptions[0] from None
    except* OSError as errors:  # of a write, or of what closing the file has still to write
        raise _unwritten(errors.exceptions[0], target) from None
    return BatchTotals(counts[True], counts[False], skipped)


def _unwritten(why: Exception, target: Path) -> CapacityError:
    said = getattr(why, "strerror", None) or str(why)
    return CapacityError(f"{said}: the answers so far are in {target}; run it again for the rest")


async def _answer(
    app: ASGIApp, request: dict[str, Any], urls: Sequence[str], token: str | None
) -> tuple[dict[str, Any], bool]:
    """(the line, whether it is an answer and no error)."""
    line: dict[str, Any] = {
        "id": _id(request),
        "custom_id": request["custom_id"],
        "response": None,
        "error": None,
    }
    wrong = _wrong(request, urls)
    if wrong is not None:
        line["error"] = {"code": "invalid_request", "message": wrong}
        return line, False
    for _ in range(PATIENCE):
        status, body = await post(app, request["url"], request["body"], token)
        if status != 429:
            break
        await asyncio.sleep(RETRY_S)
    name = body.get("id") if isinstance(body, dict) else None
    line["response"] = {"status_code": status, "request_id": name or line["id"], "body": body}
    return line, status == 200


def _wrong(request: dict[str, Any], urls: Sequence[str]) -> str | None:
    body = request.get("body")
    if request.get("method", "POST") != "POST":
        return "method must be POST"
    if request.get("url") not in urls:
        return f"url must be one of {', '.join(urls)}"
    if not isinstance(body, dict):
        return "body must be an object"
    return "stream must not be set in a batch" if body.get("stream") else None
