"""OpenVINO GenAI, which reads GGUF files of Llama's family itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino_genai

from engines.base import Timing, by_difference

CACHE_GB = 4
"""Of KV pages: more than any shape needs."""


class Engine:
    """options: properties of the CPU plugin."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size, scheduler.enable_prefix_caching = CACHE_GB, False
        scheduler.max_num_batched_tokens = 1 << 15  # no prompt is cut
        properties = {"INFERENCE_NUM_THREADS": threads, **options}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self.version = openvino_genai.__version__
        self.notes = " ".join(f"{name}={value}" for name, value in properties.items())

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        ids = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]

        def generate(count: int) -> None:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
            self._pipeline.generate(ids, [config] * len(ids))

        return by_difference(generate, prompts, new_tokens)
