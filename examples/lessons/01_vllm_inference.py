"""Lesson on inference optimization, 2.2, lines 82-135: the class VLLMInference, with only the import changed.

What differs: tensor_parallel_size above 1 is refused by name, for now; trust_remote_code is accepted, and no
code of a checkpoint is ever run; gpu_memory_utilization=0.9 is meant for a card, and taken as 0.5 of a CPU's
memory, which says so. The lesson's streaming_generate never sets self.model_name, and leaves the loop out:
both are here.
"""

import argparse
import asyncio
import warnings

from octavo import LLM, AsyncEngineArgs, AsyncLLMEngine, SamplingParams


class VLLMInference:
    """An engine behind one call."""

    def __init__(self, model_name: str, tensor_parallel_size: int = 1, gpu_memory_utilization: float = 0.9):
        self.model_name = model_name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the lesson's 0.9, on a CPU
            self.llm = LLM(
                model=model_name,
                tensor_parallel_size=tensor_parallel_size,
                gpu_memory_utilization=gpu_memory_utilization,
                trust_remote_code=True,
            )

    def generate(
        self, prompts: list[str], max_tokens: int = 256, temperature: float = 0.7, top_p: float = 0.9
    ) -> list[dict[str, object]]:
        """All prompts at once."""
        sampling_params = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens)
        outputs = self.llm.generate(prompts, sampling_params)
        return [
            {
                "prompt": output.prompt,
                "generated": output.outputs[0].text,
                "tokens": len(output.outputs[0].token_ids),
            }
            for output in outputs
        ]

    def streaming_generate(self, prompt: str, max_tokens: int) -> list[str]:
        """The same as a stream: each piece of text as it comes."""

        async def stream() -> list[str]:
            engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=self.model_name))
            params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=max_tokens)
            pieces, seen = [], ""
            async for output in engine.generate(prompt, params, request_id="r1"):
                pieces.append(output.outputs[0].text[len(seen) :])
                seen = output.outputs[0].text
            engine.shutdown()
            return pieces

        return asyncio.run(stream())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=8)
    options = parser.parse_args()

    engine = VLLMInference(options.model)
    for result in engine.generate(["What is paging?", "A leaf is"], max_tokens=options.max_tokens):
        print(f"{result['prompt']}{result['generated']} ({result['tokens']} tokens)")
    print("".join(engine.streaming_generate("Once upon a time,", options.max_tokens)))


if __name__ == "__main__":
    main()
