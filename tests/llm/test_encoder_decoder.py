"""T5 and BART through the whole engine: against transformers, beside each other, served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from octavo import LLM, SamplingParams
from octavo.async_llm import AsyncLLM
from octavo.engine_args import EngineArgs
from octavo.errors import CheckpointError, InvalidRequestError
from octavo.prompts import PromptReader
from octavo.server.app import create_app
from octavo.tokenizer.folder import from_folder
from support.seq2seq import make_folder

KINDS = ("t5", "bart")
TEXTS = ["a page of the book", "The light of the evening falls on letters", "River House ü ...", "a"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, logprobs=2)
FORCED = {"t5": None, "bart": {"forced_bos_token_id": 0}}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind = request.param
    return make_folder(kind, tmp_path_factory.mktemp(kind), FORCED[kind])


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), dtype="float32")


def theirs(folder: Path, text: str, **arguments: Any) -> list[int]:
    """What transformers generates, the decoder's start included."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    ids = torch.tensor([from_folder(folder).encode(text)])
    out: list[int] = model.generate(ids, do_sample=False, num_beams=1, **arguments)[0].tolist()
    return out


def test_greedy_text_equals_transformers(folder: Path, llm: LLM) -> None:
    from transformers import AutoTokenizer

    reader = AutoTokenizer.from_pretrained(folder)
    for text, output in zip(TEXTS, llm.generate(TEXTS, GREEDY), strict=True):
        begin, new = output.prompt_token_ids, output.outputs[0].token_ids
        want = theirs(folder, text, max_length=len(begin) + 24)
        assert begin + new == want
        assert output.encoder_prompt == text
        assert output.encoder_prompt_token_ids == reader(text).input_ids
        assert output.outputs[0].text == reader.decode(want, skip_special_tokens=True)


def test_a_decoder_prompt_is_gone_on_from(folder: Path, llm: LLM) -> None:
    """As vLLM has it, in text or ids, with or without the start token."""
    whole = llm.generate(TEXTS[1], GREEDY)[0]
    start, written = whole.prompt_token_ids, whole.outputs[0].token_ids
    for begin in (written[:5], start[:1] + start[1:] + written[:5]):
        if begin[0] != start[0]:
            begin = start[1:] + begin
        prompt = {"encoder_prompt": TEXTS[1], "decoder_prompt": {"prompt_token_ids": begin}}
        rest = llm.generate(prompt, GREEDY.replace(max_tokens=19))[0]
        assert rest.prompt_token_ids == start + written[:5]
        assert rest.outputs[0].token_ids == written[5:]
    as_text = llm.generate({"encoder_prompt": TEXTS[1], "decoder_prompt": "the light"}, GREEDY)[0]
    assert as_text.prompt == "the light"
    ids = llm.get_tokenizer().encode("the light", add_special_tokens=False)
    assert as_text.prompt_token_ids == [start[0], *ids]
    nothing = llm.generate({"encoder_prompt": TEXTS[1], "decoder_prompt": None}, GREEDY)[0]
    assert nothing.outputs[0].token_ids == written


def test_equal_bits_alone_in_a_batch_and_after_preemption(folder: Path, llm: LLM) -> None:
    params = SamplingParams(n=2, seed=3, max_tokens=30, logprobs=1, ignore_eos=True)
    alone = [llm.generate(text, params)[0] for text in TEXTS]
    together = llm.generate(TEXTS, params)
    for pages in (None, 12):
        if pages is not None:  # few pages: requests are preempted, and encoded anew
            tight = LLM(str(folder), dtype="float32", num_pages=pages, page_size=8, max_model_len=36)
            together = tight.generate(TEXTS, params)
            assert tight.get_metrics().preemptions > 0
        for one, other in zip(alone, together, strict=True):
            for mine, beside in zip(one.outputs, other.outputs, strict=True):
                assert mine.token_ids == beside.token_ids
                if llm_is_native():
                    assert mine.logprobs == beside.logprobs


def llm_is_native() -> bool:
    from octavo.kernels.select import native_available

    return native_available()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "needs at least one token for its encoder"),
        ({"decoder_prompt": "a"}, "encoder_prompt must not be missing"),
        ({"encoder_prompt": "a", "prompt": "b"}, "not 'prompt'"),
        ({"encoder_prompt": "a", "decoder_prompt": 3}, "must be text or token ids, not int"),
        ([5] * 600, "at most .* are computed in one step"),
    ],
)
def test_what_cannot_be_read_is_refused(llm: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        llm.generate([prompt])


def test_conversations_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"encoder-decoder .*LLM.generate"):
        llm.chat([{"role": "user", "content": "hello"}])


def test_a_model_without_an_encoder_takes_none(folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="has no encoder"):
        PromptReader(from_folder(folder)).request("r", {"encoder_prompt": "a", "decoder_prompt": "b"}, GREEDY)


def test_what_the_folder_lacks_is_named(tmp_path: Path) -> None:
    folder = make_folder("t5", tmp_path)
    for name in ("config.json", "generation_config.json"):
        held = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({k: v for k, v in held.items() if "start" not in k}))
    with pytest.raises(CheckpointError, match="decoder_start_token_id"):
        LLM(str(folder))
    (folder / "tokenizer.json").rename(folder / "spiece.model")
    with pytest.raises(CheckpointError, match=r"made of spiece.model by transformers"):
        LLM(str(folder))


def test_lengths_bound_both_sides(folder: Path) -> None:
    small = LLM(str(folder), dtype="float32", max_model_len=20, max_num_batched_tokens=12)
    with pytest.raises(InvalidRequestError, match="has 13 tokens; at most 12"):
        small.generate([[5] * 13])
    output = small.generate([[5] * 12], SamplingParams(ignore_eos=True, max_tokens=None))[0]
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 20
    assert output.outputs[0].finish_reason == "length"


def test_t5_has_no_end_of_its_own(tmp_path: Path) -> None:
    """Distances beyond the largest bucket are all alike, so the user may raise the length."""
    longer = LLM(str(make_folder("t5", tmp_path)), dtype="float32", max_model_len=700)
    assert longer.max_encoder_len == 700
    assert longer.generate([[5] * 650], SamplingParams(max_tokens=2))[0].num_prompt_tokens == 651


# --- served -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    engine = AsyncLLM.from_engine_args(EngineArgs(str(folder), dtype="float32", served_model_name="tiny"))
    with TestClient(create_app(engine)) as client:
        yield client


def test_completions_are_served(client: TestClient, llm: LLM) -> None:
    body = {"model": "tiny", "prompt": TEXTS, "max_tokens": 24, "temperature": 0}
    answer = client.post("/v1/completions", json=body).json()
    outputs = llm.generate(TEXTS, GREEDY)
    assert [choice["text"] for choice in answer["choices"]] == [o.outputs[0].text for o in outputs]
    assert answer["usage"]["prompt_tokens"] == sum(o.num_prompt_tokens for o in outputs)
    one = {**body, "prompt": TEXTS[0], "stream": True, "return_token_ids": True}
    lines = client.post("/v1/completions", json=one).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == outputs[0].outputs[0].text
    assert chunks[0]["choices"][0]["prompt_token_ids"] == outputs[0].encoder_prompt_token_ids


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"prompt": "a", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": [5] * 600}, "maximum context length is"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "/v1/completions"),
        ("/v1/embeddings", {"input": "a"}, "embeddings"),
    ],
)
def test_what_is_not_served_is_refused(
    client: TestClient, path: str, body: dict[str, Any], message: str
) -> None:
    answer = client.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


# --- the command line ---------------------------------------------------------------------------------


def test_generate_runs_and_chat_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], llm: LLM
) -> None:
    from octavo.cli import main

    flags = ["--dtype", "float32", "--temperature", "0"]
    assert main(["generate", str(folder), "-p", TEXTS[0], "-n", "24", *flags]) == 0
    assert llm.generate(TEXTS[0], GREEDY)[0].outputs[0].text.strip() in capsys.readouterr().out
    assert main(["chat", str(folder), *flags]) != 0
    said = capsys.readouterr().err
    assert "holds no conversations" in said
    assert "Traceback" not in said


def test_the_logprobs_of_a_decoder_prompt(folder: Path, llm: LLM) -> None:
    """Of what was generated before, they are what they were then."""
    first = llm.generate(TEXTS[1], GREEDY)[0]
    begin, written = first.prompt_token_ids, first.outputs[0]
    prompt = {"encoder_prompt": TEXTS[1], "decoder_prompt": [*begin, *written.token_ids]}
    again = llm.generate(prompt, GREEDY.replace(max_tokens=1, prompt_logprobs=0))[0]
    scores = again.prompt_logprobs or []
    assert written.logprobs is not None
    for place, (token, known) in enumerate(zip(written.token_ids, written.logprobs, strict=True), len(begin)):
        score = scores[place]
        assert score is not None
        assert score[token].logprob == pytest.approx(known[token].logprob, abs=1e-5)
