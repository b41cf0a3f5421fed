"""Lecture 10, 2, lines 26-35: pipeline("text-generation", model=...)(prompt, max_length=50), and the other
tasks it names.

What differs: the model; "gpt2" is the hub's openai-community/gpt2. max_length counts the prompt. Question
answering asks the model by a prompt. Summarization and translation need T5 or BART (--t5): by default a tiny
T5 of random weights, which babbles.
"""

import argparse
import runpy
import tempfile
from pathlib import Path

from octavo import pipeline

TEXT = "The library lends books to whoever asks, and asks for them back after a month."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="gpt2 in the lecture")
    parser.add_argument("--t5", help="for the tasks that rewrite texts")
    parser.add_argument("--max-tokens", type=int, default=16, help="50 in the lecture")
    options = parser.parse_args()

    generator = pipeline("text-generation", model=options.model)
    print(generator("AI will change the world", max_length=options.max_tokens))
    answerer = pipeline("question-answering", model=generator.llm)
    print(answerer(question="Where is the key?", context="The key is under the blue stone."))
    with tempfile.TemporaryDirectory() as folder:
        if options.t5 is None:
            runpy.run_path(str(Path(__file__).parents[1] / "encoder_decoder.py"))["tiny_t5"](Path(folder))
        summarizer = pipeline("summarization", model=options.t5 or folder)
        print(summarizer(TEXT, max_new_tokens=8, num_beams=1))
        translator = pipeline("translation", model=summarizer.llm)
        print(translator(TEXT, max_new_tokens=8, num_beams=1))


if __name__ == "__main__":
    main()
