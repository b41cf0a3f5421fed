"""Pipelines of encoder-decoder models: transformers' arguments and defaults, its texts and records."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo import LLM
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.pipelines import Text2TextPipeline, pipeline
from octavo.tokenizer.folder import from_folder
from support.seq2seq import make_folder

TEXTS = ["a page of the book", "The light of the evening falls", "River House"]
T5_TASKS = {
    "summarization": {"prefix": "summarize: ", "min_length": 8, "max_length": 20, "no_repeat_ngram_size": 2},
    "translation_en_to_de": {"prefix": "translate English to German: ", "max_length": 16, "num_beams": 3,
                             "early_stopping": True},
}  # fmt: skip
BART_FILES = {"forced_bos_token_id": 0, "forced_eos_token_id": 2, "min_length": 6, "max_length": 18,
              "no_repeat_ngram_size": 3}  # fmt: skip


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder("t5", tmp_path_factory.mktemp("t5"), task_specific_params=T5_TASKS)


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder("bart", tmp_path_factory.mktemp("bart"), BART_FILES)


@cache
def llm(folder: Path) -> LLM:
    return LLM(str(folder), dtype="float32")


def theirs(folder: Path, text: str, **generation: Any) -> list[str]:
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = from_folder(folder)
    out = model.generate(torch.tensor([tokenizer.encode(text)]), **{"do_sample": False, **generation})
    return [tokenizer.decode(row.tolist()) for row in out]


def test_a_summary_by_the_models_own_defaults(t5: Path) -> None:
    defaults = T5_TASKS["summarization"]
    wanted = {key: value for key, value in defaults.items() if key != "prefix"}
    found = pipeline("summarization", llm(t5))(TEXTS)
    for text, record in zip(TEXTS, found, strict=True):
        assert record == {"summary_text": theirs(t5, f"summarize: {text}", **wanted)[0]}
    longer = pipeline("summarization", llm(t5))(TEXTS[0], max_length=30, min_length=25)
    assert longer == [
        {
            "summary_text": theirs(
                t5, f"summarize: {TEXTS[0]}", **wanted | {"max_length": 30, "min_length": 25}
            )[0]
        }
    ]


def test_a_translation_by_beams(t5: Path) -> None:
    translate = pipeline("translation_en_to_de", llm(t5))
    wanted: dict[str, Any] = {"num_beams": 3, "max_length": 16, "early_stopping": True}
    prefixed = [f"translate English to German: {text}" for text in TEXTS]
    assert translate(TEXTS) == [{"translation_text": theirs(t5, text, **wanted)[0]} for text in prefixed]
    several = translate(TEXTS[0], num_return_sequences=3, length_penalty=2.0)
    want = theirs(t5, prefixed[0], **wanted, num_return_sequences=3, length_penalty=2.0)
    assert several == [{"translation_text": text} for text in want]


def test_forced_first_and_last_tokens_are_obeyed(bart: Path) -> None:
    for call in (
        {},
        {"max_new_tokens": 9},
        {"max_length": 12, "min_length": 12},
        {"min_length": 0},
        {"min_new_tokens": 10},
    ):
        found = pipeline("text2text-generation", llm(bart))(TEXTS, **call)
        merged = {k: v for k, v in BART_FILES.items() if not ("max_new_tokens" in call and k == "max_length")}
        want = [theirs(bart, text, **merged | call)[0] for text in TEXTS]
        assert found == [{"generated_text": text} for text in want]


SEARCHES: list[dict[str, Any]] = [
    # as bart-large-cnn's generation_config.json has it, in proportion
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True},
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "num_return_sequences": 4},
    {"num_beams": 3, "min_length": 0, "early_stopping": False, "num_return_sequences": 3},
    {"num_beams": 3, "length_penalty": 0.5, "early_stopping": "never", "num_return_sequences": 2},
    {"num_beams": 2, "max_length": 12, "min_length": 12, "num_return_sequences": 2},
    {"num_beams": 5, "max_new_tokens": 9, "min_new_tokens": 5, "num_return_sequences": 5},
    {"num_beams": 3, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "num_return_sequences": 3},
]


@pytest.mark.parametrize("call", SEARCHES)
def test_beams_obey_lengths_bans_and_forced_tokens(bart: Path, t5: Path, call: dict[str, Any]) -> None:
    """The defaults of the files and the call's, together, as transformers' generate searches with them."""
    for folder, files, prefix in (
        (bart, BART_FILES, ""),
        (t5, {k: v for k, v in T5_TASKS["summarization"].items() if k != "prefix"}, "summarize: "),
    ):
        found = pipeline("summarization", llm(folder))(TEXTS, **call)
        merged = {k: v for k, v in files.items() if not ("max_new_tokens" in call and k == "max_length")}
        want = [theirs(folder, prefix + text, **merged | call) for text in TEXTS]
        several: list[list[str]] = [
            [record["summary_text"] for record in (records if isinstance(records, list) else [records])]
            for records in found
        ]
        assert several == want


def test_defaults_of_the_files_may_ask_for_beams(tmp_path: Path) -> None:
    asked = BART_FILES | {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True}
    folder = make_folder("bart", tmp_path, asked, end_bias=6.0)
    summarize = pipeline("summarization", LLM(str(folder), dtype="float32"))
    ended = []
    for least in ({}, {"min_length": 0}, {"min_length": 10}):
        found = summarize(TEXTS, **least)
        assert found == [{"summary_text": theirs(folder, text, **least)[0]} for text in TEXTS]
        ended.append(found)
    assert ended[0] != ended[1] != ended[2]  # the end waits for the least length


def test_records_have_transformers_shape(bart: Path) -> None:
    write = octavo.pipeline("text2text-generation", llm(bart))
    sampled: dict[str, Any] = {"do_sample": True, "seed": 1, "max_new_tokens": 8}
    assert [len(each) for each in write(TEXTS, num_return_sequences=2, **sampled)] == [2, 2, 2]
    one, as_list = write(TEXTS[0], **sampled), write(TEXTS[:1], **sampled)
    assert one == as_list
    assert set(one[0]) == {"generated_text"}


def test_long_inputs_are_refused_or_cut(bart: Path) -> None:
    write, long = pipeline("summarization", llm(bart)), "page " * 200
    with pytest.raises(InvalidRequestError, match="at most 128 are computed in one step"):
        write(long)
    ids = Text2TextPipeline(llm(bart))._ids(long, truncation=True)
    assert len(ids) == 128
    assert (ids[0], ids[-1]) == (0, 2)
    from transformers import AutoTokenizer

    assert ids == AutoTokenizer.from_pretrained(bart)(long, truncation=True, max_length=128).input_ids
    assert write(long, truncation=True)[0]["summary_text"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"num_beams": 4, "do_sample": True}, "num_beams = 4 together with do_sample is not supported"),
        ({"num_beams": 2, "top_p": 0.9}, "top_p has no effect without do_sample"),
        ({"num_beams": 2, "num_return_sequences": 3}, "n 3 is above beam_width 2"),
        ({"temperature": 0.5}, "temperature has no effect without do_sample"),
        ({"num_return_sequences": 2}, "needs do_sample=True"),
        ({"penalty_alpha": 0.6}, "does not take 'penalty_alpha'"),
        ({"src_lang": "en"}, "does not take 'src_lang'"),
        ({"max_length": 3, "min_length": 0}, "leaves no room"),
        ({"max_length": 8, "min_length": 50}, "at least .* at most"),
        ({"max_new_tokens": -1}, "must be an integer"),
    ],
)
def test_what_is_not_obeyed_is_refused(bart: Path, call: Mapping[str, Any], message: str) -> None:
    with pytest.raises((InvalidRequestError, UnsupportedError), match=message):
        pipeline("summarization", llm(bart))("a page", **call)


def test_what_the_models_files_ask_for_is_not_ignored(tmp_path: Path) -> None:
    folder = make_folder("t5", tmp_path, {"encoder_no_repeat_ngram_size": 3})
    with pytest.raises(UnsupportedError, match="asks for encoder_no_repeat_ngram_size = 3"):
        pipeline("summarization", LLM(str(folder)))("a page")


def test_tasks_and_models_must_match(t5: Path) -> None:
    with pytest.raises(InvalidRequestError, match="continues texts"):
        pipeline("text-generation", llm(t5))
    with pytest.raises(UnsupportedError, match="no pipeline for task 'translation_en'"):
        pipeline("translation_en", llm(t5))
    with pytest.raises(InvalidRequestError, match="a string or a list of strings"):
        pipeline("summarization", llm(t5))([1, 2])  # type: ignore[list-item]
