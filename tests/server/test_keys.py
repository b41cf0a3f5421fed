"""API keys: from arguments, files and the environment; in either header; with limits; reloaded."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import time
from pathlib import Path

import pytest
from fastapi import FastAPI

from octavo.errors import InvalidRequestError
from octavo.server import keys
from octavo.server.app import create_app
from octavo.server.errors import ApiError
from octavo.server.keys import ApiKeys, from_environment, read_keys
from support.asgi import Reply, call, get, post
from support.fake_engine import FakeEngine
from support.live import run, running

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}]}
TOML = """
[alice]
key = "first"
max_concurrent_requests = 1
[bob]
sha256 = "{}"
requests_per_minute = 2
""".format(hashlib.sha256(b"second").hexdigest())


def opened(store: ApiKeys, *headers: tuple[str, str]) -> str | None:
    found = store.find([(name.encode(), value.encode()) for name, value in headers])
    return None if found is None else found.name


def app_of(store: ApiKeys, engine: FakeEngine | None = None) -> FastAPI:
    return create_app(engine or FakeEngine(), None, store)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", "Bearer right")],
        [("authorization", "bearer  right ")],
        [("X-Api-Key", "right")],
        [("authorization", "Basic dTpw"), ("x-api-key", "right")],
        [("x-api-key", "wrong"), ("authorization", "Bearer right")],
        [("authorization", "Bearer wrong"), ("x-api-key", "right")],
    ],
)
def test_either_header_opens(headers: list[tuple[str, str]]) -> None:
    assert opened(ApiKeys(["other", "right"]), *headers) == ""


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "right")],
        [("authorization", "Basic right")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("x-api-key", "")],
        [("x-api-key", "righ")],
        [("x-api-key", "wrong"), ("x-api-key", "right")],  # a guess a request
    ],
)
def test_nothing_else_does(headers: list[tuple[str, str]]) -> None:
    assert opened(ApiKeys(["right"]), *headers) is None


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_a_key_that_is_no_ascii(encoding: str) -> None:
    store = ApiKeys(["schlüssel"])
    assert store.find([(b"authorization", b"Bearer " + "schlüssel".encode(encoding))]) is not None
    assert store.find([(b"x-api-key", "schlussel".encode(encoding))]) is None


def test_what_opened_tells_whose_the_request_is() -> None:
    """A wrong key beside it does not change whose prefixes and stored responses these are."""
    engine = FakeEngine()
    app = app_of(ApiKeys(["right", "other"]), engine)
    for headers in (bearer("right"), {**bearer("wrong"), "x-api-key": "right"}, bearer("other")):
        assert post(app, CHAT, BODY, headers=headers).status == 200
    first, second, third = (each.cache_salt for each in engine.calls)
    assert first == second != third


def test_keys_are_kept_as_hashes() -> None:
    secret = "sk-" + os.urandom(8).hex()
    store = ApiKeys([secret])
    assert opened(store, ("x-api-key", secret)) == ""
    held = [
        each
        for each in gc.get_referents(store, *store._keys, *store.__dict__.values())
        if isinstance(each, str)
    ]
    assert not any(secret in each for each in held)
    assert secret not in repr(store._keys)


def write(tmp_path: Path, text: str | bytes, name: str = "keys") -> Path:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_file_of_lines(tmp_path: Path) -> None:
    file = write(tmp_path, "# ours\nfirst\n\n  second  \r\na = b\n")
    store = ApiKeys((), file)
    assert [opened(store, ("x-api-key", key)) for key in ("first", "second", "a = b", "# ours")] == [
        "",
        "",
        "",
        None,
    ]


def test_a_file_of_tables(tmp_path: Path) -> None:
    store = ApiKeys(["third"], write(tmp_path, TOML, "keys.toml"))
    assert [opened(store, ("x-api-key", key)) for key in ("first", "second", "third", "bob")] == [
        "alice", "bob", "", None
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("keys", "", "there is no API key"),
        ("keys", "# only this\n", "there is no API key"),
        ("keys", b"\xff\xfe", "no UTF-8"),
        ("keys", "secret\nsecret", "one API key twice"),
        ("keys", "s" * (1 << 20) + "s", "more than 1048576 bytes"),
        ("keys.toml", "", "there is no API key"),
        ("keys.toml", "key = secret", "no valid TOML"),
        ("keys.toml", 'key = "secret"', "key is no table"),
        ("keys.toml", '[a]\nkey = "secret"\n[b]\nkey = "secret"', "one API key twice"),
        ("keys.toml", "[a]\n", "give key or sha256"),
        ("keys.toml", "[a]\nkey = 7", "give key or sha256"),
        ("keys.toml", '[a]\nkey = ""', "key is empty"),
        ("keys.toml", '[a]\nsha256 = "ab"', "64 hexadecimal digits"),
        ("keys.toml", '[a]\nsha256 = "secret"', "64 hexadecimal digits"),
        ("keys.toml", '[a]\nkey = "secret"\nsecret = 1', "unknown field 'secret'"),
        ("keys.toml", '[a]\nkey = "secret"\nrequests_per_minute = 0', "a whole number above 0"),
        ("keys.toml", '[a]\nkey = "secret"\nmax_concurrent_requests = true', "a whole number above 0"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(
    tmp_path: Path, name: str, text: str | bytes, why: str
) -> None:
    file = write(tmp_path, text, name)
    with pytest.raises(InvalidRequestError, match=why) as caught:
        read_keys(file)
    message = str(caught.value)
    assert "\n" not in message
    assert str(file) in message
    assert "secret" not in message.replace("field 'secret'", "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="No such file"):
        ApiKeys((), tmp_path / "none")


def test_the_variable_is_read_once_and_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(keys.VARIABLE, " secret\n")
    assert from_environment() == ("secret",)
    assert keys.VARIABLE not in os.environ
    assert from_environment() == ()
    monkeypatch.setenv(keys.VARIABLE, " ")
    with pytest.raises(InvalidRequestError, match="must not be empty"):
        from_environment()


def rewrite(file: Path, text: str) -> None:
    """As editors and secret mounts do: another file in its place."""
    other = file.with_name("other")
    other.write_text(text)
    os.utime(other, ns=(time.time_ns(), time.time_ns()))
    other.replace(file)


def test_a_changed_file_counts_without_a_restart(tmp_path: Path) -> None:
    file = write(tmp_path, "old")
    store = ApiKeys(["given"], file)
    rewrite(file, "new\nnewer")
    store.refresh()
    assert [opened(store, ("x-api-key", key)) for key in ("old", "new", "newer", "given")] == [
        None,
        "",
        "",
        "",
    ]


@pytest.mark.parametrize("text", ["", "\0" * (2 << 20), None])
def test_a_file_that_breaks_changes_nothing(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    file = write(tmp_path, "old")
    store = ApiKeys((), file)
    if text is None:
        file.unlink()
    else:
        rewrite(file, text)
    for _ in range(5):
        store.refresh()
    assert opened(store, ("x-api-key", "old")) == ""
    assert len(caplog.records) == 1
    assert "stay as they were" in caplog.text
    rewrite(file, "new")
    store.refresh()
    assert [opened(store, ("x-api-key", key)) for key in ("old", "new")] == [None, ""]


def test_a_running_server_follows_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "LOOK_S", 0.02)
    file = write(tmp_path, "old")
    app = create_app(None, None, ApiKeys((), file))

    async def test() -> None:
        async with running(FakeEngine(), app=app) as server:
            assert (await server.client.get("/version", headers=bearer("old"))).status_code == 200
            rewrite(file, "new")
            async with asyncio.timeout(20):
                while (await server.client.get("/version", headers=bearer("new"))).status_code != 200:
                    await asyncio.sleep(0.02)
            assert (await server.client.get("/version", headers=bearer("old"))).status_code == 401

    run(test)


def test_a_key_has_its_own_most_requests_at_once(tmp_path: Path) -> None:
    engine = FakeEngine()
    store = ApiKeys((), write(tmp_path, TOML, "keys.toml"))
    app = app_of(store, engine)

    async def crowd() -> list[Reply]:
        engine.hold = asyncio.Event()
        first = asyncio.ensure_future(call(app, "POST", CHAT, BODY, headers=bearer("first")))
        while not engine.calls:
            await asyncio.sleep(0)
        second = await call(app, "POST", CHAT, BODY, headers=bearer("first"))
        other = asyncio.ensure_future(call(app, "POST", CHAT, BODY, headers=bearer("second")))
        while len(engine.calls) < 2:
            await asyncio.sleep(0)
        engine.hold.set()
        return [
            await first,
            second,
            await other,
            await call(app, "POST", CHAT, BODY, headers=bearer("first")),
        ]

    replies = asyncio.run(crowd())
    assert [reply.status for reply in replies] == [200, 429, 200, 200]
    assert replies[1].error["code"] == "rate_limit"
    assert replies[1].headers["retry-after"] == "1"
    assert app.state.octavo.in_flight == 0


def test_a_key_has_its_own_rate_which_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file = write(tmp_path, TOML, "keys.toml")
    store = ApiKeys((), file)

    def begins() -> bool:
        key = store.find([(b"x-api-key", b"second")])
        assert key is not None
        if key.use.credit < 1 and now[0] - key.use.at < 30:
            with pytest.raises(ApiError, match="2 requests a minute") as caught:
                key.enter()
            assert caught.value.headers["retry-after"] == "30"
            return False
        key.enter()
        key.leave()
        return True

    assert [begins() for _ in range(3)] == [True, True, False]
    now[0] += 29
    rewrite(file, TOML + "\n# a reload forgives nothing")
    store.refresh()
    key = store.find([(b"x-api-key", b"second")])
    assert key is not None
    assert key.use.credit == 0
    now[0] += 1.5
    assert begins()
    now[0] += 3600
    assert [begins() for _ in range(2)] == [True, True]


def test_a_named_key_can_be_replaced_and_keeps_what_is_its_own(tmp_path: Path) -> None:
    def owner(key: str) -> str:
        (found,) = read_keys(write(tmp_path, f'[alice]\nkey = "{key}"', "keys.toml"))
        return found.owner

    assert owner("a") == owner("b")
    assert owner("a") not in (hashlib.sha256(b"a").hexdigest(), "alice")
    assert get(app_of(ApiKeys(["a"])), "/version", headers={"x-api-key": "a"}).status == 200


def test_the_log_says_once_a_minute_that_somebody_tries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    store = ApiKeys(["right"])
    for second in range(121):
        now[0] = 1000.0 + second
        for _ in range(10):
            with pytest.raises(ApiError):
                store.require([(b"x-api-key", b"guess")])
    assert [record.getMessage().rsplit(" ", 1)[1] for record in caplog.records] == ["1", "600", "600"]
    assert "guess" not in caplog.text
