"""SamplingParams and prompts take numbers of every kind, and say what they do not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams
from octavo.prompts import as_list, prompt_ids


@pytest.mark.parametrize(
    "value", [np.int64(3), np.uint8(3), np.array([3])[0], 3], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("name", ["n", "top_k", "max_tokens", "seed", "logprobs", "truncate_prompt_tokens"])
def test_integers(name: str, value: Any) -> None:
    found = getattr(SamplingParams(**{name: value}), name)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), np.float16(0.5), 0.5])
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_reals(name: str, value: Any) -> None:
    found = getattr(SamplingParams(**{name: value}), name)
    assert (found, type(found)) == (0.5, float)


def test_arrays_of_ids() -> None:
    params = SamplingParams(
        stop_token_ids=np.array([1, 2]),
        allowed_token_ids=np.array([3]),
        logit_bias={np.int32(4): np.float32(1)},
    )
    assert (params.stop_token_ids, params.allowed_token_ids, params.logit_bias) == ((1, 2), (3,), {4: 1.0})
    assert {type(i) for i in (*params.stop_token_ids, *params.allowed_token_ids, *params.logit_bias)} == {int}


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", True), ("n", np.bool_(True)), ("n", np.float32(2)), ("temperature", "1"), ("temperature", np.nan)],
)
def test_other_things_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    "prompts", [[1, 2], np.array([1, 2]), [np.int64(1), 2], (1, 2), {"prompt_token_ids": [1, 2]}]
)
def test_one_prompt_of_ids(prompts: Any) -> None:
    (prompt,) = as_list(prompts)
    text, ids = prompt_ids(prompt, None)  # type: ignore[arg-type]  # ids need no tokenizer
    assert (text, ids) == (None, [1, 2])
    assert {type(i) for i in ids} == {int}


@pytest.mark.parametrize(
    ("prompts", "what"),
    [
        (None, "NoneType"),
        (5, "int"),
        ([None], "NoneType"),
        ([[1.5]], "float"),
        ([[True]], "bool"),
        ([b"a"], "bytes"),
    ],
)
def test_what_is_no_prompt_is_named(prompts: Any, what: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"must be text or token ids, not {what}") as caught:
        [prompt_ids(prompt, None) for prompt in as_list(prompts)]  # type: ignore[arg-type]
    assert caught.value.param == "prompt"
