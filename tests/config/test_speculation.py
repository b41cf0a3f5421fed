"""speculative_config: vLLM's names, what may be left out, and one line for each mistake."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.config.speculation import DEFAULT_TOKENS, read_speculation
from octavo.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("given", "method", "most", "auto"),
    [
        ({"method": "ngram"}, "ngram", DEFAULT_TOKENS, True),
        ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}, "ngram", 3, True),
        ({"model": "[ngram]", "num_speculative_tokens": 5}, "ngram", 5, True),
        ({"model": "ngram", "policy": "fixed"}, "ngram", DEFAULT_TOKENS, False),
        ({"method": "ngram", "model": "[ngram]"}, "ngram", DEFAULT_TOKENS, True),
        ({"method": "suffix", "model": None}, "suffix", DEFAULT_TOKENS, True),
        ({"method": "draft_model", "model": "small", "num_speculative_tokens": 4}, "draft", 4, True),
        ({"model": "small"}, "draft", DEFAULT_TOKENS, True),
        ({"method": "self", "layers": 3}, "self", DEFAULT_TOKENS, True),
    ],
)
def test_what_is_read(given: dict[str, Any], method: str, most: int, auto: bool) -> None:
    found = read_speculation(given)
    assert (found.method, found.most, found.auto) == (method, most, auto)
    assert found.model == (given["model"] if method == "draft" else None)
    assert found.options.keys() == found.proposer.options.keys()
    assert EngineConfig("m", speculative_config=given).speculative_config == given


@pytest.mark.parametrize(
    ("method", "rejecting"),
    [(None, False), ("strict", False), ("probabilistic", True), ("standard", True)],
)
def test_ways_to_verify(method: str | None, rejecting: bool) -> None:
    found = read_speculation({"method": "ngram", "rejection_sample_method": method})
    assert found.rejecting is rejecting


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "must be an object"),
        ({}, "needs a method: .*ngram"),
        ({"method": "magic"}, "has the method 'magic'; there are: .*ngram"),
        ({"method": 5}, "has the method 5; there are"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "whole number from 1 to 64, not 0"),
        ({"method": "ngram", "num_speculative_tokens": 65}, "whole number from 1 to 64, not 65"),
        ({"method": "ngram", "num_speculative_tokens": True}, "whole number from 1 to 64, not True"),
        ({"method": "ngram", "num_speculative_tokens": "5"}, "whole number from 1 to 64, not '5'"),
        ({"method": "ngram", "prompt_lookup_max": "x"}, "prompt_lookup_max must be"),
        (
            {"method": "ngram", "tokens": 5},
            "has no 'tokens' with this method; it takes: .*, policy",
        ),
        ({"method": "ngram", "policy": "often"}, "policy must be auto or fixed, not 'often'"),
        (
            {"method": "ngram", "rejection_sample_method": "typical"},
            "rejection_sample_method must be strict or probabilistic, not 'typical'",
        ),
        ({"method": "ngram", "rejection_sample_method": []}, "must be strict or probabilistic"),
        ({"method": "ngram", "model": "smollm2"}, "model is for method 'draft': ngram drafts without one"),
        ({"method": "suffix", "model": "ngram"}, "suffix drafts without one"),
        ({"method": "draft"}, "needs a model for method 'draft'"),
        (
            {"method": "draft", "model": "m", "draft_tensor_parallel_size": 2},
            "_parallel_size must be 1, not 2",
        ),
        ({"method": "eagle", "model": "m"}, "has the method 'eagle'; there are: .*ngram"),
        ({"method": "suffix", "suffix_decoding_use_tree_spec": "yes"}, "must be true or false, not 'yes'"),
        ({"method": "self", "model": "m"}, "model is for method 'draft': self drafts without one"),
        ({"method": "self", "layers": -1}, "layers must be a whole number"),
        ({"model": ""}, "model must be a model's name"),
        ({"model": 5}, "model must be a model's name"),
    ],
)
def test_one_line_for_each_mistake(given: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        EngineConfig("m", speculative_config=given)
    assert caught.value.param == "speculative_config"
    assert "\n" not in str(caught.value)
