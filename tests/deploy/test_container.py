"""What the image starts, and how it asks whether that is healthy."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.entrypoints import container
from octavo.entrypoints.container import MODULE, command_of, healthy, port_of, started_with, unwritable
from octavo.errors import InvalidRequestError
from support.cli import SCRIPTED, environment

ROOT = Path(__file__).resolve().parents[2]
OPEN = ["--host", "0.0.0.0"]


@pytest.mark.parametrize(
    ("words", "variables", "command"),
    [
        ("--model-id M", {}, ["serve", "--model-id", "M", *OPEN, "--port", "80"]),
        ("--model-id M", {"PORT": "8080"}, ["serve", "--model-id", "M", *OPEN, "--port", "8080"]),
        ("--model-id M", {"PORT": ""}, ["serve", "--model-id", "M", *OPEN, "--port", "80"]),
        ("--port=9 -m M", {"PORT": "8080"}, ["serve", "--port=9", "-m", "M", *OPEN]),
        ("-m M --hostname h --port 9", {}, ["serve", "-m", "M", "--hostname", "h", "--port", "9"]),
        ("--uds /tmp/s", {}, ["serve", "--uds", "/tmp/s"]),
        ("--help", {}, ["serve", "--help"]),
        ("", {}, ["serve", *OPEN, "--port", "80"]),
        ("plan M", {"PORT": "x"}, ["plan", "M"]),
        ("serve M", {}, ["serve", "M"]),
    ],
)
def test_flags_alone_are_those_of_serve(words: str, variables: dict[str, str], command: list[str]) -> None:
    assert command_of(words.split(), variables) == command


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1", "8o80"])
def test_a_port_that_is_none_is_said_in_one_line(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidRequestError, match="PORT"):
        command_of(["--model-id", "M"], {"PORT": port})
    assert container.start(["--model-id", "M"], {"PORT": port}) == 2
    wanted = f"octavo: error: the variable PORT must be a port from 1 to 65535, not {port!r}\n"
    assert capsys.readouterr().err == wanted
    assert healthy(["--model-id", "M"], {"PORT": port}) == 1


def test_where_a_server_listens_is_read_from_its_command_line() -> None:
    words = ["/sbin/docker-init", "--", "python", "-m", MODULE, "serve", "M", "--port", "8000", ""]
    line = "\0".join(words).encode()
    assert started_with(line) == ["serve", "M", "--port", "8000"]
    assert port_of(started_with(line), {"PORT": "9"}) == 8000
    assert port_of(["--port=8001"], {}) == 8001
    assert port_of(["--port"], {}) == port_of([], {}) == 80
    assert started_with(b"bash\0") == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert unwritable(str(tmp_path)) is None
    assert "cannot be written by user" in (unwritable(str(tmp_path / "none")) or "")
    place = {"XDG_CACHE_HOME": str(tmp_path / "none")}
    assert container.start(["--model-id", "M", "--no-such-flag"], place) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"octavo: warning: .*/none cannot be written by user \d+ \(.*\): a model .*", first)
    assert "--no-such-flag" in second
    assert container.start(["--model-id", "M", "--no-such-flag"], {"XDG_CACHE_HOME": str(tmp_path)}) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_server_with_a_certificate_is_asked_by_https(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def urlopen(url: str, timeout: float, context: ssl.SSLContext | None) -> None:
        asked.append((url, context is not None))
        raise OSError

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    assert healthy(["serve", "--port", "9", "--ssl-certfile", "c.pem"], {}) == 1
    assert healthy(["--port=9"], {}) == 1
    assert asked == [("https://127.0.0.1:9/ready", True), ("http://127.0.0.1:9/ready", False)]


def test_the_image_serves_and_knows_that_it_is_healthy(tmp_path: Path) -> None:
    """Its entry point with a scripted engine behind it, on a free port that the variable names."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)[-1])
    assert entry == ["python", "-m", MODULE]
    assert f'CMD ["python", "-m", "{MODULE}", "--healthy"]' in dockerfile
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    start = (
        "import os\nfrom octavo.entrypoints.container import start\nsys.exit(start(sys.argv[1:], os.environ))"
    )
    scripted = SCRIPTED.replace("sys.exit(main(sys.argv[1:]))", start)
    variables = {"PORT": port, "XDG_CACHE_HOME": str(tmp_path)}
    assert healthy(["--model-id", "M"], variables) == 1
    process = subprocess.Popen(
        [sys.executable, "-c", scripted, "--model-id", "M", "--json"],
        env=environment() | variables, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said: list[dict[str, Any]] = []
        for line in process.stdout:
            said.append(json.loads(line))
            if said[-1]["event"] == "ready":
                break
        assert said[0] == {"event": "listening", "url": f"http://0.0.0.0:{port}"}
        assert healthy(["--model-id", "M"], variables) == 0
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0
