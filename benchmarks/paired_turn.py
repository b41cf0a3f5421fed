"""One turn of paired.py: what a tree's LLM takes, as one line of JSON. Only octavo's public names are used.

paired_turn.py MODEL TINY '{"threads": 2, "quick": false}'

Decoding is what more tokens take, prompts aside: the difference of two runs. Each figure is the least of
its repetitions: whatever disturbs a process makes it slower.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import octavo
from octavo import LLM, SamplingParams
from octavo.kernels import _native

PROMPT, LONG = 16, 512
REPEAT = 3


def seconds(llm: LLM, prompts: list[list[int]], new_tokens: int) -> float:
    """What it takes to complete all prompts greedily, by so many tokens each."""
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    # A whole pass takes 12 ms and comes by what was allocated before: in the one of two runs whose times are
    # subtracted, it was a tenth of the host's time.
    gc.collect()
    start = time.perf_counter()
    llm.generate(asked, params, use_tqdm=False)
    return time.perf_counter() - start


def least(measure: Callable[[int], float], repeat: int = REPEAT) -> float:
    """Of so many runs after one that warms up."""
    return min([measure(number) for number in range(repeat + 1)][1:])


def random_prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, vocabulary) for _ in range(length)] for _ in range(count)]


def step(llm: LLM, streams: int, steps: int, vocabulary: int) -> float:
    """Seconds of a decoding step."""

    def measure(number: int) -> float:
        prompts = random_prompts(streams, PROMPT, vocabulary, number)
        one = seconds(llm, prompts, 1)
        return (seconds(llm, prompts, 1 + steps) - one) / steps

    return least(measure)


def main(model: str, tiny: str, options: dict[str, Any]) -> None:
    steps = 8 if options["quick"] else 64
    common: dict[str, Any] = {"enable_prefix_caching": False, "max_num_seqs": 32}
    llm = LLM(model, threads=options["threads"], max_model_len=1024, **common)

    def prompt(number: int) -> float:
        return seconds(llm, random_prompts(1, LONG, 4000, number), 1)

    figures = {
        "decode_1_ms": 1e3 * step(llm, 1, steps, 4000),
        "decode_32_ms": 1e3 * step(llm, 32, steps, 4000),
        "prompt_ms": 1e3 * least(prompt),
    }
    small = LLM(tiny, threads=1, max_model_len=512, **common)
    figures["host_us"] = 1e6 * step(small, 32, 4 * steps, 256)
    origin = {"octavo": octavo.__file__, "extension": _native.__file__}
    print(json.dumps({"figures": figures, "origin": origin}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
