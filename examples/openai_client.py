"""The official openai client against `octavo serve`: starts a server of its own, or uses one that runs."""

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import openai


@contextlib.contextmanager
def server(model: str) -> Iterator[str]:
    """The URL of a server on a free port; it is stopped afterwards, and drains."""
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:  # one JSON event a line; "ready" has the address
            event = json.loads(line)
            if event["event"] == "ready":
                yield event["url"]
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.communicate()


def talk(url: str, model: str, max_tokens: int) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="dummy")  # any key does where none is configured

    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=max_tokens,
        temperature=0,
    )
    print(answer.choices[0].message.content)
    print(answer.usage)

    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Tell me a short story."}],
        max_tokens=max_tokens,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--url", help="of a server that runs, such as http://127.0.0.1:8000")
    options = parser.parse_args()
    with contextlib.nullcontext(options.url) if options.url else server(options.model) as url:
        talk(url, options.model, options.max_tokens)


if __name__ == "__main__":
    main()
