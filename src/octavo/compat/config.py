"""model.config: a model's numbers by transformers' names."""

from __future__ import annotations

from typing import Any

from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.sources import resolve
from octavo.errors import UnsupportedError
from octavo.llm import LLM

GGUF = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
}
"""Names of config.json, and those of GGUF behind the architecture's."""
SETTABLE = ("pad_token_id",)


class ModelConfig:
    """config.json's members as attributes; of a GGUF file those that GGUF lists, and the vocabulary's size.

    pad_token_id may be set. Raises UnsupportedError where another one is: the files say it.
    """

    pad_token_id: int | None

    def __init__(self, members: dict[str, Any]) -> None:
        self.__dict__.update(members)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in SETTABLE and not (name in self.__dict__ and self.__dict__[name] == value):
            raise UnsupportedError(f"config.{name} cannot be set: the model's files say it"[:200], name)
        self.__dict__[name] = value

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def config_of(llm: LLM) -> ModelConfig:
    """Of a model that is loaded."""
    checkpoint = open_checkpoint(resolve(llm.engine_config.model), headers=True)
    tokenizer = llm.get_tokenizer()
    members: dict[str, Any] = {"vocab_size": tokenizer.vocab_size}
    if checkpoint.kind == "gguf":
        found = {
            ours: checkpoint.config.get(f"{checkpoint.architecture}.{gguf}") for ours, gguf in GGUF.items()
        }
        members |= {"model_type": checkpoint.architecture}
        members |= {name: value for name, value in found.items() if value is not None}
    else:
        members |= checkpoint.config
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return ModelConfig({**members, **ends, "pad_token_id": tokenizer.eos_token_id})
