"""API keys: whose requests are served, and how many at once. The server keeps hashes of keys alone."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import os
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.server.errors import ApiError

logger = logging.getLogger("octavo.server")

VARIABLE = "OCTAVO_API_KEY"
"""The one environment variable that configures Octavo: other users can read a command line, by `ps`."""
LOOK_S = 2.0
SAY_S = 60.0
MAX_FILE_BYTES = 1 << 20
FIELDS = {"key", "sha256", "max_concurrent_requests", "requests_per_minute"}


@dataclass(slots=True)
class KeyUse:
    """What the requests of one key have used of its limits. Reading the file of keys again keeps it.

    Attributes:
        in_flight: requests that are answered now.
        credit: requests that may begin at once; it grows with time, up to a minute's worth.
        at: when credit was last counted, in seconds of a clock.
    """

    in_flight: int = 0
    credit: float = float("inf")
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, by its hash.

    Attributes:
        name: how logs call it; empty where nobody named it.
        digest: SHA-256 of the key.
        max_concurrent_requests, requests_per_minute: None is no limit of its own.
    """

    name: str
    digest: bytes
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    use: KeyUse = field(default_factory=KeyUse, compare=False)

    @property
    def owner(self) -> str:
        """Whose cached prefixes and stored responses it uses: its name's, so that a key can be replaced."""
        if self.name:
            return hashlib.sha256(b"name\0" + self.name.encode()).hexdigest()
        return self.digest.hex()

    def enter(self) -> None:
        """A request of this key begins.

        Raises:
            ApiError: 429, it has too many in flight, or began too many within a minute.
        """
        if self.max_concurrent_requests is not None and self.use.in_flight >= self.max_concurrent_requests:
            message = f"this key has {self.max_concurrent_requests} requests in flight already"
            raise _too_many(message, 1)
        if self.requests_per_minute is not None:
            self._spend(self.requests_per_minute, time.monotonic())
        self.use.in_flight += 1

    def leave(self) -> None:
        """A request of this key has ended."""
        self.use.in_flight -= 1

    def _spend(self, rate: int, now: float) -> None:
        use = self.use
        use.credit = min(float(rate), use.credit + (now - use.at) * rate / 60)
        use.at = now
        if use.credit < 1:
            wait = math.ceil((1 - use.credit) * 60 / rate)
            raise _too_many(f"this key may begin {rate} requests a minute", wait)
        use.credit -= 1


def _too_many(message: str, wait_s: int) -> ApiError:
    headers = {"retry-after": str(wait_s)}
    return _error(429, f"{message}; try again later", "rate_limit_error", "rate_limit", headers)


def _error(status: int, message: str, kind: str, code: str, headers: dict[str, str]) -> ApiError:
    # Imported here: the command reads a file of keys, and names its faults, before it imports the server.
    from octavo.server.errors import ApiError

    return ApiError(status, message, kind, code=code, headers=headers)


class ApiKeys:
    """The API keys that requests may bring: given ones, and those of a file, read again when it changes.

    Args:
        given: as clients send them.
        file: see read_keys.

    Raises:
        InvalidRequestError: the file cannot be read, or there is no key in it.
    """

    def __init__(self, given: Iterable[str] = (), file: Path | None = None) -> None:
        self._given = tuple(ApiKey("", _digest(key)) for key in given)
        self._file = file
        self._seen = _state_of(file)
        self._keys = self._given + (() if file is None else read_keys(file))
        self._num_refused = 0
        self._said_at = float("-inf")

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, headers: Iterable[tuple[bytes, bytes]]) -> ApiKey | None:
        """The key that a request brings: `Authorization: Bearer KEY` or `x-api-key: KEY`, whichever is known.

        It is compared with every key, in constant time, so that the time tells nothing of the keys.
        """
        keys = self._keys
        found: ApiKey | None = None
        for token in _tokens(headers):
            digest = hashlib.sha256(token).digest()
            for key in keys:
                if hmac.compare_digest(key.digest, digest):
                    found = found or key
        return found

    def require(self, headers: Iterable[tuple[bytes, bytes]]) -> ApiKey:
        """As find().

        Raises:
            ApiError: 401, no key, or none of these.
        """
        found = self.find(headers)
        if found is None:
            self._note_refusal()
            raise _error(
                401,
                "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
                "authentication_error",
                "invalid_api_key",
                {"www-authenticate": "Bearer"},
            )
        return found

    def _note_refusal(self) -> None:
        """Log that requests were refused for their keys, at most once in SAY_S seconds."""
        self._num_refused += 1
        now = time.monotonic()
        if now - self._said_at >= SAY_S:
            logger.warning("requests refused for want of a valid key: %d", self._num_refused)
            self._num_refused, self._said_at = 0, now

    def refresh(self) -> None:
        """Read the file again if it has changed. What cannot be read changes nothing, but is logged."""
        if self._file is None or (state := _state_of(self._file)) == self._seen:
            return
        self._seen = state
        try:
            read = read_keys(self._file)
        except InvalidRequestError as error:
            logger.warning("%s; the keys stay as they were", error)
            return
        uses = {key.owner: key.use for key in self._keys}
        kept = (_with_use(key, uses.get(key.owner, key.use)) for key in read)
        self._keys = self._given + tuple(kept)
        logger.warning("read %d API keys from %s", len(read), self._file)

    async def follow(self) -> None:
        """refresh() every LOOK_S seconds, away from the event loop: the file may be on a network."""
        while self._file is not None:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.refresh)


def read_keys(file: Path) -> tuple[ApiKey, ...]:
    """The keys of a file: one a line, or where its name ends in .toml, tables by name.

        [alice]
        key = "..."                  # or sha256 = "64 hexadecimal digits"
        max_concurrent_requests = 8
        requests_per_minute = 600

    Raises:
        InvalidRequestError: in one line what is wrong, without any key.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise InvalidRequestError(f"cannot read the API keys of {file}: {why}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequestError(f"cannot read the API keys of {file}: more than {MAX_FILE_BYTES} bytes")
    if file.suffix == ".toml":
        keys = _of_tables(file, text)
    else:
        lines = (line.strip() for line in text.splitlines())
        keys = tuple(ApiKey("", _digest(line)) for line in lines if line and not line.startswith("#"))
    if not keys:
        raise InvalidRequestError(f"there is no API key in {file}")
    if len({key.digest for key in keys}) < len(keys):
        raise InvalidRequestError(f"{file} holds one API key twice")
    return keys


def from_environment() -> tuple[str, ...]:
    """The key of OCTAVO_API_KEY, which is taken out: what this process starts need not inherit it.

    Raises:
        InvalidRequestError: it is set, and empty.
    """
    key = os.environ.pop(VARIABLE, None)
    if key is not None and not key.strip():
        raise InvalidRequestError(f"{VARIABLE} must not be empty")
    return () if key is None else (key.strip(),)


def _of_tables(file: Path, text: str) -> tuple[ApiKey, ...]:
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        # Not the error's own words: they may quote a key.
        raise InvalidRequestError(f"{file} is no valid TOML") from None
    return tuple(_of_table(file, name, table) for name, table in tables.items())


def _of_table(file: Path, name: str, table: Any) -> ApiKey:
    where = f"{file}, [{name}]"
    if not isinstance(table, dict):
        raise InvalidRequestError(f"{file}: {name} is no table; write [NAME] and below it key = ...")
    if unknown := set(table) - FIELDS:
        raise InvalidRequestError(
            f"{where}: unknown field {min(unknown)!r}; known: {', '.join(sorted(FIELDS))}"
        )
    key, digest = table.get("key"), table.get("sha256")
    given = digest if key is None else key
    if (key is None) == (digest is None) or not isinstance(given, str):
        raise InvalidRequestError(f"{where}: give key or sha256, as text")
    try:
        found = bytes.fromhex(given) if key is None else _digest(given)
    except ValueError:
        found = b""
    if len(found) != 32 or key == "":
        raise InvalidRequestError(f"{where}: key is empty, or sha256 is not 64 hexadecimal digits")
    limits: dict[str, Any] = {}
    for field_name in ("max_concurrent_requests", "requests_per_minute"):
        value = table.get(field_name)
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidRequestError(f"{where}: {field_name} must be a whole number above 0")
        limits[field_name] = value
    return ApiKey(name, found, **limits)


def _with_use(key: ApiKey, use: KeyUse) -> ApiKey:
    return ApiKey(key.name, key.digest, key.max_concurrent_requests, key.requests_per_minute, use)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _tokens(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[bytes]:
    """What a request brings as its key: at most one of each header, as UTF-8 too where it is Latin-1."""
    seen = set()
    for name, value in headers:
        name = name.lower()
        if name not in (b"authorization", b"x-api-key") or name in seen:
            continue
        seen.add(name)
        if name == b"authorization":
            scheme, _, value = value.partition(b" ")
            if scheme.lower() != b"bearer":
                continue
        token = value.strip()
        yield token
        if not token.isascii():
            yield token.decode("latin-1").encode()


def _state_of(file: Path | None) -> tuple[int, int, int] | None:
    """What changes when the file does; None: there is none."""
    if file is None:
        return None
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
