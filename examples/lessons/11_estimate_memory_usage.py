"""Lesson on inference, 3.4.6, lines 229-278: estimate_memory_usage(...), with the lesson's own numbers.

What differs: nothing; beside the lesson's arguments there are num_kv_heads, for models whose heads share
keys, and overhead_gb, and a model's name in the place of the first. The lesson's activations are in its
overhead.
"""

import argparse

from octavo.plan import estimate_memory_usage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="estimated beside the lesson's")
    parser.add_argument("--max-tokens", type=int, default=4096)
    options = parser.parse_args()

    mem = estimate_memory_usage(
        model_params_b=7,
        precision_bytes=2,
        batch_size=1,
        seq_len=4096,
        num_layers=32,
        num_heads=32,
        d_k=128,
    )
    print(f"Model: {mem['model']:.1f} GB")
    print(f"KV Cache: {mem['kv_cache']:.1f} GB")
    print(f"Total: {mem['total']:.1f} GB, with {mem['overhead']:.1f} GB for the rest")
    own = estimate_memory_usage(options.model, batch_size=1, seq_len=options.max_tokens)
    print(f"{options.model}: {own['model']:.2f} and {own['kv_cache']:.2f} GB")


if __name__ == "__main__":
    main()
