"""Lesson on inference optimization, 6.1, lines 485-570: ContinuousBatcher(model, tokenizer, max_batch_size,
max_seq_len).

What differs: the class is there already, over the engine's pages and KV cache. The lesson's pads a batch on
the right and reads the last column, which is padding for all but the longest; here a batch is a flat list
of tokens.
"""

import argparse

from octavo import LLM, ContinuousBatcher


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=8)
    options = parser.parse_args()

    model = LLM(options.model, max_num_seqs=32, max_model_len=2048)
    batcher = ContinuousBatcher(model, model.get_tokenizer(), max_batch_size=32, max_seq_len=2048)
    batcher.add_request("r1", "Hello", options.max_tokens)
    batcher.add_request("r2", "The capital of France is", 3)
    while batcher.active_requests or batcher.request_queue:
        for request_id, text in batcher.step().items():
            print(f"{request_id}: {text}")


if __name__ == "__main__":
    main()
