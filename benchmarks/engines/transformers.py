"""Hugging Face transformers: the model called in a loop with its own cache, as generate() does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import transformers

from engines.base import Timing


class Engine:
    """options: "dtype" ("float32"), "attention" ("sdpa"), "compile" (false).

    Compiled, it has a static cache, and the first run of a shape compiles. A .gguf file is dequantized by
    transformers itself.
    """

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        torch.set_num_threads(threads)
        dtype, attention = str(options.get("dtype", "float32")), str(options.get("attention", "sdpa"))
        path = Path(model)
        source: dict[str, Any] = {"gguf_file": path.name} if path.is_file() else {}
        folder = path.parent if path.is_file() else path
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation=attention, **source
        )
        self._model.train(False)
        self._compiled = bool(options.get("compile", False))
        self._step = torch.compile(self._model.forward) if self._compiled else self._model.forward
        self.version = transformers.__version__
        self.notes = f"torch {torch.__version__} {dtype} {attention} compile={self._compiled}"

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        ids = torch.tensor(prompts)  # of one length: nothing is padded
        streams, length = ids.shape
        cache: Any = None
        if self._compiled:
            cache = transformers.StaticCache(config=self._model.config, max_cache_len=length + new_tokens)
        with torch.inference_mode():
            start = time.perf_counter()
            out = self._call(self._model.forward, ids, 0, cache)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            first = time.perf_counter()
            for position in range(length, length + new_tokens - 1):
                out = self._call(self._step, token, position, out.past_key_values)
                token = out.logits[:, -1].argmax(-1, keepdim=True)
            end = time.perf_counter()
        return Timing(ids.numel(), first - start, streams * (new_tokens - 1), end - first)

    @staticmethod
    def _call(forward: Any, ids: Any, position: int, cache: Any) -> Any:
        """One step of ids [streams, tokens] that begin at a position."""
        places = torch.arange(position, position + ids.shape[1])
        return forward(ids, past_key_values=cache, use_cache=True, cache_position=places, logits_to_keep=1)
