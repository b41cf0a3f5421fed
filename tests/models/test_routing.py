"""Which experts a token goes to: what transformers chooses, with the same shares, in every MoE family.

torch.topk promises nothing of equals, and ours are the lower ones: transformers' routers are run with a topk
that takes these as well, so that all else is compared exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.tiny import TINY, VARIANTS
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import F32, Activation, Experts, Routing, Rows
from octavo.kernels.program import Buffer
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.reference_math import route
from octavo.kernels.weight import Weight
from octavo.models.parts import DecoderModel
from octavo.models.parts_moe import MoE
from support.forward import load
from support.kernels import limits_of, tokens_batch

TOKENS = 200
NATIVE = CpuBackend(threads=2)


def experts_in(arguments: Any) -> bool:
    return any(key in arguments for key in ("num_experts", "num_local_experts", "n_routed_experts"))


CASES = [(name, variant) for name, variant in VARIANTS if experts_in(TINY[name][variant])]


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


def lower(x: Any, k: int, dim: int = -1, sorted: bool = True) -> Any:
    """torch.topk with the lower ones of equals."""
    import torch

    found = torch.sort(x, dim=dim, descending=True, stable=True)
    return torch.return_types.topk((found.values.narrow(dim, 0, k), found.indices.narrow(dim, 0, k)))


def rows(shares: F32, experts: Any, count: int) -> F32:
    """[T, experts]: each expert's share, 0 for those that were not chosen."""
    out = np.zeros((len(shares), count), np.float32)
    np.put_along_axis(out, np.asarray(experts), np.asarray(shares), axis=1)
    return out


def native(logits: F32, moe: MoE) -> F32:
    """[T, experts]: the extension's shares, by experts that answer one-hot with their number."""
    count = len(moe.down)
    ones = Weight.dense(np.ones((2, 2), np.float32))
    gate_up = [NATIVE.pack([ones, ones], gated=True)] * count
    answers = np.zeros((count, count, 2), np.float32)
    answers[range(count), range(count), 0] = 1 / 4  # relu(2) * 2 goes in
    down = [NATIVE.pack([Weight.dense(a)]) for a in answers]
    batch = tokens_batch(len(logits))
    ops = NATIVE.eager(batch, limits_of(batch))
    x = ops.tensor(np.ones((len(logits), 2), np.float32), Buffer(Rows.TOKENS, 2))
    router = ops.tensor(logits, Buffer(Rows.TOKENS, count))
    experts = Experts(gate_up, down, Activation.RELU)
    y = ops.moe(x, router, experts, moe.top_k, moe.renormalize, moe.routing)
    return np.array(ops.value(y))


@pytest.mark.parametrize(("name", "variant"), CASES, ids=["-".join(c) for c in CASES])
@pytest.mark.parametrize("count", [0, 60, 160])
def test_experts_and_shares_are_transformers(
    name: str,
    variant: str,
    count: int,
    tiny_folder: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also among ties: as many experts as the tiny model has, and more. Without any, torch's own choice."""
    import torch

    folder = tiny_folder(name, variant)
    layer, moe = ours(folder)
    router = theirs(folder, layer)
    random = torch.Generator().manual_seed(1)
    routing = moe.routing or Routing()
    if count:
        router.num_experts = count
        router.weight = torch.nn.Parameter(torch.zeros(count, router.weight.shape[1]))
        moe = replace(moe, down=[moe.down[0]] * count)
    count = len(moe.down)
    hidden = torch.randint(-2, 3, (TOKENS, router.weight.shape[1]), generator=random) / 4
    with torch.no_grad():  # small integers: exact sums, and many ties
        router.weight.copy_(torch.randint(-1, 2, router.weight.shape, generator=random))
        router.weight[1::3] = router.weight[0]  # equals everywhere
        hidden[: TOKENS // 4] = 0.0  # and here all of them
        if routing.bias is not None:
            bias = torch.randint(-1, 2, (count,), generator=random) / 8
            router.e_score_correction_bias = torch.nn.Buffer(bias)
            routing = replace(routing, bias=bias.numpy())
            moe = replace(moe, routing=routing)
        torchs = np.sort(np.asarray(router(hidden)[2]), axis=1)
        monkeypatch.setattr(torch, "topk", lower)
        logits, shares, experts = router(hidden)
    chosen, share = route(np.asarray(logits), moe.top_k, moe.renormalize, routing)
    np.testing.assert_array_equal(chosen, np.sort(np.asarray(experts), axis=1))
    want = rows(np.asarray(shares), experts, count)
    np.testing.assert_allclose(rows(share, chosen, count), want, rtol=1e-5)
    got = native(np.asarray(logits), moe)
    np.testing.assert_array_equal(got != 0, want != 0)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for t in (0, TOKENS - 1):  # alone as among others
        np.testing.assert_array_equal(native(np.asarray(logits)[t : t + 1], moe)[0], got[t])
    assert 0.03 < (torchs != chosen).any(axis=1).mean() < 0.97  # ties decide, and not everywhere


def test_groups_that_have_nothing_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """One expert of DeepSeek-V2's best groups may have all the weight: the rest is a tie of zeros."""
    import torch
    from transformers.models.deepseek_v2.configuration_deepseek_v2 import DeepseekV2Config
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter

    config = DeepseekV2Config(
        hidden_size=16, num_attention_heads=4, n_routed_experts=16, num_experts_per_tok=3,
        topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=1.5,
    )  # fmt: skip
    router = DeepseekV2TopkRouter(config)
    with torch.no_grad():
        router.weight.copy_(torch.eye(16))
        logits = torch.full((40, 16), -200.0)
        places = torch.randint(0, 16, (40,), generator=torch.Generator().manual_seed(0))
        logits[range(40), places] = 200.0
        monkeypatch.setattr(torch, "topk", lower)
        _, shares, experts = router(logits)
    routing = Routing(groups=4, top_groups=2, scale=1.5)
    chosen, share = route(logits.numpy(), 3, False, routing)
    np.testing.assert_array_equal(chosen, np.sort(experts.numpy(), axis=1))
    np.testing.assert_allclose(rows(share, chosen, 16), rows(shares.numpy(), experts, 16), rtol=1e-6)
