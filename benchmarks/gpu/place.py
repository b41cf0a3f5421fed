"""Where checks of a whole engine run, and what they ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from gpu.folder import save
from gpu.models import TINY
from octavo import SamplingParams
from octavo.async_llm import AsyncLLM
from octavo.engine_args import AsyncEngineArgs
from octavo.kernels.cuda.errors import lost
from octavo.runtime.model_runner import ModelRunner
from octavo.runtime.overlap import OverlappedRunner

Check = tuple[str, float, float]
"""(what, error, how large it may be)."""
Answer = tuple[list[int], list[float], str | None]
"""Tokens, the log-probability of each, and why it ended."""
PAGES = 96


@dataclass(frozen=True, slots=True)
class Place:
    """A device, and a folder for models and for what a check writes.

    Attributes:
        small: fewer and shorter requests, as an interpreter or a CPU can do them.
    """

    device: str
    dtype: str
    folder: Path
    small: bool = False

    @property
    def model(self) -> str:
        """A tiny model of random weights, whose tokenizer reads any text."""
        return str(save(self.folder / "served", TINY))

    def options(self, **more: Any) -> dict[str, Any]:
        """Of an engine whose bits do not depend on who else is there, with few pages."""
        dtype = "float32" if self.device == "cpu" else self.dtype
        return {
            "device": self.device, "dtype": dtype, "bit_exact": True, "num_pages": PAGES, "max_num_seqs": 8,
            "max_model_len": 256, "seed": 0, **more,
        }  # fmt: skip

    @asynccontextmanager
    async def engine(self, **more: Any) -> AsyncIterator[AsyncLLM]:
        args = AsyncEngineArgs(self.model, **self.options(**more))
        llm = await asyncio.to_thread(AsyncLLM.from_engine_args, args)
        try:
            yield llm
        finally:
            await asyncio.to_thread(llm.shutdown)

    def prompt(self, number: int, length: int) -> dict[str, Any]:
        """Token ids that only this number has, from the first on."""
        rng = np.random.default_rng((number, length))
        ids = rng.integers(3, TINY.vocab, length - 1).tolist()
        return {"prompt_token_ids": [3 + number % (TINY.vocab - 3), *ids]}


def params(count: int, number: int = 0, **more: Any) -> SamplingParams:
    """count tokens, drawn with a seed of its own; every third request is greedy."""
    wishes = {"temperature": 0.0 if number % 3 == 0 else 0.8, "seed": number, "top_p": 0.95}
    return SamplingParams(max_tokens=count, ignore_eos=True, logprobs=0, **{**wishes, **more})


async def ask(llm: AsyncLLM, prompt: Any, wanted: SamplingParams) -> Any:
    """The last output of a request."""
    last = None
    async for output in llm.generate(prompt, wanted):
        last = output
    return last


def answer(output: Any) -> Answer:
    """What must not depend on anybody else."""
    done = output.outputs[0]
    scores = [each[token].logprob for each, token in zip(done.logprobs, done.token_ids, strict=True)]
    return list(done.token_ids), scores, done.finish_reason


def different(got: Sequence[Any], want: Sequence[Any]) -> float:
    """How many answers are not as they should be; all, if there are not as many."""
    if len(got) != len(want):
        return float(max(len(got), len(want)))
    return float(sum(a != b for a, b in zip(got, want, strict=True)))


async def idle(llm: AsyncLLM) -> bool:
    """Wait until nothing runs or waits, a minute at most: whether that is so, and no page is in use."""
    for _ in range(600):
        stats = llm.stats()
        if not stats.running and not stats.waiting:
            return stats.kv_usage == 0.0
        await asyncio.sleep(0.1)
    return False


def break_device(device: str) -> None:
    """What an Xid does to a process: an index out of bounds stops a GPU for it. On a CPU it is pretended.

    Raises:
        DeviceLostError: on a CPU.
    """
    if device == "cpu":
        raise lost(RuntimeError("CUDA error: an index was out of bounds"))
    torch.zeros(1, device=device)[torch.tensor([1 << 40], device=device)]


@contextmanager
def breaking(device: str, when: Callable[[], bool]) -> Iterator[None]:
    """Before the first step for which when() is true, the device is lost."""

    def broken(submit: Callable[..., Any]) -> Callable[..., Any]:
        def mutant(self: Any, plan: Any) -> Any:
            if when():
                break_device(device)
            return submit(self, plan)

        return mutant

    with (
        mock.patch.object(ModelRunner, "submit", broken(ModelRunner.submit)),
        mock.patch.object(OverlappedRunner, "submit", broken(OverlappedRunner.submit)),
    ):
        yield
