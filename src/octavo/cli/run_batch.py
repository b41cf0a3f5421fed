"""octavo run-batch: answer a file of requests in OpenAI's batch format."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._flags import EngineChoice, ReasoningParser, ToolCallParser, engine_flags, parsers
from octavo.cli._progress import count_progress
from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.async_llm import AsyncLLM
    from octavo.server.batch_files import BatchTotals, Progress

MAX_BODY_BYTES = 64 << 20


@engine_flags(model_argument=False)
def run_batch(
    engine: EngineChoice,
    source: Annotated[Path, typer.Argument(help="File of requests, one JSON object a line.")],
    target: Annotated[
        Path,
        typer.Argument(help="File of answers; if it exists, requests with an answer in it are left out."),
    ],
    max_concurrent: int = typer.Option(64, "--max-concurrent", help="Most requests at once.", min=1),
    tool_call_parser: ToolCallParser = None,
    reasoning_parser: ReasoningParser = None,
    as_json: bool = typer.Option(False, "--json", help="Print the totals as JSON."),
) -> int:
    """Answer the requests of a batch file. What the output has answers for is not done again."""
    from octavo.cli._load import loaded
    from octavo.server import batch_files

    forms = parsers(tool_call_parser, reasoning_parser)
    if "-" in (str(source), str(target)):
        raise InvalidRequestError(
            "run-batch reads a file and writes a file, not standard input and output: with both it goes on "
            "where it was stopped"
        )
    if source.resolve() == target.resolve():
        raise InvalidRequestError("the requests and the answers are the same file")
    batch_files.answered(target, batch_files.check(source))
    with loaded(engine, as_json) as llm, count_progress("answering", quiet=as_json) as progress:
        totals = asyncio.run(_run(llm, source, target, max_concurrent, progress, forms))
    if as_json:
        print(json.dumps({"done": totals.done, "failed": totals.failed, "skipped": totals.skipped}))
    else:
        text = f"{totals.done} answered, {totals.failed} failed, {totals.skipped} answered before"
        print(text, file=sys.stderr)
    return 1 if totals.failed else 0


async def _run(
    llm: AsyncLLM, source: Path, target: Path, at_once: int, progress: Progress, forms: dict[str, Any]
) -> BatchTotals:
    from octavo.server import batch_files
    from octavo.server.app import create_app
    from octavo.server.state import ServerSettings

    settings = ServerSettings(
        max_body_bytes=MAX_BODY_BYTES,
        max_concurrent_requests=at_once + 1,
        takes_priority=True,  # whoever brings the file owns the engine
        max_waiting_tokens=sys.maxsize,  # of one file, at_once bounds what waits
        **forms,
    )
    app = create_app(llm, settings)
    return await batch_files.run(app, source, target, at_once, progress, failure=lambda: llm.failure)
