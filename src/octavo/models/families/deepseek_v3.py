"""DeepSeek-V3 and R1: V2 with sigmoid scores and a bias that balances the experts (DeepSeek-AI 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Routing
from octavo.models.config import Reader
from octavo.models.families.deepseek_v2 import DeepSeekConfig, build, deepseek_config
from octavo.models.families.deepseek_v2 import tiny_config as v2_tiny_config
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DeepSeekConfig:
    read = Reader.of(checkpoint)
    read.refuse("scoring_func", ("sigmoid",))
    read.refuse("topk_method", ("noaux_tc",))
    return deepseek_config(
        checkpoint,
        routing=Routing(
            sigmoid=True,
            groups=read.integer("n_group", 8),
            top_groups=read.integer("topk_group", 4),
            group_top=2,
            scale=read.number("routed_scaling_factor", 2.5),
        ),
        renormalize=read.flag("norm_topk_prob", True),
        interleaved=read.flag("rope_interleave", True),
        router_bias=True,
    )


def tiny_config() -> Mapping[str, Mapping[str, Any]]:
    base = {**v2_tiny_config()["lite"], "n_group": 4, "topk_group": 2, "q_lora_rank": 24}
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    halves = {"rope_interleave": False, "norm_topk_prob": False}
    return {"plain": base, "yarn": base | halves | {"rope_parameters": yarn}}


FAMILY = Family(
    name="deepseek_v3",
    hf=("deepseek_v3",),
    gguf=(),
    names={},
    config=config_of,
    build=build,
    tiny_config=tiny_config,
    ignored=("model.layers.61.*",),  # the layer that predicts a token further, for speculation
)
