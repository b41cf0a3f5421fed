"""octavo.compat: the loaders' names, and what is obeyed or refused by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import octavo
from octavo import SamplingParams, WatermarkDetector, benchmark_inference
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
    assert method_of({"load_in_8bit": True, "load_in_4bit": None}) == "int8"
    assert BitsAndBytesConfig(True, False, 6.0, None, False, False, torch.bfloat16).method == "int8"
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
        (lambda: BitsAndBytesConfig(load_in_4bit="yes"), "load_in_4bit must be True or False, not 'yes'"),  # type: ignore[arg-type]
        (
            lambda: BitsAndBytesConfig(bnb_4bit_compute_dtype="banana"),
            "bnb_4bit_compute_dtype must be one of",
        ),
        (lambda: BitsAndBytesConfig(bnb_4bit_quant_storage=7), "bnb_4bit_quant_storage must be one of"),
        (lambda: BitsAndBytesConfig(llm_int8_skip_modules=["lm_head"]), "llm_int8_skip_modules is not"),
        (lambda: BitsAndBytesConfig(llm_int8_has_fp16_weight=True), "llm_int8_has_fp16_weight is not"),
        (lambda: method_of({"load_in_2bit": True}), "load_in_2bit is not a setting"),
        (lambda: method_of({"quantization_config": 4}), "of type int"),
        (lambda: method_of({"quantization_config": {}, "load_in_4bit": True}), "exclude each other"),
        (lambda: AutoTokenizer.from_pretrained("smollm2", padding_side="right"), "padding_side='right'"),
        (lambda: AutoTokenizer.from_pretrained("smollm2", revision="v2"), "revision='v2'"),
        (lambda: AutoTokenizer.from_pretrained("no-such-model"), "unknown model"),
        (
            lambda: AutoModelForCausalLM.from_pretrained("smollm2", load_in_4bit=True, quantization="int8"),
            "quantization='int8' contradicts what else is asked for, which is 'nf4'",
        ),
        (
            lambda: AutoModelForCausalLM.from_pretrained("smollm2", torch_dtype="float32", dtype="float16"),
            "dtype is given twice: 'float32' and 'float16'",
        ),
        (
            lambda: AutoModelForCausalLM.from_pretrained("smollm2", device_map="cpu", device="cuda"),
            "device='cuda' and device_map='cpu' differ",
        ),
        (lambda: AutoModelForCausalLM.from_pretrained("smollm2", cache_dir="/x"), "cache_dir='/x'"),
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
    prompts: list[Any] = ["Hello", {"input_ids": [[1]]}, [[1.5]], [[[1]]]]
    for wrong in prompts:
        with pytest.raises(InvalidRequestError, match="input_ids must be token ids"):
            model.generate(wrong, max_new_tokens=2)
    lengths: list[dict[str, Any]] = [{"max_new_tokens": 0}, {"max_new_tokens": "9"}, {"max_length": 9.5}]
    for length in lengths:
        with pytest.raises(InvalidRequestError, match=f"{next(iter(length))} must be a positive integer"):
            model.generate([[1, 2, 3]], **length)
    with pytest.raises(InvalidRequestError, match="counts the prompt's 3 tokens"):
        model.generate(np.array([[1, 2, 3]]), max_length=3)
    with pytest.raises(UnsupportedError, match="generate does not take 'streamer'"):
        model.generate(np.array([[1, 2, 3]]), max_new_tokens=2, streamer=object())
    with pytest.raises(
        InvalidRequestError, match=r"attention_mask has the shape \(1, 2\), input_ids \(1, 3\)"
    ):
        model.generate(np.array([[1, 2, 3]]), attention_mask=np.ones((1, 2)), max_new_tokens=2)


CHAT = [{"role": "user", "content": "Name a colour."}]


def test_a_chat_comes_as_it_is_asked_for(model: CausalLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained("smollm2")
    plain = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_tensors="pt").to(
        model.device
    )
    assert ids.tolist() == [plain]
    both = tokenizer.apply_chat_template(
        CHAT, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    assert both.input_ids.tolist() == [plain]
    assert both["attention_mask"].all()
    answer = model.generate(**both, max_new_tokens=4)
    assert answer.shape == (1, len(plain) + 4)
    assert answer.cpu().numpy().tolist() == answer.tolist()
    assert type(answer.numpy()) is np.ndarray
    assert tokenizer.apply_chat_template(CHAT, truncation=True, max_length=3) == plain[:3]
    several = tokenizer.apply_chat_template([CHAT, CHAT], add_generation_prompt=True)
    assert several == [plain, plain]
    assert isinstance(tokenizer.apply_chat_template(CHAT, tokenize=False), str)
    for wrong, said in (
        ({"return_tensors": "tf"}, "return_tensors='tf' is not supported"),
        ({"foo": 1}, "foo: the model's chat template does not read it"),
        ({"tokenize": False, "return_dict": True}, "how ids come needs tokenize=True"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            tokenizer.apply_chat_template(CHAT, **wrong)


def test_what_scripts_ask_a_tokenizer(model: CausalLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained("smollm2")
    plain = tokenizer("The sea is")["input_ids"]
    tokenizer.pad_token = tokenizer.eos_token
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("<|im_end|>", tokenizer.eos_token_id)
    tokenizer.pad_token = "<|endoftext|>"
    assert tokenizer.pad_token_id == tokenizer.convert_tokens_to_ids("<|endoftext|>") == 0
    padded = tokenizer(["Hi", "The sea is"], padding="max_length", max_length=8, return_tensors="np")
    assert padded.input_ids.shape == (2, 8)
    assert padded.input_ids[1].tolist() == [0] * (8 - len(plain)) + plain
    assert tokenizer.vocab_size == len(tokenizer) == 49152
    words = tokenizer.tokenize("The sea is")
    assert words[1] == "\u0120sea"
    assert tokenizer.convert_ids_to_tokens(plain) == words
    assert tokenizer.convert_tokens_to_ids(words) == plain
    ids = tokenizer.encode("The sea is", return_tensors="pt").to(model.device)
    assert ids.tolist() == [plain]
    assert tokenizer("The sea is", return_tensors="pt").input_ids.to("cpu").tolist() == [plain]
    assert tokenizer.decode(plain[0]) == "The"
    assert tokenizer.padding_side == "left"
    tokenizer.padding_side = "left"


def set_of(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t, m: t("a", "b"), "text_pair is not supported"),
        (lambda t, m: t(5), "text must be a list of texts"),
        (lambda t, m: t(["a", 5]), "text must be a text, or a list of texts"),
        (lambda t, m: t("a", stride=3), "the tokenizer does not take stride=3"),
        (lambda t, m: t.encode("a", foo=1), "the tokenizer does not take foo=1"),
        (lambda t, m: t("a", padding="never"), "padding='never' is not supported"),
        (lambda t, m: t("a", padding="max_length"), "needs max_length"),
        (lambda t, m: t(None), "text must be a text, or a list of texts"),
        (lambda t, m: t.decode("abc"), "token_ids must be a token id"),
        (lambda t, m: t.decode(None), "token_ids must be a token id"),
        (lambda t, m: t.decode([-1]), "there is no token -1; the model has 49152"),
        (lambda t, m: t.decode([10**8]), "there is no token 100000000"),
        (lambda t, m: set_of(t, "padding_side", "right"), "padding_side='right' is not supported"),
        (lambda t, m: set_of(t, "pad_token", "[PAD]"), r"there is no token '\[PAD\]', and none can be added"),
        (lambda t, m: t.add_special_tokens({"pad_token": "[PAD]"}), "the vocabulary is the model's"),
        (
            lambda t, m: t("a", return_tensors="pt").to("nonsense"),
            "must be cpu, cuda or cuda:N, not 'nonsense'",
        ),
        (lambda t, m: t.encode("a", return_tensors="pt").to("nonsense"), "device must be cpu"),
        (lambda t, m: m.to("nonsense"), "must be cpu, cuda or cuda:N, not 'nonsense'"),
        (lambda t, m: m.to("float16"), "the dtype is chosen when a model is loaded"),
        (lambda t, m: m.half(), "the dtype is chosen when a model is loaded"),
        (lambda t, m: m(**t("a", return_tensors="pt")), "a model is not called here"),
        (lambda t, m: m.save_pretrained("x"), "octavo quantize MODEL OUT writes models"),
        (lambda t, m: set_of(m.config, "use_cache", False), "config.use_cache cannot be set"),
    ],
)
def test_calls_that_do_nothing_are_refused(model: CausalLM, call: Any, said: str) -> None:
    with pytest.raises(OctavoError, match=said):
        call(AutoTokenizer.from_pretrained("smollm2"), model)


def test_a_model_and_ids_are_where_they_are(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without a GPU, whatever this one has."""
    monkeypatch.setattr("octavo.compat.devices.find_gpu", lambda: "no NVIDIA driver is installed")
    inputs = AutoTokenizer.from_pretrained("smollm2")("Hi", return_tensors="pt")
    for each in (inputs, inputs.input_ids):
        with pytest.raises(InvalidRequestError, match="'cuda' cannot be used: no NVIDIA driver"):
            each.to("cuda")
    here, other = ("cpu", "cuda") if model.device == "cpu" else ("cuda", "cpu")
    assert model.to(here) is model
    with pytest.raises(InvalidRequestError, match=f"the model is on {here}"):
        model.to(other)


def test_a_models_numbers(model: CausalLM) -> None:
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert config.to_dict()["model_type"] == config.model_type == "llama"
    assert model.get_memory_footprint() == next(model.parameters()).bytes
    config.pad_token_id = 7
    tokenizer = AutoTokenizer.from_pretrained("smollm2")
    inputs = tokenizer(["Say hello.", "What is"], return_tensors="np", padding=True)
    end = model.generate(**inputs, max_new_tokens=1)[0, -1]
    rows = model.generate(**inputs, max_new_tokens=6, eos_token_id=int(end))
    assert rows[0, -5:].tolist() == [7] * 5
    assert model.generate(**inputs, max_new_tokens=6, eos_token_id=int(end), pad_token_id=9)[0, -1] == 9
    config.pad_token_id = config.eos_token_id


def test_no_run_comes_twice(model: CausalLM) -> None:
    text = "one two one two one two one two one two one"
    ids = AutoTokenizer.from_pretrained("smollm2")(text, return_tensors="np").input_ids
    length = ids.shape[1]
    pairs = model.generate(ids, max_new_tokens=40, no_repeat_ngram_size=2)[0, length:].tolist()
    assert len(set(itertools.pairwise(pairs))) == len(pairs) - 1
    free = model.generate(ids, max_new_tokens=40)[0, length:].tolist()
    assert len(set(itertools.pairwise(free))) < len(free) - 1


def test_a_loaded_model_has_a_pipeline(model: CausalLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained("smollm2")
    generate = octavo.pipeline("text-generation", model=model, tokenizer=tokenizer)
    found = generate("The capital of France is", max_new_tokens=4, do_sample=False)
    assert "Paris" in found[0]["generated_text"]
    named = octavo.pipeline("text-generation", model="smollm2", tokenizer=tokenizer, **SMALL)
    assert named("The capital of France is", max_new_tokens=4, do_sample=False) == found
    named.llm.shutdown()
    with pytest.raises(InvalidRequestError, match="tokenizer must be a name"):
        octavo.pipeline("text-generation", model=model, tokenizer=object())
    with pytest.raises(InvalidRequestError, match="model must be a name, an LLM"):
        octavo.pipeline("text-generation", model=object())


def test_transformers_mark(model: CausalLM) -> None:
    asked = {"greenlist_ratio": 0.3, "bias": 4.0, "hashing_key": 99, "seeding_scheme": "lefthash"}
    ids = AutoTokenizer.from_pretrained("smollm2")(
        "A long letter from the sea:", return_tensors="np"
    ).input_ids
    wanted = {"do_sample": True, "max_new_tokens": 80, "seed": 3, "eos_token_id": []}
    marked = model.generate(ids, **wanted, watermarking_config=asked)
    same = model.generate(ids, **wanted, watermark={"gamma": 0.3, "delta": 4, "hashing_key": 99})
    assert marked.tolist() == same.tolist()
    detector = WatermarkDetector("smollm2", {"gamma": 0.3, "hashing_key": 99})
    assert detector.detect(marked[0, ids.shape[1] :]).z > 4
    for wrong in ({"seeding_scheme": "selfhash"}, {"context_width": 2}, {"foo": 1}):
        with pytest.raises(UnsupportedError, match=f"watermarking_config.{next(iter(wrong))}="):
            model.generate(ids, watermarking_config=wrong)
    with pytest.raises(InvalidRequestError, match="not both"):
        model.generate(ids, watermark=True, watermarking_config=asked)


def test_a_benchmark_knows_its_names(model: CausalLM) -> None:
    for name, said in (("foo", "already built"), ("max_new_tokens", "max_tokens is its name")):
        with pytest.raises(InvalidRequestError, match=f"does not take '{name}': .*{said}"):
            benchmark_inference(model, None, ["Hi"], **{name: 2})
