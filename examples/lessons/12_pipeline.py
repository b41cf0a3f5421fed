"""Lecture 10, 2: pipeline("text-generation", model=...)(prompt, max_length=50), and the other tasks it
names.

What differs: the model; "gpt2" is the hub's openai-community/gpt2. max_length counts the prompt. Question
answering asks the model by a prompt. Summarization and translation need T5 or BART (../encoder_decoder.py).
"""

import argparse

from octavo import pipeline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="gpt2 in the lecture")
    parser.add_argument("--max-tokens", type=int, default=16, help="50 in the lecture")
    options = parser.parse_args()

    generator = pipeline("text-generation", model=options.model)
    print(generator("AI will change the world", max_length=options.max_tokens))
    answerer = pipeline("question-answering", model=generator.llm)
    print(answerer(question="Where is the key?", context="The key is under the blue stone."))


if __name__ == "__main__":
    main()
