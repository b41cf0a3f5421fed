"""llama.cpp through its C interface, so that Python costs it nothing that it does not cost us."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from engines.base import Timing

BATCH = 512
"""Tokens of one llama_decode by default: its default physical batch."""
KV_TYPES = {"f16": 1, "q8_0": 8, "bf16": 30}
"""ggml.h: enum ggml_type; the package does not name all of them."""
PADDING = 256
"""Contexts are multiples of this."""


class Engine:
    """options: "flash_attn" (1), "ubatch" (512 tokens), "kv_type" ("f16"), "kv_unified" (false)."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)  # kept alive: C holds it
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            model.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._threads = threads
        self._flash = int(options.get("flash_attn", 1))
        self._unified = bool(options.get("kv_unified", False))
        self._step, kv = int(options.get("ubatch", BATCH)), str(options.get("kv_type", "f16"))
        self._kv_type = KV_TYPES[kv]
        self._shape, self._context = (0, 0), None
        self._batch = llama_cpp.llama_batch_init(self._step, 0, 1)
        self.version = str(llama_cpp.__version__)
        system = llama_cpp.llama_print_system_info().decode().strip()
        settings = f"flash_attn={self._flash} ubatch={self._step} kv_type={kv} kv_unified={self._unified}"
        self.notes = f"{settings} threads={threads}; {system}"

    def run(self, prompts: list[list[int]], new_tokens: int) -> Timing:
        self._open(len(prompts), max(map(len, prompts)) + new_tokens)
        start = time.perf_counter()
        tokens = self._prompts(prompts)
        first = time.perf_counter()
        lengths = [len(prompt) for prompt in prompts]
        for step in range(new_tokens - 1):
            rows = [(t, n + step, s, True) for s, (t, n) in enumerate(zip(tokens, lengths, strict=True))]
            tokens = self._decode(rows).argmax(axis=1).tolist()
        end = time.perf_counter()
        return Timing(sum(lengths), first - start, len(prompts) * (new_tokens - 1), end - first)

    def logits(self, ids: list[int], first: int) -> Any:
        self._open(1, len(ids))
        parts = []
        for begin in range(0, len(ids), self._step):
            span = range(begin, min(begin + self._step, len(ids)))
            parts.append(self._decode([(ids[i], i, 0, i >= first) for i in span]).copy())
        return np.concatenate(parts)

    def _open(self, sequences: int, length: int) -> None:
        """An empty context for so many sequences of such length; the last one if it fits."""
        shape = (sequences, -(-length // PADDING) * PADDING)
        if shape == self._shape:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
            return
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max, params.n_ctx = sequences, sequences * shape[1]
        params.n_batch = params.n_ubatch = self._step
        params.n_threads = params.n_threads_batch = self._threads
        params.flash_attn_type, params.kv_unified = self._flash, self._unified
        params.type_k = params.type_v = self._kv_type
        self._context, self._shape = llama_cpp.llama_init_from_model(self._model, params), shape
        if not self._context:
            raise RuntimeError(f"llama.cpp has no room for {sequences} sequences of {shape[1]} tokens")

    def _prompts(self, prompts: list[list[int]]) -> list[int]:
        """Compute them in steps of at most a batch's tokens; each one's first new token."""
        rows = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        first: list[int] = []
        for begin in range(0, len(rows), self._step):
            step = rows[begin : begin + self._step]
            logits = self._decode(step)
            first += logits.argmax(axis=1).tolist()  # empty where no prompt ended
        return first

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> Any:
        """Compute (token, position, sequence, wanted) rows; logits [wanted, vocab], llama.cpp's memory."""
        batch, wanted = self._batch, 0
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, want) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = want
            wanted += want
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        if not wanted:
            llama_cpp.llama_synchronize(self._context)
            return np.empty((0, self._vocab), np.float32)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), (wanted, self._vocab))
