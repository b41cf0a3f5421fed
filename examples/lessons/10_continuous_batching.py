"""Lesson on inference, 3.4.3 and 3.4.8, lines 134-149 and 320-327: three prompts at once, and LLM(...) with a
card's arguments.

What differs: nothing but the import and the model. On a CPU gpu_memory_utilization=0.9 is taken as 0.5, and
said so.
"""

import argparse
import warnings

from octavo import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=8)
    options = parser.parse_args()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the lesson's 0.9, on a CPU
        llm = LLM(model=options.model, tensor_parallel_size=1, gpu_memory_utilization=0.9)
    prompts = ["What is AI?", "Explain quantum computing", "Write a poem about nature"]
    sampling_params = SamplingParams(temperature=0.8, max_tokens=options.max_tokens)
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        print(f"{output.prompt} -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
