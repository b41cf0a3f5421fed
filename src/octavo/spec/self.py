"""self: the target's own first layers draw what may follow, through its final norm and its head.

Elhoushi et al. 2024 (LayerSkip), without the training: a model that was trained so that its early layers
speak drafts well, others poorly. What is shared:

    layer   0 .. E-1      drafts read and write these keys and values
            E .. L-1      the verifying step alone does

A drafted token's keys and values are written again when it is verified, with the same bits: each layer's
depend on the tokens and the layers below alone. So there is nothing to catch up
with, and nothing to keep apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.kernels.ops import Forward, Inputs, KVCache, Ops, Tensor
from octavo.models.parts import DecoderModel
from octavo.models.registry import Model
from octavo.spec.base import Drafting, Number, Option, Registration

LAYERS = "layers"
OPTIONS = {LAYERS: Option(0, 0, 4096, "the model's first layers that draft; 0: a third of them")}


def _drafting(target: Model, drafter: Model | None, options: Mapping[str, Number]) -> Drafting:
    """
    Raises:
        UnsupportedError: the model is no stack of layers below one head.
        InvalidRequestError: it has not more layers than are to draft.
    """
    if not isinstance(target, DecoderModel):
        raise UnsupportedError(
            "speculative_config: this model's first layers cannot draft", "speculative_config"
        )
    has = len(target.stack.layers)
    count = int(options[LAYERS]) or max(has // 3, 1)
    if count >= has:
        raise InvalidRequestError(
            f"speculative_config: {LAYERS} must be below the {has} that the model has, not {count}",
            "speculative_config",
        )
    stack = replace(target.stack, layers=target.stack.layers[:count])

    def over(kv: KVCache) -> Forward:
        def forward(ops: Ops, inputs: Inputs) -> Tensor:
            return stack(ops, inputs, kv)

        return forward

    return Drafting(over, target.vocab_size, target.max_position, shares_kv=True)


PROPOSER = Registration("what the model's own first layers draw", options=OPTIONS, drafting=_drafting)
