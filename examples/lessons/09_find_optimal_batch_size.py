"""Lesson on inference, 3.4.2, lines 87-103: find_optimal_batch_size(model, max_seq_len, gpu_memory_gb).

What differs: a model is a name, or has a config; KV heads are counted, not query heads. Beyond some batch
size throughput does not grow, whatever fits: `octavo bench` shows where.
"""

import argparse

from octavo.plan import estimate_kv_cache, find_optimal_batch_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=2048, help="of a sequence")
    options = parser.parse_args()

    model, max_seq_len = options.model, options.max_tokens
    kv_cache_per_request = estimate_kv_cache(model, max_seq_len=max_seq_len)
    print(f"{kv_cache_per_request / 1e6:.1f} MB of keys and values for {max_seq_len} tokens")
    for gpu_memory_gb in (1, 24):
        optimal = find_optimal_batch_size(model, max_seq_len=max_seq_len, gpu_memory_gb=gpu_memory_gb)
        print(f"{gpu_memory_gb} GB: {optimal} sequences")


if __name__ == "__main__":
    main()
