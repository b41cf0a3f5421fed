"""octavo.compat: the loaders' names, and what is obeyed or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from octavo import SamplingParams
from octavo.compat import (
    AutoAWQForCausalLM,
    AutoGPTQForCausalLM,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    CausalLM,
)
from octavo.compat.quantization import method_of
from octavo.errors import InvalidRequestError, OctavoError, UnsupportedError

SMALL: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "num_pages": 64}


@pytest.fixture(scope="module")
def model() -> Iterator[CausalLM]:
    model = AutoModelForCausalLM.from_pretrained(
        "smollm2", device_map="auto", low_cpu_mem_usage=True, **SMALL
    )
    yield model
    model.llm.shutdown()


def test_a_tokenizer_and_a_model_as_lessons_call_them(model: CausalLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained("smollm2")
    inputs = tokenizer("The capital of France is", return_tensors="pt").to(model.device)
    outputs = model.generate(**inputs, max_new_tokens=5)
    length = inputs["input_ids"].shape[1]
    assert outputs.shape == (1, length + 5)
    assert outputs[0, :length].tolist() == tokenizer.encode("The capital of France is")
    wanted = SamplingParams(temperature=0, max_tokens=5)
    text = model.llm.generate("The capital of France is", wanted, use_tqdm=False)[0].outputs[0].text
    assert tokenizer.decode(outputs[0, length:]) == text
    assert inputs.input_ids is inputs["input_ids"]


def test_several_prompts_are_padded_on_the_left(model: CausalLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained("smollm2")
    inputs = tokenizer(["Hello", "The capital of France is"], return_tensors="np", padding=True)
    assert inputs.attention_mask[0, 0] == 0
    assert inputs.attention_mask[1].all()
    both = model.generate(**inputs, max_new_tokens=4)
    alone = model.generate(tokenizer("Hello", return_tensors="np").input_ids, max_new_tokens=4)
    assert both[0, -4:].tolist() == alone[0, -4:].tolist()
    with pytest.raises(InvalidRequestError, match="padding=True"):
        tokenizer(["Hello", "The capital of France is"], return_tensors="np")
    assert tokenizer(["a b"])["input_ids"] == [tokenizer.encode("a b")]


def test_parameters_can_be_counted(model: CausalLM) -> None:
    assert model.num_parameters() == pytest.approx(134.5e6, rel=0.02)
    assert model.eval() is model.to("cpu")


def test_what_bitsandbytes_asks_for() -> None:
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16",
        bnb_4bit_use_double_quant=True,
    )  # fmt: skip
    assert config.method == "nf4"
    options: dict[str, Any] = {"quantization_config": config, "seed": 1}
    assert (method_of(options), options) == ("nf4", {"seed": 1})
    assert method_of({"load_in_8bit": True}) == "int8"
    assert method_of({"quantization_config": {"load_in_4bit": True}}) == "nf4"
    assert method_of({}) is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: BitsAndBytesConfig(load_in_4bit=True, load_in_8bit=True), "exclude each other"),
        (
            lambda: BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="fp4"),
            "'fp4' is not made on load",
        ),
        (lambda: BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0), "llm_int8_threshold"),
        (lambda: method_of({"load_in_2bit": True}), "load_in_2bit is not a setting"),
        (lambda: method_of({"quantization_config": 4}), "of type int"),
        (lambda: method_of({"quantization_config": {}, "load_in_4bit": True}), "exclude each other"),
        (lambda: AutoTokenizer.from_pretrained("smollm2", padding_side="right"), "padding_side='right'"),
        (lambda: AutoTokenizer.from_pretrained("no-such-model"), "unknown model"),
        (lambda: AutoModelForCausalLM.from_pretrained("smollm2", use_triton=True), "use_triton=True"),
        (lambda: AutoModelForCausalLM.from_pretrained("smollm2", nonsense=1), "nonsense is not an engine"),
        (lambda: AutoAWQForCausalLM.from_quantized("no-such-model", fuse_layers=True), "unknown model"),
        (lambda: AutoGPTQForCausalLM.from_quantized("smollm2", use_safetensors=False), "use_safetensors"),
    ],
)
def test_what_is_not_supported_is_named(call: Any, said: str) -> None:
    with pytest.raises(OctavoError, match=said):
        call()


def test_generate_wants_ids(model: CausalLM) -> None:
    with pytest.raises(InvalidRequestError, match="needs input_ids"):
        model.generate(max_new_tokens=2)
    with pytest.raises(InvalidRequestError, match="counts the prompt's 3 tokens"):
        model.generate(np.array([[1, 2, 3]]), max_length=3)
    with pytest.raises(UnsupportedError, match="does not take 'streamer'"):
        model.generate(np.array([[1, 2, 3]]), max_new_tokens=2, streamer=object())
