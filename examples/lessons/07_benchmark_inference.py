"""Lesson on inference optimization, 7: benchmark_inference(model, tokenizer, prompts, ...) ->
BenchmarkResult.

What differs: requests are in flight together, as they are in a server, so throughput is one; end-of-text
ends nothing; memory is the process's resident memory where there is no GPU, and not 0. ttft and tpot stand
beside.
"""

import argparse

from octavo import LLM, BenchmarkResult, benchmark_inference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=8)
    options = parser.parse_args()

    model = LLM(options.model, max_num_seqs=4, max_model_len=256)
    prompts = ["What is AI?", "Explain quantum computing"]
    result: BenchmarkResult = benchmark_inference(
        model, model.get_tokenizer(), prompts, max_tokens=options.max_tokens, num_runs=2
    )
    print(f"{result.throughput:.0f} tokens/second, {result.memory_gb:.2f} GB")
    print(f"latency {result.latency_p50:.0f} ms, p99 {result.latency_p99:.0f} ms")


if __name__ == "__main__":
    main()
