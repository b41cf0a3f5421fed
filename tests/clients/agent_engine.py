"""`octavo serve` with an engine whose answers are scripted: python agent_engine.py serve NAME ...

Asked with tools, it calls one that it knows twice, whatever it is told, and then says what came back. So a
program that gets that far has sent its tools, read two calls, run them, and sent two results. Asked for JSON,
it names a city.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.cli import _load, main
from octavo.params import RequestOutput, SamplingParams
from octavo.tokenizer.messages import plain_messages
from support.fake_engine import FakeEngine

COMMANDS = ("echo one-$((20+1))", "echo two-$((40+2))")
FOUND = re.compile(r"one-\d+|two-\d+")
DONE = "Both were called"
CITY = {"city": "Paris"}
CONTEXT = 1 << 20


def arguments(name: str, turn: int) -> dict[str, Any] | None:
    """Of the call of a tool in this turn; None: another tool is to be called."""
    command = COMMANDS[turn]
    shells: dict[str, dict[str, Any]] = {
        "exec_command": {"cmd": command},  # Codex
        "shell": {"command": ["sh", "-c", command]},
        "Bash": {"command": command, "description": "echo"},  # Claude Code
        "bash": {"command": command, "description": "echo"},  # opencode
        "echo": {"text": ("one-21", "two-42")[turn]},  # the programs of this folder
        "get_weather": {"location": "Paris"},  # llm-comply
    }
    return shells.get(name)


def answer(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """What the model says next, in the hermes format."""
    results = [str(message["content"]) for message in messages if message["role"] == "tool"]
    turn = len(results)
    if turn >= len(COMMANDS):
        return f"{DONE}: " + " and ".join(FOUND.findall("\n".join(results)))
    for tool in tools:
        name = tool["function"]["name"]
        if (given := arguments(name, turn)) is not None:
            call = json.dumps({"name": name, "arguments": given})
            return f"Let me see.\n<tool_call>\n{call}\n</tool_call>"
    return "A short title"


def _forced(schema: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The call that must come, where the schema is that of a list of calls."""
    if schema.get("type") != "array":
        return None
    name = schema["items"]["anyOf"][0]["properties"]["name"]["const"]
    return [{"name": name, "arguments": CITY}]


@dataclass
class Agent(FakeEngine):
    """Answers by what the conversation holds."""

    answers: dict[bytes, str] = field(default_factory=dict)  # by the prompt's tokens

    def render_chat(self, messages: Any, *, tools: Any = None, **options: Any) -> list[int]:
        ids = super().render_chat(messages, tools=tools, **options)
        self.answers[bytes(ids)] = answer(plain_messages(messages), tools or ())
        return ids

    async def _outputs(
        self, request_id: str | None, prompt: list[int], params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        asked = copy.copy(self)
        wanted = params.structured_outputs
        if wanted is not None and isinstance(wanted.json, dict):
            asked.reply = json.dumps(_forced(wanted.json) or CITY)
        else:
            asked.reply = self.answers.get(bytes(prompt), "Hello")
        async for output in super(Agent, asked)._outputs(request_id, prompt, params):
            yield output


def load(engine: Any, progress: Any = None) -> Agent:
    return Agent(served_model_name=engine.model, max_model_len=CONTEXT)


if __name__ == "__main__":
    _load.fetch = lambda model, quiet=False: None
    _load.load = load  # type: ignore[assignment]
    sys.exit(main(sys.argv[1:]))
