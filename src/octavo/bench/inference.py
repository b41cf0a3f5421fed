"""benchmark_inference: throughput, latency, time to the first token and memory of a model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.bench.resident import peak_bytes, reset_peak
from octavo.bench.workload import percentile
from octavo.errors import InvalidRequestError, OctavoError
from octavo.llm import LLM, as_list
from octavo.params import RequestOutput, SamplingParams
from octavo.prompts import Prompt

WARMUP_PROMPTS, WARMUP_TOKENS = 2, 10


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """What benchmark_inference() measured. Times are in milliseconds.

    Attributes:
        throughput: output tokens a second, prompts' time included.
        latency_p50, latency_p99: of a request, from its arrival to its last token.
        memory_gb: peak in 10^9 bytes, the model included: of the GPU's memory where the model is on one,
            else of the process's resident memory.
        ttft, ttft_p99: time to the first token, the wait in the queue included; median and p99.
        tpot, tpot_p99: time per output token after the first; None: no request has a second.
        requests, output_tokens: how many were measured.
    """

    throughput: float
    latency_p50: float
    latency_p99: float
    memory_gb: float
    ttft: float
    ttft_p99: float
    tpot: float | None = None
    tpot_p99: float | None = None
    requests: int = 0
    output_tokens: int = 0


def benchmark_inference(
    model: Any,
    tokenizer: Any = None,
    prompts: Prompt | Sequence[Prompt] = (),
    max_tokens: int = 100,
    num_runs: int = 10,
    *,
    batch_size: int | None = None,
    **options: Any,
) -> BenchmarkResult:
    """Generate max_tokens for every prompt, num_runs times: greedy, end of text ignored.

    No run finds an earlier run's prompts in the prefix cache. Within a run, prompts that begin alike share
    what they have in common, as they do in a server.

    Args:
        model: a loaded LLM, what has one as its `llm` (pipelines, octavo.compat), or a name for
            LLM(model, **options).
        prompts: one, or several.
        tokenizer: has encode(text) for prompts that are text; None: the model's own.
        batch_size: requests in flight at once; None: all prompts of a run, as a server would have it.

    Raises:
        InvalidRequestError: there is nothing to run, or a prompt or an option is wrong.
        OctavoError: no request has a token.
    """
    every = as_list(prompts)
    counts = [num_runs, 1 if batch_size is None else batch_size]
    if not every or not all(isinstance(one, int) and one >= 1 for one in counts):
        raise InvalidRequestError("a benchmark needs at least one prompt, one run and a batch of one")
    if options and not isinstance(model, str):
        name = next(iter(options))
        said = "max_tokens is its name" if name == "max_new_tokens" else "LLM(...) is already built"
        raise InvalidRequestError(f"benchmark_inference does not take {name!r}: {said}", name)
    reset_peak()
    llm = LLM(model, **options) if isinstance(model, str) else getattr(model, "llm", model)
    if not isinstance(llm, LLM):
        kind = type(model).__name__
        raise InvalidRequestError(f"a model is a name or a loaded LLM, and not {kind}", "model")
    if isinstance(tokenizer, str) or not hasattr(tokenizer or llm.get_tokenizer(), "encode"):
        raise InvalidRequestError("a tokenizer has encode(text)", "tokenizer")
    ids = [tokenizer.encode(p) if tokenizer is not None and isinstance(p, str) else p for p in every]
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    warm = params.replace(max_tokens=min(WARMUP_TOKENS, max_tokens))
    llm.generate(ids[:WARMUP_PROMPTS], warm, use_tqdm=False)
    outputs: list[RequestOutput] = []
    seconds = 0.0
    size = batch_size or len(ids)
    for _ in range(num_runs):
        llm.reset_prefix_cache()
        start = time.perf_counter()
        for begin in range(0, len(ids), size):
            outputs += llm.generate(ids[begin : begin + size], params, use_tqdm=False)
        seconds += time.perf_counter() - start
    return _summary(outputs, seconds, llm.device_memory.get("peak", 0) or peak_bytes())


def _summary(outputs: Sequence[RequestOutput], seconds: float, peak: int) -> BenchmarkResult:
    latency, ttft, tpot = [], [], []
    for output in outputs:
        times, count = output.metrics, len(output.outputs[0].token_ids)
        if times is None or times.first_token_time is None or times.last_token_time is None:
            continue  # nothing was drawn: there is no first token to time
        ttft.append(times.first_token_time - times.arrival_time)
        latency.append(times.last_token_time - times.arrival_time)
        if count > 1:
            tpot.append((times.last_token_time - times.first_token_time) / (count - 1))
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)

    if not ttft:
        raise OctavoError("no request has a token, so nothing was measured")

    def ms(values: Sequence[float], share: float) -> float:
        return 1e3 * percentile(values, share)

    return BenchmarkResult(
        throughput=tokens / seconds,
        latency_p50=ms(latency, 0.5),
        latency_p99=ms(latency, 0.99),
        memory_gb=peak / 1e9,
        ttft=ms(ttft, 0.5),
        ttft_p99=ms(ttft, 0.99),
        tpot=ms(tpot, 0.5) if tpot else None,
        tpot_p99=ms(tpot, 0.99) if tpot else None,
        requests=len(outputs),
        output_tokens=tokens,
    )
