"""A model of TinyLlama's shape with random 4-bit weights, as a GGUF file: speed needs no meaning.

    python benchmarks/peers/synthetic.py OUT.gguf

Needs the gguf package. 1.1 B parameters, 0.6 GB. Blocks are drawn as Q4_0 stores them, a scale and 32
nibbles, with scales that keep activations near unit size.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np

NAME = "tinyllama-1.1b-synthetic"
LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, VOCAB, CONTEXT = 22, 2048, 5632, 32, 4, 32_000, 2048
BLOCK, BLOCK_BYTES = 32, 18
NIBBLE_DEVIATION = 4.61
"""Standard deviation of 0..15, all alike."""
CHUNK_ROWS = 4096


def q4_0(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    """A random [n, k] matrix as Q4_0's bytes [n, k / 32 * 18], of standard deviation k ** -0.5."""
    out = np.empty((n, k // BLOCK, BLOCK_BYTES), np.uint8)
    mean = 1.0 / (NIBBLE_DEVIATION * k**0.5)
    for begin in range(0, n, CHUNK_ROWS):
        part = out[begin : begin + CHUNK_ROWS]
        scales = rng.uniform(0.5 * mean, 1.5 * mean, part.shape[:2]).astype(np.float16)
        part[:, :, :2] = scales[..., None].view(np.uint8)
        part[:, :, 2:] = rng.integers(0, 256, (*part.shape[:2], BLOCK // 2), np.uint8)
    return out.reshape(n, -1)


def matrices() -> dict[str, tuple[int, int]]:
    """Name -> (rows, columns) of all that is quantized."""
    kv = HIDDEN // HEADS * KV_HEADS
    layer = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (FFN, HIDDEN),
        "ffn_up": (FFN, HIDDEN),
        "ffn_down": (HIDDEN, FFN),
    }
    shapes = {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in layer.items()}
    return {"token_embd.weight": (VOCAB, HIDDEN), "output.weight": (VOCAB, HIDDEN), **shapes}


def write(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(NAME)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    _add_tokenizer(writer)
    rng = np.random.default_rng(0)
    for name, (n, k) in matrices().items():
        writer.add_tensor(name, q4_0(rng, n, k), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    for name in [f"blk.{i}.{kind}_norm.weight" for i in range(LAYERS) for kind in ("attn", "ffn")]:
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """A vocabulary of Llama's kind: three control tokens, all bytes, and words nobody will type."""
    control = ["<unk>", "<s>", "</s>"]
    singles = [f"<0x{i:02X}>" for i in range(256)]
    words = [f"\u2581w{i}" for i in range(VOCAB - len(control) - len(singles))]
    kinds = gguf.TokenType
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256, *[kinds.NORMAL] * len(words)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*control, *singles, *words])
    writer.add_token_scores([0.0] * (3 + 256) + [-float(i) for i in range(len(words))])
    writer.add_token_types([int(kind) for kind in types])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    write(parser.parse_args().out)
