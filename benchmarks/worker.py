"""One engine in one process, driven by lines of JSON: what benchmarks interleave.

    worker.py octavo MODEL --threads 2
    worker.py llama.cpp FILE.gguf --threads 2

Answers each line {"prompt": [ids], "new_tokens": n} with {"prompt_s": t, "decode_s": t}: greedy, end of
text ignored, nothing cached between lines. prompt_s ends with the first new token; decode_s is the time
of the other n - 1. The first line written is {"engine": name, "version": v, "notes": text}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

CONTEXT = 4096


class Engine(Protocol):
    name: str
    version: str
    notes: str

    def run(self, prompt: list[int], new_tokens: int) -> tuple[float, float]:
        """(prompt_s, decode_s)."""
        ...


class Octavo:
    name = "octavo"

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        import octavo

        self._params = octavo.SamplingParams
        self._llm = octavo.LLM(
            model,
            threads=threads,
            max_model_len=CONTEXT,
            max_num_seqs=1,
            enable_prefix_caching=False,
            **options,
        )
        self.version = octavo.__version__
        self.notes = " ".join(f"{name}={value}" for name, value in options.items())

    def run(self, prompt: list[int], new_tokens: int) -> tuple[float, float]:
        params = self._params(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        output = self._llm.generate([prompt], params, use_tqdm=False)[0]
        total = time.perf_counter() - start
        if len(output.outputs[0].token_ids) != new_tokens:
            raise RuntimeError(
                f"octavo stopped after {len(output.outputs[0].token_ids)} of {new_tokens} tokens"
            )
        times = output.metrics
        if times is None or times.first_token_time is None or times.last_token_time is None:
            raise RuntimeError("octavo gave no times")
        decode = times.last_token_time - times.first_token_time
        return total - decode, decode


class LlamaCpp:
    """llama.cpp through its C interface, so that Python costs it nothing that it does not cost us."""

    name = "llama.cpp"

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)  # kept alive: C holds it
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            model.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT, 512, 512
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(options.get("flash_attn", 1))
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._sampler = llama_cpp.llama_sampler_init_greedy()
        self.version = str(llama_cpp.__version__)
        system = llama_cpp.llama_print_system_info().decode()
        self.notes = f"flash_attn={params.flash_attn_type}; {system.strip()}"

    def _decode(self, tokens: Sequence[int]) -> None:
        array = (self._lib.llama_token * len(tokens))(*tokens)
        status = self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(array, len(tokens)))
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def run(self, prompt: list[int], new_tokens: int) -> tuple[float, float]:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        start = time.perf_counter()
        for chunk in range(0, len(prompt), 512):
            self._decode(prompt[chunk : chunk + 512])
        token = self._lib.llama_sampler_sample(self._sampler, self._context, -1)
        first = time.perf_counter()
        for _ in range(new_tokens - 1):
            self._decode([token])
            token = self._lib.llama_sampler_sample(self._sampler, self._context, -1)
        return first - start, time.perf_counter() - first


ENGINES: dict[str, type[Octavo] | type[LlamaCpp]] = {"octavo": Octavo, "llama.cpp": LlamaCpp}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="worker")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument(
        "--options", type=json.loads, default={}, help="JSON object of the engine's own options"
    )
    options = parser.parse_args(arguments)
    engine: Engine = ENGINES[options.engine](options.model, options.threads, options.options)
    print(json.dumps({"engine": engine.name, "version": engine.version, "notes": engine.notes}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        prompt_s, decode_s = engine.run(task["prompt"], task["new_tokens"])
        print(json.dumps({"prompt_s": prompt_s, "decode_s": decode_s}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
