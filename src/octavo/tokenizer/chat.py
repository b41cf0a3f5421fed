"""Chat templates: a model's own Jinja turns messages into the text it was trained on.

The environment is what Hugging Face documents for `apply_chat_template`: immutable sandbox,
trim_blocks, lstrip_blocks, loop controls, tojson, raise_exception, strftime_now and the
{% generation %} tag (which marks training targets, and here does nothing).
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import InvalidRequestError
from octavo.tokenizer.messages import plain_messages

if TYPE_CHECKING:
    import jinja2

    from octavo.tokenizer.confined_template import ConfinedTemplate

MAX_OUTPUT_CHARS = 32 << 20
SHORT = 8_000
"""Characters of what a template gets whose work grows with their square: so it takes some milliseconds."""
_END = "\ue000octavo:end\ue000 "
"""Marks where the final message ends; the space tells whether the template trims."""

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})

NO_TEMPLATE = "this model has no chat template; give one with --chat-template"


class ChatTemplate:
    """Renders messages. Thread-safe; compiled on first use, because a server starts faster so.

    Args:
        source: Jinja text; None for a model without one, whose render() then says so.
        special_tokens: names the template may use, such as {"bos_token": "<s>"}.
        now: the clock behind strftime_now.
    """

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._now = now

    @functools.cached_property
    def template(self) -> jinja2.Template:
        """The compiled template.

        Raises:
            InvalidRequestError: there is none, or it is not valid Jinja.
        """
        if self.source is None:
            raise InvalidRequestError(NO_TEMPLATE)
        from octavo.tokenizer.chat_environment import compile_template

        return compile_template(self.source, self._now)

    @functools.cached_property
    def _degree(self) -> int | None:
        """How its work grows (see template_proof.degree); None: nobody knows, so it is not run in here."""
        if self.source is None:
            raise InvalidRequestError(NO_TEMPLATE)
        from octavo.tokenizer.chat_environment import parse_template
        from octavo.tokenizer.template_proof import degree

        return degree(parse_template(self.source))

    @functools.cached_property
    def _confined(self) -> ConfinedTemplate:
        from octavo.tokenizer.confined_template import ConfinedTemplate

        return ConfinedTemplate(self.source or "")

    @property
    def is_plain(self) -> bool:
        """Whether rendering takes no longer than a chat's length says, wherever it is done."""
        return self.source is None or self._degree == 1

    def compile(self) -> None:
        """Compile the template now, not when it is first used. Raises as template does."""
        if self._degree is None:
            self._confined.render(None)
        else:
            _ = self.template

    def render(
        self,
        messages: Any,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt text; encode it with add_special_tokens=False.

        Args:
            messages: objects with role and content (see messages.plain_messages).
            tools: JSON schemas of functions, as OpenAI spells them.
            add_generation_prompt: end with the header of an assistant turn.
            continue_final_message: leave the last message open, for the model to go on with it.
            kwargs: further variables for the template (chat_template_kwargs).

        Raises:
            InvalidRequestError: bad messages, or the template refuses them.
        """
        plain = plain_messages(messages, self.source or "")
        return self.render_plain(plain, tools, add_generation_prompt, continue_final_message, kwargs)

    def render_plain(
        self,
        plain: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        """render() for what plain_messages() has made, and which nobody else needs as it is."""
        reserved = sorted(_RESERVED.union(self._special_tokens).intersection(kwargs))
        if reserved:
            raise InvalidRequestError(f"{reserved[0]} cannot be set here", "chat_template_kwargs")
        if not continue_final_message:
            return self._render(plain, tools, add_generation_prompt, kwargs)
        if add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message needs add_generation_prompt=false", "continue_final_message"
            )
        plain[-1]["content"] += _END
        return _cut(self._render(plain, tools, False, kwargs))

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: Any,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        if "developer" not in (self.source or ""):
            # Newer clients write "developer" for what every older template calls "system".
            messages = [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]
        variables = {
            **self._special_tokens,
            **kwargs,
            "messages": messages,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        if self._degree == 1 or (self._degree == 2 and len(str(variables)) <= SHORT):
            return render(self.template, variables)
        return self._confined.render(variables)


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """The text that a template makes of these.

    Raises:
        InvalidRequestError: the template refuses them, or the text is too long.
    """
    chunks: list[str] = []
    size = 0
    try:
        for chunk in template.generate(variables):
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_OUTPUT_CHARS:
                raise InvalidRequestError(
                    f"the chat is longer than {MAX_OUTPUT_CHARS} characters", "messages"
                )
    except InvalidRequestError:
        raise
    except Exception as error:  # a template can raise anything; it must end this request only
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise InvalidRequestError(f"the chat template refuses these messages: {reason}", "messages") from None
    return "".join(chunks)


def _cut(text: str) -> str:
    """What comes before the end mark of the final message."""
    mark = _END.strip()
    at = text.rfind(mark)
    if at < 0:
        raise InvalidRequestError(
            "the chat template does not show the final message as it is, so it cannot be continued",
            "continue_final_message",
        )
    trimmed = not text.startswith(_END, at)
    return text[:at].rstrip() if trimmed else text[:at]
