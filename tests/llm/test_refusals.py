"""What admission refuses, each by one line that says why, and those who run beside it hear nothing of it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncEngineArgs, AsyncLLM, SamplingParams
from octavo.engine.request import EngineRequest
from octavo.errors import CapacityError, InvalidRequestError
from octavo.params import BeamSearchParams
from octavo.server.app import create_app
from support.asgi import call
from support.tiny_engine import BACKENDS, save_tiny_llama, save_words

OPTIONS: dict[str, Any] = {
    "backend": BACKENDS[0], "max_model_len": 128, "num_pages": 12, "page_size": 16, "max_num_seqs": 6,
    "max_waiting": 10,
}  # fmt: skip
TEXT = "/v1/completions"
PROMPT = [5] * 10
STREAM = {
    "prompt": [7] * 20,
    "max_tokens": 90,
    "temperature": 0.9,
    "seed": 3,
    "ignore_eos": True,
    "return_token_ids": True,
}

# (change to a request, the error's text, the field that it names)
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"priority": 2**31}, "priority must be from -2147483647 to 2147483647, not 2147483648", "priority"),
    ({"priority": -(2**31)}, "priority must be from -2147483647 to 2147483647, not -2147483648", "priority"),
    ({"n": 129}, "n must be an integer from 1 to 128, not 129", "n"),
    ({"n": 17}, "n 17 is more than the 16 completions that are taken at once; send fewer", "n"),
    ({"best_of": 129}, "best_of must be at most 128, not 129", "best_of"),
    (
        {"n": 2, "best_of": 100},
        "best_of 100 is more than the 16 completions that are taken at once",
        "best_of",
    ),
    ({"prompt": [PROMPT] * 5, "n": 4}, "5 prompts x n 4 is more than the 16 completions", "n"),
    ({"prompt": [PROMPT] * 5, "best_of": 4}, "5 prompts x best_of 4 is more than the 16", "best_of"),
    ({"prompt": [PROMPT] * 17}, "17 prompts x n 1 is more than the 16 completions", "prompt"),
    ({"use_beam_search": True, "n": 11}, "n 11 is above 10 beams", "n"),
    ({"use_beam_search": True, "best_of": 11}, "best_of 11 is above 10 beams", "best_of"),
    (
        {"use_beam_search": True, "n": 7},
        "n 7 needs 7 sequences at once; max_num_seqs is 6",
        "n",
    ),
    (
        {"use_beam_search": True, "n": 4, "max_tokens": 100},
        "4 beams of up to 110 tokens need 28 pages of 16 tokens, the pool has 12",
        "n",
    ),
    (
        {"use_beam_search": True, "n": 2, "stream": True},
        "use_beam_search needs stream: false: which beams win is known only at the end",
        "use_beam_search",
    ),
    (
        {"prompt": [5] * 128},
        "maximum context length is 128 tokens. However, your prompt resulted in 128 tokens",
        "prompt",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_words(save_tiny_llama(tmp_path_factory.mktemp("tiny-llama")))


def test_over_http_beside_a_stream(folder: Path) -> None:
    async def meet() -> None:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(folder), **OPTIONS))
        app = create_app(engine)
        try:
            alone = (await call(app, "POST", TEXT, STREAM)).json()["choices"][0]["token_ids"]
            running = asyncio.create_task(call(app, "POST", TEXT, STREAM))
            said: list[tuple[int, bool, str]] = []
            for change, text, _ in REFUSED:
                reply = await call(app, "POST", TEXT, {"prompt": PROMPT, "max_tokens": 4, **change})
                message = reply.error["message"]
                said.append((reply.status, text in message and "\n" not in message, reply.error["param"]))
            assert said == [(400, True, field) for _, _, field in REFUSED]
            assert (await running).json()["choices"][0]["token_ids"] == alone
            assert len(alone) == 90
            stats = engine.stats()
            assert (stats.running, stats.waiting) == (0, 0)
        finally:
            engine.shutdown()

    asyncio.run(meet())


@pytest.mark.parametrize(("prompts", "n"), [(11, 1), (16, 1), (8, 2), (5, 3), (1, 16)])
def test_a_request_is_not_refused_for_its_own_earlier_prompts(folder: Path, prompts: int, n: int) -> None:
    """Up to what is taken at once (6 run, 10 wait) all are answered, however few may wait."""

    async def meet() -> None:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(folder), **OPTIONS))
        try:
            body = {"prompt": [PROMPT] * prompts, "n": n, "max_tokens": 2, "ignore_eos": True}
            reply = await call(create_app(engine), "POST", TEXT, body)
            assert reply.status == 200, reply.error
            assert [choice["index"] for choice in reply.json()["choices"]] == list(range(prompts * n))
        finally:
            engine.shutdown()

    asyncio.run(meet())


def beams(width: int, max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(n=n, max_tokens=max_tokens, beam_search=BeamSearchParams(width, max_tokens))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SamplingParams(n=129), "n must be an integer from 1 to 128, not 129"),
        (lambda: SamplingParams(n=17), "n 17 is above the 16 sequences that may run and wait"),
        (lambda: beams(11, 4), "beam_width must be an integer from 1 to 10, not 11"),
        (lambda: beams(7, 4), "beam_width 7 needs 7 sequences at once; max_num_seqs is 6"),
        (lambda: beams(4, 100), "4 beams of up to 110 tokens need 28 pages of 16 tokens, the pool has 12"),
    ],
)
def test_in_python_beside_other_prompts(
    folder: Path, make: Callable[[], SamplingParams], text: str, llm: LLM
) -> None:
    good = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    before = llm.generate([{"prompt_token_ids": PROMPT}], good)[0].outputs[0].token_ids
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate([{"prompt_token_ids": PROMPT}] * 2, [good, make()])
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    # The good one beside it was not begun, and the next call is served.
    assert llm.get_metrics().running == llm.get_metrics().waiting == 0
    assert llm.generate([{"prompt_token_ids": PROMPT}], good)[0].outputs[0].token_ids == before


def test_arguments_of_another_type_are_refused_by_name(llm: LLM) -> None:
    hi: Any = [{"role": "user", "content": "w5"}]
    wrong: Any = {"temperature": 0}
    for ask, text in (
        (lambda: llm.chat(hi, tools=wrong), "tools must be a list of objects"),
        (lambda: llm.chat(hi, tools=["x"]), "tools must be a list of objects"),
        (lambda: llm.generate([PROMPT], wrong), "sampling_params must be SamplingParams, not dict"),
        (lambda: llm.generate([PROMPT], [wrong]), "sampling_params must be SamplingParams, not dict"),
        (lambda: llm.beam_search([PROMPT], wrong), "params must be BeamSearchParams, not dict"),
        (lambda: llm.generate([PROMPT], priority=[1, 2]), "priority must be a list of 1 integers"),
        (lambda: llm.generate([PROMPT], priority=["1"]), "priority must be from -2147483647 to"),
        (lambda: llm.generate({"prompt_token_ids": PROMPT, "cache_salt": 5}), "cache_salt must be text"),
    ):
        with pytest.raises(InvalidRequestError, match=text):
            ask()


def test_a_prompts_own_priority_and_salt(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more prompts than the engine holds at a time, those of the lowest number are given to it first."""
    one = SamplingParams(max_tokens=1)
    order: list[int] = []
    real = llm._core.add

    def add(request: EngineRequest, arrival: float) -> int:
        order.append(request.priority)
        return real(request, arrival)

    with monkeypatch.context() as patch:
        patch.setattr(llm._core, "add", add)
        prompts = [[i + 3, 7] for i in range(20)]
        outputs = llm.generate(prompts, one, priority=[-i for i in range(20)])
    assert order == sorted(order)
    assert len(order) == 20
    assert [output.prompt_token_ids for output in outputs] == prompts

    def cached(salt: str | None) -> int:
        prompt = {"prompt_token_ids": [9] * 40, "cache_salt": salt}
        return llm.generate(prompt, one)[0].num_cached_tokens

    assert [cached(salt) for salt in ("a", "a", "b", None, "b")] == [0, 32, 0, 0, 32]


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), **OPTIONS)


def test_a_pool_too_small_for_one_request_says_what_it_needs(folder: Path) -> None:
    with pytest.raises(CapacityError) as caught:
        LLM(str(folder), **{**OPTIONS, "num_pages": 7})
    assert str(caught.value) == (
        "max_model_len 128 needs 8 pages of 16 tokens, 7 fit: lower it or raise gpu_memory_utilization"
    )


def test_a_disk_that_takes_nothing_is_a_line_in_the_log(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Full or read-only: requests are served from memory alone, with the same answer."""
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)

    def answer(**options: Any) -> list[int]:
        llm = LLM(str(folder), **{**OPTIONS, **options})
        try:
            return list(llm.generate([{"prompt_token_ids": [5] * 40}], params)[0].outputs[0].token_ids)
        finally:
            llm.shutdown()

    alone = answer()
    for number, why in ((errno.EROFS, "Read-only file system"), (errno.ENOSPC, "No space left on device")):

        def fails(fd: int, size: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", fails)
            caplog.clear()
            assert answer(prefix_cache_dir=str(tmp_path / str(number))) == alone
        [line] = [record.message for record in caplog.records]
        assert why in line
        assert line.endswith("the prefix cache does without a disk")
