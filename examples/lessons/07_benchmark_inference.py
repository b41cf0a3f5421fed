"""Lesson on inference optimization, 7, lines 578-630: benchmark_inference(model, tokenizer, prompts, ...) ->
BenchmarkResult.

First the lesson's own loop, one request after the other, over octavo.compat; then the function.

What differs: requests are in flight together, as they are in a server, so throughput is one; end-of-text
ends nothing; memory is the process's resident memory where there is no GPU, and not 0. ttft and tpot stand
beside.
"""

import argparse
import time

from octavo import BenchmarkResult, benchmark_inference
from octavo.compat import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=8)
    options = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(options.model, max_num_seqs=4, max_model_len=256)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    prompts = ["What is AI?", "Explain quantum computing"]
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
        start = time.perf_counter()
        outputs = model.generate(**inputs, max_new_tokens=options.max_tokens)
        milliseconds = (time.perf_counter() - start) * 1000
        print(f"{outputs.shape[1] - inputs['input_ids'].shape[1]} tokens in {milliseconds:.0f} ms")

    result: BenchmarkResult = benchmark_inference(
        model, tokenizer, prompts, max_tokens=options.max_tokens, num_runs=2
    )
    print(f"{result.throughput:.0f} tokens/second, {result.memory_gb:.2f} GB")
    print(f"latency {result.latency_p50:.0f} ms, p99 {result.latency_p99:.0f} ms")


if __name__ == "__main__":
    main()
