"""Rows of the table that the whole engine makes: scheduler, runner, and tokens that reach a caller.

    python -m gpu.whole NAME --device cuda --dtype bfloat16 --bandwidth BYTES_A_SECOND

On a GPU each is made in a process of its own, whose end gives all memory back. The model is hollow
(gpu/folder.py): random weights, made on the device. Lengths are those of octavo.bench.trace.conversations;
the published figures beside them are others' work on others' machines.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import mean
from typing import Any

import numpy as np

from gpu import bare, engine, served
from gpu.arithmetic import answer_bytes, kv_bytes, share, slowdown, total_rate, weight_bytes
from gpu.folder import filled, save
from gpu.http import running
from gpu.models import Shape
from gpu.speed import REAL, SMALL, Ceilings, Row, Scale

PUBLISHED = (
    "published for an 8B in bf16 on an H100, ShareGPT's prompts, not the same work: SGLang 16,215 and vLLM "
    "12,553 tok/s (research.aimultiple.com/inference-engines)"
)
LONGEST = 4096
"""Tokens of a conversation."""
FEW_USERS = 64


def left_out(packages: Sequence[str]) -> str | None:
    """What a row says that cannot be made here; None: it can."""
    why = bare.lacks(packages)
    return None if why is None else f"left out: {why}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: token ids, and how many to answer with."""

    prompt: list[int]
    answer: int


def asked_of(scale: Scale, count: int, seed: int = 0) -> list[Asked]:
    """count requests whose lengths are a chat service's (a tiny model's are tiny); other ids by seed."""
    from octavo.bench.trace import conversations as drawn

    rng, longest = np.random.default_rng(seed), min(LONGEST, scale.large.positions // 8)
    found = []
    for each in drawn(count, 1.0, longest):
        ids = rng.integers(3, scale.large.vocab, each.prompt_tokens).tolist()
        found.append(Asked(ids, min(each.output_tokens, longest // 2)))
    return found


@contextmanager
def hollow(shape: Shape, device: str) -> Iterator[tuple[Path, AbstractContextManager[None]]]:
    """The model's folder, and a context in which an engine that loads it makes its weights."""
    folder = Path(tempfile.mkdtemp(prefix="octavo-"))
    try:
        real = device != "cpu"
        yield save(folder / shape.name, shape, real), filled() if real else nullcontext()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def options(device: str, dtype: str, rows: int, scale: Scale) -> dict[str, Any]:
    """Of an engine that computes so many sequences at once."""
    longest = min(LONGEST, scale.large.positions // 8)
    pages = {"num_pages": 4 * (longest // 16 + 1)} if device == "cpu" else {}
    return {
        "device": device, "dtype": dtype, "max_model_len": longest, "max_num_seqs": rows, "seed": 0,
        "step_target_ms": 0.0, "max_waiting": 4096, **pages,
    }  # fmt: skip


async def timed_answer(device: str, dtype: str, folder: Path, scale: Scale, count: int) -> tuple[float, int]:
    """(seconds from the first token to the last, tokens that came in them) of one stream alone.

    The engine's own clock: a reader that is told late gets tokens in one piece."""
    from octavo import SamplingParams
    from octavo.async_llm import AsyncLLM
    from octavo.engine_args import AsyncEngineArgs

    args = AsyncEngineArgs(str(folder), **options(device, dtype, 8, scale))
    llm = await asyncio.to_thread(AsyncLLM.from_engine_args, args)
    try:
        prompt = {"prompt_token_ids": list(range(3, 3 + scale.short))}
        wanted = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        found = (0.0, 0)
        for _ in range(2):  # the first compiles, and records
            async for output in llm.generate(prompt, wanted):
                if (times := output.metrics) is not None and output.finished:
                    first, last = times.first_token_time, times.last_token_time
                    assert first is not None  # a finished answer has both times
                    assert last is not None
                    found = last - first, len(output.outputs[0].token_ids) - 1
            await asyncio.sleep(1.0 if device != "cpu" else 0.0)
        return found
    finally:
        await asyncio.to_thread(llm.shutdown)


def one_stream(device: str, dtype: str, scale: Scale, most: Ceilings) -> Iterator[Row]:
    """One stream through the whole engine: the bytes that its steps read, over the time, as a share."""
    work = f"{scale.large.name} dense, 1 stream, whole engine: share of bandwidth"
    if (why := left_out(engine.NEEDS)) is not None:
        yield Row(work, "share", None, 0.86, why)
        return
    item, count = (4 if dtype == "float32" else 2), 40 if device == "cpu" else 257
    with hollow(scale.large, device) as (folder, making), making:
        took, steps = asyncio.run(timed_answer(device, dtype, folder, scale, count))
    weights, kv = weight_bytes(scale.large, item), kv_bytes(scale.large, item)
    moved = answer_bytes(weights, scale.short, steps + 1, kv)
    yield Row(work, "share", share(moved, took, most.bandwidth), 0.86, f"{steps / took:.1f} tok/s")


def offline_rate(device: str, dtype: str, scale: Scale, count: int, rows: int) -> float:
    """Output tokens a second of LLM.generate over so many conversations, after as many as fit at once."""
    from octavo import LLM, SamplingParams

    took, counts = 0.0, list[int]()
    with ExitStack() as stack:
        folder, making = stack.enter_context(hollow(scale.large, device))
        stack.enter_context(making)
        llm = stack.enter_context(LLM(str(folder), **options(device, dtype, rows, scale)))
        for asked in (asked_of(scale, min(count, rows), 1), asked_of(scale, count)):  # the first compiles
            wanted = [SamplingParams(temperature=0, max_tokens=one.answer, ignore_eos=True) for one in asked]
            prompts: list[Any] = [{"prompt_token_ids": one.prompt} for one in asked]
            since = time.perf_counter()
            outputs = llm.generate(prompts, wanted, use_tqdm=False)
            took, counts = time.perf_counter() - since, [len(one.outputs[0].token_ids) for one in outputs]
    return total_rate(counts, took)


def conversations(device: str, dtype: str, scale: Scale, most: Ceilings) -> Iterator[Row]:
    """1,000 conversations, all asked at once, through LLM.generate."""
    count = 3 if device == "cpu" else 1000
    asked = asked_of(scale, count)
    work = f"{count} conversations, offline, {scale.streams} at once"
    if (why := left_out(engine.NEEDS)) is not None:
        yield Row(work, "tok/s", None, 0, why)
        return
    rate = offline_rate(device, dtype, scale, count, scale.streams)
    read, said = mean(len(each.prompt) for each in asked), mean(each.answer for each in asked)
    yield Row(work, "tok/s", rate, 0, f"means {read:.0f} + {said:.0f} tokens; {PUBLISHED}")


def offline(device: str, dtype: str, scale: Scale, most: Ceilings) -> Iterator[Row]:
    """What `users` is compared with: the same conversations through LLM.generate, as many at once."""
    rows, count = of_users(device, scale)
    yield Row("", "tok/s", offline_rate(device, dtype, scale, count, rows), 0)


def of_users(device: str, scale: Scale) -> tuple[int, int]:
    """(users, conversations of all of them)."""
    rows = min(FEW_USERS, scale.streams)
    return rows, 3 if device == "cpu" else 5 * rows


def users(device: str, dtype: str, scale: Scale, most: Ceilings) -> Iterator[Row]:
    """64 users over HTTP, each with one conversation after another, beside the same offline at 64 at once."""
    rows, count = of_users(device, scale)
    work = f"{rows} users over HTTP, {count} conversations, over offline"
    if (why := left_out(served.NEEDS)) is not None:
        yield Row(work, "x", None, 0.9, why)
        return
    (alone,) = made("offline", device, dtype, scale, most)
    rate = served_rate(device, dtype, scale, count, rows)
    told = f"{rate:.0f} and {alone.value or 0:.0f} tok/s; {PUBLISHED}"
    yield Row(work, "x", slowdown(rate, alone.value or float("nan")), 0.9, told)


def served_rate(device: str, dtype: str, scale: Scale, count: int, rows: int) -> float:
    """Output tokens a second of so many users, who stream."""
    flags = []
    for name, value in options(device, dtype, rows, scale).items():
        flags += [f"--{name.replace('_', '-')}", str(value)]
    before = [] if device == "cpu" else ["--hollow"]
    with ExitStack() as stack:
        folder, _ = stack.enter_context(hollow(scale.large, device))
        server = stack.enter_context(running([str(folder), *flags], folder.parent / "server.log", before))
        answered(server, folder.name, asked_of(scale, min(count, rows), 1), rows)  # compiles, and records
        return answered(server, folder.name, asked_of(scale, count), rows)


def answered(server: Any, model: str, asked: Sequence[Asked], users: int) -> float:
    """Output tokens a second, by what the server says each answer had."""
    left: SimpleQueue[Asked] = SimpleQueue()
    for each in asked:
        left.put(each)

    def user(_: int) -> int:
        tokens = 0
        while True:
            try:
                one = left.get_nowait()
            except Empty:
                return tokens
            body = {
                "model": model, "prompt": one.prompt, "max_tokens": one.answer, "temperature": 0,
                "ignore_eos": True, "stream_options": {"include_usage": True},
            }  # fmt: skip
            tokens += served.tokens_of(server.stream(served.TEXT, body))

    since = time.perf_counter()
    with ThreadPoolExecutor(users) as pool:
        counts = list(pool.map(user, range(users)))
    return total_rate(counts, time.perf_counter() - since)


ROWS: dict[str, Callable[[str, str, Scale, Ceilings], Iterator[Row]]] = {
    "one stream": one_stream, "conversations": conversations, "offline": offline, "users": users,
}  # fmt: skip
LIMIT_S = 300.0
"""Of a process that makes a row."""


def made(name: str, device: str, dtype: str, scale: Scale, most: Ceilings) -> Iterator[Row]:
    """The rows of that name: of a GPU by a process of its own.

    Raises:
        RuntimeError: it failed, with the last it said. subprocess.TimeoutExpired: it took too long.
    """
    if device == "cpu":
        yield from ROWS[name](device, dtype, scale, most)
        return
    words = [sys.executable, "-m", "gpu.whole", name, "--device", device, "--dtype", dtype]
    words += ["--bandwidth", repr(most.bandwidth), "--flops", repr(most.flops)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=bare.environment()
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield Row(**json.loads(line))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu.whole", description="One row of the whole engine.")
    parser.add_argument("name", choices=ROWS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--bandwidth", type=float, default=1.0)
    parser.add_argument("--flops", type=float, default=1.0)
    given = parser.parse_args(arguments)
    scale, most = SMALL if given.device == "cpu" else REAL, Ceilings(given.bandwidth, given.flops)
    for row in ROWS[given.name](given.device, given.dtype, scale, most):
        print(json.dumps(dataclasses.asdict(row)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
