"""transformers' server: pip install 'transformers[serving]'."""

from __future__ import annotations

from octavo.bench.serving.peers import Peer


def command(program: str, model: str, port: int) -> list[str]:
    """One model, whichever a request names."""
    return [program, "serve", "--host", "127.0.0.1", "--port", str(port), "--force-model", model]


PEER = Peer("transformers", "transformers", False, True, command)
