"""What scripts for vLLM call every day: tokenizers, defaults, arguments that are None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.config import EngineConfig
from octavo.engine_args import HARMLESS_IN_CALLS, EngineArgs, asks_for_nothing
from octavo.errors import InvalidRequestError, UnsupportedError

MESSAGES = [{"role": "user", "content": "Say hello."}]
GREEDY = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture
def llm(smollm2_llm: Callable[..., LLM], fastest: str) -> LLM:
    return smollm2_llm(backend=fastest, max_model_len=256)


def test_a_prompt_that_the_tokenizer_renders_is_the_chats(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>assistant\n")
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)
    assert ids == llm.render_chat(MESSAGES)
    by_text, by_ids = (llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in (text, ids))
    chat = llm.chat(MESSAGES, GREEDY, use_tqdm=False)[0]
    assert by_text.outputs[0].token_ids == by_ids.outputs[0].token_ids == chat.outputs[0].token_ids


def test_templates_take_many_conversations_and_variables(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    one = tokenizer.apply_chat_template(MESSAGES)
    assert tokenizer.apply_chat_template([MESSAGES, MESSAGES], enable_thinking=False) == [one, one]
    assert tokenizer.apply_chat_template(MESSAGES, return_dict=True)["input_ids"] == one
    said = [*MESSAGES, {"role": "assistant", "content": "Hel"}]
    go_on = tokenizer.apply_chat_template(said, tokenize=False, continue_final_message=True)
    assert go_on.endswith("Hel")
    with pytest.raises(UnsupportedError, match="return_tensors"):
        tokenizer.apply_chat_template(MESSAGES, return_tensors="pt")


def test_a_tokenizer_is_called(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("A page is a leaf")
    assert tokenizer("A page is a leaf") == {"input_ids": ids, "attention_mask": [1] * len(ids)}
    both = tokenizer(["A page", "A leaf is"])
    assert both["input_ids"] == [tokenizer.encode("A page"), tokenizer.encode("A leaf is")]
    assert [len(mask) for mask in both["attention_mask"]] == [len(ids) for ids in both["input_ids"]]
    assert tokenizer.decode(ids) == "A page is a leaf"
    assert tokenizer.decode(ids[0]) == tokenizer.token_text(ids[0])
    assert len(tokenizer) == tokenizer.vocab_size
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", tokenizer.token_id("<|im_end|>"))
    assert tokenizer.decode([tokenizer.eos_token_id]) == "<|im_end|>"
    assert tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=True) == ""
    assert tokenizer.chat_template == llm.get_tokenizer().chat_template
    with pytest.raises(AttributeError):
        _ = tokenizer.nothing


def test_nones_change_nothing(llm: LLM) -> None:
    plain = llm.generate("A page", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    nothing = dict.fromkeys(("lora_request", "prompt_adapter_request", "mm_processor_kwargs"))
    assert llm.generate("A page", GREEDY, use_tqdm=False, **nothing)[0].outputs[0].token_ids == plain
    plain = llm.chat(MESSAGES, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    asked = llm.chat(MESSAGES, GREEDY, use_tqdm=False, chat_template=None, lora_request=None)
    assert asked[0].outputs[0].token_ids == plain


def test_what_asks_for_something_is_refused() -> None:
    for name, neutral in HARMLESS_IN_CALLS.items():
        for value in neutral:
            asks_for_nothing({name: value})
        with pytest.raises(UnsupportedError, match=name):
            asks_for_nothing({name: "something"})
    with pytest.raises(TypeError, match="'lora_requests'"):
        asks_for_nothing({"lora_requests": None})


def test_defaults_are_what_calls_without_them_take(llm: LLM) -> None:
    params = llm.get_default_sampling_params().replace(max_tokens=3, seed=1)
    assert llm.get_default_sampling_params() == SamplingParams()
    asked = llm.generate("A page", params, use_tqdm=False)[0]
    again = llm.generate("A page", SamplingParams(max_tokens=3, seed=1), use_tqdm=False)[0]
    assert asked.outputs[0].token_ids == again.outputs[0].token_ids


def test_an_llm_is_a_context(fastest: str) -> None:
    with LLM("smollm2", backend=fastest, max_model_len=64) as llm:
        assert llm.generate("A page", GREEDY, use_tqdm=False)[0].outputs[0].token_ids


NEUTRAL: list[dict[str, Any]] = [
    {"download_dir": None},
    {"task": "generate"},
    {"hf_overrides": {}},
    {"distributed_executor_backend": "mp"},
    {"tokenizer_mode": None},
]


@pytest.mark.parametrize("options", NEUTRAL)
def test_engine_arguments_that_ask_for_nothing(options: dict[str, Any]) -> None:
    assert EngineArgs("m", **options).config == EngineArgs("m").config
    (name,) = options
    with pytest.raises(UnsupportedError, match=name):
        EngineArgs("m", **{name: "something"})


def test_what_loaders_say_of_what_happens_anyway() -> None:
    said: dict[str, Any] = {
        "device_map": "auto", "use_safetensors": True, "safetensors": True, "fuse_layers": True,
        "low_cpu_mem_usage": True, "disable_log_requests": True, "revision": "main",
    }  # fmt: skip
    assert EngineArgs("m", **said).config == EngineArgs("m").config
    others = ({"device_map": {"": 0}}, {"use_safetensors": False}, {"fuse_layers": False}, {"revision": "v2"})
    for other in others:
        with pytest.raises(UnsupportedError, match=next(iter(other))):
            EngineArgs("m", **other)


def test_two_names_of_one_argument_agree() -> None:
    assert EngineArgs("m", page_size=32, block_size=32, device_map="cpu", device="cpu").config.page_size == 32
    for twice, said in (
        ({"page_size": 16, "block_size": 32}, "page_size is given twice: 16 and 32"),
        ({"torch_dtype": "float16", "dtype": "auto"}, "dtype is given twice: 'float16' and 'auto'"),
        ({"device_map": "cpu", "device": "cuda"}, "device='cuda' and device_map='cpu' differ"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            EngineArgs("m", **twice)


def test_dtypes_have_vllms_other_names() -> None:
    assert EngineConfig("m", dtype="half") == EngineConfig("m", dtype="float16")
    assert EngineArgs("m", dtype="float").config.dtype == "float32"
    with pytest.raises(InvalidRequestError, match="dtype"):
        EngineConfig("m", dtype="halves")
