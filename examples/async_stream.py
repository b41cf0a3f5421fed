"""Two streams at once over one engine, with vLLM's asynchronous names."""

import argparse
import asyncio

from octavo import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from octavo.params import RequestOutputKind

PROMPTS = {"tale": "Once upon a time,", "fact": "The octavo format is"}


async def stream(engine: AsyncLLMEngine, name: str, params: SamplingParams) -> None:
    """Print what is new as it comes. Leaving the loop early would abort the request."""
    async for output in engine.generate(PROMPTS[name], params, request_id=name):
        completion = output.outputs[0]
        print(f"{name}: {completion.text!r}", f"({completion.finish_reason})" if output.finished else "")


async def run(model: str, max_tokens: int) -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model))
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, output_kind=RequestOutputKind.DELTA)
    try:
        await asyncio.gather(*(stream(engine, name, params) for name in PROMPTS))
    finally:
        engine.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=32)
    options = parser.parse_args()
    asyncio.run(run(options.model, options.max_tokens))


if __name__ == "__main__":
    main()
