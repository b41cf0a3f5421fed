"""octavo.pipeline: arguments become SamplingParams, outputs become transformers' records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.llm import LLM
from octavo.params import CompletionOutput, RequestOutput, SamplingParams
from octavo.pipelines import TextGenerationPipeline, pipeline, sampling_params

QUESTION = {"role": "user", "content": "hi"}


class Words:
    """A tokenizer whose tokens are letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


class Parrot(LLM):
    """Answers with dots, one a token, and remembers what it was asked."""

    max_model_len = 10

    def __init__(self) -> None:
        self.answer: str | None = None
        self.texts: list[str] = []
        self.prompts: list[list[int]] = []
        self.params: list[SamplingParams] = []

    def get_tokenizer(self) -> Any:
        return Words()

    @property
    def max_encoder_len(self) -> int:
        return 0

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        text = "|".join(str(message["content"]) for message in messages)
        return Words().encode(text if options["continue_final_message"] else text + ">")

    def generate(
        self, prompts: Any, sampling_params: Any = None, use_tqdm: Any = True
    ) -> list[RequestOutput]:
        self.texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        texts = [{"prompt_token_ids": Words().encode(p)} if isinstance(p, str) else p for p in prompts]
        self.prompts = [prompt["prompt_token_ids"] for prompt in texts]
        one = isinstance(sampling_params, SamplingParams)
        self.params = [sampling_params] * len(prompts) if one else list(sampling_params)
        return [
            RequestOutput(
                request_id=str(i),
                prompt=None,
                prompt_token_ids=ids,
                outputs=[
                    CompletionOutput(index=k, text=self.answer or "." * min(p.max_tokens or 9, 9))
                    for k in range(p.n)
                ],
                finished=True,
            )
            for i, (ids, p) in enumerate(zip(self.prompts, self.params, strict=True))
        ]


@pytest.fixture
def llm() -> Parrot:
    return Parrot()


@pytest.fixture
def generate(llm: Parrot) -> TextGenerationPipeline:
    return pipeline("text-generation", llm)


def test_prompt_and_continuation(generate: TextGenerationPipeline) -> None:
    assert generate("abc", max_new_tokens=2) == [{"generated_text": "abc.."}]
    assert generate("abc", max_new_tokens=2, return_full_text=False) == [{"generated_text": ".."}]


def test_max_length_counts_the_prompt(generate: TextGenerationPipeline, llm: Parrot) -> None:
    assert generate("abc", max_length=5) == [{"generated_text": "abc.."}]
    assert [p.max_tokens for p in llm.params] == [2]


def test_a_prompt_that_fills_max_length_is_refused(generate: TextGenerationPipeline) -> None:
    with pytest.raises(InvalidRequestError, match="counts the prompt, which has 3 tokens"):
        generate("abc", max_length=3)


def test_a_list_gives_a_list_of_lists(generate: TextGenerationPipeline, llm: Parrot) -> None:
    records = generate(["a", "abcd"], max_length=6, num_return_sequences=2)
    assert records == [[{"generated_text": "a....."}] * 2, [{"generated_text": "abcd.."}] * 2]
    assert [(p.n, p.max_tokens) for p in llm.params] == [(2, 5), (2, 2)]
    assert generate(["a"], max_length=2) == [[{"generated_text": "a."}]]
    assert generate([]) == []


def test_a_chat_gains_an_answer(generate: TextGenerationPipeline, llm: Parrot) -> None:
    records = generate([QUESTION], max_new_tokens=1)
    assert records == [{"generated_text": [QUESTION, {"role": "assistant", "content": "."}]}]
    assert llm.prompts == [Words().encode("hi>")]
    assert generate([[QUESTION]], max_new_tokens=1, return_full_text=False) == [[{"generated_text": "."}]]


def test_a_chat_that_ends_with_the_assistant_goes_on(generate: TextGenerationPipeline, llm: Parrot) -> None:
    chat = [QUESTION, {"role": "assistant", "content": "well"}]
    assert generate(chat, max_new_tokens=1) == [
        {"generated_text": [QUESTION, {"role": "assistant", "content": "well."}]}
    ]
    assert llm.prompts == [Words().encode("hi|well")]
    (record,) = generate(chat, max_new_tokens=1, continue_final_message=False)
    assert record == {"generated_text": [*chat, {"role": "assistant", "content": "."}]}


def test_defaults_are_those_of_transformers(generate: TextGenerationPipeline, llm: Parrot) -> None:
    from transformers.pipelines.text_generation import TextGenerationPipeline as Theirs

    generate("a")
    theirs = Theirs._default_generation_config
    ours = llm.params[0]
    assert (ours.max_tokens, ours.temperature) == (theirs.max_new_tokens, theirs.temperature)
    assert not ours.greedy
    assert theirs.do_sample


def test_arguments_become_params() -> None:
    given = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7, "stop_sequence": "x"}
    params = sampling_params({**given, "min_new_tokens": 2, "repetition_penalty": 1.2})
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 3, 0.9, 0.1)
    assert (params.seed, params.stop, params.min_tokens, params.repetition_penalty) == (7, ("x",), 2, 1.2)


def test_greedy() -> None:
    assert sampling_params({"do_sample": False}).greedy
    assert not sampling_params({"do_sample": True}).greedy


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"do_sample": False, "temperature": 0.7}, "temperature"),
        ({"do_sample": False, "num_return_sequences": 2}, "num_return_sequences"),
        ({"temperature": -1.0}, "temperature"),
        ({"num_beams": 4, "do_sample": True}, "num_beams"),
        ({"num_beams": 4, "top_k": 3}, "top_k"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"use_cache": False}, "use_cache"),
        ({"streamer": object()}, "streamer"),
        ({"return_tensors": True}, "return_tensors"),
    ],
)
def test_contradictions_and_strangers_are_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        sampling_params(arguments)
    assert caught.value.param == named


def test_both_limits_are_refused(generate: TextGenerationPipeline) -> None:
    with pytest.raises(InvalidRequestError, match="not both"):
        generate("a", max_length=5, max_new_tokens=5)


def test_what_has_no_effect_is_accepted() -> None:
    assert sampling_params({"pad_token_id": 0, "batch_size": 8, "top_k": None}) == sampling_params({})


@pytest.mark.parametrize("inputs", [3, [3], ["a", 3], None, {"role": "user"}])
def test_other_inputs_are_refused(generate: TextGenerationPipeline, inputs: Any) -> None:
    with pytest.raises(InvalidRequestError, match="text_inputs"):
        generate(inputs)


@pytest.mark.parametrize("task", ["fill-mask", "", "text_generation", "translation_en"])
def test_other_tasks_are_refused_by_name(llm: Parrot, task: str) -> None:
    with pytest.raises(UnsupportedError, match="there is: text-generation"):
        pipeline(task, llm)


@pytest.mark.parametrize("task", ["summarization", "translation_en_to_de", "text2text-generation"])
def test_tasks_of_encoder_decoders_are_refused(llm: Parrot, task: str) -> None:
    with pytest.raises(InvalidRequestError, match="needs an encoder-decoder model"):
        pipeline(task, llm)


def test_engine_arguments(llm: Parrot) -> None:
    pipeline("text-generation", llm, device="cpu", device_map="auto")
    with pytest.raises(InvalidRequestError, match="device_map belongs to LLM"):
        pipeline("text-generation", llm, device_map="cuda:0")
    with pytest.raises(InvalidRequestError, match="device belongs to LLM"):
        pipeline("text-generation", llm, device=0)
    with pytest.raises(InvalidRequestError, match="dtype belongs to LLM"):
        pipeline("text-generation", llm, model_kwargs={"dtype": "float32"})


def test_transformers_usual_arguments(generate: TextGenerationPipeline, llm: Parrot) -> None:
    generate("abc", max_new_tokens=2, use_cache=True, return_tensors=False, eos_token_id=7, typical_p=0.5)
    assert (llm.params[0].stop_token_ids, llm.params[0].typical_p) == ((7,), 0.5)
    generate(["abab", "xyz"], max_new_tokens=2, num_beams=3, length_penalty=2.0, num_return_sequences=2)
    beams = llm.params[0].beam_search
    assert beams is not None
    assert (beams.beam_width, beams.max_tokens, beams.length_penalty) == (3, 2, 2.0)
    assert (llm.params[0].n, llm.params[0].max_tokens) == (2, 2)
    generate("abab", max_new_tokens=2, no_repeat_ngram_size=2)
    (ngram,) = llm.params[0].constraints
    assert (ngram.size, ngram.before) == (2, tuple(map(ord, "abab")))


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"max_length": "50"}, "max_length must be a positive integer, not '50'"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a positive integer, not 0"),
        ({"max_new_tokens": 1.5, "truncation": True}, "max_new_tokens must be a positive integer"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be a positive integer"),
        ({"no_repeat_ngram_size": "2"}, "no_repeat_ngram_size must be a positive integer"),
    ],
)
def test_a_length_that_is_none_is_named(
    generate: TextGenerationPipeline, argument: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        generate("abc", **argument)
    if argument.keys() <= {"max_length", "max_new_tokens"}:
        argument = {name: np.int64(4) for name in argument}
        assert generate("abc", **argument)


def test_truncation_keeps_what_leaves_room(generate: TextGenerationPipeline, llm: Parrot) -> None:
    generate("abcdefgh", max_new_tokens=4, truncation=True)
    assert llm.prompts == [list(map(ord, "abcdef"))]
    generate("abcdefgh", max_new_tokens=4)
    assert llm.prompts == [list(map(ord, "abcdefgh"))]


def test_question_answering(llm: Parrot) -> None:
    answerer = pipeline("question-answering", llm)
    llm.answer = " the stone\n"
    asked = {"question": "Where?", "context": "Under the stone."}
    found = answerer(asked)
    assert (found["answer"], found["start"], found["end"], found["score"]) == ("the stone", 6, 15, 1.0)
    assert "Where?" in llm.texts[0]
    assert "Under the stone." in llm.texts[0]
    llm.answer = "nowhere"
    (one, two) = answerer(question=["Where?", "Who?"], context="Under the stone.")
    assert one["start"] is None
    assert two["answer"] == "nowhere"
    assert answerer([asked])[0]["answer"] == "nowhere"
    with pytest.raises(InvalidRequestError, match="needs a context"):
        answerer(question="Where?")
    for wrong in ({"question": 5, "context": "a"}, {"question": "Who?", "context": 5}):
        with pytest.raises(InvalidRequestError, match="must be a list of texts, not 5"):
            answerer(**wrong)
    with pytest.raises(UnsupportedError, match="does not take 'top_k'"):
        answerer(asked, top_k=3)
    with pytest.raises(InvalidRequestError, match="max_model_len belongs to LLM"):
        pipeline("text-generation", llm, max_model_len=128)
