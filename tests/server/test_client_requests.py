"""Whole requests in the shapes of clients that people use, prose replaced by filler: each gets through."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.server.app import create_app
from support.asgi import Reply, post
from support.fake_engine import FakeEngine

CALL = '<tool_call>{{"name": "{}", "arguments": {{"cmd": "ls"}}}}</tool_call>'


def filler(size: int) -> str:
    return ("lorem ipsum " * (size // 12 + 1))[:size]


def schema(*names: str) -> dict[str, Any]:
    members = {name: {"type": "string", "description": filler(60)} for name in names}
    return {"type": "object", "properties": members, "required": list(names), "additionalProperties": False}


def flat(name: str, *names: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": filler(300), "strict": False,
            "parameters": schema(*names)}  # fmt: skip


def codex() -> dict[str, Any]:
    """codex exec, its first request of a turn (codex-cli 0.169)."""
    agents = [flat("spawn_agent", "prompt"), flat("send_input", "id", "message"), flat("wait", "ids")]
    return {
        "model": "fake/model",
        "instructions": filler(20_000),
        "input": [
            {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
            for role, text in (("developer", filler(900)), ("user", filler(700)), ("user", "list the files"))
        ],
        "tools": [
            flat("exec_command", "cmd", "workdir"), flat("write_stdin", "chars"), flat("update_plan", "plan"),
            flat("request_user_input", "questions"),
            {"type": "namespace", "name": "multi_agent_v1", "description": filler(80), "tools": agents},
            flat("apply_patch", "input"), flat("view_image", "path"), flat("list_mcp_resources", "server"),
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "019aa000-0000-7000-8000-000000000000",
        "client_metadata": {"x-codex-installation-id": "00000000-0000-4000-8000-000000000000"},
    }  # fmt: skip


def claude_code() -> dict[str, Any]:
    """claude -p hi (2.1.197): 24 tools, 76 kB."""
    cached = {"type": "ephemeral"}
    return {
        "model": "fake/model",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": filler(900)},
                                         {"type": "text", "text": "hi", "cache_control": cached}]},
            {"role": "system", "content": [{"type": "text", "text": filler(1200)}]},
        ],
        "system": [{"type": "text", "text": filler(90)},
                   {"type": "text", "text": filler(60), "cache_control": cached},
                   {"type": "text", "text": filler(14_000), "cache_control": cached}],
        "tools": [{"name": f"Tool{i}", "description": filler(1900), "input_schema": schema("path", "pattern")}
                  for i in range(24)],
        "metadata": {"user_id": filler(150)},
        "max_tokens": 32_000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }  # fmt: skip


def ai_sdk_anthropic() -> dict[str, Any]:
    """streamText with tools of @ai-sdk/anthropic 3.0."""
    tool = {"name": "weather", "description": filler(20), "input_schema": schema("city")}
    return {
        "model": "fake/model",
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "weather in Paris?"}]}],
        "tools": [{**tool, "eager_input_streaming": True}],
        "tool_choice": {"type": "auto"},
        "stream": True,
    }


def events(reply: Reply) -> list[dict[str, Any]]:
    assert reply.status == 200, reply.body
    return [json.loads(block.split("data: ")[1]) for block in reply.body.decode().split("\n\n")[:-1]]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(max_model_len=1 << 20)


def test_codex_first_turn(engine: FakeEngine) -> None:
    engine.reply = CALL.format("spawn_agent")
    reply = post(create_app(engine), "/v1/responses", codex())
    found = events(reply)
    (item,) = found[-1]["response"]["output"]
    assert (item["name"], item["namespace"]) == ("spawn_agent", "multi_agent_v1")
    named = [each["function"]["name"] for each in engine.rendered[0]["tools"]]
    assert named[4:7] == ["spawn_agent", "send_input", "wait"]
    assert len(named) == 10
    told = reply.headers["x-octavo-ignored"].split(", ")
    assert {
        "include",
        "prompt_cache_key",
        "client_metadata",
        "reasoning.summary",
        "tools.type=web_search",
    } == set(told)


def test_codex_goes_on_after_a_call(engine: FakeEngine) -> None:
    body = codex()
    call = {
        "type": "function_call",
        "name": "exec_command",
        "arguments": '{"cmd": "ls"}',
        "call_id": "call_1",
    }
    body["input"] += [
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"},
        call,
        {**call, "name": "spawn_agent", "namespace": "multi_agent_v1", "call_id": "call_2"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
        {"type": "function_call_output", "call_id": "call_2", "output": "done"},
    ]
    found = events(post(create_app(engine), "/v1/responses", body))
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"
    assert bytes(engine.calls[0].prompt).decode().endswith("tool:a.txt\ntool:done\nassistant:")


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ({"type": "namespace", "name": "a"}, "tools[0]: a namespace has"),
        ({"type": "namespace", "name": "a", "tools": [{"type": "namespace"}]}, "tools[0].tools[0]"),
        ({"type": "namespace", "name": "a", "tools": [], "x": 1}, "unknown field tools[0].x"),
        ({"type": "custom", "name": "a"}, "'custom' is not supported"),
        (5, "tools[0]"),
    ],
)
def test_malformed_namespaces(engine: FakeEngine, tool: Any, text: str) -> None:
    reply = post(create_app(engine), "/v1/responses", {"input": "Hi", "tools": [tool]})
    assert (reply.status, text in reply.error["message"]) == (400, True), reply.body


def test_a_function_of_two_namespaces_is_named_twice(engine: FakeEngine) -> None:
    spaces = [{"type": "namespace", "name": name, "tools": [flat("f")]} for name in "ab"]
    reply = post(create_app(engine), "/v1/responses", {"input": "Hi", "tools": spaces})
    assert (reply.status, "two functions are called 'f'" in reply.error["message"]) == (400, True)


def test_claude_code_first_turn(engine: FakeEngine) -> None:
    engine.reply = CALL.format("Tool3")
    reply = post(create_app(engine), "/v1/messages", claude_code())
    found = events(reply)
    (start,) = [each for each in found if each["type"] == "content_block_start"]
    assert (start["content_block"]["name"], found[-2]["delta"]["stop_reason"]) == ("Tool3", "tool_use")
    assert start["content_block"]["id"].startswith("toolu_")
    prompt = bytes(engine.calls[0].prompt).decode()
    assert prompt.count("system:") == 2
    assert prompt.index("user:") < prompt.rindex("system:")
    told = set(reply.headers["x-octavo-ignored"].split(", "))
    assert told == {"metadata", "thinking", "context_management", "output_config.effort",
                    "system.cache_control", "messages.cache_control"}  # fmt: skip


def test_a_late_system_message_is_the_users_where_the_template_refuses_it(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = FakeEngine.render_chat

    def picky(self: FakeEngine, messages: Any, **more: Any) -> list[int]:
        if any(message["role"] == "system" for message in messages[1:]):
            raise InvalidRequestError("the template refuses", "messages")
        return render(self, messages, **more)

    monkeypatch.setattr(FakeEngine, "render_chat", picky)
    say = [("user", "a"), ("system", "b"), ("assistant", "c"), ("user", "d"), ("system", "e"), ("user", "f")]
    messages = [{"role": role, "content": text} for role, text in say]
    body = {"system": "s", "messages": messages, "max_tokens": 50}
    assert post(create_app(engine), "/v1/messages", body).status == 200
    prompt = bytes(engine.calls[0].prompt).decode()
    assert prompt == "system:s\nuser:a\n\nb\nassistant:c\nuser:d\n\ne\n\nf\nassistant:"
    count = post(create_app(engine), "/v1/messages/count_tokens", body).json()
    assert count == {"input_tokens": len(prompt)}


def test_ai_sdk_streams_tool_calls(engine: FakeEngine) -> None:
    engine.reply = CALL.format("weather")
    found = events(post(create_app(engine), "/v1/messages", ai_sdk_anthropic()))
    assert [each["content_block"]["type"] for each in found if "content_block" in each] == ["tool_use"]


def test_anthropic_parse_and_tool_runner(engine: FakeEngine) -> None:
    hi = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
    wanted = {"type": "json_schema", "schema": schema("city")}
    more = {"cache_control": {"type": "ephemeral"}, "speed": "fast",
            "inference_geo": "us", "mcp_servers": [], "service_tier": "auto"}  # fmt: skip
    assert post(create_app(engine), "/v1/messages", {**hi, **more}).status == 200
    for fields in ({"output_config": {"format": wanted}}, {"output_format": wanted}):
        engine.calls.clear()
        post(create_app(engine), "/v1/messages", {**hi, **fields})
        structured = engine.calls[0].params.structured_outputs
        assert structured is not None
        assert structured.json == wanted["schema"]
    for bad in (5, {"type": "x"}, {"type": "json_schema"}, {**wanted, "x": 1}):
        assert (
            post(create_app(engine), "/v1/messages", {**hi, "output_config": {"format": bad}}).status == 400
        )


def test_anthropics_tool_runner_is_told_to_send_all_messages(engine: FakeEngine) -> None:
    """It would send only the results of its tools if a thread were accepted (anthropic 2.13)."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50, "tools": []}
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        reply = post(create_app(engine), "/v1/messages", {**body, "thread": thread})
        assert reply.status == 400
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        assert (reply.error["type"], reply.error["details"]) == ("invalid_request_error", details)
    assert not engine.calls
    assert "details" not in post(create_app(engine), "/v1/messages", {**body, "wat": 1}).error


def test_a_choice_that_is_the_default_needs_no_tools(engine: FakeEngine) -> None:
    """@ai-sdk/open-responses sends it always; and hosted tools are left out."""
    hosted = {"type": "web_search"}
    for tools in ([], [hosted]):
        body = {"input": "Hi", "tool_choice": "auto", "tools": tools}
        assert post(create_app(engine), "/v1/responses", body).status == 200
    for tools in ([], [{"type": "web_search_20250305", "name": "web_search"}]):
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "tools": tools}
        reply = post(create_app(engine), "/v1/messages", {**body, "tool_choice": {"type": "auto"}})
        assert reply.status == 200
    assert post(create_app(engine), "/v1/responses", {"input": "Hi", "tool_choice": "required"}).status == 400


def test_an_empty_answer_may_be_sent_back(engine: FakeEngine) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": []},
                {"role": "user", "content": "And?"}]  # fmt: skip
    assert post(create_app(engine), "/v1/messages", {"messages": messages, "max_tokens": 50}).status == 200


TOOL = {"type": "function", "function": {"name": "weather", "parameters": schema("city")}}
NOW = {"type": "function", "function": {"name": "now"}}


def chat(engine: FakeEngine, **fields: Any) -> Reply:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return post(create_app(engine), "/v1/chat/completions", body)


@pytest.mark.parametrize("choice", [{"function": {"name": "weather"}}, "weather"])
def test_a_tool_is_chosen_by_name_as_other_clients_write_it(engine: FakeEngine, choice: Any) -> None:
    """huggingface_hub leaves the type out; TGI's clients give the name alone."""
    engine.reply = '[{"name": "weather", "arguments": {"city": "Paris"}}]'
    message = chat(engine, tools=[TOOL, NOW], tool_choice=choice).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "weather"


@pytest.mark.parametrize("nested", [True, False])
def test_allowed_tools_are_those_that_may_be_called(engine: FakeEngine, nested: bool) -> None:
    engine.reply = CALL.format("now")
    inner = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    choice = {"type": "allowed_tools", **({"allowed_tools": inner} if nested else inner)}
    message = chat(engine, tools=[TOOL, NOW], tool_choice=choice).json()["choices"][0]["message"]
    assert "tool_calls" not in message
    assert len(engine.rendered[0]["tools"]) == 2
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    tools = [{"type": "function", **each["function"]} for each in (TOOL, NOW)]  # type: ignore[dict-item]
    engine.reply = '[{"name": "weather", "arguments": {"city": "Paris"}}]'
    body = {"input": "Hi", "tools": tools, "tool_choice": choice}
    assert post(create_app(engine), "/v1/responses", body).json()["output"][0]["name"] == "weather"


@pytest.mark.parametrize(
    "inner", [{}, {"mode": "never", "tools": [TOOL]}, {"mode": "auto", "tools": []},
              {"mode": "auto", "tools": [5]},
              {"mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]}]
)  # fmt: skip
def test_malformed_choices_of_allowed_tools(engine: FakeEngine, inner: Any) -> None:
    reply = chat(engine, tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": inner})
    assert (reply.status, reply.error["param"]) == (400, "tool_choice")


def test_a_call_comes_before_its_end_in_a_stream(engine: FakeEngine) -> None:
    """openai's stream() fires arguments.done only where the call and finish_reason are in two chunks."""
    engine.reply = '[{"name": "weather", "arguments": {"city": "Paris"}}]'
    reply = chat(engine, tools=[TOOL], tool_choice="required", stream=True)
    choices = [event["choices"][0] for event in reply.events()]
    assert [choice["finish_reason"] for choice in choices if "tool_calls" in choice["delta"]] == [None]
    assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, "tool_calls")


def test_a_forced_call_opens_no_text(engine: FakeEngine) -> None:
    engine.reply = '[{"name": "weather", "arguments": {"city": "Paris"}}]'
    reply = chat(engine, tools=[TOOL], tool_choice="required", stream=True, logprobs=True)
    assert {event["choices"][0]["delta"].get("content") for event in reply.events()} == {None}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/v1/chat/completions",
         "This model's maximum context length is 128 tokens. However, your messages resulted in 215 tokens."),
        ("/v1/messages", "prompt is too long: 215 tokens > 128 maximum"),
    ],
)  # fmt: skip
def test_a_context_that_is_too_small_in_words_that_clients_know(path: str, text: str) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 199}], "max_tokens": 5}
    reply = post(create_app(FakeEngine()), path, body)
    assert (reply.status, text in reply.error["message"]) == (400, True), reply.body


def test_errors_have_an_id_where_each_client_looks(engine: FakeEngine) -> None:
    for path, header in (
        ("/v1/messages", "request-id"),
        ("/v1/responses", "x-request-id"),
        ("/x", "x-request-id"),
    ):
        assert post(create_app(engine), path, {}).headers[header].startswith("req_")


REQUIRED = {"completed_at", "presence_penalty", "frequency_penalty", "top_logprobs", "reasoning",
            "max_tool_calls", "background", "service_tier", "safety_identifier", "prompt_cache_key",
            "truncation", "user", "text", "tools", "usage", "error", "incomplete_details", "instructions",
            "metadata"}  # fmt: skip


def test_a_response_has_every_member_that_clients_types_ask_for(engine: FakeEngine) -> None:
    body = {"input": "Hi", "tools": [{"type": "function", "name": "f"}], "presence_penalty": 0.5}
    whole = post(create_app(engine), "/v1/responses", body).json()
    assert not REQUIRED - set(whole)
    assert whole["completed_at"] >= whole["created_at"]
    assert whole["tools"] == [
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}
    ]
    assert engine.calls[0].params.presence_penalty == whole["presence_penalty"] == 0.5
    assert whole["id"].startswith("resp_")
    assert whole["output"][0]["id"].startswith("msg_")
    counted = post(create_app(engine), "/v1/responses/input_tokens", body).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": whole["usage"]["input_tokens"]}
