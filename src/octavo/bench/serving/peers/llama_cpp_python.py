"""The server of llama.cpp's Python package (pip install 'llama-cpp-python[server]'): one answer at a time."""

from __future__ import annotations

from octavo.bench.serving.peers import Peer


def command(program: str, model: str, port: int) -> list[str]:
    """program: a Python that has the package."""
    return [program, "-m", "llama_cpp.server", "--model", model, "--host", "127.0.0.1", "--port", str(port)]


PEER = Peer("llama-cpp-python", "python3", True, False, command)
