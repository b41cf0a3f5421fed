"""StarCoder2: rotary GQA with biases, layer norms, a plain MLP and a window (Lozhkov et al. 2024)."""

from __future__ import annotations

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Activation, Rotary
from octavo.models.config import ConfigReader, DecoderConfig, read_gguf, read_hf
from octavo.models.layers import DecoderLayer
from octavo.models.loader import Loader
from octavo.models.parts import GGUF_NAMES, DecoderModel, llama_attention
from octavo.models.parts_gpt import plain_mlp, plain_model
from octavo.models.registry import Family

NAMES = GGUF_NAMES | {
    "model.layers.{i}.mlp.c_fc": "blk.{i}.ffn_up",
    "model.layers.{i}.mlp.c_proj": "blk.{i}.ffn_down",
}


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    biases = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), True)
    if checkpoint.kind == "gguf":
        return read_gguf(checkpoint, activation=Activation.GELU_TANH, **biases)
    read = ConfigReader.of(checkpoint)
    return read_hf(
        checkpoint,
        activation=read.activation("hidden_act", "gelu_pytorch_tanh"),
        norm_eps=read.number("norm_epsilon", 1e-5),
        windows=read.windows(read.integer("num_hidden_layers")),
        tie_word_embeddings=read.flag("tie_word_embeddings", True),
        **dict.fromkeys(biases, read.flag("use_bias", True)),
    )


def build(c: DecoderConfig, load: Loader) -> DecoderModel:
    rotary = load.rotary(c.rope, c.max_position)
    layers = [_layer(c, load, i, rotary) for i in range(c.num_layers)]
    return plain_model(c, load, "model.embed_tokens", layers, "model.norm")


def _layer(c: DecoderConfig, load: Loader, i: int, rotary: Rotary | None) -> DecoderLayer:
    name = f"model.layers.{i}"
    return DecoderLayer(
        attention_norm=load.layer_norm(f"{name}.input_layernorm", c.hidden_size, c.norm_eps),
        attention=llama_attention(c, load, i, rotary),
        mlp_norm=load.layer_norm(f"{name}.post_attention_layernorm", c.hidden_size, c.norm_eps),
        mlp=plain_mlp(c, load, f"{name}.mlp.c_fc", f"{name}.mlp.c_proj"),
    )


FAMILY = Family(
    name="starcoder2", hf=("starcoder2",), gguf=("starcoder2",), names=NAMES, config=config_of, build=build
)
