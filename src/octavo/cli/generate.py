"""octavo generate: continue one prompt."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import typer

from octavo.cli._flags import EngineChoice, engine_flags, sampling_flags
from octavo.cli._prompt import PROMPT_FLAG, prompt_text
from octavo.cli._typed import TypedCommand
from octavo.params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from octavo.llm import AsyncLLM
    from octavo.prompts import Prompt

COMMAND_CLASS = TypedCommand
DEFAULT_TOKENS = 256
PROMPT = typer.Argument(None, help="The text to continue; - reads it from stdin.", show_default=False)


@sampling_flags(max_tokens=str(DEFAULT_TOKENS))
@engine_flags(leave_out=("seed", "served_model_name"))
def generate(
    engine: EngineChoice,
    sampling: dict[str, Any],
    prompt: str = PROMPT,
    prompt_flag: str = PROMPT_FLAG,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object at the end."),
) -> int:
    """Continue a prompt as it stands (no chat template), streaming to stdout."""
    params = SamplingParams(**{"max_tokens": DEFAULT_TOKENS, **sampling}, output_kind=RequestOutputKind.DELTA)
    answer(engine, prompt_text(prompt, prompt_flag, "octavo generate MODEL PROMPT"), params, as_json)
    return 0


def answer(
    engine: EngineChoice,
    text: str,
    params: SamplingParams,
    as_json: bool,
    turn: Callable[[AsyncLLM], Prompt] | None = None,
) -> dict[str, Any]:
    """Load the engine and print what it answers: as it comes, or as one JSON object.

    Args:
        turn: what the model is given for this text; None: the text itself.

    Returns:
        What streamed() does.
    """
    from octavo.cli._load import loaded

    with loaded(engine, quiet=as_json) as llm:
        prompt = text if turn is None else turn(llm)
        result = asyncio.run(streamed(llm, prompt, params, echo=not as_json))
    if as_json:
        print(json.dumps({"model": engine.model, "prompt": text, **result}))
    elif not result["text"].endswith("\n"):
        print()
    return result


async def streamed(llm: AsyncLLM, prompt: Prompt, params: SamplingParams, echo: bool) -> dict[str, Any]:
    """Stream the text to stdout if echo; returns text, finish reason, usage, seed and times in seconds."""
    parts: list[str] = []
    generated, first = 0, None
    begin = time.perf_counter()
    output = None
    async with aclosing(llm.generate(prompt, params)) as stream:
        async for output in stream:
            completion = output.outputs[0]
            first = first or time.perf_counter()
            generated += len(completion.token_ids)
            parts.append(completion.text)
            if echo:
                print(completion.text, end="", flush=True)
    assert output is not None, "the engine ends no request without an output"
    end = time.perf_counter()
    return {
        "text": "".join(parts),
        "finish_reason": output.outputs[0].finish_reason,
        "seed": output.seed,
        "usage": {"prompt_tokens": len(output.prompt_token_ids), "completion_tokens": generated},
        "seconds": {"first_token": round((first or end) - begin, 4), "total": round(end - begin, 4)},
    }
