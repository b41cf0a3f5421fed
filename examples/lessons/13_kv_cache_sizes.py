"""Lecture on inference efficiency, lines 14-29: the KV cache of LLaMA-3 8B and 70B, by its formula.

What differs: nothing; the engine's own count is beside it. It reads the same numbers from a model's config
(here from a dictionary; a folder, a file or a hub id does as well), and its pages of 16-bit integers take
1.6 % more on a CPU where heads have 128 dimensions, as here: `octavo plan` says what they are.
"""

import argparse

from octavo.plan import estimate_kv_cache

SHAPE = {
    "model_type": "llama", "vocab_size": 128_256, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_3_8B = {
    **SHAPE, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32,
}  # fmt: skip
LLAMA_3_70B = {
    **SHAPE, "hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80,
    "num_attention_heads": 64,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="counted beside the lecture's")
    parser.add_argument("--max-tokens", type=int, default=8192, help="of a sequence")
    options = parser.parse_args()

    seq_len = options.max_tokens
    n_kv_heads, d_head, dtype_bytes = 8, 128, 2
    for name, config, n_layers in (("LLaMA-3 8B", LLAMA_3_8B, 32), ("LLaMA-3 70B", LLAMA_3_70B, 80)):
        by_formula = 2 * n_layers * n_kv_heads * d_head * seq_len * dtype_bytes
        print(f"{name}: {by_formula / 1e9:.2f} GB, counted {estimate_kv_cache(config, seq_len) / 1e9:.2f} GB")
    print(f"{options.model}: {estimate_kv_cache(options.model, seq_len) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
