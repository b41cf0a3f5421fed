"""Tiny models with a tokenizer that reads any text, and texts for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from models.conftest import save

WORDS = 320
SHAPE: dict[str, Any] = {
    "model_type": "llama", "vocab_size": WORDS, "hidden_size": 128, "intermediate_size": 192,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
SPECIAL = ["<s>", "</s>", "<|im_end|>"]


def text(seed: int = 0, words: int = 3000) -> str:
    """Words of a small vocabulary, some of them often."""
    rng = np.random.default_rng(seed)
    known = ["".join(chr(97 + int(c)) for c in rng.integers(0, 26, rng.integers(2, 8))) for _ in range(120)]
    return " ".join(known[min(int(i), 119)] for i in rng.geometric(0.04, words))


def save_byte_level(folder: Path, count: int = WORDS) -> None:
    """tokenizer.json of byte-level BPE as GPT-2 cuts it, and what says which tokens begin and end a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=count, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([text(1)], trainer)
    assert backend.get_vocab_size() == count
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def save_model(folder: Path, **changes: Any) -> Path:
    """A random Llama, or another by changes, with its tokenizer."""
    save({**SHAPE, **changes}, folder)
    save_byte_level(folder)
    return folder
