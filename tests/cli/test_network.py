"""The flags of `octavo serve` about the network: files, sockets, warnings, and what is wrong in one line."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from octavo.cli._network import NetworkFlags
from octavo.errors import InvalidRequestError, OctavoError
from octavo.server.listen import PortInUseError, bind_unix
from support.cli import command, environment

TLS = Path(__file__).resolve().parents[1] / "support" / "tls"
CERTIFICATE, KEY = TLS / "cert.pem", TLS / "key.pem"
BEARER = {"authorization": "Bearer secret"}
REFUSED = "requests refused for want of a valid key: 1\n"
"""What the log says once a minute; here of the one request that came without."""


def start(*words: str, **variables: str) -> tuple[subprocess.Popen[str], list[str]]:
    """A server with a scripted engine; its lines until it is ready."""
    process = subprocess.Popen(
        command("serve", "my-model", *words, scripted=True),
        env=environment() | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("ready:"):
            return process, lines
    raise AssertionError(f"it never was ready: {process.communicate()[1]}")


def end(process: subprocess.Popen[str]) -> str:
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return err


def test_a_unix_socket_and_a_key_of_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    process, lines = start("--uds", str(path), "--root-path", "/llm", OCTAVO_API_KEY="secret")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://any.name") as client:
        assert client.get("/health").status_code == 200
        assert client.get("/version").status_code == 401
        assert client.get("/llm/version", headers=BEARER).status_code == 200
    assert f"http+unix://{path}" in "".join(lines)
    assert "warning" not in "".join(lines)
    assert "secret" not in Path(f"/proc/{process.pid}/cmdline").read_text()
    assert end(process) == REFUSED + "engine shut\n"


def test_https_and_a_file_of_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[alice]\nkey = "secret"')
    words = ("--ssl-certfile", str(CERTIFICATE), "--ssl-keyfile", str(KEY), "--api-key-file", str(keys))
    process, lines = start("--host", "0.0.0.0", "--port", "0", *words)
    port = lines[0].rsplit(":", 1)[1].strip()
    import ssl

    context = ssl.create_default_context(cafile=CERTIFICATE)
    with httpx.Client(verify=context, base_url=f"https://localhost:{port}") as client:
        assert client.get("/version", headers=BEARER).status_code == 200
        assert client.get("/version").status_code == 401
    assert lines[0].startswith("listening on https://0.0.0.0:")
    assert "warning" not in "".join(lines)
    assert end(process) == REFUSED + "engine shut\n"


def test_while_a_model_is_pulled_probes_are_answered() -> None:
    process = subprocess.Popen(
        command("serve", "pulled", "--port", "0", scripted=True),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with httpx.Client(base_url=process.stdout.readline().split()[-1], timeout=60) as client:
        assert (client.get("/live").status_code, client.get("/live").json()) == (200, {"status": "starting"})
        assert (client.get("/ready").status_code, client.get("/health").status_code) == (503, 503)
        reply = client.post("/v1/completions", json={"prompt": "a"})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    end(process)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_server_on_the_loopback_of_ipv6() -> None:
    process, lines = start("--host", "::1", "--port", "0")
    address = lines[0].split()[-1]
    assert address.startswith("http://[::1]:")
    with httpx.Client(base_url=address) as client:
        assert client.get("/version").status_code == 200
        assert client.get("/version", headers={"host": "a.page.example"}).status_code == 403
    assert "warning" not in "".join(lines)
    end(process)


def test_an_open_address_without_a_key_warns() -> None:
    process, lines = start("--host", "0.0.0.0", "--port", "0")
    end(process)
    assert any("warning: whoever reaches 0.0.0.0" in line and "OCTAVO_API_KEY" in line for line in lines)


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_who_is_warned(host: str, warns: bool) -> None:
    flags = NetworkFlags(host=host, port=0)
    listener, _ = flags.listen()
    with listener:
        assert (flags.warning(listener, None) is not None) is warns
        assert flags.warning(listener, NetworkFlags(api_key=["k"]).keys()) is None
        hosts = flags.network(listener, 8).edge.hosts
        assert (hosts is None) is warns, "names are asked for where nobody else reaches the server"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (NetworkFlags(ssl_keyfile=KEY), "need --ssl-certfile"),
        (NetworkFlags(ssl_ca_certs=CERTIFICATE), "need --ssl-certfile"),
        (NetworkFlags(ssl_certfile=TLS / "none.pem"), "none.pem for TLS: No such file"),
        (NetworkFlags(ssl_certfile=CERTIFICATE, ssl_keyfile=TLS / "none.pem"), "none.pem for TLS: No such"),
        (NetworkFlags(ssl_certfile=CERTIFICATE), "cert.pem for TLS"),
        (NetworkFlags(ssl_certfile=CERTIFICATE, ssl_keyfile=KEY, ssl_ca_certs=KEY), "key.pem for TLS"),
        (NetworkFlags(root_path="llm"), "--root-path begins with a slash"),
        (NetworkFlags(root_path="/llm/"), "--root-path begins with a slash"),
        (NetworkFlags(uds=TLS), "no socket"),
        (NetworkFlags(uds=Path("/nowhere/a")), "No such file"),
        (NetworkFlags(uds=Path("/tmp/" + "x" * 200)), "too long"),
    ],
)
def test_what_is_wrong_is_one_line_before_a_model_is_loaded(flags: NetworkFlags, why: str) -> None:
    with pytest.raises(OctavoError, match=why) as caught:
        flags.listen()
    assert "\n" not in str(caught.value)


def test_keys_on_the_command_line_go_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "variable")
    keys = NetworkFlags(api_key=["typed"]).keys()
    assert keys is not None
    assert keys.find([(b"x-api-key", b"typed")]) is not None
    assert keys.find([(b"x-api-key", b"variable")]) is None
    assert NetworkFlags().keys() is None
    with pytest.raises(InvalidRequestError, match="--api-key must not be empty"):
        NetworkFlags(api_key=["k", ""]).keys()


@pytest.mark.parametrize(
    ("flags", "most", "each"),
    [
        (NetworkFlags(), 400, 200),
        (NetworkFlags(max_connections=9), 9, 4),
        (NetworkFlags(max_connections=9, max_connections_per_address=9), 9, 9),
        (NetworkFlags(max_connections=10**9), None, None),
    ],
)
def test_connections_are_bounded_below_the_open_files(
    flags: NetworkFlags, most: int | None, each: int | None
) -> None:
    import resource

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        limits = flags.network(listener, 100).limits
    assert limits.max_connections < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most is not None:
        assert (limits.max_connections, limits.max_connections_per_address) == (most, each)


def test_a_socket_that_a_dead_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    bind_unix(path).close()
    assert path.exists()
    with bind_unix(path), pytest.raises(PortInUseError, match="Address already in use"):
        bind_unix(path)


def test_nothing_but_a_socket_is_replaced(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "link"
    precious.write_text("precious")
    link.symlink_to(precious)
    for path in (precious, link, tmp_path):
        with pytest.raises(PortInUseError, match="no socket"):
            bind_unix(path)
    assert precious.read_text() == "precious"


def test_the_umask_says_who_may_use_a_unix_socket(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with bind_unix(tmp_path / "s"):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) & 0o077 == 0
    finally:
        os.umask(before)


def test_flags_are_looked_at_without_the_server() -> None:
    """What the server is made of takes long to import, and a wrong file should be told at once."""
    script = (
        "import sys; from octavo.cli._network import NetworkFlags; f = NetworkFlags(port=0, api_key=['k']); "
        "f.keys(); f.listen()[0].close(); print([m for m in ('fastapi', 'uvicorn') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
