"""Which experts a token goes to: what transformers chooses, with the same shares, in every MoE family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.kernels.ops import F32, Routing
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.reference_math import route
from octavo.layers.moe import MoE
from octavo.models.parts import DecoderModel
from octavo.models.registry import families
from support.forward import load

TOKENS = 200


def experts_in(arguments: Any) -> bool:
    return any(key in arguments for key in ("num_experts", "num_local_experts", "n_routed_experts"))


CASES = [(f.name, v) for f in families() for v, arguments in f.tiny_config().items() if experts_in(arguments)]


def ours(folder: Path) -> tuple[int, MoE]:
    """The first layer with experts."""
    model = load(folder, ReferenceBackend())
    assert isinstance(model, DecoderModel)
    layers: list[Any] = list(model.stack.layers)
    return next((i, layer.mlp) for i, layer in enumerate(layers) if isinstance(layer.mlp, MoE))


def theirs(folder: Path, layer: int) -> Any:
    """transformers' router of that layer: hidden [T, K] -> logits, shares, experts."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    block = model.model.layers[layer]
    return block.mlp.gate


def rows(shares: F32, experts: Any, count: int) -> F32:
    """[T, experts]: each expert's share, 0 for those that were not chosen."""
    out = np.zeros((len(shares), count), np.float32)
    np.put_along_axis(out, np.asarray(experts), np.asarray(shares), axis=1)
    return out


@pytest.mark.parametrize(("name", "variant"), CASES, ids=["-".join(c) for c in CASES])
def test_experts_and_shares_are_transformers(
    name: str, variant: str, tiny_folder: Callable[[str, str], Path]
) -> None:
    """Also among ties: which of two equal experts torch.topk takes is its own affair, and differs with
    the number of experts; that they are equals is not. Ours is the lower one.
    """
    import torch

    folder = tiny_folder(name, variant)
    layer, moe = ours(folder)
    router = theirs(folder, layer)
    count = len(moe.down)
    random = torch.Generator().manual_seed(1)
    hidden = torch.randint(-2, 3, (TOKENS, router.weight.shape[1]), generator=random) / 4
    with torch.no_grad():  # small integers: exact sums, and many ties
        router.weight.copy_(torch.randint(-1, 2, router.weight.shape, generator=random))
        router.weight[-1] = router.weight[0]  # equals everywhere
        hidden[: TOKENS // 4] = 0.0  # and here all of them
        logits, shares, experts = router(hidden)
    routing = moe.routing or Routing()
    chosen, share = route(np.asarray(logits), moe.top_k, moe.renormalize, routing)
    assert (np.sort(chosen, axis=1)[:, 1:] != np.sort(chosen, axis=1)[:, :-1]).all()
    got, want = rows(share, chosen, count), rows(np.asarray(shares), experts, count)
    differ = ((got != 0) != (want != 0)).any(axis=1)
    assert differ.mean() < 0.6
    assert differ.any() or routing.bias is not None  # which leaves no ties
    np.testing.assert_allclose(got[~differ], want[~differ], rtol=1e-5)
    np.testing.assert_allclose(np.sort(share[differ]), np.sort(np.asarray(shares)[differ]), rtol=1e-5)
    score = 1 / (1 + np.exp(-np.asarray(logits))) if routing.sigmoid else np.asarray(logits)
    score = score if routing.bias is None else score + routing.bias
    for t in np.nonzero(differ)[0]:
        mine, other = set(chosen[t].tolist()), set(np.asarray(experts)[t].tolist())
        swapped = sorted(mine - other), sorted(other - mine)
        np.testing.assert_allclose(*(np.sort(score[t][list(side)]) for side in swapped), rtol=1e-6)
        assert sum(swapped[0]) < sum(swapped[1])
