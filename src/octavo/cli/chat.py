"""octavo chat: a conversation on the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import typer

from octavo.cli._flags import EngineChoice, engine_flags, sampling_flags
from octavo.cli._typed import TypedCommand
from octavo.errors import InvalidRequestError
from octavo.params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from octavo.llm import AsyncLLM

COMMAND_CLASS = TypedCommand
HELP = "/reset begins anew, /help says this, /exit (or Ctrl-D) ends; Ctrl-C stops an answer"
COMMAND = re.compile(r"/[a-z?]{1,20}")
ENDS, RESETS = ("/exit", "/quit", "/bye"), ("/reset", "/clear")
CHAT_DEFAULTS: dict[str, Any] = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.9, "presence_penalty": 1.5, "frequency_penalty": 0.1,
    "max_tokens": 1024,
}  # fmt: skip
"""Under these a small model makes sense, and ends: what it has said is less likely, the end is not. The API
keeps OpenAI's: any token, any length."""


@sampling_flags(**{name: str(value) for name, value in CHAT_DEFAULTS.items()})
@engine_flags(leave_out=("seed", "served_model_name"))
def chat(
    engine: EngineChoice,
    sampling: dict[str, Any],
    system: str = typer.Option(None, "--system", help="The system message.", show_default=False),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object a turn."),
) -> int:
    """Talk with a model; it remembers the conversation. Reads a turn a line, also from a pipe."""
    return talk(engine, sampling, system, as_json)


def talk(engine: EngineChoice, sampling: dict[str, Any], system: str | None, as_json: bool) -> int:
    """The conversation that `octavo chat` is, and `octavo run` without a prompt."""
    from octavo.cli._load import loaded
    from octavo.prompts import refuse_chat
    from octavo.tokenizer.chat import NO_TEMPLATE

    params = SamplingParams(**{**CHAT_DEFAULTS, **sampling}, output_kind=RequestOutputKind.DELTA)
    with loaded(engine, quiet=as_json) as llm:
        refuse_chat(llm.max_encoder_len)
        if llm.template is None:
            raise InvalidRequestError(NO_TEMPLATE)
        conversation = Conversation(llm, params, system)
        interactive = sys.stdin.isatty() and not as_json
        if interactive:
            print(f"{engine.model}: {HELP}", file=sys.stderr)
        with asyncio.Runner() as runner:
            for line in _lines(interactive):
                said = line.strip()
                if said in ENDS:
                    break
                if said in RESETS:
                    conversation.reset()
                elif COMMAND.fullmatch(said):  # mistyped, or another program's: no turn
                    print(HELP if said == "/help" else f"there is no {said}: {HELP}", file=sys.stderr)
                elif said:
                    _turn(runner, conversation, line, interactive, as_json)
    return 0


def _turn(
    runner: asyncio.Runner, conversation: Conversation, line: str, interactive: bool, as_json: bool
) -> None:
    try:
        answer = runner.run(conversation.say(line, echo=not as_json))
    except KeyboardInterrupt:
        if not interactive:
            raise
        print(" (stopped)")
        return
    except InvalidRequestError as error:
        if not interactive:
            raise
        print(f"{error}; /reset begins anew", file=sys.stderr)
        return
    print(json.dumps(answer) if as_json else "", flush=True)


def _lines(interactive: bool) -> Iterator[str]:
    """Lines as the user types them, until the end of the input."""
    if not interactive:
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    with contextlib.suppress(ImportError):  # not everywhere; input() then has no line editing
        import readline  # noqa: F401 - importing it is what gives input() its line editing

    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


class Conversation:
    """The messages so far. A turn that fails, or is stopped, leaves them as they were."""

    def __init__(self, llm: AsyncLLM, params: SamplingParams, system: str | None) -> None:
        self._llm, self._params = llm, params
        self._start = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._start)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._start)

    def _fitting(self, text: str) -> tuple[list[dict[str, str]], list[int]]:
        """(the conversation with this turn, its tokens); without the oldest turns where it is too long."""
        begun, turns = len(self._start), [*self.messages, {"role": "user", "content": text}]
        ids = self._llm.render_chat(turns)
        dropped = 0
        most = self._llm.max_model_len - min(256, self._llm.max_model_len // 4)  # an answer needs room
        while len(ids) > most and len(turns) > begun + 1:
            del turns[begun : begun + 2]  # a turn and its answer
            dropped += 1
            ids = self._llm.render_chat(turns)
        if dropped:
            print(f"the context is full: the {dropped} oldest turns are forgotten", file=sys.stderr)
        return turns, ids

    async def say(self, text: str, echo: bool) -> dict[str, Any]:
        """The model's answer, streamed to stdout if echo.

        Raises:
            InvalidRequestError: this turn alone does not fit the context.
        """
        messages, ids = self._fitting(text)
        prompt = {"prompt_token_ids": ids}
        parts: list[str] = []
        reason = None
        async with aclosing(self._llm.generate(prompt, self._params)) as stream:
            async for output in stream:
                completion = output.outputs[0]
                reason = completion.finish_reason
                parts.append(completion.text)
                if echo:
                    print(completion.text, end="", flush=True)
        answer = {"role": "assistant", "content": "".join(parts)}
        self.messages = [*messages, answer]
        return answer | {"finish_reason": reason}
