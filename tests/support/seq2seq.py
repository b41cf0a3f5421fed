"""Whole folders of tiny encoder-decoder models: random weights, a trained tokenizer, their defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORDS = (
    "a page of the book lies open and the reader turns one leaf after another while the light of the "
    "evening falls on letters that were set by hand long ago in a small house near the river"
)
TEXTS = [WORDS, WORDS.title(), "summarize: " + WORDS, "translate English to German: " + WORDS]
SPECIAL = {
    "t5": ["<pad>", "</s>", "<unk>"],
    "bart": ["<s>", "<pad>", "</s>", "<unk>"],
}
SHAPES: dict[str, dict[str, Any]] = {
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4},
    "bart": {
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "max_position_embeddings": 128,
    },
}


def make_folder(
    kind: str, folder: Path, generation: Mapping[str, Any] | None = None, end_bias: float = 0.0, **shape: Any
) -> Path:
    """A folder that transformers and Octavo load.

    Args:
        kind: "t5" or "bart".
        generation: members of generation_config.json beside the start token.
        end_bias: of BART's, added to the end token's logit: random weights seldom end by themselves.
        shape: of config.json.
    """
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    backend = _tokenizer(kind)
    torch.manual_seed(1)
    start = 0 if kind == "t5" else 2
    size = backend.get_vocab_size()
    arguments = {"vocab_size": size, "decoder_start_token_id": start, **SHAPES[kind], **shape}
    config = AutoConfig.for_model(kind, **arguments)
    model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                wide = 1.0 if "attn.out" in name or "shared" in name else 2.0
                narrow = config.d_kv**-0.5 if name.endswith("Attention.q.weight") else 1.0
                torch.nn.init.normal_(parameter, std=wide * narrow * parameter.shape[-1] ** -0.5)
    if end_bias:
        model.final_logits_bias[0, 2] = end_bias
    model.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    if kind == "bart":
        names["bos_token"] = "<s>"
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    ends = 1 if kind == "t5" else 2
    defaults = {
        "decoder_start_token_id": start,
        "eos_token_id": ends,
        "pad_token_id": 0 if kind == "t5" else 1,
    }
    _write(folder / "generation_config.json", defaults | dict(generation or {}))
    return folder


def _tokenizer(kind: str) -> Any:
    """As published: T5's Unigram of pieces, BART's bytes."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    if kind == "t5":
        backend = tokenizers.Tokenizer(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        trainer: Any = trainers.UnigramTrainer(
            vocab_size=120, special_tokens=SPECIAL[kind], unk_token="<unk>", show_progress=False
        )
        backend.train_from_iterator(TEXTS, trainer)
        backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
        return backend
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL[kind],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return backend


def _write(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")
