"""EngineArgs: what peers know is taken where it asks for what happens anyway, else refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.engine_args import EngineArgs
from octavo.errors import InvalidRequestError, UnsupportedError


@pytest.mark.parametrize(
    "options",
    [
        {"device_map": "auto"},
        {"disable_log_stats": True},
        {"draft_model": None, "num_speculative_tokens": None, "speculative_model": None},
        {"block_size": 16},
    ],
)
def test_what_happens_anyway_is_taken(options: dict[str, Any]) -> None:
    assert EngineArgs("m", **options).config.model == "m"


@pytest.mark.parametrize(
    "options",
    [
        {"disable_log_stats": False},
        {"enable_lora": True},
    ],
)
def test_what_is_not_done_is_refused_by_its_name(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(UnsupportedError, match=f"^{name}=.* is not supported$") as caught:
        EngineArgs("m", **options)
    assert caught.value.param == name


def test_what_is_done_otherwise_is_refused_with_how() -> None:
    with pytest.raises(UnsupportedError, match="draft_model='x' is not supported: give speculative_config="):
        EngineArgs("m", draft_model="x")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"speculative_model": "[ngram]", "num_speculative_tokens": 4},
         {"model": "[ngram]", "num_speculative_tokens": 4}),
        ({"speculative_model": "ngram", "ngram_prompt_lookup_max": 3, "ngram_prompt_lookup_min": 2},
         {"model": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 2}),
    ],
)  # fmt: skip
def test_older_arguments_of_speculation_are_mapped(options: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert EngineArgs("m", **options).config.speculative_config == wanted
    with pytest.raises(
        InvalidRequestError, match="speculative_model and speculative_config exclude each other"
    ):
        EngineArgs("m", **options, speculative_config={"method": "ngram"})


def test_a_number_of_drafted_tokens_needs_who_drafts() -> None:
    with pytest.raises(InvalidRequestError, match="num_speculative_tokens needs a speculative_model"):
        EngineArgs("m", num_speculative_tokens=4)


@pytest.mark.parametrize("name", ["num_sliding_pages", "num_local_pages"])
def test_an_older_name_is_taken(name: str) -> None:
    assert EngineArgs("m", **{name: 700}).config.num_sliding_pages == 700


def test_a_slip_of_the_pen_is_told() -> None:
    with pytest.raises(InvalidRequestError, match=r"did you mean max_model_len\?"):
        EngineArgs("m", max_model_length=5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("load_in_4bit", 'load_in_4bit is not an engine argument: give quantization="nf4"'),
        ("load_in_8bit", 'load_in_8bit is not an engine argument: give quantization="int8"'),
        ("quantization_config", "octavo.compat.AutoModelForCausalLM"),
    ],
)
def test_what_loaders_call_otherwise_is_told(name: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        EngineArgs("m", **{name: True})
    assert caught.value.param == name
