"""What the caches keep: Octavo's own, of aliases, and huggingface_hub's, which other programs share.

models--org--name/refs/<revision>            the commit that it means
models--org--name/snapshots/<commit>/<file>  links to blobs; several commits may share one
models--org--name/blobs/<hash>               the bytes
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.checkpoints import hub, sources
from octavo.checkpoints.hub import Repository
from octavo.errors import CheckpointError

GGUF, FOLDER, INCOMPLETE = "gguf", "safetensors", "incomplete"


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A model in a cache.

    Attributes:
        name: as MODEL takes it.
        format: gguf or safetensors; incomplete, where a pull has not ended.
        path: its file or folder.
        size: bytes on the disk.
        last_used: seconds since 1970. The time of access, which many systems write once a day.
    """

    name: str
    format: str
    path: Path
    size: int
    last_used: float


def kept_models(cache_dir: Path | None = None) -> list[KeptModel]:
    """Every model of both caches that Octavo could read, aliases first, then by name.

    Args:
        cache_dir: Octavo's own cache; None is the default one.
    """
    aliases = []
    for alias in sources.ALIASES:
        path = sources.place(alias, cache_dir)
        if path.is_file():
            whole = GGUF if sources.cached(alias, cache_dir) else INCOMPLETE
            aliases.append(_model(alias, whole, path, [path]))
    return [*aliases, *(model for id in hub.repositories() for model in _of_repository(id))]


def remove(model: str, cache_dir: Path | None = None) -> None:
    """Take out of the cache what kept_models() lists under that name; `org/name` with all its revisions.

    Raises:
        CheckpointError: nothing of that name is in the cache, or it is a file or folder of the user's own.
    """
    doomed = removable(model, cache_dir)
    if model in sources.ALIASES:
        sources.remove(model, cache_dir)
        return
    repo = Repository.parse(model)
    assert repo is not None, "removable() has parsed it"
    home = hub.home_of(repo)
    if repo.revision is None and repo.file is None:
        _forget(home)
        return
    blobs = {link.resolve() for link in doomed}
    for link in doomed:
        link.unlink()
    _sweep(home, blobs)


def removable(model: str, cache_dir: Path | None = None) -> list[Path]:
    """The files that remove() would take out of the cache.

    Raises:
        CheckpointError: see remove().
    """
    if model in sources.ALIASES:
        files = [path for path in (sources.place(model, cache_dir),) if path.is_file()]
    elif model and _is_path(model):
        raise CheckpointError(f"{model} is a path of yours; only what octavo pull has brought is removed")
    else:
        repo = Repository.parse(model)
        files = [] if repo is None else _files(repo)
    if not files:
        raise CheckpointError(f"{model[:200]!r} is not in the cache; octavo list says what is")
    return files


def _is_path(model: str) -> bool:
    try:
        return Path(model).expanduser().exists()
    except (OSError, RuntimeError):  # a name too long, or a ~user that does not exist
        return False


def _files(repo: Repository) -> list[Path]:
    """All files of a repository, or the links of one revision, or to one file."""
    home = hub.home_of(repo)
    if repo.revision is None and repo.file is None:
        return [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
    return [
        path
        for revision, folder in _commits(home).items()
        if repo.revision in (None, revision)
        for path in folder.rglob("*")
        if repo.file in (None, path.relative_to(folder).as_posix()) and not path.is_dir()
    ]


def _of_repository(id: str) -> Iterator[KeptModel]:
    """The models of each commit: a folder of safetensors, or GGUF files."""
    home = hub.home_of(Repository(id))
    unfinished = any((home / hub.UNCHECKED).glob("*"))
    found = False
    for revision, folder in sorted(_commits(home).items()):
        at = "" if revision == hub.MAIN else f"@{revision}"
        if any(folder.glob("*.safetensors")):
            found, files = True, [path for path in folder.rglob("*") if path.is_file()]
            whole = hub.cached(Repository(id, revision)) is not None
            yield _model(f"{id}{at}", FOLDER if whole else INCOMPLETE, folder, files)
        for path in sorted(folder.rglob("*.gguf")):
            found, name = True, f"{id}/{path.relative_to(folder).as_posix()}{at}"
            yield _model(name, INCOMPLETE if unfinished else GGUF, path, [path])
    if unfinished and not found:
        yield _model(id, INCOMPLETE, home, [path for path in home.rglob("*") if path.is_file()])


def _commits(home: Path) -> dict[str, Path]:
    """The folder of each revision of a repository. A commit that no revision means any more is its own."""
    named: dict[str, Path] = {}
    refs = home / "refs"
    for ref in sorted(path for path in refs.rglob("*") if path.is_file()):
        folder = home / "snapshots" / ref.read_text().strip()
        if folder.is_dir():
            named[ref.relative_to(refs).as_posix()] = folder
    known = set(named.values())
    return named | {path.name: path for path in (home / "snapshots").glob("*") if path not in known}


def _sweep(home: Path, blobs: set[Path]) -> None:
    """Remove blobs that no commit links to any more, and what is empty then."""
    left = {path.resolve() for path in (home / "snapshots").rglob("*") if not path.is_dir()}
    if not left:
        _forget(home)
        return
    for blob in blobs - left:
        if blob.parent == (home / "blobs").resolve():  # and not what a link leads to elsewhere
            blob.unlink(missing_ok=True)
            (home / hub.UNCHECKED / blob.name).unlink(missing_ok=True)
    for folder in sorted((home / "snapshots").rglob("*"), reverse=True):
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()


def _forget(home: Path) -> None:
    """Remove a repository, and the locks of its files."""
    shutil.rmtree(home)
    shutil.rmtree(home.parent / ".locks" / home.name, ignore_errors=True)


def _model(name: str, format: str, path: Path, files: Iterable[Path]) -> KeptModel:
    states = {file.resolve(): file.stat() for file in files}.values()
    size = sum(state.st_size for state in states)
    return KeptModel(name, format, path, size, max((state.st_atime for state in states), default=0.0))
