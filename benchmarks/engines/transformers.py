"""Hugging Face transformers: the model called in a loop with its own cache, as generate() does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import transformers

from engines.base import Timing


class Engine:
    """options: "dtype" ("float32"). A .gguf file is dequantized by transformers itself."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        torch.set_num_threads(threads)
        dtype = str(options.get("dtype", "float32"))
        path = Path(model)
        source: dict[str, Any] = {"gguf_file": path.name} if path.is_file() else {}
        folder = path.parent if path.is_file() else path
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), **source
        )
        self._model.train(False)
        self.version = transformers.__version__
        self.notes = f"torch {torch.__version__} {dtype} {self._model.config._attn_implementation}"

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        ids = torch.tensor(prompts)  # of one length: nothing is padded
        with torch.inference_mode():
            start = time.perf_counter()
            out = self._model(ids, use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            first = time.perf_counter()
            for _ in range(new_tokens - 1):
                out = self._model(token, past_key_values=out.past_key_values, use_cache=True)
                token = out.logits[:, -1].argmax(-1, keepdim=True)
            end = time.perf_counter()
        return Timing(ids.numel(), first - start, len(prompts) * (new_tokens - 1), end - first)
