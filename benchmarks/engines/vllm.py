"""vLLM's CPU build, on a folder of safetensors."""

from __future__ import annotations

from typing import Any

import vllm

from engines.base import Timing, by_difference


class Engine:
    """options: LLM's own. Its threads follow the affinity of the process."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        given = {"dtype": "float32", "enforce_eager": True, "enable_prefix_caching": False, **options}
        self._llm = vllm.LLM(model, disable_log_stats=True, **given)
        self.version = vllm.__version__
        self.notes = " ".join(f"{name}={value}" for name, value in given.items())

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]

        def generate(count: int) -> None:
            params = vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
            self._llm.generate(inputs, params, use_tqdm=False)

        return by_difference(generate, prompts, new_tokens)
