"""Hub ids against a small hub on loopback: what is fetched, resumed, taken from the cache, refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from octavo.checkpoints import open_checkpoint, sources
from octavo.checkpoints.hub import INDEX, Repository, cached, pull
from octavo.errors import CapacityError, CheckpointError
from support.small_hub import COMMIT, SmallHub, running

CONFIG = json.dumps({"model_type": "llama"}).encode()
ONE = save({"a": np.arange(200_000, dtype=np.float32)})
TWO = save({"b": np.ones(100_000, np.float32)})
INDEXED = json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}).encode()
SHARDED = {
    "README.md": b"#",
    "config.json": CONFIG,
    "tokenizer.json": b"{}",
    INDEX: INDEXED,
    "m-1.safetensors": ONE,
    "m-2.safetensors": TWO,
    "consolidated.safetensors": ONE,
    "original/m-1.safetensors": ONE,
    "modeling_novel.py": b"raise SystemExit",
    "pytorch_model.bin": b"\x80",
}
REPOSITORIES = {
    "org/sharded": SHARDED,
    "org/single": {"config.json": CONFIG, "model.safetensors": TWO},
    "org/gguf": {"README.md": b"#", "m-Q4_0.gguf": b"GGUF" + bytes(999)},
    "org/ggufs": {"m-Q4_0.gguf": b"GGUF", "m-Q8_0.gguf": b"GGUF8", "deep/er/m-F16.gguf": b"GGUF16"},
    "org/pickle": {"config.json": CONFIG, "pytorch_model.bin": b"\x80"},
    "org/empty": {"README.md": b"#"},
    "org/broken": {"config.json": CONFIG, INDEX: INDEXED, "m-1.safetensors": ONE},
    "org/private": {"config.json": CONFIG, "model.safetensors": TWO},
    "org/gated": {"config.json": CONFIG, "model.safetensors": TWO},
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallHub]:
    """The hub, which huggingface_hub takes for its own, with an empty cache."""
    from huggingface_hub import constants

    with running(SmallHub(dict(REPOSITORIES), private={"org/private"}, gated={"org/gated"})) as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        template = served.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("time.sleep", lambda _: None)  # between attempts
        yield served


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def names(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


# --- what is fetched --------------------------------------------------------------------------------


def test_shards_by_the_index_and_nothing_else(small: SmallHub) -> None:
    seen: list[tuple[int, int]] = []
    folder = sources.resolve("org/sharded", progress=lambda done, total: seen.append((done, total)))
    assert names(folder) == {"config.json", "tokenizer.json", INDEX, "m-1.safetensors", "m-2.safetensors"}
    tensors = open_checkpoint(folder).tensors
    assert set(tensors) == {"a", "b"}
    np.testing.assert_array_equal(tensors["a"].data.view(np.float32), np.arange(200_000))
    total = sum(len(SHARDED[name]) for name in names(folder))
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)


@pytest.mark.parametrize("revision", ["v1", COMMIT])
def test_a_revision(small: SmallHub, revision: str) -> None:
    assert sources.resolve(f"org/single@{revision}").name == COMMIT
    with pytest.raises(CheckpointError, match=r"org/single has no revision 'v2'"):
        sources.resolve("org/single@v2")


def test_gguf_files(small: SmallHub) -> None:
    assert sources.resolve("org/gguf").read_bytes() == REPOSITORIES["org/gguf"]["m-Q4_0.gguf"]
    assert sources.resolve("org/ggufs/m-Q8_0.gguf").read_bytes() == b"GGUF8"
    assert sources.resolve("org/ggufs/deep/er/m-F16.gguf@v1").read_bytes() == b"GGUF16"
    with pytest.raises(CheckpointError, match=r"give org/ggufs/FILE, one of m-Q4_0.gguf, m-Q8_0.gguf"):
        sources.resolve("org/ggufs")
    with pytest.raises(CheckpointError, match=r"org/ggufs has no file m-Q5_0.gguf"):
        sources.resolve("org/ggufs/m-Q5_0.gguf")


def test_the_tokenizer_alone(small: SmallHub) -> None:
    folder = sources.resolve("org/sharded", weights=False)
    assert names(folder) == {"config.json", "tokenizer.json"}
    assert cached(Repository("org/sharded"), weights=False) == folder
    assert cached(Repository("org/sharded")) is None


def test_a_token_opens_what_is_private(small: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"/org/private, or it is private: then set HF_TOKEN"):
        sources.resolve("org/private")
    monkeypatch.setenv("HF_TOKEN", small.token)
    assert (sources.resolve("org/private") / "model.safetensors").read_bytes() == TWO


def test_other_bytes_than_the_hub_names_are_not_kept(small: SmallHub) -> None:
    """Of the same size, so that nothing but the hash tells."""
    small.spoiled["model.safetensors"] = bytes(len(TWO))
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors came with other bytes than the hub's SHA-256"
    ):
        sources.resolve("org/single")
    assert cached(Repository("org/single")) is None
    small.spoiled.clear()
    assert (sources.resolve("org/single") / "model.safetensors").read_bytes() == TWO


def test_what_came_once_is_not_hashed_again(small: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pull(Repository("org/single"))
    monkeypatch.setattr("octavo.checkpoints.hub._Fetch._check", lambda *_: pytest.fail("hashed"))
    assert pull(Repository("org/single")) == folder


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "modeling_novel.py", "../m-1.safetensors", "original/m-1.safetensors"]
)
def test_an_index_names_safetensors_beside_it_and_nothing_else(small: SmallHub, name: str) -> None:
    index = json.dumps({"weight_map": {"a": "m-1.safetensors", "b": name}}).encode()
    small.repositories["org/sharded"] = SHARDED | {INDEX: index}
    with pytest.raises(CheckpointError, match="not a safetensors file beside it"):
        sources.resolve("org/sharded")
    assert not {file for file, _, _ in small.served} & {name, "m-1.safetensors"}


@pytest.mark.parametrize(
    "model", ["org/name@/etc/passwd", "org/name@../x", "org/name@", "org/name/../x.gguf"]
)
def test_a_revision_is_no_path(model: str) -> None:
    assert Repository.parse(model) is None


def test_a_token_is_not_sent_in_the_clear(small: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", small.token)
    assert sources.resolve("org/single")  # over http, to this machine
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    with pytest.raises(CheckpointError, match="the token would be sent in the clear: change HF_ENDPOINT"):
        sources.resolve("org/gguf")


# --- interrupted, resumed, cached -------------------------------------------------------------------


def test_a_broken_connection_goes_on_where_it_broke(small: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    small.cut["m-1.safetensors"] = 300_000
    folder = pull(Repository("org/sharded"))
    assert (folder / "m-1.safetensors").read_bytes() == ONE
    assert small.served[-2:] == [
        ("m-1.safetensors", 300_000, len(ONE) - 300_000),
        ("m-2.safetensors", 0, len(TWO)),
    ]


def test_a_pull_that_was_cut_short_keeps_what_is_whole(
    small: SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.repositories["org/sharded"] = {k: v for k, v in SHARDED.items() if k != "m-2.safetensors"}
    with pytest.raises(CheckpointError, match=r"names m-2\.safetensors, which is not there"):
        pull(Repository("org/sharded"))
    with monkeypatch.context() as offline:
        go_offline(offline)
        with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE is set, and the cache does not hold"):
            pull(Repository("org/sharded"))
    small.repositories["org/sharded"] = dict(SHARDED)
    folder = pull(Repository("org/sharded"))
    assert small.bytes_of("m-1.safetensors") == len(ONE)  # once, by the first
    assert set(open_checkpoint(folder).tensors) == {"a", "b"}


def test_what_is_there_is_not_fetched_again(small: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pull(Repository("org/single"))
    sent = len(small.served)
    assert pull(Repository("org/single")) == folder
    assert sources.resolve("org/single", pull=False) == folder
    assert len(small.served) == sent
    pull(Repository("org/single"), force=True)
    assert small.bytes_of("model.safetensors") == 2 * len(TWO)
    go_offline(monkeypatch)
    assert sources.resolve("org/single") == folder


def test_a_hub_that_does_not_answer(small: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    folder = pull(Repository("org/single"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert pull(Repository("org/single")) == folder
    with pytest.raises(CheckpointError, match=r"127.0.0.1:9 does not answer .* does not hold the whole of"):
        pull(Repository("org/sharded"))
    with pytest.raises(
        CheckpointError, match="org/sharded is not in the cache; run: octavo pull org/sharded"
    ):
        sources.resolve("org/sharded", pull=False)


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("org/nothing", r"no folder org/nothing here, and no model .*/org/nothing, or it is private"),
        ("org/gated", r"access to org/gated is restricted: accept its conditions at .*/org/gated"),
        ("org/pickle", r"pytorch_model.bin, a pickle, which can run code when .*convert it.*'org/pickle'"),
        ("org/empty", "holds no config.json with safetensors, and no GGUF file"),
        ("org/broken", "names m-2.safetensors, which is not there"),
    ],
)  # fmt: skip
def test_refusals(small: SmallHub, model: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        sources.resolve(model)


def test_a_full_disk(small: SmallHub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def full(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
    with pytest.raises(CapacityError, match=r"the disk is full: config.json needs 1 MB"):
        pull(Repository("org/single"))


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a/b", Repository("a/b")),
        ("a-1/b.c_d", Repository("a-1/b.c_d")),
        ("a/b@refs/pr/1", Repository("a/b", "refs/pr/1")),
        ("a/b/c d/e.gguf@v", Repository("a/b", "v", "c d/e.gguf")),
        ("a", None),
        ("/a/b", None),
        ("../a/b", None),
        ("a/b/../c.gguf", None),
        ("a/b/c", None),
        ("a/b@", None),
        ("a b/c", None),
        ("gpt2", Repository("openai-community/gpt2")),
        ("t5-small@main", Repository("google-t5/t5-small", "main")),
        ("distilgpt2", Repository("distilbert/distilgpt2")),
        ("gpt3", None),
    ],
)
def test_ids(text: str, parsed: Repository | None) -> None:
    assert Repository.parse(text) == parsed


# --- from the command line, as people set it up -----------------------------------------------------


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(small: SmallHub, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        given = {"HF_ENDPOINT": small.url, "HF_HOME": str(tmp_path / "home"), **changes}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | given
        source = str(Path(sources.__file__).parents[2])
        environment["PYTHONPATH"] = source
        line = [sys.executable, "-m", "octavo", *arguments]
        return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return run


def test_octavo_pull(command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    with running(SmallHub(dict(REPOSITORIES), private={"org/private"})) as small:
        done = command(small, "pull", "org/private", "--json", HF_TOKEN=small.token)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["bytes"] == len(CONFIG) + len(TWO)
        assert (Path(answer["path"]) / "model.safetensors").read_bytes() == TWO
        refused = command(small, "pull", "org/private")
        assert refused.returncode == 1
        assert "set HF_TOKEN" in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1
    again = command(small, "pull", "org/private", "--json", HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == answer
