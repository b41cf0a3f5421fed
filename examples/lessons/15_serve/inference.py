"""Lecture 10, 5, lines 112, 120 and 129: inference.py, the client beside vllm.sh, tgi.sh and sglang.sh.

What differs: nothing; the model's name is the server's, whichever it is.
"""

import argparse

import openai


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-tokens", type=int, default=16)
    options = parser.parse_args()

    client = openai.OpenAI(base_url=f"http://localhost:{options.port}/v1", api_key="dummy")
    response = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "What is deep learning?"}],
        max_tokens=options.max_tokens,
    )
    print(response.choices[0].message.content)


if __name__ == "__main__":
    main()
