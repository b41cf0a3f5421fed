"""No run of tokens twice: against transformers' processor, token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.sampling.constraints import full_mask
from octavo.structured.no_repeat_ngram import NoRepeatNgram

VOCAB = 5
tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30)


def banned(matcher: object, ahead: list[int]) -> set[int]:
    mask = full_mask(1, VOCAB)[0]
    matcher.restrict(mask, ahead)  # type: ignore[attr-defined]
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return {i for i in range(VOCAB) if not bits[i]}


@given(st.integers(1, 4), tokens, tokens, st.integers(0, 3))
def test_the_same_tokens_are_banned_as_in_transformers(
    size: int, before: list[int], output: list[int], drafts: int
) -> None:
    import torch
    from transformers import NoRepeatNGramLogitsProcessor

    split = max(len(output) - drafts, 0)
    constraint = NoRepeatNgram(size, before)
    whole, stepped = constraint.start(output[:split]), constraint.start([])
    for token in output[:split]:
        stepped.append([token])
    scores = NoRepeatNGramLogitsProcessor(size)(torch.tensor([before + output]), torch.zeros(1, VOCAB))
    want = {i for i in range(VOCAB) if torch.isinf(scores[0, i])}
    assert banned(whole, output[split:]) == banned(stepped, output[split:]) == want


def test_drafts_leave_no_trace() -> None:
    matcher = NoRepeatNgram(2, [1, 2]).start([3])
    assert banned(matcher, [1]) == {2}
    assert banned(matcher, []) == set()


def test_a_run_has_a_token() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        NoRepeatNgram(0, [])
