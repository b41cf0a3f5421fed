"""draft: a smaller model with the same tokenizer draws what may follow (Leviathan et al. 2023).

It draws as the target does: with the row's temperature, top_p and so on, and with the noise of the position
(decision 0001). Where both models say nearly the same, equal noise makes them draw the same token, also at
temperatures above 0: two draws with noise of their own would agree less often (decision 0027).

    layer   0 .. L-1      the target's keys and values
            L .. L+M-1    the drafter's: more layers of the same cache

So a page holds both, and what happens to pages (sharing, copies, swap space, disk) happens to both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.kernels.ops import Forward, Inputs, KVCache, KVLayer, Ops, Tensor
from octavo.models.registry import Model
from octavo.spec.base import Drafting, Number, Option, Registration

OPTIONS = {
    "draft_tensor_parallel_size": Option(1, 1, 1, "devices that share the draft model"),
}


class LayersFrom:
    """A KVCache without its first layers. What happens to pages is the whole cache's to do."""

    def __init__(self, kv: KVCache, first: int) -> None:
        self._kv, self._first = kv, first

    @property
    def nbytes(self) -> int:
        return self._kv.nbytes

    def layer(self, index: int) -> KVLayer:
        return self._kv.layer(self._first + index)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._kv.copy_pages(pairs)

    def move_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._kv.move_slots(pairs)


def _drafting(target: Model, drafter: Model | None, options: Mapping[str, Number]) -> Drafting:
    assert drafter is not None, "config.speculation asks for a model's name"
    model, first = drafter, len(target.kv_specs("f32"))

    def over(kv: KVCache) -> Forward:
        own = LayersFrom(kv, first)

        def forward(ops: Ops, inputs: Inputs) -> Tensor:
            return model.forward(ops, inputs, own)

        return forward

    return Drafting(over, model.vocab_size, model.max_position)


PROPOSER = Registration(
    "what a smaller model with the same tokenizer draws",
    options=OPTIONS,
    drafting=_drafting,
    names_model=True,
)
