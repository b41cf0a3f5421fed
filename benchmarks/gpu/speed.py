"""The benchmark table: each row is a share, a ratio or a rate, beside what it should reach."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from gpu.arithmetic import (
    copy_bandwidth,
    decode_bytes,
    gap,
    least_seconds,
    output_rate,
    product_flops,
    prompt_flops,
    share,
    slowdown,
    speedup,
)
from gpu.drive import Driver, draws_with, replayed, seconds
from gpu.models import LLAMA_8B, SMOLLM2, TINY, Model, Shape
from octavo.kernels.cuda import make

NOT_RESOLVED = "not resolved"
BLOCKS = 5
"""Times that a step is measured by each clock: what they differ by is what the clocks do not resolve."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. value is None where the row could not be run; note says why. It begins with
    NOT_RESOLVED where the clocks do not resolve the value."""

    work: str
    unit: str
    value: float | None
    wanted: float
    note: str = ""
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted


@dataclass(frozen=True, slots=True)
class Scale:
    """How large: of a real GPU, or small enough for an interpreter that tests this script."""

    large: Shape
    small: Shape
    short: int
    long: int
    streams: int
    prompt: int
    answer: int
    whole_prompt: int
    chunk: int
    repeat: int
    ceiling: int


REAL = Scale(LLAMA_8B, SMOLLM2, 128, 32768, 256, 512, 256, 8192, 8192, 20, 8192)
SMALL = Scale(TINY, TINY, 8, 40, 3, 6, 2, 24, 64, 1, 64)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this device does: bytes a second of a copy (read plus written), FLOP/s of a matmul."""

    bandwidth: float
    flops: float


def ceilings(device: torch.device, dtype: torch.dtype, n: int) -> Ceilings:
    """Measured on random data, well past the caches where n is large."""
    source = torch.randn(n * n * 8, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    copy = seconds(lambda: target.copy_(source), 10, device)
    a, b = (torch.randn((n, n), device=device).to(dtype) for _ in range(2))
    product = seconds(lambda: torch.mm(a, b), 10, device)
    return Ceilings(copy_bandwidth(source.nbytes, copy), product_flops(n) / product)


def decode_seconds(backend: Any, shape: Shape, kind: str, context: int, repeat: int) -> tuple[float, Model]:
    """One step of one stream at a context, between device events."""
    pages = -(-(context + repeat + 8) // 16) + 1
    drive = Driver(Model(backend, shape, kind, pages), 1, (pages - 1) * 16, 8)
    drive.pretend(context)
    batch = drive.batch(np.array([0]), [np.array([1])])
    drive.step(batch)  # compiles, and asks for the graph
    drive.warm()
    return seconds(lambda: drive.step(batch), repeat, backend.device), drive.model


def roofline(backend: Any, scale: Scale, most: Ceilings) -> Iterator[Row]:
    """One stream: bytes of weights and pages over the time, as a share of the copy bandwidth."""
    times = {}
    for context, wanted in ((scale.short, 0.86), (scale.long, 0.70)):
        took, model = decode_seconds(backend, scale.large, "dense", context, scale.repeat)
        times[context] = took
        moved = decode_bytes(model.bytes_per_step, context, model.kv_bytes_per_token)
        del model
        note = f"{1 / took:.1f} tok/s, {moved / 1e9:.2f} GB a step"
        work = f"{scale.large.name} dense, 1 stream, context {context}: share of bandwidth"
        yield Row(work, "share", share(moved, took, most.bandwidth), wanted, note)
    took, _ = decode_seconds(backend, scale.large, "u4", scale.short, scale.repeat)
    ratio = speedup([times[scale.short]], took)
    yield Row("4-bit over dense, 1 stream", "x", ratio, 2.25, f"{1 / took:.1f} tok/s")


def prompts(backend: Any, scale: Scale, most: Ceilings) -> Iterator[Row]:
    """A long prompt in one forward: its products and its attention as a share of the matmul rate."""
    shape, n = scale.large, scale.whole_prompt
    drive = Driver(Model(backend, shape, "dense", -(-n // 16) + 1), 1, n, n)
    tokens = np.arange(n) % shape.vocab
    batch = drive.batch(np.array([0]), [tokens])
    took = seconds(lambda: drive.step(batch), max(scale.repeat // 4, 1), backend.device)
    reached = share(prompt_flops(shape, n), took, most.flops)
    yield Row(f"prompt of {n}: share of dense peak", "share", reached, 0.75, f"{n / took:.0f} tok/s")


def streams(
    backend: Any, scale: Scale, most: Ceilings, peer: float | None, why: str, whose: str
) -> Iterator[Row]:
    """Many streams from prompts to answers, against transformers on the same shapes, and against what this
    device's copy and product leave possible."""
    shape, count = scale.large, scale.streams
    length = scale.prompt + scale.answer
    pages = count * -(-length // 16)
    drive = Driver(Model(backend, shape, "dense", pages), count, length, scale.chunk)
    rng = np.random.default_rng(0)
    drive.stream(np.zeros(count, np.int64), 2)  # compiles, and asks for the graph
    drive.warm()
    drive.lengths[:] = 0
    at_once = max(scale.chunk // scale.prompt, 1)
    given = [rng.integers(0, shape.vocab, scale.prompt) for _ in range(count)]
    drive.prefill(list(range(min(at_once, count))), given[:at_once])
    drive.lengths[:] = 0
    since = time.perf_counter()
    tokens = np.zeros(count, np.int64)
    for first in range(0, count, at_once):
        who = list(range(first, min(first + at_once, count)))
        tokens[who] = drive.prefill(who, [given[s] for s in who])
    prompts_took = time.perf_counter() - since
    if scale.answer > 1:
        drive.stream(tokens, scale.answer - 1)
    took = time.perf_counter() - since
    rate = output_rate(count, scale.answer, took)
    ratio = None if peer is None else rate / peer
    note = f"{rate:.0f} tok/s ({prompts_took:.2f} of {took:.2f} s are prompts); "
    note += why if peer is None else f"transformers {peer:.0f} tok/s"
    work = f"{count} streams, {scale.prompt} + {scale.answer}"
    yield Row(f"{work}, over {whose}", "x", ratio, 5.0, note)
    least = least_seconds(
        shape, backend.dtype.itemsize, count, scale.prompt, scale.answer, most.bandwidth, most.flops
    )
    told = f"{took:.2f} s, {least:.2f} s at the copy's and the product's rates"
    yield Row(f"{work}: share of the bound", "share", slowdown(least, took), 0.85, told)


def whole_steps(
    backend: Any, shape: Shape, count: int, scale: Scale, steps: int
) -> tuple[list[float], list[float], Driver]:
    """(seconds a step by the clock, on the device alone, the driver) of `count` greedy streams.

    Both lists hold BLOCKS times, each of `steps` steps or of their median; two where it is only tried.
    """
    blocks = BLOCKS if backend.device.type == "cuda" else 2
    length = scale.short + 16 + steps
    drive = Driver(Model(backend, shape, "dense", count * -(-length // 16)), count, length, scale.chunk)
    tokens = np.zeros(count, np.int64)
    drive.pretend(scale.short)
    drive.stream(tokens, 3)  # compiles, and asks for the graph
    drive.warm()
    whole, device = [], []
    for _ in range(blocks):
        drive.pretend(scale.short)
        drive.stream(tokens, 3)
        since = time.perf_counter()
        drive.stream(tokens, steps)
        whole.append((time.perf_counter() - since) / steps)
    draws, who = draws_with(count), list(range(count))
    here = np.full(count, -1, np.int32)
    for _ in range(blocks):
        drive.pretend(scale.short + steps // 2)
        batch = drive.batch(np.arange(count), list(tokens.reshape(-1, 1)))
        launch = partial(drive.steps.launch, batch, here, who, draws)
        device.append(seconds(launch, scale.repeat, backend.device))
    return whole, device, drive


def host_gap(backend: Any, scale: Scale) -> Iterator[Row]:
    """64 streams, as the engine's runner drives them: how much longer a whole step is than the device's
    part of it. And the smallest model's rate, where the host has the least time."""
    count, cuda = min(64, scale.streams), backend.device.type == "cuda"
    whole, device, drive = whole_steps(backend, scale.large, count, scale, 64 if cuda else 2)
    found, row = gap(whole, device), f"host gap at {count} streams"
    times = f"{in_ms(whole)} ms a step, {in_ms(device)} ms on the device, {drive.steps.replays} replays"
    note = times if found is not None else f"{NOT_RESOLVED}: {times}"
    yield Row(row, "share", found, 0.05, note, True)
    del drive
    forget()
    whole, device, drive = whole_steps(backend, scale.small, 1, scale, 512 if cuda else 2)
    note = f"tokens on the host; {median(device) * 1e6:.0f} us on the device, {drive.steps.replays} replays"
    yield Row(f"{scale.small.name}, 1 stream", "tok/s", 1 / median(whole), 1626, note)


def in_ms(times: list[float]) -> str:
    """The median and, of several, from which to which."""
    return f"{median(times) * 1e3:.2f} ({min(times) * 1e3:.2f} to {max(times) * 1e3:.2f})"


def draws_price(backend: Any, scale: Scale) -> Iterator[Row]:
    """Draws of 64 rows at once, by kind, beside the greedy ones."""
    from octavo.kernels.cuda.sample import DeviceSampler, Kind, Slate

    rows, vocab = min(64, scale.streams), scale.large.vocab
    sampler, slate = DeviceSampler(vocab, rows, backend.device), Slate(rows, backend.device)
    z = torch.randn((rows, vocab), device=backend.device) * 4
    wishes = {
        Kind.GREEDY: draws_with(rows),
        Kind.RACE: draws_with(rows, temperature=1),
        Kind.NARROW: draws_with(rows, temperature=1, top_p=0.9, top_k=50),
    }
    for kind, wish in wishes.items():
        slate.write(wish, range(rows))
        once = replayed(partial(sampler.tokens, z, slate, kind, z), backend.device)
        took = seconds(once, scale.repeat, backend.device)
        yield Row(f"draws of {rows} rows of {vocab}, {kind.name.lower()}", "us", took * 1e6, 0)


def llama(s: Shape, device: torch.device, dtype: torch.dtype) -> Any:
    """transformers' model of this shape, random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    make_config: Any = LlamaConfig
    config = make_config(
        vocab_size=s.vocab, hidden_size=s.hidden, intermediate_size=s.inner, num_hidden_layers=s.layers,
        num_attention_heads=s.heads, num_key_value_heads=s.kv_heads, head_dim=s.head_dim,
        max_position_embeddings=s.positions, attn_implementation="sdpa",
        bos_token_id=0, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    with torch.device(device):
        model: Any = LlamaForCausalLM(config)
    return model.to(dtype=dtype).eval()


def transformers_rate(scale: Scale, device: torch.device, dtype: torch.dtype) -> float:
    """Tokens a second of transformers' static generate on the same shape, random weights."""
    s, model = scale.large, llama(scale.large, device, dtype)
    ids = torch.randint(0, s.vocab, (scale.streams, scale.prompt), device=device)
    mask = torch.ones_like(ids)
    options: dict[str, Any] = {"do_sample": False, "attention_mask": mask, "pad_token_id": 0}
    with torch.no_grad():
        model.generate(ids[:1], max_new_tokens=2, **{**options, "attention_mask": mask[:1]})
        since = time.perf_counter()
        model.generate(ids, max_new_tokens=scale.answer, min_new_tokens=scale.answer, **options)
        if device.type == "cuda":
            torch.cuda.synchronize()
    return output_rate(scale.streams, scale.answer, time.perf_counter() - since)


def batching_rate(scale: Scale, device: torch.device, dtype: torch.dtype) -> float:
    """Tokens a second of transformers' continuous batching, likewise."""
    from transformers import GenerationConfig

    model = llama(scale.large, device, dtype)
    config: Any = GenerationConfig
    options = config(
        max_new_tokens=scale.answer, do_sample=False, eos_token_id=-1, pad_token_id=0, bos_token_id=0
    )

    def run(count: int) -> int:
        given = np.random.default_rng(1).integers(0, scale.large.vocab, (count, scale.prompt)).tolist()
        done = model.generate_batch(inputs=given, generation_config=options)
        return sum(len(one.generated_tokens) for one in done.values())

    with torch.no_grad():
        run(1)
        since = time.perf_counter()
        return run(scale.streams) / (time.perf_counter() - since)


def attention(backend: Any, scale: Scale) -> Iterator[Row]:
    """Over the faster of SDPA and FlexAttention: a prompt, and decoding with KV that they get contiguous.
    All are replayed as graphs: a launch's price on the host is not the kernel's."""
    from octavo.kernels.cuda.attention import AttentionTables, attend, attend_pages
    from octavo.kernels.ops import KVSpec

    shape, device, dtype = scale.large, backend.device, backend.dtype
    kv_type = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    heads, dim = shape.heads, shape.head_dim
    for name, count, context, query, wanted in (
        ("prefill", 1, scale.whole_prompt, scale.whole_prompt, 0.8),
        ("paged decode", scale.streams // 4 + 1, scale.long // 8, 1, 1.2),
    ):
        width = -(-context // 16)
        layer = backend.kv_cache([KVSpec(shape.kv_heads, dim, dim, kv_type)], count * width, 16).layer(0)
        for tensor in layer.tensors:
            tensor.normal_()
        queries = device_queries(device, count, context, query, width)
        q = torch.randn((count * query, heads * dim), device=device).to(dtype)
        given = q, layer, shape.spec, queries, AttentionTables(None, None, None), backend.policy
        ours = seconds(replayed(partial(attend_pages, *given), device), scale.repeat, device)
        k, v = (torch.randn((count, shape.kv_heads, context, dim), device=device).to(dtype) for _ in range(2))
        rows = q.view(count, query, heads, dim).transpose(1, 2)
        sdpa = partial(
            torch.nn.functional.scaled_dot_product_attention, rows, k, v, is_causal=query > 1, enable_gqa=True
        )
        theirs = {"SDPA": seconds(replayed(sdpa, device), scale.repeat, device)}
        said = ""
        if device.type == "cuda":
            try:
                flexible = replayed(flex_attention(rows, k, v), device)
                theirs["FlexAttention"] = seconds(flexible, scale.repeat, device)
            except Exception as error:  # SDPA is there to compare with
                said = f"; FlexAttention failed: {error!r:.100}"
        times = ", ".join(f"{peer} {took * 1e6:.0f} us" for peer, took in theirs.items())
        note = f"{ours * 1e6:.0f} us, {times}; {count} x {query} queries at {context}{said}"
        yield Row(f"attention over torch's, {name}", "x", speedup(theirs.values(), ours), wanted, note)
        if query > 1:  # by which of the two a step computes it
            taken = seconds(replayed(partial(attend, *given), device), scale.repeat, device)
            ratio = speedup(theirs.values(), taken)
            note = f"{taken * 1e6:.0f} us, with the gathering of pages where torch's is taken"
            yield Row(f"attention as a step takes it over torch's, {name}", "x", ratio, wanted, note)


def flex_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], Any]:
    """torch's FlexAttention, compiled: causal over a prompt, everything for a single query."""
    from torch.nn.attention import flex_attention as flex

    def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return query >= key

    length = q.shape[2]
    mask = flex.create_block_mask(causal, None, None, length, length, str(q.device)) if length > 1 else None
    compiled: Any = torch.compile(flex.flex_attention, dynamic=False)
    return partial(compiled, q, k, v, block_mask=mask, enable_gqa=True)


def device_queries(device: torch.device, count: int, context: int, query: int, width: int) -> Any:
    from octavo.kernels.cuda.attention_shape import Queries

    def ints(values: Any) -> torch.Tensor:
        return torch.tensor(np.asarray(values, np.int32), device=device)

    positions = np.tile(np.arange(context - query, context), count)
    tables = np.random.default_rng(0).permutation(count * width).reshape(count, width)
    starts, lens, zeros = np.arange(count + 1) * query, np.full(count, context), np.zeros(count * query)
    return Queries(ints(starts), ints(lens), ints(positions), ints(zeros), ints(tables), query, context)


def exact_price(device: str, dtype: str, scale: Scale, plain: Any) -> Iterator[Row]:
    """Bit-exact mode: its time over the fast one's, of one stream on the device and of 64 as a whole."""
    fast, _ = decode_seconds(plain, scale.large, "dense", scale.short, scale.repeat)
    exact = make(device, dtype=dtype, exact=True)
    slow, _ = decode_seconds(exact, scale.large, "dense", scale.short, scale.repeat)
    work, told = "price of bit-exact mode", f"{1 / slow:.1f} tok/s"
    yield Row(f"{work}, 1 stream", "x", slowdown(slow, fast), 1.11, told, True)
    count, steps = min(64, scale.streams), 64 if exact.device.type == "cuda" else 2
    times = []
    for backend in (plain, exact):
        forget()
        times.append(whole_steps(backend, scale.large, count, scale, steps)[0])
    told = f"{in_ms(times[1])} ms a step, {in_ms(times[0])} without"
    ratio = slowdown(median(times[1]), median(times[0]))
    yield Row(f"{work}, {count} streams", "x", ratio, 1.11, told, True)


def verify_price(backend: Any, scale: Scale) -> Iterator[Row]:
    """A step that verifies a draft of four tokens, over one that draws a single one: on the device alone."""
    rows, times = 5, {}
    pages = -(-(scale.short + 2 * rows) // 16) + 1
    drive = Driver(Model(backend, scale.large, "dense", pages), 1, pages * 16, 8, 8)
    for count in (1, rows):
        drive.pretend(scale.short)
        batch = drive.batch(np.array([0]), [np.arange(count)])
        batch = replace(batch, sampled=np.arange(count, dtype=np.int32))
        nobody = np.full(count, -1, np.int32)
        launch = partial(drive.steps.launch, batch, nobody, nobody.tolist(), draws_with(count))
        launch()  # compiles, and asks for the graph
        drive.warm()
        times[count] = seconds(launch, scale.repeat, backend.device)
    note = f"{times[rows] * 1e6:.0f} us, {times[1] * 1e6:.0f} us; {drive.steps.replays} replays"
    work = f"{scale.large.name} dense, verify step of {rows} rows over a plain one"
    yield Row(work, "x", slowdown(times[rows], times[1]), 1.15, note, True)


def table(
    device: str, dtype: str, scale: Scale, until: float = float("inf"), batching: bool = False
) -> Iterator[Row]:
    """All rows. One that fails says so in its note, and the next one runs.

    Args:
        until: by time.monotonic(); what would begin later is left out, by name.
        batching: a row against transformers' continuous batching too, which takes a minute or more.
    """
    from gpu import whole

    backend = make(device, dtype=dtype)
    most = ceilings(backend.device, backend.dtype, scale.ceiling)
    yield Row("measured copy bandwidth", "TB/s", most.bandwidth / 1e12, 0)
    yield Row("measured matmul rate", "TFLOP/s", most.flops / 1e12, 0)
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "host gap": lambda: host_gap(backend, scale),
        "one stream": lambda: roofline(backend, scale, most),
        "engine, one stream": lambda: whole.made("one stream", device, dtype, scale, most),
        "attention": lambda: attention(backend, scale),
        "prompt": lambda: prompts(backend, scale, most),
        "verify step": lambda: verify_price(backend, scale),
        "bit-exact mode": lambda: exact_price(device, dtype, scale, backend),
        "streams": lambda: against_transformers(backend, scale, most, transformers_rate),
        "engine, conversations": lambda: whole.made("conversations", device, dtype, scale, most),
        "engine, users": lambda: whole.made("users", device, dtype, scale, most),
        "draws": lambda: draws_price(backend, scale),
    }
    if batching:
        fewer = replace(scale, streams=min(64, scale.streams), answer=min(64, scale.answer))
        parts["batching"] = lambda: against_transformers(backend, fewer, most, batching_rate)
    for name, rows in parts.items():
        if time.monotonic() < until:
            yield from guarded(name, rows)
        else:
            yield Row(name, "", None, 0, "left out: the time is up")


def against_transformers(
    backend: Any, scale: Scale, most: Ceilings, how: Callable[[Scale, torch.device, torch.dtype], float]
) -> Iterator[Row]:
    peer, why = None, ""
    try:
        peer = how(scale, backend.device, backend.dtype)
    except Exception as error:  # whatever stops the peer, our own rows still count
        why = f"transformers did not run: {error!r:.200}"
    forget()
    name = "continuous batching" if how is batching_rate else "static generate"
    yield from streams(backend, scale, most, peer, why, f"transformers' {name}")


def guarded(name: str, rows: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    try:
        yield from rows()
    except Exception as error:  # one row's failure is a row
        yield Row(name, "", None, 0, f"failed: {error!r:.300}")
    forget()


def forget() -> None:
    """Give the last row's memory back before the next."""
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
