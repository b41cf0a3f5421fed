"""What a chat request says about tools, checked: which may be called, which must be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.server.openai.fields import only_known
from octavo.server.tools import ToolFormat, ToolParser, forced
from octavo.server.tools.base import Tools
from octavo.server.tools.closed import closed

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_NO_ARGUMENTS = {**_ANY_OBJECT, "properties": {}, "additionalProperties": False}  # without parameters


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Checked tools of a request.

    Attributes:
        given: as the chat template gets them; empty where no tool may be called.
        tools: parameters' schemas by name: those that may be called.
        forced: a call must come: its grammar writes it.
        named: tool_choice names the one tool.
        strict: arguments must follow their schemas even where a call is the model's own choice.
    """

    given: tuple[dict[str, Any], ...] = ()
    tools: Tools = field(default_factory=dict)
    forced: bool = False
    named: bool = False
    strict: frozenset[str] = frozenset()
    parallel: bool = True

    def constrain(self, params: SamplingParams, form: ToolFormat) -> SamplingParams:
        """The params of a request that may call these tools, of which there are some.

        Raises:
            InvalidRequestError: structured outputs and calls that must come exclude each other.
        """
        wanted = None
        if self.forced:
            wanted = StructuredOutputsParams(json=forced.schema(self.tools, self.parallel and not self.named))
        elif self.strict:
            wanted = _strict(self.tools, self.strict, form)
        if wanted is not None:
            if params.structured_outputs is not None:
                raise InvalidRequestError(
                    "tool_choice that forces calls, or strict tools, exclude another form of the answer",
                    "tool_choice",
                )
            params = params.replace(structured_outputs=wanted)
        if form.special and not self.forced:
            params = params.replace(skip_special_tokens=False)
        return params

    def parser(self, form: ToolFormat) -> ToolParser:
        """A reader of one answer's calls."""
        return ToolParser(forced.FORCED if self.forced else form, self.tools, None if self.parallel else 1)


def _strict(tools: Tools, strict: frozenset[str], form: ToolFormat) -> StructuredOutputsParams:
    if form.strict is None:
        raise UnsupportedError(
            f"strict tools with tool_choice auto are not supported in the {form.name} format; "
            "set tool_choice to required",
            "tools",
        )
    structures = []
    for name, parameters in tools.items():
        begin, end = form.strict(name)
        schema = closed(parameters) if name in strict else _ANY_OBJECT
        structures.append({"begin": begin, "schema": schema, "end": end})
    return StructuredOutputsParams(structural_tag={"structures": structures, "triggers": [form.start[0]]})


def tool_use(tools: Sequence[Any], choice: Any, parallel: bool) -> ToolUse:
    """Check tools and tool_choice.

    Raises:
        InvalidRequestError: a tool is malformed, or the choice names none of them.
    """
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"tools holds {len(tools)}; at most {MAX_TOOLS} are taken", "tools")
    schemas: dict[str, dict[str, Any]] = {}
    strict: set[str] = set()
    for i, tool in enumerate(tools):
        function = _function(tool, f"tools[{i}]")
        name = function["name"]
        if name in schemas:  # calls are told apart by name alone
            raise InvalidRequestError(f"tools: two functions are called {name!r}", "tools")
        parameters = function.get("parameters")
        schemas[name] = _NO_ARGUMENTS if parameters is None else parameters or _ANY_OBJECT
        if function.get("strict"):
            strict.add(name)
    given, callable_ = tuple(dict(tool) for tool in tools), schemas
    if choice is None:  # OpenAI's default
        choice = "auto" if schemas else "none"
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice, callable_ = _allowed(choice, schemas)
    if choice == "none":
        return ToolUse()
    if not schemas:
        raise InvalidRequestError("tool_choice needs tools", "tool_choice")
    if choice in ("auto", "required"):  # the model may choose, or must choose, among all
        return ToolUse(given, callable_, choice == "required", False, frozenset(strict), parallel)
    # {"type": "function", "function": {"name": ...}}: this one must be called; its bare name says the same
    name = choice if isinstance(choice, str) and choice in schemas else _chosen(choice)
    if name not in schemas:
        raise InvalidRequestError(f"tool_choice names {name[:64]!r}, which is not among tools", "tool_choice")
    return ToolUse(given, {name: schemas[name]}, True, True, frozenset(strict), parallel)


def check_name(name: Any, where: str) -> None:
    """Raise InvalidRequestError unless a tool may be called so."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        wanted = "1 to 128 letters, digits, dots, dashes or underscores"
        raise InvalidRequestError(f"{where} must be {wanted}", "tools")


def _function(tool: Any, where: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict):
        raise InvalidRequestError(f'{where} must be {{"type": "function", "function": {{...}}}}', "tools")
    only_known(tool, ("type", "function"), where, "tools", ("cache_control",))
    only_known(function, ("name", "description", "parameters", "strict"), f"{where}.function", "tools")
    check_name(function.get("name"), f"{where}.function.name")
    for key, kind in (("description", str), ("parameters", dict), ("strict", bool)):
        if function.get(key) is not None and not isinstance(function[key], kind):
            raise InvalidRequestError(f"{where}.function.{key} is of the wrong type", "tools")
    return function


def _allowed(
    choice: dict[str, Any], schemas: dict[str, dict[str, Any]]
) -> tuple[Any, dict[str, dict[str, Any]]]:
    """(mode, the tools that may be called) of a choice of type allowed_tools; the template gets all."""
    inner = choice.get("allowed_tools", choice)  # the Responses API has its members beside the type
    only_known(choice, ("type", "allowed_tools", "mode", "tools"), "tool_choice", "tool_choice")
    mode = inner.get("mode") if isinstance(inner, dict) else None
    chosen = inner.get("tools") if isinstance(inner, dict) else None
    if mode not in ("auto", "required") or not isinstance(chosen, list) or not chosen:
        raise InvalidRequestError(
            "tool_choice: allowed_tools needs mode (auto, required) and tools", "tool_choice"
        )
    names = [_chosen(each) for each in chosen]
    for name in names:
        if name not in schemas:
            raise InvalidRequestError(
                f"tool_choice names {name[:64]!r}, which is not among tools", "tool_choice"
            )
    return mode, {name: schemas[name] for name in names}


def _chosen(choice: Any) -> str:
    named = isinstance(choice, dict) and choice.get("type", "function") == "function"
    function = choice.get("function") if named else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidRequestError(
            'tool_choice must be none, auto, required, or {"type": "function", "function": {"name": ...}}',
            "tool_choice",
        )
    only_known(choice, ("type", "function"), "tool_choice", "tool_choice")
    only_known(choice["function"], ("name",), "tool_choice.function", "tool_choice")
    return name
