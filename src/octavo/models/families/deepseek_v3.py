"""DeepSeek-V3 and R1: V2 with sigmoid scores and a bias that balances the experts (DeepSeek-AI 2024)."""

from __future__ import annotations

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Routing
from octavo.models.config import ConfigReader
from octavo.models.families.deepseek_v2 import DeepSeekConfig, build, deepseek_config
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DeepSeekConfig:
    read = ConfigReader.of(checkpoint)
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


FAMILY = Family(
    name="deepseek_v3",
    hf=("deepseek_v3",),
    config=config_of,
    build=build,
    ignored=("model.layers.61.*",),  # the layer that predicts a token further, for speculation
)
