"""Which chat templates are rendered in the server, which in a confined process, and that both end."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.tokenizer import confined_template
from octavo.tokenizer.chat import SHORT, ChatTemplate
from octavo.tokenizer.chat_environment import parse_template
from octavo.tokenizer.template_proof import degree
from support.chat_templates import PLAIN, QUADRATIC, UNPROVEN
from support.growth import LINEAR, growth

USER = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_templates_are_proven(name: str) -> None:
    assert degree(parse_template(PLAIN[name])) == 1
    assert ChatTemplate(PLAIN[name]).is_plain


@pytest.mark.parametrize("name", QUADRATIC)
def test_quadratic_templates_are_told_from_plain_ones(name: str) -> None:
    assert degree(parse_template(QUADRATIC[name])) == 2
    assert not ChatTemplate(QUADRATIC[name]).is_plain


@pytest.mark.parametrize("name", UNPROVEN)
def test_nothing_is_proven_of_dangers(name: str) -> None:
    template = UNPROVEN[name]
    try:
        tree = parse_template(template)
    except InvalidRequestError:
        return
    assert degree(tree) is None


def test_a_template_with_three_loops_over_all_is_no_better_than_unproven() -> None:
    body = "{% for m in messages %}" * 3 + "{% endfor %}" * 3
    assert degree(parse_template(body)) == 3


@pytest.mark.parametrize(
    "name", sorted({"chatml", "tools and calls", "thinking cut off", "a counter", "neighbours"})
)
def test_plain_templates_take_time_as_the_chat_is_long(name: str) -> None:
    template = ChatTemplate(PLAIN[name])
    call = {"function": {"name": "f", "arguments": {"a": "b"}}}

    def render(count: int) -> None:
        turn = [
            {"role": "user", "content": "x" * 50},
            {"role": "assistant", "content": "y", "tool_calls": [call]},
        ]
        template.render(turn * count, [{"type": "function"}] * count)

    assert growth(render, 1_000) <= LINEAR


def confined(template: ChatTemplate) -> list[Any]:
    """Notes each time that a template is rendered in the other process."""
    seen: list[Any] = []
    inner = template._confined.render

    def render(variables: Any) -> str:
        seen.append(variables)
        return inner(variables)

    template._confined.render = render  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("name", [*PLAIN, *QUADRATIC])
def test_proven_templates_need_no_other_process(name: str) -> None:
    template = ChatTemplate((PLAIN | QUADRATIC)[name])
    seen = confined(template)
    template.render([USER, {"role": "assistant", "content": "y"}], [{"type": "function"}])
    assert seen == []


def test_a_long_chat_of_a_quadratic_template_is_rendered_elsewhere_and_alike() -> None:
    template = ChatTemplate(QUADRATIC["all in each"])
    seen = confined(template)
    chat = [USER, {"role": "assistant", "content": "x" * SHORT}]
    assert template.render(chat) == "userassistant" * 2
    assert len(seen) == 1


HOSTILE = sorted(
    {"endless loops", "doubling", "doubling in a row", "a width", "a width by an operator",
     "centre", "centre as a filter", "format", "batch", "indented JSON", "doubling lists"}
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_as_an_error_of_the_request(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the time nor the memory of the server is theirs; nor is anything of them computed at load."""
    monkeypatch.setattr(confined_template, "CPU_S", 0.3)
    template = ChatTemplate(UNPROVEN[name])
    template.compile()
    with pytest.raises(InvalidRequestError) as caught:
        template.render([USER])
    assert "\n" not in str(caught.value)
    assert caught.value.param == "messages"


def test_what_is_not_proven_is_rendered_as_ever() -> None:
    template = ChatTemplate(
        "{% macro say(m) %}{{ '<' ~ m.role ~ '>' }}{% endmacro %}{{ bos_token }}"
        "{% for m in messages %}{{ say(m) }}{{ m.content }}{% endfor %}{{ mood }}{{ strftime_now('%Y') }}",
        {"bos_token": "<s>"},
    )
    year = str(datetime.datetime.now().year)
    assert template.render([USER], mood="😀") == f"<s><user>Hello😀{year}"


def test_a_mistake_in_what_is_not_proven_is_found_at_load() -> None:
    with pytest.raises(InvalidRequestError, match="No filter named 'nofilter'"):
        ChatTemplate("{{ x | nofilter }}").compile()


def test_variables_that_are_no_json_are_named() -> None:
    with pytest.raises(InvalidRequestError, match="chat_template_kwargs must be plain JSON"):
        ChatTemplate("{{ range(2) }}").render([USER], when=threading.Lock())


def test_a_template_of_a_megabyte_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="longer than"):
        ChatTemplate("x" * (2 << 20)).render([USER])


def test_json_is_bounded_however_deep_it_is_indented() -> None:
    deep: Any = []
    for _ in range(150):
        deep = [deep]
    template = ChatTemplate("{{ tools | tojson(indent=4) }}")
    with pytest.raises(InvalidRequestError, match="characters of JSON"):
        template.render([USER], [{"a": [deep] * 200}])


def test_arguments_nested_deep_are_the_senders_mistake() -> None:
    arguments = '{"a":' * 700 + "1" + "}" * 700
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(InvalidRequestError, match="nested deeper than 100"):
        ChatTemplate("{{ messages[0].tool_calls }}").render([{"role": "assistant", "tool_calls": [call]}])
