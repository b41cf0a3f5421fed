"""Mixtral: Mistral whose feed-forward layers are mixtures of experts (Jiang et al. 2024).

GGUF files of it call themselves llama, and have an expert count.
"""

from __future__ import annotations

from functools import partial

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Rotary
from octavo.models.config import ConfigReader, read_gguf, read_hf
from octavo.models.layers import DecoderLayer
from octavo.models.loader import Loader
from octavo.models.parts import GGUF_NAMES, build_llama, llama_layer
from octavo.models.parts_moe import MoEConfig, moe
from octavo.models.registry import Family

_MLP = "model.layers.{i}.block_sparse_moe"
NAMES = GGUF_NAMES | {
    f"{_MLP}.gate": "blk.{i}.ffn_gate_inp",
    f"{_MLP}.experts.{{e}}.w1": "blk.{i}.ffn_gate_exps",
    f"{_MLP}.experts.{{e}}.w3": "blk.{i}.ffn_up_exps",
    f"{_MLP}.experts.{{e}}.w2": "blk.{i}.ffn_down_exps",
}


def config_of(checkpoint: Checkpoint) -> MoEConfig:
    read = ConfigReader.of(checkpoint)
    if checkpoint.kind == "gguf":
        config = read_gguf(checkpoint, permuted_qk=True)
        experts, chosen = read.integer("expert_count"), read.integer("expert_used_count")
    else:
        config = read_hf(checkpoint, windows=read.windows(read.integer("num_hidden_layers")))
        experts, chosen = read.integer("num_local_experts", 8), read.integer("num_experts_per_tok", 2)
    return MoEConfig.of(
        config, num_experts=experts, top_k=chosen, expert_size=config.intermediate_size, renormalize=True
    )


def _layer(c: MoEConfig, load: Loader, i: int, rotary: Rotary | None) -> DecoderLayer:
    return llama_layer(c, load, i, rotary, moe(c, load, _MLP.format(i=i), ("w1", "w3", "w2")))


FAMILY = Family(
    name="mixtral",
    hf=("mixtral",),
    gguf=("llama",),
    names=NAMES,
    config=config_of,
    build=partial(build_llama, layer=_layer),
    matches=lambda checkpoint: checkpoint.kind == "hf" or bool(checkpoint.config.get("llama.expert_count")),
)
