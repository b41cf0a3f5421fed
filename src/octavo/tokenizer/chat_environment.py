"""The Jinja environment of chat templates.

Templates come from checkpoints, so they run in a sandbox: no attributes that lead out, nothing
mutable, ranges and products bounded. Messages are data and never become template text.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import InvalidRequestError

MAX_SOURCE = 1 << 20
"""Characters of a template; the longest that models bring have some 20,000."""
MAX_JSON_CHARS = 8 << 20
_MAX_REPEAT = 1 << 20
_MAX_BITS = 4096


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}: shows its body."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


_EXTENSIONS = [_Generation, "jinja2.ext.loopcontrols"]


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses products that would fill the memory, such as "a" * 10**9 or 9 ** 9 ** 9."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Sized) and isinstance(other, int) and len(one) * other > _MAX_REPEAT:
                raise SecurityError("a product is too large")
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length()
            if (bits * right if operator == "**" else bits + right.bit_length()) > _MAX_BITS:
                raise SecurityError("a product is too large")
        return super().call_binop(context, operator, left, right)


class _NoFolding(CodeGenerator):
    """Computes no constants while it compiles: "{{ '%999999999d' | format(1) }}" is one."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        raise nodes.Impossible


class _NotFolded(_Sandbox):
    code_generator_class = _NoFolding


def parse_template(source: str) -> nodes.Template:
    """A chat template's syntax tree; nothing in it is computed.

    Raises:
        InvalidRequestError: it is not valid Jinja, or too long.
    """
    if len(source) > MAX_SOURCE:
        raise InvalidRequestError(f"the chat template is longer than {MAX_SOURCE} characters")
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=_EXTENSIONS)
    with _named_errors():
        return environment.parse(source)


def compile_template(source: str, now: Callable[[], datetime.datetime], fold: bool = True) -> jinja2.Template:
    """Compile a chat template.

    Args:
        fold: compute its constants now. False: for templates of which nothing is known.

    Raises:
        InvalidRequestError: it is not valid Jinja.
    """
    kind = _Sandbox if fold else _NotFolded
    environment = kind(trim_blocks=True, lstrip_blocks=True, extensions=_EXTENSIONS, optimized=fold)
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = _raise_exception

    def strftime_now(format_: str) -> str:
        return now().strftime(format_)

    environment.globals["strftime_now"] = strftime_now
    with _named_errors():
        return environment.from_string(source)


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except (jinja2.TemplateError, RecursionError, SyntaxError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        reason = " ".join(str(error).split())[:200] or "it is nested too deeply"
        raise InvalidRequestError(f"the chat template is not valid Jinja{line}: {reason}") from None


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The tojson filter: unlike Jinja's own it neither escapes HTML nor sorts keys."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None:
        return encoder.encode(value)
    # Every line begins with white space as deep as it stands: lists within lists make much of little.
    pieces, size = [], 0
    for piece in encoder.iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_JSON_CHARS:
            raise jinja2.TemplateError(f"a value takes more than {MAX_JSON_CHARS} characters of JSON")
    return "".join(pieces)
