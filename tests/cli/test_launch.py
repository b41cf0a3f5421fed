"""octavo launch: what programs are told of a server; stand-ins on the PATH say what they were given."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main
from octavo.launch import TOOLS
from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from support.asgi import get
from support.cli import octavo_command
from support.fake_engine import FakeEngine

SAYS = """#!{python}
import json, os, sys
print(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}))
sys.exit(7)
"""
KEY = "s3cret"


class Models:
    """A server that answers GET /v1/models as Octavo's does, or as it is told."""

    def __init__(self) -> None:
        engine = FakeEngine(served_model_name="m/x", more_names=("gpt-4",), max_model_len=65_536)
        self.app = create_app(engine, ServerSettings(api_keys=(KEY,)))
        self.answer: tuple[int, bytes] | None = None
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                status, body = outer.answer or outer.models(self.headers.get("authorization", ""))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def models(self, authorization: str) -> tuple[int, bytes]:
        reply = get(self.app, "/v1/models", headers={"authorization": authorization})
        return reply.status, reply.body


@pytest.fixture
def models() -> Iterator[Models]:
    found = Models()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OCTAVO_API_KEY", KEY)
    return KEY


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every tool's stand-in, first on the PATH."""
    for tool in TOOLS.values():
        file = tmp_path / tool.program
        file.write_text(SAYS.format(python=sys.executable))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def started(*words: str) -> dict[str, Any]:
    done = octavo_command("launch", *words)
    assert (done.returncode, done.stderr) == (7, ""), done.stderr  # the program's own status
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("tool", TOOLS)
def test_the_users_words_come_last(tool: str, models: Models, key: str, programs: Path) -> None:
    found = started(tool, "--url", models.url + "/v1/", "--", "--flag", "a b", "-c", "x=1")
    assert found["arguments"][-4:] == ["--flag", "a b", "-c", "x=1"]
    assert found["environment"]["HOME"] == os.environ["HOME"]
    assert models.paths == ["/v1/models"]


def test_codex(models: Models, key: str, programs: Path) -> None:
    found = started("codex", "--url", models.url)
    words = found["arguments"]
    assert words[::2] == ["-c"] * (len(words) // 2)
    assert tomllib.loads("\n".join(words[1::2])) == {
        "model": "m/x",
        "model_context_window": 65_536,
        "model_provider": "octavo",
        "model_providers": {
            "octavo": {
                "name": "Octavo",
                "base_url": f"{models.url}/v1",
                "env_key": "OCTAVO_API_KEY",
                "wire_api": "responses",
            }
        },
    }
    assert found["environment"]["OCTAVO_API_KEY"] == KEY
    assert KEY not in " ".join(words)  # it would stand in the list of processes


def test_claude(models: Models, key: str, programs: Path) -> None:
    found = started("claude", "--url", models.url, "-m", "gpt-4")
    told = found["environment"]
    assert found["arguments"] == []
    assert (told["ANTHROPIC_BASE_URL"], told["ANTHROPIC_AUTH_TOKEN"]) == (models.url, KEY)
    named = {name: value for name, value in told.items() if "MODEL" in name and "ANTHROPIC" in name}
    assert set(named.values()) == {"gpt-4"}
    assert {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"} < set(named)
    assert int(told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) == 65_536 // 4


def test_opencode(models: Models, key: str, programs: Path) -> None:
    found = started("opencode", "--url", models.url)
    config = json.loads(found["environment"]["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == config["small_model"] == "octavo/m/x"
    (provider,) = config["provider"].values()
    assert provider["options"] == {"baseURL": f"{models.url}/v1", "apiKey": "{env:OCTAVO_API_KEY}"}
    assert provider["models"]["m/x"]["limit"] == {"context": 65_536, "output": 16_384}
    assert found["environment"]["OCTAVO_API_KEY"] == KEY


@pytest.mark.parametrize("tool", TOOLS)
def test_print_is_what_a_shell_runs(tool: str, models: Models, key: str, programs: Path) -> None:
    """And shows no key."""
    done = octavo_command("launch", tool, "--url", models.url, "--print", "--", "a 'b'")
    assert done.returncode == 0
    assert KEY not in done.stdout + done.stderr
    run = subprocess.run(["sh", "-c", done.stdout], capture_output=True, text=True, check=False)
    printed = json.loads(run.stdout)
    direct = started(tool, "--url", models.url, "--", "a 'b'")
    assert printed["arguments"] == direct["arguments"]
    for name in json.loads(octavo_command("launch", tool, "--url", models.url, "--json").stdout)[
        "environment"
    ]:
        assert printed["environment"][name] == direct["environment"][name]


def test_json_starts_nothing(models: Models, capsys: pytest.CaptureFixture[str], key: str) -> None:
    assert main(["launch", "codex", "--url", models.url, "--json", "--", "exec", "hi"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["command"][0] == "codex"
    assert found["command"][-2:] == ["exec", "hi"]
    assert found["environment"] == {"OCTAVO_API_KEY": "$OCTAVO_API_KEY"}


def test_without_a_key_programs_get_a_word(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    models.answer = models.models(f"Bearer {KEY}")
    for tool in TOOLS:
        assert main(["launch", tool, "--url", models.url, "--json"]) == 0
        assert "none" in json.loads(capsys.readouterr().out)["environment"].values()


def test_what_is_not_installed_is_one_line(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, tool in TOOLS.items():
        assert main(["launch", name, "--url", models.url]) == 1
        assert capsys.readouterr().err == (
            f"octavo: error: {tool.program} is not installed: {tool.install}\n"
        )
        assert shlex.split(tool.install)[:3] == ["npm", "install", "-g"]
    assert models.paths == []


def body(*models: Any) -> tuple[int, bytes]:
    return 200, json.dumps({"object": "list", "data": list(models)}).encode()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((401, b"{}"), "asks for a key: set OCTAVO_API_KEY"),
        ((503, b"{}"), "is not ready"),
        ((404, b"{}"), "answers 404: it is no server of models"),
        ((200, b"<html>"), "answers no JSON"),
        ((200, b"[]"), "no Octavo server"),
        (body(), "no Octavo server"),
        (body({"id": "m"}, 5, {"id": 3, "max_model_len": 1}), "no Octavo server"),
        (body({"id": "m", "max_model_len": 9}), "no model 'x'; it has m"),
    ],
)
def test_servers_that_are_none(
    models: Models, answer: tuple[int, bytes], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    models.answer = answer
    wrong = "no model 'x'" in text  # which another flag would mend; a server that is none may be one later
    assert main(["launch", "codex", "--url", models.url, "-m", "x", "--print"]) == (2 if wrong else 1)
    out, err = capsys.readouterr()
    assert (out, text in err, err.count("\n")) == ("", True, 1)


def test_nobody_there_and_nothing_such(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    models.server.shutdown()
    models.server.server_close()
    for words, status, text in (
        (["codex", "--url", models.url, "--print"], 1, "octavo serve MODEL starts one"),
        (["codex", "--url", "127.0.0.1:8000", "--print"], 2, "--url takes an address such as"),
        (["aider"], 2, "no program 'aider' to launch; there are claude, codex, opencode"),
    ):
        assert main(["launch", *words]) == status
        assert text in capsys.readouterr().err


def test_a_short_context_is_a_warning(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    models.answer = body({"id": "m", "max_model_len": 2048})
    assert main(["launch", "claude", "--url", models.url, "--json"]) == 0
    assert "warning: the context is 2048 tokens" in capsys.readouterr().err
