"""octavo run: one answer of a chat model; without a prompt, the chat."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from octavo.cli._flags import EngineChoice, engine_flags, sampling_flags
from octavo.cli._prompt import PROMPT_FLAG, prompt_text
from octavo.cli._typed import TypedCommand
from octavo.cli.chat import CHAT_DEFAULTS, talk
from octavo.cli.generate import answer
from octavo.errors import InvalidRequestError
from octavo.params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from octavo.llm import AsyncLLM
    from octavo.prompts import Prompt

COMMAND_CLASS = TypedCommand
PROMPT = typer.Argument(None, help="What to ask; - reads it from stdin.", show_default=False)
SYSTEM = typer.Option(None, "--system", help="The system message.", show_default=False)


@sampling_flags(**{name: str(value) for name, value in CHAT_DEFAULTS.items()})
@engine_flags(leave_out=("seed", "served_model_name"))
def run(
    engine: EngineChoice,
    sampling: dict[str, Any],
    prompt: str = PROMPT,
    prompt_flag: str = PROMPT_FLAG,
    system: str = SYSTEM,
    verbose: bool = typer.Option(False, "--verbose", help="Say on stderr how fast the answer came."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Ask a model once, and print its answer; without PROMPT, talk with it as octavo chat does."""
    if prompt is None and prompt_flag is None:
        return talk(engine, sampling, system, as_json)
    text = prompt_text(prompt, prompt_flag, "octavo run MODEL PROMPT")
    params = SamplingParams(**{**CHAT_DEFAULTS, **sampling}, output_kind=RequestOutputKind.DELTA)
    result = answer(engine, text, params, as_json, lambda llm: _turn(engine, llm, text, system))
    if verbose:
        _say_speed(result)
    return 0


def _turn(engine: EngineChoice, llm: AsyncLLM, text: str, system: str | None) -> Prompt:
    """The prompt as the model's template writes it. A base model has none: it continues the text."""
    from octavo.prompts import refuse_chat

    refuse_chat(llm.max_encoder_len)
    if llm.template is None:
        if system is not None:
            raise InvalidRequestError(f"{engine.model} has no chat template, and takes no --system")
        print(f"{engine.model} has no chat template: it continues the text", file=sys.stderr)
        return text
    messages = [{"role": "system", "content": system}] if system is not None else []
    return {"prompt_token_ids": llm.render_chat([*messages, {"role": "user", "content": text}])}


def _say_speed(result: dict[str, Any]) -> None:
    usage, seconds = result["usage"], result["seconds"]
    first, total = seconds["first_token"], seconds["total"]
    later = usage["completion_tokens"] - 1
    rate = f", then {later / (total - first):.1f} tok/s" if later > 0 and total > first else ""
    tokens = f"{usage['prompt_tokens']} tokens of prompt, {usage['completion_tokens']} of answer"
    print(f"{tokens} in {total:.2f} s: the first after {first:.2f} s{rate}", file=sys.stderr)
