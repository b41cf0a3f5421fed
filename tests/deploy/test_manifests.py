"""deploy/ and Dockerfile: flags exist, probes are routes, grace covers the drain, ports agree."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement

from octavo.cli._app import build
from octavo.engine.async_engine import AsyncEngine
from octavo.entrypoints.container import MODULE, PORT, command_of
from octavo.server.app import create_app
from octavo.server.signals import END_S, STALLED
from octavo.server.state import ServerSettings
from support.asgi import call
from support.cli import command, environment
from support.fake_engine import FakeEngine

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MARGIN_S = 5
"""With END_S the 20 seconds that docs/how-to/serve.md tells supervisors to add."""
SILENT_S = inspect.signature(AsyncEngine.__init__).parameters["stall_s"].default
"""So long after its last progress /live and the watchdog hear that a step hangs."""
ACCOUNT = 10001


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def unit() -> Mapping[str, list[str]]:
    """systemd's unit: each name with its values; where it stands several times, all of them."""
    found = defaultdict(list)
    for line in text_of("deploy/octavo.service").replace("\\\n", " ").splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


def one(name: str) -> str:
    (value,) = unit()[name]
    return value


def seconds(text: str) -> float:
    number, letters = re.fullmatch(r"(\d+)(s|min|)", text).groups()  # type: ignore[union-attr]
    return int(number) * (60 if letters == "min" else 1)


def compose() -> Any:
    return yaml.safe_load(text_of("deploy/compose.yaml"))


def manifest(kind: str) -> Any:
    (found,) = (
        each for each in yaml.safe_load_all(text_of("deploy/kubernetes.yaml")) if each["kind"] == kind
    )
    return found


def pod() -> Any:
    return manifest("Deployment")["spec"]["template"]["spec"]


def container() -> Any:
    (found,) = pod()["containers"]
    return found


def dockerfile() -> list[tuple[str, str]]:
    lines = re.sub(r"^#.*\n", "", text_of("Dockerfile"), flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line)]


@dataclass(frozen=True)
class Place:
    """One way to run the server: words after `octavo`, how long it has to end, where it writes and reads."""

    words: Callable[[], Sequence[str]]
    grace_s: Callable[[], float] = lambda: float("inf")
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()

    def flags(self, *more: str) -> dict[str, Any]:
        """What `octavo serve` makes of them."""
        first, *rest = self.words()
        assert first == "serve"
        group: Any = typer.main.get_command(build(["serve"]))
        return group.commands["serve"].make_context("serve", [*rest, *more]).params


PLACES = {
    "systemd": Place(
        lambda: one("ExecStart").split()[1:],
        lambda: seconds(one("TimeoutStopSec")),
        ("/var/cache/octavo",),
        ("/etc/octavo",),
    ),
    "compose": Place(
        lambda: compose()["services"]["octavo"]["command"],
        lambda: seconds(compose()["services"]["octavo"]["stop_grace_period"]),
        ("/data",),
        ("/run/secrets",),
    ),
    "kubernetes": Place(
        lambda: container()["args"],
        lambda: pod()["terminationGracePeriodSeconds"],
        ("/data",),
        ("/etc/octavo",),
    ),
    "image": Place(lambda: command_of(json.loads(dict(dockerfile())["CMD"]), {}), writable=("/data",)),
}
SUPERVISED = {name: place for name, place in PLACES.items() if name != "image"}
all_places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
supervised = pytest.mark.parametrize("place", SUPERVISED.values(), ids=SUPERVISED)


@all_places
def test_every_flag_is_one_of_serve(place: Place) -> None:
    assert place.flags()["port"] == (PORT if place is PLACES["image"] else 8000)
    with pytest.raises(Exception, match="--no-such-flag"):  # of typer's, wherever its version keeps it
        place.flags("--no-such-flag")


@supervised
def test_grace_covers_the_drain(place: Place) -> None:
    flags = place.flags()
    assert place.grace_s() >= flags["drain_delay"] + flags["drain_timeout"] + END_S + MARGIN_S


@supervised
def test_clients_hear_of_a_hang_before_a_supervisor_acts(place: Place) -> None:
    """--stall-timeout answers those that wait; whoever restarts the server strikes later, and not never."""
    assert SILENT_S < place.flags()["stall_timeout"] < 300


@all_places
def test_what_is_written_and_read_lies_in_a_mount(place: Place) -> None:
    flags = place.flags()
    for name, folders in (("prefix_cache_dir", place.writable), ("api_key_file", place.readable)):
        path = flags[name]
        if place is not PLACES["image"]:
            assert any(PurePosixPath(path).is_relative_to(folder) for folder in folders), (name, path)
    told = [rest for word, rest in dockerfile() if word == "ENV"] + [one("Environment")]
    caches = re.findall(r"(?:XDG_CACHE|HF)_HOME=(\S+)", " ".join(told))
    assert len(caches) == 4
    assert all(PurePosixPath(path).parts[:2] in (("/", "data"), ("/", "var")) for path in caches)


def test_a_server_runs_as_the_unit_says(tmp_path: Path) -> None:
    """Its own flags, with other places; systemd hears that it is ready, that it lives and that it stops."""
    (tmp_path / "keys.toml").write_text('[alice]\nkey = "secret"\n', encoding="utf-8")
    words = " ".join(PLACES["systemd"].words())
    words = words.replace("/etc/octavo", str(tmp_path)).replace("/var/cache/octavo", str(tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        told = {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": str(int(one("WatchdogSec")) * 10**6),
        }
        process = subprocess.Popen(
            command(*words.split(), "--port=0", "--drain-delay=0", scripted=True),
            env=environment() | told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            heard = ""
            while "READY=1" not in heard:
                heard += systemd.recv(4096).decode() + "\n"
            assert "WATCHDOG=1" in heard
            process.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in heard:
                heard += systemd.recv(4096).decode() + "\n"
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, err
    assert "warning" not in out


def test_the_watchdog_strikes_after_the_stall_timeout() -> None:
    """The last sign of life may be a third of its time old when the server falls silent."""
    waits = seconds(one("WatchdogSec"))
    assert SILENT_S + waits * 2 / 3 > PLACES["systemd"].flags()["stall_timeout"]
    assert one("Type") == "notify"


def test_systemd_restarts_what_hung_and_not_what_was_typed_wrong() -> None:
    assert one("Restart") == "on-failure"
    assert int(one("RestartForceExitStatus")) == STALLED
    assert one("RestartPreventExitStatus") == "2"
    assert "SuccessExitStatus" not in unit()
    assert one("OOMPolicy") == "continue", "a helper that is ended for its memory ends nobody else"
    assert one("KillMode") == "mixed", "helpers are needed until the last request has ended"


HARDENED = {
    "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes",
    "CapabilityBoundingSet": "", "RestrictNamespaces": "yes", "SystemCallArchitectures": "native",
    "LimitCORE": "0", "MemorySwapMax": "0", "User": "octavo", "MemoryDenyWriteExecute": "yes",
}  # fmt: skip


def test_the_unit_is_hardened_and_leaves_what_is_needed() -> None:
    assert {name: one(name) for name in HARDENED} == HARDENED
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} == set(one("RestrictAddressFamilies").split())
    assert "ProcSubset" not in unit(), "free memory is read from /proc/meminfo"
    assert one("CacheDirectory") == "octavo"
    assert int(one("LimitNOFILE")) >= 4 * PLACES["systemd"].flags()["max_concurrent_requests"]
    assert one("MemoryMax").endswith("G")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "octavo.service"
    copy.write_text(
        text_of("deploy/octavo.service").replace("/opt/octavo/bin/octavo", shutil.which("true") or "")
    )
    verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    copy.write_text(copy.read_text().replace("OOMPolicy=continue", "OOMPolicy=perhaps"))
    assert "OOM policy" in subprocess.run(verify, capture_output=True, text=True, check=False).stderr


PROBES = {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/live"}


@pytest.mark.parametrize(("probe", "path"), PROBES.items())
def test_a_probe_asks_a_path_that_needs_no_key(probe: str, path: str) -> None:
    asked = container()[probe]["httpGet"]
    assert asked["path"] == path
    app = create_app(FakeEngine(), ServerSettings(api_keys=("k",)))
    assert asyncio.run(call(app, "GET", asked["path"])).status == 200
    assert asyncio.run(call(app, "GET", asked["path"] + "x")).status == 401
    assert asked["port"] in {port["name"] for port in container()["ports"]}


def lasts(probe: str) -> int:
    """Seconds of bad answers after which Kubernetes acts."""
    return int(container()[probe]["periodSeconds"] * container()[probe]["failureThreshold"])


def test_probes_act_in_their_order() -> None:
    flags = PLACES["kubernetes"].flags()
    assert flags["drain_delay"] >= lasts("readinessProbe"), (
        "nobody sends any more before requests are refused"
    )
    assert SILENT_S + lasts("livenessProbe") > flags["stall_timeout"]
    assert lasts("startupProbe") >= 1800, "a model may have to be pulled"
    assert "preStop" not in json.dumps(pod()), "--drain-delay is the pause"


def test_the_pod_is_nobody_and_writes_where_it_is_told() -> None:
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert pod()["securityContext"]["runAsUser"] == pod()["securityContext"]["fsGroup"] == ACCOUNT
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod()["automountServiceAccountToken"] is False
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container()["resources"]["limits"] == container()["resources"]["requests"]
    mounts = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    assert mounts == {"cache": "/data", "keys": "/etc/octavo", "tmp": "/tmp"}
    assert {each["name"] for each in pod()["volumes"]} == set(mounts)
    (claim,) = (each["persistentVolumeClaim"] for each in pod()["volumes"] if "persistentVolumeClaim" in each)
    assert claim["claimName"] == manifest("PersistentVolumeClaim")["metadata"]["name"]
    assert manifest("Deployment")["spec"]["strategy"] == {"type": "Recreate"}, "the volume is one pod's"


def test_selectors_find_the_pod() -> None:
    labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert manifest("Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("Service")["spec"]["selector"] == labels
    assert manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert manifest("NetworkPolicy")["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_the_composed_server_is_nobody_and_writes_where_it_is_told() -> None:
    server = compose()["services"]["octavo"]
    assert (server["read_only"], server["cap_drop"]) == (True, ["ALL"])
    assert server["security_opt"] == ["no-new-privileges:true"]
    assert server["mem_limit"] == server["memswap_limit"], "no swap"
    assert server["restart"] == "unless-stopped", f"which status {STALLED} is a reason for"
    assert "ports" not in server, "only the proxy is reached from outside"
    assert [volume.split(":")[1] for volume in server["volumes"]] == ["/data"]
    assert set(server["secrets"]) == set(compose()["secrets"])
    assert (ROOT / "deploy" / server["build"]["context"] / "Dockerfile").is_file()


def test_ports_agree() -> None:
    (policy,) = manifest("NetworkPolicy")["spec"]["ingress"]
    ports = {place.flags()["port"] for place in SUPERVISED.values()}
    ports |= {container()["ports"][0]["containerPort"], manifest("Service")["spec"]["ports"][0]["port"]}
    ports |= {policy["ports"][0]["port"], *map(int, compose()["services"]["octavo"]["expose"])}
    ports |= {int(port) for port in re.findall(r"reverse_proxy octavo:(\d+)", text_of("deploy/Caddyfile"))}
    ports |= {int(port) for port in re.findall(r"server 127\.0\.0\.1:(\d+);", text_of("deploy/nginx.conf"))}
    assert ports == {8000}
    assert [int(rest) for word, rest in dockerfile() if word == "EXPOSE"] == [PORT]


Directive = tuple[list[str], "list[Directive]"]


def nginx() -> list[Directive]:
    """nginx.conf as directives: words, and what stands in braces."""
    text = re.sub(r"(?m)^\s*#.*$", "", text_of("deploy/nginx.conf"))
    tokens = iter(re.findall(r"\"[^\"]*\"|'[^']*'|[{};]|(?:\$\{|[^\s{};])+", text))

    def block() -> list[Directive]:
        found: list[Directive] = []
        words: list[str] = []
        for token in tokens:
            if token == "}":
                assert not words, f"no semicolon after {words}"
                return found
            if token in (";", "{"):
                found.append((words, block() if token == "{" else []))
                words = []
            else:
                words.append(token.strip("\"'"))
        assert not words
        return found

    found = block()
    assert next(tokens, None) is None, "a brace too many"
    return found


def directives(inside: list[Directive] | None = None) -> list[list[str]]:
    return [
        each
        for words, more in (nginx() if inside is None else inside)
        for each in (words, *directives(more or []))
    ]


def nginx_says(*begin: str) -> list[str]:
    """The words behind these; they stand there once."""
    (found,) = {tuple(words[len(begin) :]) for words in directives() if words[: len(begin)] == list(begin)}
    return list(found)


def bytes_of(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(m|MiB)", text).groups()  # type: ignore[union-attr]
    assert unit in ("m", "MiB")
    return int(number) << 20


def test_nginx_passes_tokens_on_and_bodies_that_the_server_takes() -> None:
    flags = PLACES["systemd"].flags()
    assert nginx_says("proxy_buffering") == nginx_says("proxy_cache") == nginx_says("gzip") == ["off"]
    assert nginx_says("proxy_http_version") == ["1.1"]
    assert bytes_of(nginx_says("client_max_body_size")[0]) == flags["max_body_bytes"]
    assert seconds(nginx_says("proxy_read_timeout")[0]) > flags["queue_timeout"] + flags["stall_timeout"]
    assert nginx_says("proxy_set_header", "X-Request-Id") == ["$octavo_request_id"]
    assert nginx_says("proxy_set_header", "Connection") == [""], "connections are kept"
    kept = next(seconds(w[1]) for w in directives() if w[0] == "keepalive_timeout")
    assert kept < flags["timeout_keep_alive"]
    assert nginx_says("proxy_next_upstream") == ["off"]


def test_nginx_calls_the_server_by_a_name_that_it_takes() -> None:
    assert PLACES["systemd"].flags()["host"] == "127.0.0.1", "where names are asked for"
    assert nginx_says("proxy_set_header", "Host") == ["$host"]
    assert nginx_says("server_name") == list(PLACES["systemd"].flags()["allowed_hosts"])


def test_nginx_takes_over_the_names_that_the_server_takes() -> None:
    from octavo.server.edge import REQUEST_ID

    (pattern,) = (
        words[0] for words in directives() if words[-1] == "$http_x_request_id" and words[0][0] == "~"
    )
    assert pattern == f"~^{REQUEST_ID.pattern.decode()}$"


def test_caddy_passes_tokens_on_and_bodies_that_the_server_takes() -> None:
    text, flags = text_of("deploy/Caddyfile"), PLACES["compose"].flags()
    assert text.count("{") == text.count("}")
    said = dict(re.findall(r"^\s+([a-z_]+) (\S+)$", text, re.MULTILINE))
    assert said["flush_interval"] == "-1"
    assert bytes_of(said["max_size"]) == flags["max_body_bytes"]
    assert seconds(said["response_header_timeout"]) > flags["queue_timeout"] + flags["stall_timeout"]
    assert seconds(said["keepalive"]) < flags["timeout_keep_alive"]
    assert said["health_uri"] == "/ready"
    assert "request_header @unnamed X-Request-Id" in text
    (mount,) = (each for each in compose()["services"]["proxy"]["volumes"] if "Caddyfile" in each)
    assert (DEPLOY / mount.split(":")[0]).is_file()


def targets() -> dict[str, list[tuple[str, str]]]:
    """The Dockerfile's stages by their names; the last one has none."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for word, rest in dockerfile():
        if word == "FROM":
            name = rest.partition(" AS ")[2]
        found.setdefault(name, []).append((word, rest))
    return found


def installs(stage: list[tuple[str, str]]) -> list[str]:
    return [
        part for word, rest in stage if word == "RUN" for part in rest.split("&&") if "pip install" in part
    ]


def test_the_image_is_built_in_two_stages_and_runs_as_nobody() -> None:
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    assert {word for word, _ in dockerfile()} == known | {"ENTRYPOINT", "CMD"}
    stages = targets()
    assert list(stages) == ["build", "cpu", "cuda", ""]
    assert stages[""] == [("FROM", "cpu")], "without a target it is the one for CPUs"
    cpu = stages["cpu"]
    assert stages["build"][0][1].removesuffix(" AS build") == cpu[0][1].removesuffix(" AS cpu")
    assert "g++" not in " ".join(rest for _, rest in cpu)
    assert [rest for word, rest in cpu if word == "USER"] == [f"{ACCOUNT}:{ACCOUNT}"]
    assert json.loads(dict(cpu)["ENTRYPOINT"]) == ["python", "-m", MODULE]
    found = installs(stages["build"])
    assert all("--require-hashes" in part or "--no-deps" in part for part in found)
    assert len(found) == 3


def test_the_image_for_gpus_is_the_other_with_torch() -> None:
    stage = targets()["cuda"]
    assert stage[0] == ("FROM", "cpu AS cuda")
    assert [rest for word, rest in stage if word == "USER"] == ["0:0", f"{ACCOUNT}:{ACCOUNT}"]
    assert stage[-1][0] == "USER"
    (install,) = installs(stage)
    assert "-r /opt/octavo/cuda.txt" in install
    pinned = dict(
        line.split("==") for line in text_of("constraints/cuda.txt").splitlines() if line[:1] not in "#"
    )
    wanted = [Requirement(line) for line in PYPROJECT["project"]["optional-dependencies"]["cuda"]]
    tested = dict(re.findall(r"^(torch|triton)==(\S+)", text_of("constraints/test.txt"), re.MULTILINE))
    assert pinned == {each.name: tested[each.name] for each in wanted}
    assert all(each.specifier.contains(pinned[each.name]) for each in wanted)
    written = [value for word, rest in stage if word == "ENV" for value in rest.split() if "DIR=" in value]
    assert [value.split("=")[1].startswith("/data/") for value in written] == [True]


def test_what_the_image_copies_is_there_and_not_left_out() -> None:
    *_, ignored = (text_of(".dockerignore").split("*\n!", 1)[1],)
    taken = {line.lstrip("!") for line in ignored.splitlines() if "**" not in line}
    copies = [rest.split()[:-1] for word, rest in dockerfile() if word == "COPY" and "--from" not in rest]
    sources = {PurePosixPath(path) for paths in copies for path in paths}
    assert all((ROOT / path).exists() for path in sources)
    assert {path.parts[0] for path in sources} == taken


def test_pages_name_every_file() -> None:
    page = text_of("docs/how-to/deploy.md")
    files = [*(path.name for path in DEPLOY.iterdir() if path.is_file()), "Dockerfile"]
    assert len(files) >= 6
    assert all(name in page for name in files), os.linesep.join(files)


UNIT, COMPOSE, KUBERNETES = "deploy/octavo.service", "deploy/compose.yaml", "deploy/kubernetes.yaml"
MISTAKES = [
    (UNIT, "--stall-timeout 120", "--stal-timeout 120", test_every_flag_is_one_of_serve),
    (UNIT, "TimeoutStopSec=85", "TimeoutStopSec=84", test_grace_covers_the_drain),
    (COMPOSE, "stop_grace_period: 85s", "stop_grace_period: 1min", test_grace_covers_the_drain),
    (KUBERNETES, "--drain-delay=15", "--drain-delay=16", test_grace_covers_the_drain),
    (KUBERNETES, "--stall-timeout=120", "--stall-timeout=0",
     test_clients_hear_of_a_hang_before_a_supervisor_acts),
    (COMPOSE, "=/data/prefixes", "=/cache/prefixes", test_what_is_written_and_read_lies_in_a_mount),
    (UNIT, "WatchdogSec=120", "WatchdogSec=60", test_the_watchdog_strikes_after_the_stall_timeout),
    (UNIT, "RestartForceExitStatus=75", "RestartPreventExitStatus=75",
     test_systemd_restarts_what_hung_and_not_what_was_typed_wrong),
    (UNIT, "=AF_UNIX AF_INET", "=AF_INET", test_the_unit_is_hardened_and_leaves_what_is_needed),
    (KUBERNETES, "failureThreshold: 9", "failureThreshold: 6", test_probes_act_in_their_order),
    (KUBERNETES, "--drain-delay=15", "--drain-delay=5", test_probes_act_in_their_order),
    (KUBERNETES, "runAsNonRoot: true", "runAsNonRoot: false",
     test_the_pod_is_nobody_and_writes_where_it_is_told),
    (KUBERNETES, "  selector: {app: octavo}", "  selector: {app: octave}", test_selectors_find_the_pod),
    (COMPOSE, "read_only: true", "read_only: false",
     test_the_composed_server_is_nobody_and_writes_where_it_is_told),
    (KUBERNETES, "containerPort: 8000", "containerPort: 8080", test_ports_agree),
    ("deploy/nginx.conf", "server 127.0.0.1:8000;", "server 127.0.0.1:8080;", test_ports_agree),
    ("deploy/nginx.conf", "proxy_buffering off", "proxy_buffering on",
     test_nginx_passes_tokens_on_and_bodies_that_the_server_takes),
    ("deploy/nginx.conf", "keepalive_timeout 60s", "keepalive_timeout 75s",
     test_nginx_passes_tokens_on_and_bodies_that_the_server_takes),
    (UNIT, "--allowed-hosts llm.example.org", "--allowed-hosts llm.example.com",
     test_nginx_calls_the_server_by_a_name_that_it_takes),
    ("deploy/nginx.conf", "{1,128}$", "{1,129}$", test_nginx_takes_over_the_names_that_the_server_takes),
    ("deploy/Caddyfile", "max_size 4MiB", "max_size 5MiB",
     test_caddy_passes_tokens_on_and_bodies_that_the_server_takes),
    ("Dockerfile", "USER 10001:10001", "USER 0:0", test_the_image_is_built_in_two_stages_and_runs_as_nobody),
    ("Dockerfile", "--no-cache-dir --require-hashes -r constraints/runtime.txt", "-r constraints/runtime.txt",
     test_the_image_is_built_in_two_stages_and_runs_as_nobody),
    ("Dockerfile", "\nFROM cpu\n", "\nFROM cuda\n", test_the_image_is_built_in_two_stages_and_runs_as_nobody),
    ("constraints/cuda.txt", "torch==2", "torch==1", test_the_image_for_gpus_is_the_other_with_torch),
    (".dockerignore", "!csrc\n", "", test_what_the_image_copies_is_there_and_not_left_out),
]  # fmt: skip
WHERE = {UNIT: "systemd", COMPOSE: "compose", KUBERNETES: "kubernetes"}


@pytest.mark.parametrize(("file", "right", "wrong", "test"), MISTAKES)
def test_mistakes_are_noticed(
    monkeypatch: pytest.MonkeyPatch, file: str, right: str, wrong: str, test: Callable[..., None]
) -> None:
    text, given = text_of(file), text_of
    assert right in text
    monkeypatch.setitem(
        globals(), "text_of", lambda name: text.replace(right, wrong) if name == file else given(name)
    )
    places = [PLACES[WHERE[file]]] if "place" in inspect.signature(test).parameters else []
    try:
        test(*places)
    except (AssertionError, ValueError):
        return
    except Exception as error:  # of typer's
        if "--stal-timeout" in str(error):
            return
        raise
    raise AssertionError(f"{right} may be {wrong}")
