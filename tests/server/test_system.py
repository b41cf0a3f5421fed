"""Health, version, models, tokens, metrics, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

import octavo
from octavo.server.app import attach, create_app
from support.asgi import call, get, post
from support.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}]}


# What docs/how-to/serve.md says: the status text, then whether /live, /ready and /health are 200.
STATES = {
    "loading": ("starting", True, False),
    "serving": ("ok", True, True),
    "hung": ("unhealthy", False, False),
    "dead": ("unhealthy", False, False),
    "leaving": ("draining", True, False),
    "draining": ("draining", True, False),
    "draining, hung": ("unhealthy", False, False),
    "engine stopped": ("draining", True, False),
}


@pytest.mark.parametrize("name", STATES)
def test_every_state_is_told(engine: FakeEngine, name: str) -> None:
    app = create_app(None if name == "loading" else engine)
    state = app.state.octavo
    engine.healthy = name not in ("hung", "dead", "draining, hung", "engine stopped")
    state.leaving = name in ("leaving", "draining", "draining, hung", "engine stopped")
    state.draining = state.leaving and name != "leaving"
    state.stopping = name == "engine stopped"
    text, lives, serves = STATES[name]
    for path, good in (("/live", lives), ("/ready", serves), ("/health", serves), ("/ping", serves)):
        reply = get(app, path)
        assert (reply.status, reply.json()) == (200 if good else 503, {"status": text}), path
    assert get(app, "/").status == 200


def test_the_page_has_the_table_of_states() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if "| 503 |" in line
    ]
    told = {row[0].split(":")[0]: tuple(row[1:]) for row in rows}
    for name, (text, lives, serves) in STATES.items():
        if name != "serving":
            assert told[name] == (f"`{text}`", "200" if lives else "503", "200" if serves else "503")


def _samples(app: FastAPI) -> dict[tuple[str, str], float]:
    text = get(app, "/metrics").body.decode()
    return {
        (sample.name, sample.labels.get("result", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_compiler_that_gave_up_shows_and_comes_back(app: FastAPI, engine: FakeEngine) -> None:
    """All else is served, so nobody should end the process for it."""
    assert get(app, "/health").json() == {"status": "ok"}
    assert _samples(app)["octavo_grammar_compiler_available", ""] == 1
    engine.compiler._trials._failed = time.monotonic()
    reply = get(app, "/health")
    assert (reply.status, reply.json()) == (200, {"status": "ok", "grammars": "unavailable"})
    assert _samples(app)["octavo_grammar_compiler_available", ""] == 0
    refused = post(app, CHAT, BODY | {"structured_outputs": {"regex": "a"}})
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    engine.compiler._trials._failed = time.monotonic() - 3600
    assert post(app, CHAT, BODY | {"structured_outputs": {"regex": "a"}}).status == 200
    assert get(app, "/health").json() == {"status": "ok"}


def test_metrics_count_grammars_by_what_became_of_them(app: FastAPI) -> None:
    for wanted, status in (("a", 200), ("a", 200), ("b", 200), ("(", 400)):
        assert post(app, CHAT, BODY | {"structured_outputs": {"regex": wanted}}).status == status
    found = _samples(app)
    counts = {result: found["octavo_grammars_total", result] for result in ("compiled", "invalid", "killed")}
    assert counts == {"compiled": 2, "invalid": 1, "killed": 0}
    assert found["octavo_num_grammars_compiling", ""] == found["octavo_num_grammars_waiting", ""] == 0


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize"])
def test_requests_before_and_after_the_engine_are_told_to_come_back(engine: FakeEngine, path: str) -> None:
    app = create_app(None)
    early = post(app, path, BODY)
    attach(app, engine)
    app.state.octavo.draining = True
    late = post(app, path, BODY)
    assert [early.status, late.status] == [503, 503]
    assert early.headers["retry-after"] == late.headers["retry-after"] == "1"
    assert "loading" in early.error["message"]
    assert "shutting down" in late.error["message"]
    assert get(create_app(None), "/v1/models").status == 503


def test_version(app: FastAPI) -> None:
    assert get(app, "/version").json() == {"version": octavo.__version__}


def test_models(app: FastAPI) -> None:
    listed = get(app, "/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert model == get(app, "/v1/models/fake/model").json()
    assert model["id"] == "fake/model"
    assert model["max_model_len"] == 128
    assert model["object"] == "model"


def test_a_model_has_several_names(engine: FakeEngine) -> None:
    engine.more_names = ("gpt-4", "a/b")
    app = create_app(engine)
    listed = get(app, "/v1/models").json()["data"]
    assert [model.pop("id") for model in listed] == ["fake/model", "gpt-4", "a/b"]
    assert listed[0] == listed[1] == listed[2]
    assert get(app, "/v1/models/a/b").json()["id"] == "a/b"
    for name in ("fake/model", "gpt-4", "a/b", None):
        answer = post(app, CHAT, BODY | {"model": name})
        assert (answer.status, answer.json()["model"]) == (200, "fake/model")
    for path, reply in (
        (CHAT, post(app, CHAT, BODY | {"model": "gpt-5"})),
        ("/v1/models/gpt-5", get(app, "/v1/models/gpt-5")),
        ("/tokenize", post(app, "/tokenize", {"prompt": "a", "model": "gpt-5"})),
    ):
        assert (path, reply.status, reply.error["param"]) == (path, 404, "model")
        assert reply.error["message"].endswith(
            "this server has 'fake/model', 'gpt-4', 'a/b' (--served-model-name gives it other names)"
        )


def test_tokenize_and_back(app: FastAPI) -> None:
    answer = post(app, "/tokenize", {"prompt": "né", "return_token_strs": True}).json()
    assert answer == {
        "count": 3,
        "max_model_len": 128,
        "tokens": list("né".encode()),
        "token_strs": ["n", "\ufffd", "\ufffd"],
    }
    assert post(app, "/detokenize", {"tokens": [*answer["tokens"], 256]}).json() == {"prompt": "né<eos>"}


def test_tokenize_messages(app: FastAPI) -> None:
    answer = post(app, "/tokenize", BODY).json()
    assert bytes(answer["tokens"]) == b"user:Hi\nassistant:"
    answer = post(app, "/tokenize", BODY | {"add_generation_prompt": False}).json()
    assert bytes(answer["tokens"]) == b"user:Hi\n"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", **BODY}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
def test_bad_tokens(app: FastAPI, path: str, body: dict[str, object], param: str) -> None:
    reply = post(app, path, body)
    assert reply.status == 400
    assert reply.error["param"] == param


def scrape(app: FastAPI) -> dict[str, float]:
    """Samples by name, and by name and label where there are more labels than model and engine."""
    reply = get(app, "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            extra = [v for k, v in sorted(sample.labels.items()) if k not in ("model_name", "engine", "le")]
            if "le" in sample.labels and sample.labels["le"] != "+Inf":
                continue
            values[":".join([sample.name, *extra])] = sample.value
    return values


def test_metrics_count_what_happened(app: FastAPI, engine: FakeEngine) -> None:
    engine.counts.running, engine.counts.prompt_tokens = 2, 31
    post(app, CHAT, BODY)
    post(app, CHAT, BODY | {"stream": True, "max_tokens": 3})
    post(app, CHAT, BODY | {"n": 2})
    post(app, CHAT, {"messages": 3})
    post(app, "/anything", {})

    async def leave() -> None:
        engine.hold = asyncio.Event()
        await call(app, "POST", CHAT, BODY | {"stream": True}, leave_after=1)

    asyncio.run(leave())
    values = scrape(app)
    for prefix in ("octavo_", "vllm:"):
        expected = {
            "request_success_total:stop": 2,
            "request_success_total:length": 1,
            "num_requests_running": 2,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": 0.25,
            "num_preemptions_total": 3,
            "prefix_cache_queries_total": 40,
            "prefix_cache_hits_total": 10,
            "external_prefix_cache_queries_total": 30,
            "external_prefix_cache_hits_total": 5,
            "prompt_tokens_total": 31,
            "generation_tokens_total": 0,
            "time_to_first_token_seconds_count": 3,
            "e2e_request_latency_seconds_count": 3,
            "request_queue_time_seconds_count": 3,
            "request_prefill_time_seconds_count": 3,
            "request_decode_time_seconds_count": 3,
            "request_time_per_output_token_seconds_count": 3,
            "inter_token_latency_seconds_count": 2,
            "request_prompt_tokens_sum": 3 * len("user:Hi\nassistant:"),
            "request_generation_tokens_sum": 6 + 3 + 6 + 7,
            "request_max_num_generation_tokens_sum": 6 + 3 + 7,
        }
        assert {name: values[prefix + name] for name in expected} == expected
    assert values["octavo_request_cut_total"] == 1
    assert values[f"octavo_http_requests_total:POST:{CHAT}:200"] == 4
    assert values[f"octavo_http_requests_total:POST:{CHAT}:400"] == 1
    assert values["octavo_http_requests_total:POST:other:404"] == 1
    assert values["octavo_startup_seconds:weights"] == 0.5
    assert not any(name.startswith("vllm:startup") for name in values)


def test_metrics_carry_the_labels_dashboards_select_by(app: FastAPI) -> None:
    assert b'vllm:num_requests_running{engine="0",model_name="fake/model"}' in get(app, "/metrics").body


def test_two_apps_count_apart(app: FastAPI) -> None:
    other = create_app(FakeEngine())
    post(app, CHAT, BODY)
    assert scrape(app)["vllm:request_success_total:stop"] == 1
    assert "vllm:request_success_total:stop" not in scrape(other)


def test_metrics_work_while_the_model_loads() -> None:
    assert get(create_app(None), "/metrics").status == 200


def test_openapi_describes_what_is_served(app: FastAPI) -> None:
    document = get(app, "/openapi.json").json()
    body = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["messages"]
    assert {"temperature", "top_k", "max_completion_tokens"} <= set(body["properties"])
    assert "best_of" not in body["properties"]
    references = re.findall(r'"#/components/schemas/(\w+)"', get(app, "/openapi.json").body.decode())
    assert references
    assert set(references) <= set(document["components"]["schemas"])


def test_what_takes_long_to_import_is_not() -> None:
    """FastAPI imports Pydantic's first version for parameters that it reads, and results that it writes."""
    code = (
        "import sys; from octavo.server.app import create_app; create_app(None)\n"
        "print('pydantic.v1' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
