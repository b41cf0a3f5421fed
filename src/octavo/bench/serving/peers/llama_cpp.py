"""llama.cpp's own server (tools/server/README.md there)."""

from __future__ import annotations

from octavo.bench.serving.peers import Peer


def command(program: str, model: str, port: int) -> list[str]:
    """Prompts are computed anew, as others compute them (--no-cache-prompt)."""
    return [program, "--model", model, "--host", "127.0.0.1", "--port", str(port), "--no-cache-prompt"]


PEER = Peer("llama.cpp", "llama-server", True, False, command)
