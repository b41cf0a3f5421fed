"""OpenVINO GenAI, which reads GGUF files of Llama's family itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino_genai

from engines.base import Timing, by_difference


class Engine:
    """options: properties of the CPU plugin."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        properties = {"INFERENCE_NUM_THREADS": threads, **options}
        self._pipeline = openvino_genai.LLMPipeline(model, "CPU", **properties)
        self.version = openvino_genai.__version__
        self.notes = " ".join(f"{name}={value}" for name, value in properties.items())

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        ids = openvino.Tensor(np.array(prompts, np.int64))  # of one length: nothing is padded

        def generate(count: int) -> None:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
            self._pipeline.generate(ids, config)

        return by_difference(generate, prompts, new_tokens)
