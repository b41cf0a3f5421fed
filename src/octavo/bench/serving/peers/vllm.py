"""vLLM's server: pip install vllm (on a CPU a build of its own)."""

from __future__ import annotations

from octavo.bench.serving.peers import Peer


def command(program: str, model: str, port: int) -> list[str]:
    """Prefixes are not kept: each round asks for the same prompts."""
    words = [program, "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    return [*words, "--no-enable-prefix-caching"]


PEER = Peer("vllm", "vllm", True, True, command)
