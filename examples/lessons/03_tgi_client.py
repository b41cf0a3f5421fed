"""Lesson on inference optimization, 3.2, lines 187-254: a container's TGI server, and its class TGIClient.

What differs: `docker run ... IMAGE` has Octavo's image (the flags behind it are the same, and here they start
`octavo serve`); --num-shard stays 1: 2 is refused by name, for now; --quantize says what the default model's
file is, gguf, and awq goes with AWQ files. The client is huggingface_hub's own: get_model_info() is gone from
it, get_endpoint_info() asks /info, and wants provider= beside a URL. With return_full_text=False a whole
answer begins where the prompt ends; a stream never has the prompt.
"""

import argparse
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from huggingface_hub import InferenceClient


class TGIClient:
    """A client of one server."""

    def __init__(self, endpoint: str = "http://localhost:8080"):
        self.client = InferenceClient(endpoint, provider="hf-inference")

    def generate(
        self, prompt: str, max_new_tokens: int = 256, temperature: float = 0.7, stream: bool = False
    ) -> Any:
        """An answer with its details, or its texts as they come."""
        if stream:
            return self._stream_generate(prompt, max_new_tokens, temperature)
        return self.client.text_generation(
            prompt, max_new_tokens=max_new_tokens, temperature=temperature, details=True
        )

    def _stream_generate(self, prompt: str, max_new_tokens: int, temperature: float) -> Iterator[str]:
        yield from self.client.text_generation(
            prompt, max_new_tokens=max_new_tokens, temperature=temperature, stream=True
        )

    def get_model_info(self) -> dict[str, Any]:
        return self.client.get_endpoint_info()


def tgi_example(endpoint: str, max_new_tokens: int) -> None:
    client = TGIClient(endpoint)
    response = client.generate("Write a short poem about AI:", max_new_tokens=max_new_tokens)
    print(response.generated_text)
    print(f"{response.details.generated_tokens} tokens of {client.get_model_info()['model_id']}")
    print("\nStreaming:")
    for token in client.generate("Once upon a time,", max_new_tokens=max_new_tokens, stream=True):
        print(token, end="", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=16)
    options = parser.parse_args()

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # docker run -p 8080:80 -v $PWD/data:/data octavo, and from here on what the lesson has:
    flags = ["--model-id", options.model, "--num-shard", "1", "--quantize", "gguf"]
    server = subprocess.Popen([sys.executable, "-m", "octavo", "serve", *flags, "--port", port])
    try:
        while server.poll() is None:
            try:
                with urllib.request.urlopen(f"http://localhost:{port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.1)
        tgi_example(f"http://localhost:{port}", options.max_tokens)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
