"""Names of cached pages that mean the same in every process: hashes over salt and tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 32


def root_key(salt: str | None) -> bytes:
    """The name of the empty prefix under a salt; from it no salt can be read."""
    said = b"" if salt is None else b"salt " + salt.encode("utf-8", "surrogatepass")
    return blake2b(said, digest_size=KEY_BYTES).digest()


def page_keys(key: bytes, tokens: Sequence[int], page_size: int) -> list[bytes]:
    """Names of the whole pages of tokens that follow the prefix with this name.

    Each is a hash over the name before it and the page's tokens, so that it names the salt and all
    tokens from the beginning on.
    """
    keys: list[bytes] = []
    for end in range(page_size, len(tokens) + 1, page_size):
        page = array("q", tokens[end - page_size : end])
        key = blake2b(key + page.tobytes(), digest_size=KEY_BYTES).digest()
        keys.append(key)
    return keys
