"""Checks of the whole engine on a device, behind AsyncLLM: no web server is needed.

Each takes a Place and yields checks; each is meant for a process of its own, beside the others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from gpu import bare
from gpu.place import Check, Place, answer, ask, breaking, different, idle, params
from octavo import SamplingParams
from octavo.async_llm import AsyncLLM
from octavo.engine.kv_manager import KVManager
from octavo.errors import (
    CapacityError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    ShuttingDownError,
)
from octavo.params import RequestOutputKind, StructuredOutputsParams

EngineCheck = Callable[[Place], AsyncIterator[Check]]
SCHEMA = {
    "type": "object", "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 99},
    "kind": {"enum": ["page", "row"]}}, "required": ["size", "kind"], "additionalProperties": False,
}  # fmt: skip


async def text(place: Place) -> AsyncIterator[Check]:
    """Greedy tokens of prompts in float32 against those of NumPy's kernels."""
    found, count = [], 3 if place.small else 24
    for more in ({}, {"device": "cpu", "backend": "reference"}):
        async with place.engine(dtype="float32", **more) as llm:
            prompts = [place.prompt(n, 5 + 20 * n) for n in range(3)]
            outputs = await asyncio.gather(*(ask(llm, p, params(count, temperature=0.0)) for p in prompts))
            found.append([answer(one)[0] for one in outputs])
    yield "engine: greedy answers in float32 that are not NumPy's", different(*found), 0.0


async def streams(place: Place) -> AsyncIterator[Check]:
    """What comes in parts is the whole; two completions of a prompt are those of one alone."""
    count = 3 if place.small else 20
    async with place.engine() as llm:
        wrong = 0.0
        for number in range(3):
            whole = await ask(llm, place.prompt(number, 9), params(count, number))
            wanted = replace(params(count, number), output_kind=RequestOutputKind.DELTA)
            pieces, ids, ends = "", list[int](), []
            async for output in llm.generate(place.prompt(number, 9), wanted):
                done = output.outputs[0]
                pieces, ids = pieces + done.text, ids + list(done.token_ids)
                ends.append(done.finish_reason)
            same = pieces == whole.outputs[0].text and ids == list(whole.outputs[0].token_ids)
            wrong += not (same and ends[-1] == "length" and not any(ends[:-1]))
        yield "engine: streams that are not the whole answer", wrong, 0.0
        both = await ask(llm, place.prompt(4, 9), params(count, 4, n=2))
        alone = await ask(llm, place.prompt(4, 9), params(count, 4))
        first = list(both.outputs[0].token_ids) == list(alone.outputs[0].token_ids)
        other = list(both.outputs[0].token_ids) != list(both.outputs[1].token_ids)
        yield "engine: n=2, first as alone and second another one: missed", float(not (first and other)), 0.0


async def structured(place: Place) -> AsyncIterator[Check]:
    """Answers to a schema, several at once, beside free ones."""
    count = 2 if place.small else 8
    wanted = SamplingParams(
        temperature=1, max_tokens=200, structured_outputs=StructuredOutputsParams(json=SCHEMA)
    )
    async with place.engine() as llm:
        jobs = [ask(llm, f"item {n}", replace(wanted, seed=n)) for n in range(count)]
        free = [ask(llm, place.prompt(n, 12), params(6, n)) for n in range(2)]
        outputs = await asyncio.gather(*jobs, *free)
    wrong = sum(not fits(output.outputs[0].text) for output in outputs[:count])
    yield "engine: structured answers that do not fit", float(wrong), 0.0


def fits(text: str) -> bool:
    """Whether a text is what SCHEMA says."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    size = value.get("size") if isinstance(value, dict) else None
    whole = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= 99
    return whole and set(value) == {"size", "kind"} and value["kind"] in ("page", "row")


async def prefix(place: Place) -> AsyncIterator[Check]:
    """A prompt again: most of it is cached, and not a bit is another."""
    count = 3 if place.small else 16
    async with place.engine() as llm:
        first, again = [await ask(llm, place.prompt(1, 70), params(count, 1)) for _ in range(2)]
    yield "prefix cache: tokens of 64 that were not found", 64.0 - again.num_cached_tokens, 0.0
    yield "prefix cache: answers of other bits", different([answer(again)], [answer(first)]), 0.0


async def disk(place: Place) -> AsyncIterator[Check]:
    """The same after a restart: the pages come back from disk."""
    count, found = 3 if place.small else 16, []
    for _ in range(2):
        async with place.engine(prefix_cache_dir=str(place.folder / "pages")) as llm:
            found.append(await ask(llm, place.prompt(2, 70), params(count, 2)))
            await llm.drain(30)
    first, again = found
    yield "prefix cache on disk: tokens of 64 that were not found", 64.0 - again.num_cached_tokens, 0.0
    yield "prefix cache on disk: answers of other bits", different([answer(again)], [answer(first)]), 0.0


async def preemption(place: Place) -> AsyncIterator[Check]:
    """Requests that need more pages than there are, computed again or swapped, are answered as if alone."""
    many, length, count = (4, 20, 76) if place.small else (5, 100, 90)
    requests = [(place.prompt(n, length), params(count, n)) for n in range(many)]
    async with place.engine() as llm:
        alone = [answer(await ask(llm, *each)) for each in requests]
    few = {  # two may enter, and not both have room to their ends
        "num_pages": -(-length // 16) + -(-(length + count) // 16), "max_model_len": length + count,
        "enable_prefix_caching": False,
    }  # fmt: skip
    for name, swap in (("computed again", 0.0), ("swapped", 0.05)):
        out: list[int] = []
        with counted_swaps(out):
            async with place.engine(swap_space=swap, **few) as llm:
                outputs = await asyncio.gather(*(ask(llm, *each) for each in requests))
                preempted, free = llm.stats().preemptions, await idle(llm)
        yield f"{name}: preemptions that are missing", float(preempted == 0), 0.0
        yield f"{name}: answers of other bits", different([answer(one) for one in outputs], alone), 0.0
        yield f"{name}: pages that were not given back", float(not free), 0.0
        if swap:
            yield "swapped: pages that are missing", float(not sum(out)), 0.0


@contextmanager
def counted_swaps(out: list[int]) -> Iterator[None]:
    """Copying pages always pays meanwhile, and how many go out is noted."""
    plain = KVManager.swap_out

    def noted(manager: KVManager, victim: Any) -> Any:
        pairs = plain(manager, victim)
        out.append(len(pairs))
        return pairs

    with (
        mock.patch.object(KVManager, "swap_out", noted),
        mock.patch("octavo.runtime.free_memory.seconds_to_copy", return_value=0.0),
    ):
        yield


async def leaving(place: Place) -> AsyncIterator[Check]:
    """Callers that leave in the midst: nothing of theirs stays, and nobody's bits change."""
    count = 6 if place.small else 60
    async with place.engine(enable_prefix_caching=False) as llm:
        stays = place.prompt(1, 20), params(count, 1)
        alone = answer(await ask(llm, *stays))

        async def leave(number: int, after: int) -> None:
            stream = llm.generate(place.prompt(number, 30), params(200, number))
            async with aclosing(stream):
                async for output in stream:
                    if len(output.outputs[0].token_ids) >= after:
                        return

        staying, *_ = await asyncio.gather(ask(llm, *stays), *(leave(n, n - 1) for n in range(2, 6)))
        yield "abort: requests that are still there, or their pages", float(not await idle(llm)), 0.0
    yield "abort: answers of other bits beside them", different([answer(staying)], [alone]), 0.0


async def overload(place: Place) -> AsyncIterator[Check]:
    """More than may wait: as many as fit are answered, and others are told to come again."""
    count = 4 if place.small else 30
    async with place.engine(max_num_seqs=2, max_waiting=2) as llm:
        jobs = [ask(llm, place.prompt(n, 10), params(count, n)) for n in range(8)]
        found = await asyncio.gather(*jobs, return_exceptions=True)
        refused = [one for one in found if isinstance(one, OverloadedError)]
        served = [one for one in found if not isinstance(one, BaseException)]
        whole = sum(len(one.outputs[0].token_ids) == count for one in served)
        yield "overload: neither answered whole nor refused", float(8 - len(refused) - whole), 0.0
        yield "overload: refusals that are missing", float(not refused), 0.0
        later = await ask(llm, place.prompt(1, 10), params(count, 1))
        yield "overload: not served afterwards", float(len(later.outputs[0].token_ids) != count), 0.0


async def drain(place: Place) -> AsyncIterator[Check]:
    """What runs is answered to its end, and nothing new is taken."""
    count = 4 if place.small else 40
    async with place.engine() as llm:
        jobs = [asyncio.ensure_future(ask(llm, place.prompt(n, 10), params(count, n))) for n in range(4)]
        while llm.stats().running < 4 and not all(job.done() for job in jobs):
            await asyncio.sleep(0.001)
        ending = asyncio.ensure_future(llm.drain(60))
        await asyncio.sleep(0)
        refused = False
        try:
            await ask(llm, place.prompt(9, 10), params(1))
        except ShuttingDownError:
            refused = True
        outputs = await asyncio.gather(*jobs, return_exceptions=True)
        await ending
    whole = sum(
        not isinstance(one, BaseException) and len(one.outputs[0].token_ids) == count for one in outputs
    )
    yield "drain: requests that were cut", 4.0 - whole, 0.0
    yield "drain: a new request was taken", float(not refused), 0.0


async def device_lost(place: Place) -> AsyncIterator[Check]:
    """Every request ends with an error, later ones too, and why is known."""
    steps = iter(range(10**6))
    with breaking(place.device, lambda: next(steps) > 3):
        async with place.engine() as llm:
            jobs = [ask(llm, place.prompt(n, 10), params(100, n)) for n in range(4)]
            found = await asyncio.gather(*jobs, return_exceptions=True)
            later = await asyncio.gather(ask(llm, place.prompt(5, 10), params(1)), return_exceptions=True)
            told = "the GPU can no longer be used" in (llm.failure or "")
            healthy = llm.healthy
    wrong = sum(not isinstance(one, EngineDeadError) for one in (*found, *later))
    yield "device lost: requests that did not end with an error", float(wrong), 0.0
    yield "device lost: its reason is not told, or it is called healthy", float(not told or healthy), 0.0


async def too_small(place: Place) -> AsyncIterator[Check]:
    """Pages that do not fit: one error, with the bytes."""
    wrong = 0.0
    for more in ({"num_pages": 1 << 40}, {"gpu_memory_utilization": 1e-7, "num_pages": None}):
        try:
            async with place.engine(**more):
                wrong += 1
        except (CapacityError, InvalidRequestError) as error:
            wrong += not any(unit in str(error) for unit in ("GB", "GiB", "MB", "MiB", "bytes"))
    yield "too little memory: not refused, or without how much", wrong, 0.0


async def crowds(place: Place) -> AsyncIterator[Check]:
    """Random crowds: each answer has the bits that it has alone, whoever else is there."""
    rng, times = np.random.default_rng(11), 2 if place.small else 200
    kinds = 4 if place.small else 16
    requests = [
        (place.prompt(n, 4 + 11 * n % 60), params(3 if place.small else 4 + n % 13, n)) for n in range(kinds)
    ]
    async with place.engine() as llm:
        alone = [answer(await ask(llm, *each)) for each in requests]
        wrong, used = 0.0, 0
        for crowd in range(times):
            if crowd == times // 2:
                used = llm.device_memory.get("used", 0)
            chosen = rng.choice(kinds, int(rng.integers(2, 9))).tolist()
            outputs = await asyncio.gather(*(later(llm, rng.random() * 0.01, *requests[n]) for n in chosen))
            wrong += different([answer(one) for one in outputs], [alone[n] for n in chosen])
        grown = llm.device_memory.get("used", 0) - used
        preempted = await idle(llm)
    yield f"same answer twice, {times} crowds: answers of other bits", wrong, 0.0
    yield f"same answer twice, {times} crowds: pages that were not given back", float(not preempted), 0.0
    yield "MiB of the device that the second half of the crowds took", grown / 2**20, 64.0


async def later(llm: AsyncLLM, seconds: float, prompt: Any, wanted: SamplingParams) -> Any:
    await asyncio.sleep(seconds)
    return await ask(llm, prompt, wanted)


async def drafts(place: Place) -> AsyncIterator[Check]:
    """Answers with drafts, several at once, are those without: to the bit with bit_exact. Without it a row
    beside drafted ones takes other matrix products: of greedy answers, the share of tokens that are another
    choice is told, up to each answer's first, since what follows that is another text. Half of what each
    request predicts is the answer without drafts, so that drafts are accepted and rejected."""
    count, many = (6, 3) if place.small else (64, 8)
    prompts = [place.prompt(n, 8 if place.small else 40) for n in range(many)]
    config = {"method": "ngram", "num_speculative_tokens": 4, "policy": "fixed"}
    for kind, exact in (("drafts, bit-exact", True), ("drafts", False)):
        wishes = [params(count, n, **({} if exact else {"temperature": 0.0})) for n in range(many)]
        async with place.engine(bit_exact=exact) as llm:
            plain = [answer(one) for one in await asyncio.gather(*map(partial(ask, llm), prompts, wishes))]
        halves = [tokens[: count // 2] for tokens, *_ in plain]
        wishes = [
            replace(wish, speculative={"prediction": [*half, *reversed(half)]})
            for wish, half in zip(wishes, halves, strict=True)
        ]
        async with place.engine(bit_exact=exact, speculative_config=config) as llm:
            found = [answer(one) for one in await asyncio.gather(*map(partial(ask, llm), prompts, wishes))]
            counts = llm.stats().drafts
        idle = counts.accepted_tokens == 0 or counts.accepted_tokens == counts.draft_tokens
        yield f"{kind}: none was accepted, or none rejected", float(idle), 0.0
        if exact:
            yield f"{kind}: answers of other bits", different(found, plain), 0.0
        else:
            share = other_choices([one[0] for one in found], [one[0] for one in plain])
            yield f"{kind}: share of first choices that are others (told, not judged)", share, 1.0


def other_choices(got: Sequence[Sequence[int]], want: Sequence[Sequence[int]]) -> float:
    """Of the tokens of answers up to the first that differs, itself included, the share that differs."""
    compared = others = 0
    for one, other in zip(got, want, strict=True):
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        others += at is not None
        compared += len(other) if at is None else at + 1
    return others / max(compared, 1)


CHECKS: dict[str, EngineCheck] = {
    "text": text, "streams": streams, "structured": structured, "prefix": prefix, "disk": disk,
    "preemption": preemption, "drafts": drafts, "abort": leaving, "overload": overload, "drain": drain,
    "device lost": device_lost, "too little memory": too_small, "crowds": crowds,
}  # fmt: skip


NEEDS = ("tokenizers", "jinja2", "ml_dtypes")
"""Packages that an engine of any model needs."""


def lacks(name: str) -> str | None:
    """Why a check cannot run here; None: it can."""
    return bare.lacks((*NEEDS, "llguidance") if name == "structured" else NEEDS)


async def found_by(check: EngineCheck, place: Place) -> list[Check]:
    return [each async for each in check(place)]


def run(name: str, place: Place) -> list[Check]:
    """All that one of CHECKS finds."""
    Path(place.folder).mkdir(parents=True, exist_ok=True)
    return asyncio.run(found_by(CHECKS[name], place))
