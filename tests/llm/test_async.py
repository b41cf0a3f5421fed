"""AsyncLLM on the real model: what a long prompt may cost the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from octavo import AsyncEngineArgs, AsyncLLM, SamplingParams
from octavo.errors import InvalidRequestError
from octavo.tokenizer.stop import StopAutomaton


def test_text_that_cannot_fit_is_refused_before_it_is_tokenized(
    fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs("smollm2", backend=fastest, max_model_len=128, max_num_seqs=1)
    )
    endless = "x" * (128 * llm.tokenizer.longest_token + 1)

    async def ask() -> str:
        params = SamplingParams(max_tokens=4, temperature=0)
        return (
            [output async for output in llm.generate("The capital of France is", params)][-1].outputs[0].text
        )

    async def stream() -> None:
        async for _ in llm.generate(endless, SamplingParams(max_tokens=1)):
            raise AssertionError("an endless prompt was answered")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(llm.tokenizer, "encode", lambda *_, **__: pytest.fail("it was tokenized"))
            for attempt in (
                lambda: llm.encode(endless),
                lambda: llm.render_chat([{"role": "user", "content": endless}]),
                lambda: asyncio.run(stream()),
            ):
                with pytest.raises(InvalidRequestError, match="128 tokens can hold"):
                    attempt()
        assert "Paris" in asyncio.run(ask())
    finally:
        llm.shutdown()


def test_what_grammars_need_is_prepared_while_nothing_runs(fastest: str) -> None:
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs("smollm2", backend=fastest, max_model_len=128))
    params = SamplingParams(max_tokens=100, ignore_eos=True, temperature=0)

    async def check() -> None:
        stream = llm.generate("One, two,", params)
        await anext(stream)
        llm.prepare()
        for _ in range(20):
            await anext(stream)
        assert llm._compiler._table is None
        await stream.aclose()

    try:
        asyncio.run(check())
        assert llm._preparing is not None
        llm._preparing.join(60)
        assert llm._compiler._table is not None
    finally:
        llm.shutdown()


def test_shutting_down_ends_the_preparation(fastest: str) -> None:
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs("smollm2", backend=fastest, max_model_len=128))
    llm.prepare()
    llm.shutdown()
    assert llm._preparing is not None
    assert not llm._preparing.is_alive()


def test_long_stop_strings_are_prepared_beside_the_loop(
    fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for all n and all prompts that run with them; short ones are made where they are needed."""
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs("smollm2", backend=fastest, max_model_len=128))
    made: list[str] = []
    init = StopAutomaton.__init__

    def noted(self: StopAutomaton, strings: Sequence[str]) -> None:
        made.append(threading.current_thread().name)
        init(self, strings)

    monkeypatch.setattr(StopAutomaton, "__init__", noted)

    async def answer(params: SamplingParams) -> None:
        async for _ in llm.generate("One, two,", params):
            pass

    async def several(stop: list[str]) -> None:
        params = SamplingParams(n=3, max_tokens=4, stop=stop)
        await asyncio.gather(*[answer(params) for _ in range(3)])

    try:
        asyncio.run(several(["".join(chr(0x3400 + i) for i in range(600))]))
        assert len(made) == 1
        assert made != [threading.main_thread().name]
        made.clear()
        asyncio.run(several(["stop here"]))
        assert made == [threading.main_thread().name]
    finally:
        llm.shutdown()
