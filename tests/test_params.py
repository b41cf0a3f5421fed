"""SamplingParams and prompts take numbers of every kind, and say what they do not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.beam_search import sampling_params
from octavo.engine_args import EngineArgs
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.llm import as_list
from octavo.params import BeamSearchParams, SamplingParams
from octavo.prompts import prompt_ids
from support.lines import calls_of


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
    [
        ("n", True), ("n", np.bool_(True)), ("n", np.float32(2)), ("temperature", "1"),
        ("temperature", np.nan),
        ("ignore_eos", 1), ("include_stop_str_in_output", None), ("detokenize", "no"), ("output_kind", 5),
        ("logit_bias", {260.5: 100}), ("logit_bias", {True: 1}), ("logit_bias", {1: True}),
        ("logit_bias", {"1_0": 1}), ("logit_bias", {" 260 ": 1}), ("logit_bias", {"٢٦٠": 1}),
        ("logit_bias", {"260": 1, "0260": 100}), ("logit_bias", {1: "5"}), ("logit_bias", [1]),
        ("logit_bias", 5), ("stop", 5), ("stop", 0), ("stop", [5]), ("stop", ""), ("stop", {"a": 1}),
        ("stop_token_ids", 5), ("stop_token_ids", "12"), ("allowed_token_ids", 5), ("bad_words", 5),
        ("bad_words", b"the"), ("bad_words", [""]), ("bad_words", ""),
    ],
)  # fmt: skip
def test_other_things_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("name", ["stop", "bad_words"])
@pytest.mark.parametrize("value", ["the", ["the"], ("the",), {"the"}], ids=repr)
def test_one_text_is_a_list_of_one(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == ("the",)
    assert getattr(SamplingParams(**{name: None}), name) == ()


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
        (b"abc", "bytes"),
    ],
)
def test_what_is_no_prompt_is_named(prompts: Any, what: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"must be text or token ids, not {what}") as caught:
        [prompt_ids(prompt, None) for prompt in as_list(prompts)]  # type: ignore[arg-type]
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "what"),
    [({"foo": 1}, "'foo'"), ({"prompt": "a", 5: 1}, "5"), ({}, "nothing")],
)
def test_what_a_prompt_object_may_hold_is_listed(prompt: Any, what: str) -> None:
    listed = "prompt or prompt_token_ids, and beside it may hold cache_salt, generated_token_ids, index"
    with pytest.raises(InvalidRequestError, match=rf"^a prompt object holds {listed}; not {what}$"):
        prompt_ids(prompt, None)  # type: ignore[arg-type]


SAID_TWICE = {"n": 7, "max_tokens": 9, "ignore_eos": True, "include_stop_str_in_output": True}


@pytest.mark.parametrize(("name", "value"), [*SAID_TWICE.items(), ("seed", 5)])
def test_what_a_beam_search_says_itself_is_not_said_otherwise_beside_it(name: str, value: Any) -> None:
    beams = BeamSearchParams(3, 5)
    with pytest.raises(InvalidRequestError, match=name):
        sampling_params(beams, SamplingParams(**{name: value}))


def test_a_beam_search_may_be_told_the_same_twice() -> None:
    beams = BeamSearchParams(7, 9, ignore_eos=True, include_stop_str_in_output=True)
    params = sampling_params(beams, SamplingParams(**SAID_TWICE, logit_bias={5: 1.0}))
    assert {name: getattr(params, name) for name in SAID_TWICE} == SAID_TWICE
    assert (params.beam_search, params.logit_bias) == (beams, {5: 1.0})


@pytest.mark.parametrize(("beams", "others"), [(SamplingParams(), None), (BeamSearchParams(1, 1), [5])])
def test_a_beam_search_takes_its_own_params(beams: Any, others: Any) -> None:
    with pytest.raises(InvalidRequestError, match="params must be"):
        sampling_params(beams, others)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prefix_cache_dir", 5),
        ("prefix_cache_disk_space", "a"),
        ("prefix_cache_disk_space", True),
        ("max_num_seqs", 65537),
    ],
)
def test_options_of_another_type(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        EngineArgs("m", **{"prefix_cache_dir": "d", name: value})


def test_others_names_of_our_options() -> None:
    assert EngineArgs("m", torch_dtype="float32").config.dtype == "float32"
    assert EngineArgs("m", device_map="cpu").config.device == "cpu"
    harmless = {
        "device_map": "auto",
        "use_safetensors": True,
        "fuse_layers": True,
        "disable_log_requests": True,
    }
    assert EngineArgs("m", **harmless).config == EngineArgs("m").config
    with pytest.raises(UnsupportedError, match="use_safetensors=False"):
        EngineArgs("m", use_safetensors=False)


def test_a_copy_walks_a_long_list_of_ids_in_no_code_of_its_own() -> None:
    """A request with hundreds of thousands of them is copied several times on the event loop."""

    def calls(count: int) -> int:
        params = SamplingParams(allowed_token_ids=range(count))
        return calls_of(lambda: params.replace(skip_special_tokens=False))

    assert 0 < calls(100_000) == calls(10)
