"""Octavo's own server, with this Python."""

from __future__ import annotations

from octavo.bench.serving.peers import Peer


def command(program: str, model: str, port: int) -> list[str]:
    """Prefixes are not kept: each round asks for the same prompts."""
    return [program, "serve", model, "--port", str(port), "--no-enable-prefix-caching"]


PEER = Peer("octavo", "octavo", True, True, command)
