"""Chat templates against transformers' apply_chat_template, and what is refused."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.chat import ChatTemplate
from octavo.tokenizer.messages import plain_messages
from support.growth import LINEAR, growth

USER = {"role": "user", "content": "Hello, who are you?"}
ASSISTANT = {"role": "assistant", "content": "  I am a model. "}
SYSTEM = {"role": "system", "content": "Be brief.\n"}
CHATS = {
    "one turn": [USER],
    "system": [SYSTEM, USER],
    "multi-turn": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "漢字 {{ 1 + 1 }} {% if %} <b>&"}],
    "ends with the assistant": [USER, ASSISTANT],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter <heute> & 'morgen'",
            "parameters": {
                "type": "object",
                "properties": {"b": {"type": "string"}, "a": {"type": "number"}},
            },
        },
    }
]

TOOL_TEMPLATE = """{{- bos_token }}
{%- if tools %}
    {{- 'Tools: ' }}
    {%- for tool in tools %}
        {{- tool | tojson }}{{ '\\n' }}
        {{- tool.function.parameters | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{% for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {%- if loop.index > 5 %}{% break %}{% endif %}
    {{- '<' ~ message.role ~ '>' }}
    {% generation %}{{ message.content | trim }}{% endgeneration %}
    {%- if message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {{- call.function.name ~ call.function.arguments.items() | list | string }}
        {%- endfor %}
    {%- endif %}
    {{- eos_token }}
{% endfor %}
{%- set ns = namespace(x=0) %}{% for i in range(3) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
{%- if add_generation_prompt %}{{- '<assistant>' -}}{% endif %}
{{- '(thinking)' if enable_thinking else '' }}
"""

CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"a": 1, "b": "ü"}}}
    ],
}


@pytest.fixture(scope="module")
def theirs(smollm2_tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=smollm2_tokenizer.backend,
        chat_template=smollm2_tokenizer.chat_template,
        **smollm2_tokenizer.special_tokens,
    )


@pytest.fixture(scope="module")
def ours(smollm2_tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate(smollm2_tokenizer.chat_template, smollm2_tokenizer.special_tokens)


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("prompt", [True, False])
def test_smollm2_renders_like_transformers(
    chat: str, prompt: bool, ours: ChatTemplate, theirs: PreTrainedTokenizerFast, smollm2_tokenizer: Tokenizer
) -> None:
    messages = CHATS[chat]
    text = ours.render(messages, add_generation_prompt=prompt)
    assert text == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    ids = theirs.apply_chat_template(messages, add_generation_prompt=prompt)["input_ids"]
    assert smollm2_tokenizer.encode(text, add_special_tokens=False) == ids


@pytest.mark.parametrize(
    "messages", [[USER, ASSISTANT], [USER, CALL, {"role": "tool", "content": "sun"}, SYSTEM]]
)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("thinking", [True, False])
def test_everything_templates_use_renders_alike(
    messages: list[dict[str, Any]], tools: Any, thinking: bool, theirs: PreTrainedTokenizerFast
) -> None:
    ours = ChatTemplate(TOOL_TEMPLATE, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    expected = theirs.apply_chat_template(
        messages,
        tools=tools,
        chat_template=TOOL_TEMPLATE,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=thinking,
    )
    assert ours.render(messages, tools, enable_thinking=thinking) == expected


@pytest.mark.parametrize("content", ["Sure, here", "Sure, here ", "Sure\n", ""])
@pytest.mark.parametrize("template", ["smollm2", "trims"])
def test_the_final_message_can_be_continued(
    content: str, template: str, ours: ChatTemplate, theirs: PreTrainedTokenizerFast
) -> None:
    source = ours.source if template == "smollm2" else TOOL_TEMPLATE
    mine = ChatTemplate(source, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    messages = [USER, {"role": "assistant", "content": content}]
    text = mine.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text == theirs.apply_chat_template(
        messages, chat_template=source, tokenize=False, continue_final_message=True
    )
    assert text.rstrip().endswith(content.strip())


def test_continuing_needs_the_message_and_no_header(ours: ChatTemplate) -> None:
    with pytest.raises(InvalidRequestError, match="needs add_generation_prompt=false"):
        ours.render([USER], continue_final_message=True)
    hidden = ChatTemplate("{{ messages | length }}")
    with pytest.raises(InvalidRequestError, match="does not show the final message"):
        hidden.render([USER], add_generation_prompt=False, continue_final_message=True)


def test_dates_come_from_the_clock() -> None:
    noon = datetime.datetime(2024, 2, 29, 12)
    assert ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: noon).render([USER]) == "29 Feb 2024"


def test_developer_is_system_for_older_templates() -> None:
    message = {"role": "developer", "content": "x"}
    assert ChatTemplate("{{ messages[0].role }}").render([message]) == "system"
    assert ChatTemplate("{# developer #}{{ messages[0].role }}").render([message]) == "developer"


def test_content_parts_and_calls_are_made_plain() -> None:
    show = ChatTemplate("{{ messages[0].content }}{{ messages[0].tool_calls[0].function.arguments.a }}")
    call = {"function": {"name": "f", "arguments": '{"a": 5}'}}
    parts = [{"type": "text", "text": "one"}, "two"]
    assert show.render([{"role": "assistant", "content": parts, "tool_calls": [call]}]) == "one\ntwo5"
    assert show.render([{"role": "assistant", "content": None, "tool_calls": [call]}]) == "5"
    empty = {"function": {"name": "f", "arguments": " "}}
    assert show.render([{"role": "assistant", "tool_calls": [empty]}]) == ""


def test_messages_are_not_changed() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    before = repr(message)
    ChatTemplate("{{ messages }}").render([message])
    assert repr(message) == before


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "non-empty list"),
        ("hello", "non-empty list"),
        (None, "non-empty list"),
        (["hello"], r"messages\[0\] must be an object"),
        ([{1: 2}], r"messages\[0\] must be an object"),
        ([USER, {"content": "x"}], r"messages\[1\].role must be one of system, developer"),
        ([{"role": "root", "content": "x"}], r"messages\[0\].role"),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\].role"),
        ([{"role": "user"}], r"messages\[0\].content must be a string"),
        ([{"role": "user", "content": None}], r"messages\[0\].content must be a string"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content must be a string"),
        ([{"role": "user", "content": []}], r"messages\[0\].content must be a string"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            r"content\[0\] must be a part with type and text",
        ),
        ([{"role": "user", "content": [3]}], r"content\[0\] must be a part with type and text"),
        ([{"role": "assistant", "tool_calls": 3}], "tool_calls must be a list"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"tool_calls\[0\].function must have a name"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "arguments is not JSON",
        ),
    ],
)
def test_bad_messages_are_named(messages: Any, message: str, ours: ChatTemplate) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        ours.render(messages)
    assert caught.value.param == "messages"


def test_images_are_refused_by_name(ours: ChatTemplate) -> None:
    with pytest.raises(UnsupportedError, match="type 'image_url' are not supported"):
        ours.render([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


def test_names_the_template_owns_cannot_be_set(ours: ChatTemplate) -> None:
    for name in ("add_special", "enable_thinking"):
        ours.render([USER], **{name: 1})
    for name in ("bos_token", "raise_exception", "strftime_now"):
        with pytest.raises(InvalidRequestError, match=f"{name} cannot be set here"):
            ours.render([USER], **{name: 1})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "no chat template; give one with --chat-template"),
        ("line\n{% if %}", "not valid Jinja in line 2"),
        ("{% unknown %}", "not valid Jinja in line 1"),
        ("{% generation %}", "not valid Jinja in line 1"),
        ("{{ x | nofilter }}", "not valid Jinja"),
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages[0].content + 1 }}", "refuses these messages"),
        ("{{ nothing.at.all }}", "refuses these messages"),
        ("{{ ''.__class__.__mro__ }}", "refuses these messages: .*unsafe"),
        ("{{ messages.append(1) }}", "refuses these messages: .*unsafe|not safely"),
        ("{{ 'a' * 10 ** 9 }}", "a product is too large"),
        ("{{ 9 ** 99999 }}", "a product is too large"),
        ("{{ [0] * 10000000 }}", "a product is too large"),
        ("{{ range(10 ** 7) }}", "refuses these messages: Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses these messages"),
    ],
)
def test_bad_templates_end_the_request_only(source: str | None, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        ChatTemplate(source).render([USER])
    assert "\n" not in str(caught.value)


def test_output_is_bounded() -> None:
    source = "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}"
    with pytest.raises(InvalidRequestError, match="the chat is longer than"):
        ChatTemplate(source).render([{"role": "user", "content": "x" * 100_000}])


@pytest.mark.parametrize(
    ("message", "source", "text"),
    [
        ({"role": "assistant", "content": "a", "mood": "b"}, "{{ messages[0].mood }}", "b"),
        ({"role": "assistant", "reasoning": "b"}, "{{ messages[0].reasoning_content }}", "b"),
        ({"role": "assistant", "reasoning": "b"}, "{{ messages[0].reasoning }}", "b"),
        ({"role": "assistant", "refusal": "No."}, "{{ messages[0].content }}", "No."),
        ({"role": "assistant", "content": "a", "refusal": None}, "{{ messages[0] | tojson }}",
         '{"role": "assistant", "content": "a"}'),
    ],
)  # fmt: skip
def test_members_reach_the_template_that_reads_them(message: dict[str, Any], source: str, text: str) -> None:
    assert ChatTemplate(source).render([message]) == text


def test_a_member_that_the_template_does_not_read_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"unknown field messages\[0\].mood"):
        ChatTemplate("{{ messages[0].moody }}").render([USER | {"mood": "b"}])


def test_many_members_that_the_template_might_read_cost_little() -> None:
    """Names are looked up among those that the template asks for; its keywords are none of them."""
    source = "{% for m in messages %}{% if m.mood %}{{ m['tone'] }}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(InvalidRequestError, match=r"unknown field messages\[0\].if"):
        ChatTemplate(source).render([USER | {"if": "b"}])
    with pytest.raises(InvalidRequestError, match=r"unknown field messages\[0\].m$"):
        ChatTemplate(source).render([USER | {"m": "b"}])
    assert ChatTemplate(source).render([USER | {"mood": "b", "tone": "c"}]) == "c" + str(USER["content"])
    names = [f"member{i}" for i in range(4000)]
    long = "".join(f"{{{{ messages[0].{name} }}}}" for name in names)

    def check(count: int) -> None:
        plain_messages([USER | dict.fromkeys(names[: count // 10], 1)] * 10, long)

    assert growth(check, 20_000) < LINEAR
