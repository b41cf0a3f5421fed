"""transformers' pipeline, over Octavo: prompts in, records out."""

import argparse

import octavo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=40)
    options = parser.parse_args()

    generator = octavo.pipeline("text-generation", model=options.model)
    # max_length counts the prompt, as it does there.
    print(generator("AI will change the world", max_length=5 + options.max_tokens)[0]["generated_text"])

    chat = [{"role": "user", "content": "Say hello."}]
    answer = generator(chat, max_new_tokens=options.max_tokens, do_sample=False)
    print(answer[0]["generated_text"][-1])


if __name__ == "__main__":
    main()
