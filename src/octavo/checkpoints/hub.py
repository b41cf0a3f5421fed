"""Hub ids: a repository's config, tokenizer and safetensors, through huggingface_hub's own cache.

    org/name                 a folder with config.json, or the repository's only .gguf file
    org/name@revision        a branch, a tag or a commit of it
    org/name/path/file.gguf  one file of it

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE are huggingface_hub's and mean what they always mean.
No code of a repository is downloaded, and no pickle. What is downloaded has the hash that the hub names.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from octavo.checkpoints.base import PICKLES, Progress, why_no_pickle
from octavo.checkpoints.safetensors import INDEX, indexed
from octavo.errors import CapacityError, CheckpointError

_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+?)(/[\w./ -]+\.gguf)?(?:@(\w[\w./-]*))?")
_GPT2, _T5 = "openai-community/", "google-t5/"
BARE = {
    **{name: _GPT2 + name for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
    **{name: _T5 + name for name in ("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b")},
    "distilgpt2": "distilbert/distilgpt2",
}
"""The hub's first models had no organisation, and lessons call them so still; no others can be added."""
MAIN = "main"
UNCHECKED = ".octavo-unchecked"
"""A folder in the repository's, with a mark for each file that is on its way or was not hashed yet."""
_SMALL = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Repository:
    """id: "org/name". revision: None is the main branch. file: one .gguf file of it, or None."""

    id: str
    revision: str | None = None
    file: str | None = None

    @staticmethod
    def parse(text: str) -> Repository | None:
        """None if the text cannot be a hub id."""
        bare, _, revision = text.partition("@")
        text = text if bare not in BARE else f"{BARE[bare]}@{revision}" if revision else BARE[bare]
        found = _ID.fullmatch(text)
        if found is None or ".." in text:
            return None
        return Repository(found[1], found[3], found[2] and found[2].removeprefix("/"))


def pull(
    repo: Repository, progress: Progress | None = None, force: bool = False, weights: bool = True
) -> Path:
    """Bring into the cache what it lacks of a repository; returns the folder, or the .gguf file.

    Whole files stay where a pull was cut short, and the next one goes on after them. Without a
    connection to the hub, or in offline mode, what the cache holds is taken if it is whole.

    Args:
        progress: called with (bytes so far, bytes in all) while downloading.
        force: download again what is there.
        weights: False for the config and the tokenizer alone.

    Raises:
        CheckpointError: no such repository or file, no access, no connection and nothing in the cache,
            or weights that are pickles.
        CapacityError: the disk is full.
    """
    try:
        commit, sizes, hashes = _contents(repo)
    except _UnreachableError as error:
        return _from_cache(repo, str(error), weights)
    fetch = _Fetch(repo, commit, sizes, hashes, force)
    files = _wanted(repo, commit, sizes, weights)
    if INDEX in files:  # which says how the weights are called
        files += sorted(indexed(fetch(INDEX)))
    fetch.announce(files, progress)
    for name in files:
        path = fetch(name)
    fetch.remember(files[0])
    return path if path.suffix == ".gguf" else _root(path, files[-1])


def cached(repo: Repository, weights: bool = True) -> Path | None:
    """What pull() would return, from the cache alone; None if it is not there, or not whole."""
    # The cache's documented layout: refs hold commits, each of which has a folder of links.
    home = home_of(repo)
    if weights and any((home / UNCHECKED).glob("*")):
        return None
    reference = home / "refs" / (repo.revision or MAIN)
    commit = reference.read_text().strip() if reference.is_file() else repo.revision or MAIN
    folder = home / "snapshots" / commit
    if repo.file is not None:
        return folder / repo.file if (folder / repo.file).is_file() else None
    if (folder / "config.json").is_file():
        return folder if not weights or _whole(folder) else None
    files = sorted(folder.glob("*.gguf"))
    return files[0] if len(files) == 1 else None


def home_of(repo: Repository) -> Path:
    """The repository's folder in the cache."""
    return _cache() / f"models--{repo.id.replace('/', '--')}"


def repositories() -> list[str]:
    """The ids of what the cache holds something of, whoever has brought it."""
    names = (folder.name.split("--") for folder in sorted(_cache().glob("models--*--*")))
    return ["/".join(name[1:]) for name in names if len(name) == 3]  # an id holds no "--"


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


class _UnreachableError(Exception):
    """The hub does not answer, or may not be asked."""


def _contents(repo: Repository) -> tuple[str, dict[str, int], dict[str, str]]:
    """The commit that the revision means, its files' sizes, and the SHA-256 of those that the hub has one of
    (all large ones)."""
    import huggingface_hub as hub
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        raise _UnreachableError("HF_HUB_OFFLINE is set")
    where = f"{constants.ENDPOINT}/{repo.id}"
    if not _private(constants.ENDPOINT) and hub.get_token() is not None:
        raise CheckpointError(
            f"{constants.ENDPOINT} is not https, so the token would be sent in the clear: "
            "change HF_ENDPOINT, or unset HF_TOKEN"
        )
    try:
        info = hub.HfApi().model_info(repo.id, revision=repo.revision, files_metadata=True, timeout=10)
    except errors.GatedRepoError:
        raise _restricted(repo) from None
    except errors.RevisionNotFoundError:
        raise CheckpointError(f"{where} has no revision {repo.revision!r}") from None
    except errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"there is no folder {repo.id} here, and no model {where}, or it is private: "
            "then set HF_TOKEN, or run: hf auth login"
        ) from None
    except errors.HFValidationError as error:
        raise CheckpointError(f"{repo.id!r} is no hub id: {error}") from None
    except Exception as error:  # of whichever HTTP library huggingface_hub uses
        raise _UnreachableError(f"{constants.ENDPOINT} does not answer ({_line(error)})") from None
    if info.sha is None:
        raise CheckpointError(f"{where} answers without a commit")
    files = info.siblings or ()
    hashes = {file.rfilename: file.lfs.sha256 for file in files if file.lfs is not None}
    return info.sha, {file.rfilename: file.size or 0 for file in files}, hashes


def _private(url: str) -> bool:
    """Whether nobody on the way can read what is sent there: https, or this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")


def _wanted(repo: Repository, commit: str, sizes: Mapping[str, int], weights: bool) -> list[str]:
    """The files to fetch, small ones first; shards follow from the index."""
    if repo.file is not None:
        if repo.file not in sizes:
            raise CheckpointError(f"{repo.id} has no file {repo.file} (at {commit[:12]})")
        return [repo.file]
    small = [name for name in _SMALL if name in sizes]
    if not weights and "config.json" in small:
        return small
    at_root = sorted(name for name in sizes if "/" not in name)
    ggufs = [name for name in at_root if name.endswith(".gguf")]
    tensors = [name for name in at_root if name.endswith(".safetensors")]
    if "config.json" in small and INDEX in sizes:
        return [*small, INDEX]
    if "config.json" in small and ("model.safetensors" in tensors or len(tensors) == 1):
        return [*small, "model.safetensors" if "model.safetensors" in tensors else tensors[0]]
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        names = ", ".join(ggufs[:8]) + (", ..." if len(ggufs) > 8 else "")
        raise CheckpointError(f"{repo.id} holds several GGUF files: give {repo.id}/FILE, one of {names}")
    pickles = [name for name in at_root if name.endswith(PICKLES)]
    if pickles:
        raise CheckpointError(f"{repo.id} holds its weights as {pickles[0]}, {why_no_pickle(repo.id)}")
    raise CheckpointError(f"{repo.id} holds no config.json with safetensors, and no GGUF file")


class _Fetch:
    """Downloads files one after the other, and counts the bytes of all of them."""

    def __init__(
        self, repo: Repository, commit: str, sizes: Mapping[str, int], hashes: Mapping[str, str], force: bool
    ) -> None:
        self._repo, self._commit, self._force = repo, commit, force
        self._sizes, self._hashes = sizes, hashes
        self._progress: Progress | None = None
        self._done = self._total = 0

    def announce(self, files: Sequence[str], progress: Progress | None) -> None:
        """From here on, progress is told of the bytes of these files."""
        self._progress, self._done = progress, 0
        self._total = sum(self._sizes.get(name, 0) for name in files)

    def __call__(self, name: str) -> Path:
        import huggingface_hub as hub

        if name not in self._sizes:
            raise CheckpointError(f"{INDEX} of {self._repo.id} names {name}, which is not there")
        known = hub.try_to_load_from_cache(self._repo.id, name, revision=self._commit)
        mark = self._mark(name)
        was_marked = mark is not None and mark.exists()
        # What was there was checked when it came, unless the process ended in between.
        to_check = self._force or was_marked or not isinstance(known, str)
        if was_marked:
            self._sweep(name)
        if mark is not None and to_check:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        try:
            path = self._download(name)
        except BaseException:
            if mark is not None and not was_marked:
                mark.unlink(missing_ok=True)  # nothing came
            raise
        if to_check:
            self._check(name, path)
        if mark is not None:
            mark.unlink(missing_ok=True)
        self._done += self._sizes[name]
        self._report(0)
        return path

    def _mark(self, name: str) -> Path | None:
        """A file that is there from before a file comes until it is checked; None: it has no hash."""
        wanted = self._hashes.get(name)
        return None if wanted is None else home_of(self._repo) / UNCHECKED / wanted

    def _sweep(self, name: str) -> None:
        """Remove what pulls that were killed have left of a file: each has written to one of its own."""
        from huggingface_hub import constants

        home, digest = home_of(self._repo), self._hashes[name]
        lock = Path(constants.HF_HUB_CACHE) / ".locks" / home.name / f"{digest}.lock"
        with contextlib.suppress(OSError), lock.open("rb") as file:  # there is none, or another pull has it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in (home / "blobs").glob(f"{digest}.*.incomplete"):
                left.unlink(missing_ok=True)

    def _download(self, name: str) -> Path:
        import huggingface_hub as hub
        from huggingface_hub import errors

        try:
            path = hub.hf_hub_download(
                self._repo.id,
                name,
                revision=self._commit,
                force_download=self._force,
                tqdm_class=self._bar(),
            )
        except errors.GatedRepoError:
            raise _restricted(self._repo) from None
        except OSError as error:
            if "Not enough free disk space" in str(error) or error.errno == 28:
                megabytes = -(-self._sizes[name] // 10**6)
                raise CapacityError(f"the disk is full: {name} needs {megabytes} MB") from None
            raise self._failed(name, error) from None
        except Exception as error:  # of whichever HTTP library huggingface_hub uses
            raise self._failed(name, error) from None
        return Path(path)

    def _check(self, name: str, path: Path) -> None:
        """Raise CheckpointError, and keep nothing, if a file is another than the hub names."""
        wanted = self._hashes.get(name)
        if wanted is None:  # small files, which git keeps itself
            return
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wanted:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise CheckpointError(
                f"{self._repo.id}: {name} came with other bytes than the hub's SHA-256 says; it was not kept"
            )

    def remember(self, name: str) -> None:
        """What the revision means now, for who is offline later: only of what is whole."""
        import huggingface_hub as hub

        if self._repo.revision == self._commit:
            return
        try:
            hub.hf_hub_download(self._repo.id, name, revision=self._repo.revision or MAIN)
        except Exception as error:  # of whichever HTTP library huggingface_hub uses
            raise self._failed(name, error) from None

    def _failed(self, name: str, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{self._repo.id}: downloading {name} failed ({_line(error)}); what is whole was kept, pull again"
        )

    def _report(self, current: int) -> None:
        if self._progress is not None:
            self._progress(min(self._done + current, self._total), self._total)

    def _bar(self) -> Any:
        """A class that huggingface_hub takes for tqdm: it only counts."""
        from huggingface_hub.utils.tqdm import tqdm

        report = self._report

        class Counter(tqdm):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                kwargs.pop("name", None)
                super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]  # tqdm has no types
                self._so_far = int(kwargs.get("initial") or 0)

            def update(self, n: float | None = 1) -> bool | None:
                self._so_far += int(n or 0)
                report(self._so_far)
                return None

        return Counter


def _whole(folder: Path) -> bool:
    if (folder / INDEX).is_file():
        return all((folder / name).is_file() for name in indexed(folder / INDEX))
    return any(folder.glob("*.safetensors"))


def _root(path: Path, name: str) -> Path:
    """The snapshot's folder, of the path of one of its files."""
    for _ in name.split("/"):
        path = path.parent
    return path


def _from_cache(repo: Repository, why: str, weights: bool) -> Path:
    found = cached(repo, weights)
    if found is None:
        raise CheckpointError(f"{why}, and the cache does not hold the whole of {repo.id}")
    return found


def _restricted(repo: Repository) -> CheckpointError:
    from huggingface_hub import constants

    return CheckpointError(
        f"access to {repo.id} is restricted: accept its conditions at {constants.ENDPOINT}/{repo.id}, "
        "then set HF_TOKEN, or run: hf auth login"
    )


def _line(error: Exception) -> str:
    """The first line of an error of others, cut to fit one line of ours."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:160]
