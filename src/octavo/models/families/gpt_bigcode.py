"""GPTBigCode, the architecture of StarCoder: GPT-2 with one KV head (Li et al. 2023)."""

from __future__ import annotations

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import ConfigReader, DecoderConfig
from octavo.models.families.gpt2 import gpt_config, gpt_layer, gpt_model
from octavo.models.loader import Loader
from octavo.models.parts import DecoderModel
from octavo.models.parts_gpt import ungroup
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    return gpt_config(
        checkpoint, kv_heads=1 if ConfigReader.of(checkpoint).flag("multi_query", True) else None
    )


def build(c: DecoderConfig, load: Loader) -> DecoderModel:
    # With a KV head for each query head, the rows of c_attn are grouped by head.
    order = None if c.num_kv_heads == 1 else ungroup(c.num_heads, (1, 1, 1), c.head_dim)
    layers = [gpt_layer(c, load, i, transposed=False, qkv_order=order) for i in range(c.num_layers)]
    return gpt_model(c, load, layers)


FAMILY = Family(name="gpt_bigcode", hf=("gpt_bigcode",), config=config_of, build=build)
