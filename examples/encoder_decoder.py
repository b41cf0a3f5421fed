"""An encoder-decoder model: prompts for the encoder, for both halves, and a pipeline.

Without --model it makes a tiny T5 of random weights, which babbles, but runs everywhere at once.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file

import octavo

TEXT = "The page of the book is white, and the light of the evening falls on it."
WIDTH, HEADS, LAYERS, VOCAB = 32, 2, 2, 259


def tiny_t5(folder: Path) -> None:
    """config.json, tokenizer.json and model.safetensors of a T5 whose tokens are bytes."""
    rng = np.random.default_rng(0)
    tensors: dict[str, tuple[int, ...]] = {"shared.weight": (VOCAB, WIDTH)}
    for side, attentions in (
        ("encoder", ["SelfAttention"]),
        ("decoder", ["SelfAttention", "EncDecAttention"]),
    ):
        tensors[f"{side}.final_layer_norm.weight"] = (WIDTH,)
        tensors[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (32, HEADS)
        for name in (f"{side}.block.{i}.layer" for i in range(LAYERS)):
            for j, attention in enumerate(attentions):
                tensors |= {f"{name}.{j}.{attention}.{part}.weight": (WIDTH, WIDTH) for part in "qkvo"}
            last = len(attentions)
            tensors |= {f"{name}.{j}.layer_norm.weight": (WIDTH,) for j in range(last + 1)}
            tensors |= {
                f"{name}.{last}.DenseReluDense.{part}.weight": (WIDTH, WIDTH) for part in ("wi", "wo")
            }
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in tensors.items()}
    arrays = {k: a * np.float32(WIDTH**-0.5) if a.ndim == 2 else np.ones_like(a) for k, a in arrays.items()}
    save_file(arrays, folder / "model.safetensors")
    config = {
        "model_type": "t5", "vocab_size": VOCAB, "d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": WIDTH,
        "num_layers": LAYERS, "num_heads": HEADS, "decoder_start_token_id": 0, "eos_token_id": 1,
        "task_specific_params": {"summarization": {"prefix": "summarize: "}},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<pad>", "</s>", "<unk>", *letters])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        "$A </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder or hub id; by default a tiny model of random weights")
    parser.add_argument("--max-tokens", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if options.model is None:
            tiny_t5(Path(made))
        llm = octavo.LLM(options.model or made)
        params = octavo.SamplingParams(temperature=0, max_tokens=options.max_tokens, n=1)
        both = {"encoder_prompt": TEXT, "decoder_prompt": "It says"}
        for output in llm.generate(TEXT, params) + llm.generate(both, params):
            read, begun = output.encoder_prompt_token_ids or [], output.prompt_token_ids
            print(f"read {len(read)} tokens, went on from {begun}: {output.outputs[0].text!r}")
        samples = llm.generate(TEXT, params.replace(temperature=1.0, n=3, seed=1))[0]
        print(f"{len(samples.outputs)} samples of one encoder output, seed {samples.seed}")
        summarize = octavo.pipeline("summarization", llm)
        print(summarize(TEXT, max_new_tokens=options.max_tokens, num_beams=1)[0])


if __name__ == "__main__":
    main()
