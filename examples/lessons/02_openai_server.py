"""Lesson on inference optimization, 2.2, lines 138-157: the server of the OpenAI API, the client as pasted.

What differs: vLLM's module has another name (it is `octavo serve`), and --tensor-parallel-size stays 1: 2 is
refused by name, for now. The port is a free one here, and --served-model-name lets the client go on asking
for the lesson's model. Any api_key is accepted where none is configured.
"""

import argparse
import socket
import subprocess
import sys
import time
import urllib.request

import openai

NAME = "meta-llama/Llama-2-7b-chat-hf"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Until it answers."""
    while server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server has ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=8)
    options = parser.parse_args()

    port = free_port()
    module = [sys.executable, "-m", "octavo.entrypoints.openai.api_server"]
    flags = ["--model", options.model, "--tensor-parallel-size", "1", "--port", str(port)]
    server = subprocess.Popen([*module, *flags, "--served-model-name", NAME])
    try:
        url = f"http://localhost:{port}"
        wait_for(url, server)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="dummy")
        response = client.chat.completions.create(
            model="meta-llama/Llama-2-7b-chat-hf",
            messages=[{"role": "user", "content": "Hello!"}],
            max_tokens=options.max_tokens,
        )
        print(response.choices[0].message.content)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
