"""An answer that is cut at any token and gone on with elsewhere is the answer that was never cut."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncEngineArgs, AsyncLLM
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.output import OutputProcessor, Outputs
from octavo.engine.request import EngineRequest
from octavo.engine.token_source import TokenSource
from octavo.errors import InvalidRequestError
from octavo.params import (
    RequestOutput,
    RequestOutputKind,
    SampledToken,
    SamplingParams,
    StructuredOutputsParams,
)
from octavo.prompts import output_processor
from octavo.server.app import create_app
from octavo.server.engine import ServedEngine
from octavo.structured import compiled
from octavo.structured.grammar import Grammar
from octavo.tokenizer.tokenizer import IncrementalDetokenizer
from support.asgi import post
from support.crowds import COMPILER, MAX_LENGTH, PARAMS, alone, prompts, random_engine
from support.grammars import WordTokenizer
from support.router import Router
from support.tiny_engine import Answer, Answers, save_tiny_llama, tiny_engine

GOING_ON = [at for at, p in enumerate(PARAMS) if p.beam_search is None and p.prompt_logprobs is None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


def tokens_of(answer: Answer, params: SamplingParams) -> tuple[SampledToken, ...]:
    ids, logprobs, _ = answer
    return tuple(SampledToken(i) for i in ids) if params.logprobs is None else tuple(
        SampledToken(i, logprob) for i, logprob in zip(ids, logprobs, strict=True)
    )  # fmt: skip


def rest(answer: Answer, cut: int) -> Answer:
    ids, logprobs, reason = answer
    return ids[cut:], logprobs[cut:], reason


# --- tokens ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", GOING_ON)
def test_cut_at_every_token(folder: Path, params: int) -> None:
    """Penalties, min_p, grammars, bad words, n: ids, log-probabilities and reasons, bit for bit."""
    prompt, asked = prompts()[3], PARAMS[params]
    whole = alone(folder, "f32", None, prompt, params)
    engine, answers = tiny_engine(folder, max_model_len=MAX_LENGTH, page_size=4), Answers()
    wanted: dict[str, Answer] = {}
    for index, answer in enumerate(whole):
        tokens = tokens_of(answer, asked)
        for cut in range(len(tokens)):
            request = EngineRequest(
                f"{index}/{cut}", list(prompt), asked, generated=tokens[:cut], index=index
            )
            engine.check(request)
            engine.add(request, 0.0)
            wanted[request.request_id] = rest(answer, cut)
            answers.take(engine.step())
    while engine.has_unfinished():
        answers.take(engine.step())
    engine.check_integrity()
    assert {name: answers.of(name, int(name.split("/")[0])) for name in wanted} == wanted


@pytest.mark.parametrize("seed", range(12))
def test_crowds_of_cut_answers(folder: Path, tmp_path: Path, seed: int) -> None:
    """Engines of every kind, pools so tight that requests are preempted, cuts anywhere."""
    rng = random.Random(seed)
    kv_dtype = rng.choice(("f32", "f16", "int8"))
    engine, answers = random_engine(folder, rng, kv_dtype), Answers()
    wanted: dict[tuple[str, int], Answer] = {}
    for number in range(10):
        prompt, at = rng.choice(prompts()), rng.choice(GOING_ON)
        index = rng.randrange(PARAMS[at].n)
        answer = alone(folder, kv_dtype, None, prompt, at)[index]
        cut = rng.randrange(len(answer[0]))
        request = EngineRequest(
            f"r{number}",
            list(prompt),
            PARAMS[at],
            rng.choice((-1, 0, 1)),
            generated=tokens_of(answer, PARAMS[at])[:cut],
            index=index,
        )
        engine.check(request)
        engine.add(request, 0.0)
        wanted[request.request_id, index] = rest(answer, cut)
        for _ in range(rng.randrange(4)):
            answers.take(engine.step())
    while engine.has_unfinished():
        answers.take(engine.step())
    engine.check_integrity()
    engine.close()
    assert {key: answers.of(*key) for key in wanted} == wanted


# --- text, with a router where the engine stood ---------------------------------------------------------

TEXTS = (
    SamplingParams(seed=1, max_tokens=40, temperature=1.0, ignore_eos=True, stop=["ab", "the t", "12-"]),
    SamplingParams(seed=2, max_tokens=40, ignore_eos=True, stop=["a", "e"], min_tokens=9, logprobs=1),
    SamplingParams(seed=3, max_tokens=30, n=3, stop=["th"], include_stop_str_in_output=True, logprobs=0),
    SamplingParams(seed=4, max_tokens=24, n=2, repetition_penalty=1.3, frequency_penalty=0.4, logprobs=2),
    SamplingParams(
        seed=5,
        max_tokens=24,
        stop=["2"],
        structured_outputs=StructuredOutputsParams(regex="(abc|ba|the |[0-9]{2}-){6,60}"),
    ),
    SamplingParams(
        seed=6,
        max_tokens=40,
        logprobs=0,
        structured_outputs=StructuredOutputsParams(
            json={
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
                "required": ["name", "age"],
            }
        ),
    ),
    SamplingParams(
        seed=7, temperature=0.0, max_tokens=20, bad_words=["a", "the"], allowed_token_ids=range(3, 90)
    ),
)


NUMBERS = itertools.count()


class Said:
    """What a caller made of an answer's outputs: everything, however it came."""

    def __init__(self) -> None:
        self.parts: dict[int, dict[str, Any]] = {}
        self.usage: tuple[int, int, int] = (0, 0, 0)

    def take(self, output: RequestOutput, delta: bool) -> None:
        for new in output.outputs:
            part = {"text": new.text, "ids": new.token_ids, "logprobs": new.logprobs or []}
            known = self.parts.get(new.index)
            if delta and known is not None:
                part = {name: known[name] + part[name] for name in part}
            ends = {"reason": new.finish_reason, "stop": new.stop_reason, "sum": new.cumulative_logprob}
            self.parts[new.index] = part | ends
        generated = sum(len(part["ids"]) for part in self.parts.values())
        self.usage = len(output.prompt_token_ids), generated, output.seed


async def said(source: TokenSource, texts: OutputProcessor, request: EngineRequest) -> Said:
    """As said.parts; CUMULATIVE or DELTA, as the request wants it."""
    found = Said()
    request = replace(request, request_id=f"r{next(NUMBERS)}")  # an id is free when the engine says so
    async with aclosing(Outputs(source, texts.open(request))) as stream:
        async for output in stream:
            found.take(output, request.params.output_kind is RequestOutputKind.DELTA)
    return found


class Words(WordTokenizer):
    """With what a detokenizer asks for."""

    strips_leading_space = False

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")


def engines(folder: Path, count: int) -> list[AsyncEngine]:
    """Engines of different shapes, running."""
    options: list[dict[str, Any]] = [{"page_size": 16}, {"page_size": 4, "max_num_batched_tokens": 7}, {}]
    made = [
        AsyncEngine(tiny_engine(folder, max_model_len=MAX_LENGTH, max_waiting=99, **options[i % 3]))
        for i in range(count)
    ]
    for engine in made:
        engine.start()
    return made


async def compare(folder: Path, cuts: Sequence[Callable[[], int]], kind: RequestOutputKind) -> int:
    """Every request of TEXTS with one engine, and with a router over others; how often answers moved on."""
    texts, (one, *others) = output_processor(Words()), engines(folder, 3)  # type: ignore[arg-type]
    moved = 0
    for number, params in enumerate(TEXTS):
        prompt = list(prompts()[number])
        request = EngineRequest("r", prompt, params.replace(output_kind=kind))
        request = compiled(request, COMPILER.compile(request.params))
        wanted = await said(one, texts, request)
        for draw in cuts:
            router = Router(others, draw)
            found = await said(router, texts, request)
            assert (found.parts, found.usage) == (wanted.parts, wanted.usage)
            moved += router.moved
        reasons = {part["reason"] for part in wanted.parts.values()}
        assert reasons <= {"stop", "length"}
    for engine in (one, *others):
        await engine.drain(9.0)
        assert not engine._open
    return moved


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA])
def test_a_router_gives_the_text_of_one_engine(folder: Path, kind: RequestOutputKind) -> None:
    """Cut after every token, and at random ones: within stop strings, characters, schemas."""
    rng = random.Random(3)
    cuts = [lambda: 1, lambda: 3, lambda: rng.randint(1, 12)]
    assert asyncio.run(compare(folder, cuts, kind)) > 200


def test_a_text_goes_on_from_given_tokens(folder: Path) -> None:
    """Where the text's own state is gone too: what was not given comes as deltas, what was counts once."""

    async def scenario() -> None:
        texts, (one, other) = output_processor(Words()), engines(folder, 2)  # type: ignore[arg-type]
        for number, params in enumerate(TEXTS):
            delta = params.replace(output_kind=RequestOutputKind.DELTA)
            request = EngineRequest("r", list(prompts()[number]), delta)
            request = compiled(request, COMPILER.compile(delta))
            for index in range(params.n):
                asked = replace(request, index=index)
                wanted = (await said(one, texts, asked)).parts[index]
                for cut in range(0, len(wanted["ids"]), 3):
                    begun = Said()
                    tokens: list[SampledToken] = []
                    stream = Outputs(one, texts.open(replace(asked, request_id=f"r{next(NUMBERS)}")))
                    while len(tokens) < cut:
                        output = await anext(stream)
                        begun.take(output, True)
                        tokens += map(SampledToken, output.outputs[0].token_ids)
                    await stream.aclose()
                    if begun.parts and begun.parts[index]["reason"] is not None:
                        continue
                    rest_of = replace(asked, generated=tuple(tokens))
                    rest_of = replace(rest_of, request_id=f"r{next(NUMBERS)}")
                    async for output in Outputs(other, texts.open(rest_of)):
                        begun.take(output, True)
                    names = "text", "ids", "logprobs", "reason", "stop"
                    assert [begun.parts[index][n] for n in names] == [wanted[n] for n in names]
                    whole = replace(
                        rest_of, params=request.params.replace(output_kind=RequestOutputKind.CUMULATIVE)
                    )
                    last = (await said(other, texts, whole)).parts[index]
                    assert (last["text"], last["ids"]) == (wanted["text"], wanted["ids"])
        for engine in (one, other):
            await engine.drain(9.0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("params", "text", "place"),
    [
        ({"structured_outputs": StructuredOutputsParams(regex="(abc|ba)+")}, "abcx", 1),
        ({"structured_outputs": StructuredOutputsParams(choice=["yes", "no"])}, "ye the", 1),
        ({"bad_words": ["the"]}, "abthe", 1),
    ],
)
def test_tokens_that_the_limits_forbid_are_refused(params: dict[str, Any], text: str, place: int) -> None:
    ids = WordTokenizer().encode(text)
    wish = SamplingParams(temperature=0.0, max_tokens=30, **params)
    request = EngineRequest("r", [5], wish, generated=tuple(map(SampledToken, ids)))
    with pytest.raises(
        InvalidRequestError, match=rf"generated_token_ids\[{place}\], token {ids[place]}, is not"
    ):
        compiled(request, COMPILER.compile(wish))


def test_a_text_that_has_ended_is_refused() -> None:
    ids = WordTokenizer().encode("12 the ab")
    request = EngineRequest("r", [5], SamplingParams(stop=["the"]), generated=tuple(map(SampledToken, ids)))
    with pytest.raises(InvalidRequestError, match="generated_token_ids hold the stop string 'the'"):
        output_processor(Words()).open(request)  # type: ignore[arg-type]


# --- LLM and AsyncLLM, with the real model ---------------------------------------------------------------


def test_prompts_may_bring_what_was_generated(smollm2_llm: Callable[..., LLM], fastest: str) -> None:
    llm = smollm2_llm(backend=fastest, max_model_len=256)
    params = SamplingParams(max_tokens=12, n=2, seed=3, logprobs=0, presence_penalty=0.5)
    (whole,) = llm.generate("The sea is", params)
    prompt = {"prompt": "The sea is"}
    for completion in whole.outputs:
        ids, logprobs = completion.token_ids, completion.logprobs or []
        beginnings = [
            {**prompt, "generated_token_ids": ids[:cut], "index": completion.index} for cut in range(12)
        ]
        for cut, output in enumerate(llm.generate(beginnings, params)):
            (found,) = output.outputs
            assert (found.index, found.text, found.token_ids) == (completion.index, completion.text, ids)
            assert found.logprobs == logprobs[cut:], "of what was drawn here"
            assert output.num_prompt_tokens == whole.num_prompt_tokens
    with pytest.raises(InvalidRequestError, match="must be a list of token ids"):
        llm.generate({**prompt, "generated_token_ids": "abc"}, params)
    with pytest.raises(InvalidRequestError, match="must hold token ids, not float"):
        llm.generate({**prompt, "generated_token_ids": [1.5], "index": 0}, params)


WRONG = [
    ([-1], "token id -1 of generated_token_ids is not in the vocabulary"),
    ([10**6], "token id 1000000 of generated_token_ids is not in the vocabulary"),
    ([5] * 8, "generated_token_ids has 8 tokens, and the answer ends with 8"),
]


@pytest.mark.parametrize("door", ["LLM", "AsyncLLM"])
def test_generated_ids_are_checked_before_anything_is_made_of_them(
    door: str, smollm2_llm: Callable[..., LLM], fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grammar's matcher takes no negative id, and text is made of as many as an answer may hold."""
    limits = SamplingParams(max_tokens=8, seed=1, structured_outputs=StructuredOutputsParams(regex="[a-z]+"))
    made = "detokenized or held against a grammar"
    if door == "LLM":
        generate = smollm2_llm(backend=fastest, max_model_len=256).generate
    else:
        args = AsyncEngineArgs("smollm2", backend=fastest, max_model_len=256, max_num_seqs=1)
        llm = AsyncLLM.from_engine_args(args)

        def generate(prompt: Any, params: SamplingParams) -> Any:  # type: ignore[misc]
            async def last() -> list[RequestOutput]:
                return [output async for output in llm.generate(prompt, params)][-1:]

            return asyncio.run(last())

    try:
        with monkeypatch.context() as patch:
            patch.setattr(IncrementalDetokenizer, "push", lambda *_: pytest.fail(made))
            patch.setattr(Grammar, "start", lambda *_: pytest.fail(made))
            for ids, text in WRONG:
                for params in (limits, limits.replace(structured_outputs=None)):
                    with pytest.raises(InvalidRequestError, match=text) as caught:
                        generate({"prompt": "The sea is", "generated_token_ids": ids}, params)
                    assert caught.value.param == "generated_token_ids"
        assert generate({"prompt": "The sea is"}, limits)[0].finished
    finally:
        if door == "AsyncLLM":
            llm.shutdown()


class Behind:
    """AsyncLLM's seam to the server, with a router in the place of its engine."""

    def __init__(self, llm: AsyncLLM, router: Router) -> None:
        self._llm, self._router = llm, router

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def outputs(self, request: EngineRequest) -> Any:
        ready = compiled(request, await self._llm._compiler.compile_async(request.params))
        return Outputs(self._router, self._llm._texts.open(ready))


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


def streamed(app: Any, body: dict[str, Any]) -> tuple[Any, ...]:
    """(content, calls, why it ended, usage) of a streamed chat."""
    content, calls, reason, usage = "", dict[int, str](), None, None
    for event in post(app, "/v1/chat/completions", body).events():
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            content += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                said = call["function"]
                calls[call["index"]] = calls.get(call["index"], "") + said.get("name", "") + said["arguments"]
            reason = choice["finish_reason"] or reason
    return content, calls, reason, usage


def test_a_chat_is_cut_within_calls_and_schemas(fastest: str) -> None:
    """Through the server: what clients see of an answer that two engines say token by token in turn."""
    args = AsyncEngineArgs("smollm2", backend=fastest, max_model_len=256, enable_prefix_caching=False)
    llms = [AsyncLLM.from_engine_args(args) for _ in range(2)]
    router = Router([llm._engine for llm in llms], lambda: 2)
    behind: ServedEngine = Behind(llms[0], router)  # type: ignore[assignment]
    asked = {"messages": [{"role": "user", "content": "Weather in Oslo?"}], "seed": 4, "max_tokens": 48}
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    schema = {"name": "x", "schema": TOOL["function"]["parameters"]}  # type: ignore[index]
    bodies = [
        {**asked, "tools": [TOOL], "tool_choice": "required"},
        {**asked, "response_format": {"type": "json_schema", "json_schema": schema}},
        {**asked, "stop": ["ther", "is"]},
    ]
    try:
        for body in bodies:
            found, wanted = streamed(create_app(behind), body), streamed(create_app(llms[1]), body)
            assert found == wanted
            assert found[3]["completion_tokens"] > 0
        calls = streamed(create_app(behind), bodies[0])[1]
        assert json.loads(calls[0].removeprefix("weather")).keys() == {"city", "days"}
        assert router.moved > 20
    finally:
        for llm in llms:
            llm.shutdown()
