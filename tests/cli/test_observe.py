"""The flags of `octavo serve` about logs and traces."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from octavo.cli import main
from octavo.cli._observe import ObserveFlags
from octavo.errors import InvalidRequestError
from support.cli import command, environment

CHAT = {"messages": [{"role": "user", "content": "a secret prompt"}]}


def served(*words: str, ask: Any = None) -> tuple[list[str], list[str]]:
    """Lines of standard output and of standard error of a server with a scripted engine.

    Args:
        ask: is given a client once the server is ready.
    """
    process = subprocess.Popen(
        command("serve", "my-model", "--port", "0", *words, scripted=True),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    url = json.loads(lines[0])["url"] if lines[0].startswith("{") else lines[0].split()[-1]
    while "ready" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], process.communicate()[1]
    with httpx.Client(base_url=url) as client:
        ask(client)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return lines + out.splitlines(keepends=True), err.replace("engine shut\n", "").splitlines(keepends=True)


def test_with_json_every_line_is_an_object() -> None:
    def ask(client: httpx.Client) -> None:
        headers = {"x-request-id": "mine"}
        assert client.post("/v1/chat/completions", json=CHAT, headers=headers).status_code == 200
        assert client.get("/version", headers={"host": "elsewhere"}).status_code == 403

    out, err = served("--log-format", "json", ask=ask)
    lines = [json.loads(line) for line in out]
    assert [line["event"] for line in lines if "event" in line][-1] == "stopped"
    # A line comes when its request has ended, which is just after its client has the answer.
    access = [line for line in lines if line.get("logger") == "octavo.access"]
    chat, refused = sorted(access, key=lambda line: str(line["path"]))
    assert (chat["request_id"], chat["status"], chat["completion_tokens"]) == ("mine", 200, 6)
    assert refused["status"] == 403
    assert err == []
    assert "secret" not in "".join(out)


def test_errors_are_objects_too() -> None:
    def ask(client: httpx.Client) -> None:
        assert client.get("/version").status_code == 401

    out, err = served("--log-format", "json", "--api-key", "k", ask=ask)
    assert [json.loads(line)["status"] for line in out if "octavo.access" in line] == [401]
    (line,) = [json.loads(line) for line in err]
    assert (line["level"], line["logger"]) == ("warning", "octavo.server")
    assert line["message"] == "requests refused for want of a valid key: 1"


@pytest.mark.parametrize("asked_for", [False, True])
def test_text_is_as_ever(asked_for: bool) -> None:
    def ask(client: httpx.Client) -> None:
        assert client.get("/version").status_code == 200

    out, err = served(*(["--access-log"] if asked_for else []), ask=ask)
    assert ['"GET /version HTTP/1.1" 200' in line for line in out].count(True) == asked_for
    assert err == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--log-format", "xml"), "--log-format"),
        (("--otlp-traces-endpoint", "grpc://localhost:4317"), "sent over HTTP, not gRPC"),
        (("--otlp-traces-endpoint", "localhost"), "must be a URL such as http://localhost:4318/v1/traces"),
    ],
)
def test_what_is_wrong_is_one_line_before_a_model_is_loaded(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "/nowhere/model.gguf", *words]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("octavo: error: ")
    assert err.count("\n") == 1
    assert text in err


def test_without_the_extra_the_flag_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.delitem(sys.modules, "octavo.server.tracing", raising=False)
    flags = ObserveFlags(otlp_traces_endpoint="http://localhost:4318")
    with pytest.raises(InvalidRequestError, match=r"pip install 'octavo\[otel\]'"):
        flags.observers()


def test_spans_are_made_where_an_endpoint_is_named() -> None:
    """Nobody listens there: the server serves all the same, and ends in time."""

    def ask(client: httpx.Client) -> None:
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200

    out, _ = served("--otlp-traces-endpoint", "http://127.0.0.1:9", "--log-format", "json", ask=ask)
    assert json.loads(out[-1])["event"] == "stopped"
