"""Correctness on the device: every kernel against NumPy, whole models, equal bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch

from gpu.drive import Driver
from gpu.models import TINY, Model, Shape
from gpu.verify import verify
from octavo.kernels.cuda import make
from octavo.kernels.cuda.moe import route as route_on_device
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Activation, AttentionSpec, Inputs, KVSpec, Rotary, Routing, Rows, Tensor
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.reference_math import round_to_int8, route
from octavo.kernels.trees import masks_of, seen
from octavo.kernels.weight import Layout, Weight

TOLERANCE = {"float32": 3e-5, "float16": 2 * 2**-11, "bfloat16": 2 * 2**-8}
"""Largest difference over the largest value: of 16-bit types two unit roundoffs.

A result is rounded once: up to one unit, where the largest value is just above a power of two. Weights, pages
or probabilities in that type add theirs, which a sum over many makes small beside its largest value: half a
unit in NumPy. An H100 has shown up to 0.9 units of products and 1.3 of attention in bfloat16, the interpreter
1.0 and 1.3 in float16. Eight columns of 4,096 that a product leaves out are 4 units of bfloat16.
"""

Check = tuple[str, float, float]
"""(what, error, how large it may be)."""


def batch_of(rng: np.random.Generator, contexts: list[int], queries: list[int], page: int) -> ForwardBatch:
    width = max(-(-c // page) for c in contexts)
    tables = rng.permutation(width * len(contexts)).reshape(-1, width).astype(np.int32)
    positions = [np.arange(c - q, c, dtype=np.int32) for c, q in zip(contexts, queries, strict=True)]
    slots = [tables[s][p // page] * page + p % page for s, p in enumerate(positions)]
    start = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    return ForwardBatch(
        rng.integers(0, 50, start[-1]).astype(np.int32), np.concatenate(positions),
        np.concatenate(slots).astype(np.int32), start, np.array(contexts, np.int32), tables,
        start[1:] - np.int32(1),
    )  # fmt: skip


def error(got: F32, want: F32) -> float:
    """Largest difference over the largest value; infinite where got is not finite."""
    if not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30))


def weight_of(rng: np.random.Generator, kind: str, n: int, k: int) -> Weight:
    if kind == "dense":
        return Weight.dense(rng.standard_normal((n, k)).astype(np.float32))
    if kind == "f8":
        codes = rng.integers(0, 120, (n, k)) | rng.integers(0, 2, (n, k)) << 7  # no NaN
        wide = rng.uniform(0.001, 0.01, (n, -(-k // 128))).astype(np.float32)
        return Weight(Layout.F8, (n, k), codes.astype(np.uint8).view(Layout.F8.dtype), wide)
    if kind == "nf4":
        wide = rng.uniform(0.01, 0.1, (n, k // 64)).astype(np.float32)
        return Weight(Layout.NF4, (n, k), rng.integers(0, 256, (n, k // 2)).astype(np.uint8), wide)
    scale = rng.uniform(0.01, 0.1, (n, k // 32)).astype(np.float16)
    if kind == "s8":
        return Weight(Layout.S8, (n, k), rng.integers(-127, 128, (n, k // 32, 32)).astype(np.int8), scale)
    q = rng.integers(0, 256, (n, k // 32, 16)).astype(np.uint8)
    return Weight(Layout.U4, (n, k), q, scale, (scale * np.float16(-7.5)).astype(np.float16))


def linear(device: str, dtype: str, sizes: list[tuple[int, int, int]]) -> Iterator[Check]:
    """Products of every layout at several M, gated too."""
    rng = np.random.default_rng(0)
    for m, n, k in sizes:
        for kind in ("dense", "s8", "u4", "f8", "nf4"):
            for exact in (False, True):
                backend = make(device, dtype=dtype, exact=exact)
                x = rng.standard_normal((m, k)).astype(np.float32)
                pair = [weight_of(rng, kind, n, k) for _ in range(2)]
                ops = backend.eager(batch_of(rng, [m], [m], 16))
                seen = torch.tensor(x).to(backend.dtype).float().numpy()
                gate, up = (seen @ w.dequantize().T for w in pair)
                got = ops.value(ops.linear(ops.tensor(x), backend.pack(pair[:1])))
                yield f"linear {kind} {m}x{n}x{k} exact={exact}", error(got, gate), TOLERANCE[dtype]
                got = ops.value(
                    ops.linear(ops.tensor(x), backend.pack(pair, True), activation=Activation.RELU)
                )
                want = np.maximum(gate, 0) * up
                yield f"gated {kind} {m}x{n}x{k} exact={exact}", error(got, want), 2 * TOLERANCE[dtype]


def integers(device: str, dtype: str, n: int, k: int) -> Iterator[Check]:
    """W8A8 and W4A8: x rounded once (many rows), and in each tile (few)."""
    rng, backend = np.random.default_rng(4), make(device, dtype=dtype, rounds=True)
    x = rng.standard_normal((70, k)).astype(np.float32)
    seen = torch.tensor(x).to(backend.dtype).float().numpy()
    for kind in ("s8", "u4"):
        w = weight_of(rng, kind, n, k)
        packed = backend.pack([w])

        def product(rows: F32, packed: Any = packed) -> F32:
            ops = backend.eager(batch_of(rng, [len(rows)], [len(rows)], 16))
            y: F32 = ops.value(ops.linear(ops.tensor(rows), packed))
            return y

        want = round_to_int8(seen) @ w.dequantize().T
        yield f"rounded {kind} 70x{n}x{k}, once", error(product(x), want), TOLERANCE[dtype]
        yield f"rounded {kind} 40x{n}x{k}, in each tile", error(product(x[:40]), want[:40]), TOLERANCE[dtype]


def routing(device: str) -> Iterator[Check]:
    """Experts and groups full of ties: of equals the lower, as if it were a little better."""
    logits = np.random.default_rng(6).integers(-2, 3, (64, 60)).astype(np.float32)
    nudged = logits - np.arange(60, dtype=np.float32) * np.float32(1e-6)
    for name, how in {"one group": Routing(), "the best groups": Routing(groups=6, top_groups=2)}.items():
        chosen, _ = route_on_device(torch.tensor(logits, device=device), 6, True, how, None)
        want, _ = route(nudged, 6, True, how)
        yield f"experts of {name}, ties", float((chosen.cpu().numpy() != want).mean()), 0.0


def attention(device: str, dtype: str, contexts: list[int], queries: list[int]) -> Iterator[Check]:
    """Append and attend, each variant, against the reference on equally rounded inputs."""
    rng = np.random.default_rng(1)
    reference = ReferenceBackend()
    kv_dtype = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
    slopes, sinks = (np.linspace(a, b, 8).astype(np.float32) for a, b in ((0.02, 0.3), (-2, 3)))
    variants: dict[str, dict[str, Any]] = {
        "plain": {}, "window": {"window": 20}, "softcap": {"softcap": 5.0}, "alibi": {"alibi_slopes": slopes},
        "sinks": {"sinks": sinks},
    }  # fmt: skip
    cases = [(name, 128, kv_dtype, False) for name in variants]
    cases += [("plain", dim, kv_dtype, False) for dim in (64, 80)]
    cases += [(name, 128, "int8", False) for name in ("plain", "window")]
    cases += [(name, 64, kv_dtype, True) for name in ("plain", "window", "sinks")]
    for name, dim, pages, exact in cases:
        angles = rng.uniform(0, 6, (max(contexts), dim // 2)).astype(np.float32)
        rotary = Rotary(np.cos(angles), np.sin(angles))
        spec = AttentionSpec(8, 2, dim, dim, dim**-0.5, **variants[name])
        backend = make(device, dtype=dtype, exact=exact)
        got, want = both(backend, reference, rng, spec, rotary, pages, contexts, queries)
        label = f"attention {name} d={dim} kv={pages} exact={exact} {queries}"
        yield label, error(got, want), TOLERANCE[dtype]


def whole_prompts(device: str, dtype: str, lengths: list[int]) -> Iterator[Check]:
    """Prompts of one length, by attention's kernel and by torch's, whichever a step would take."""
    from octavo.kernels.cuda import attention as kernel
    from octavo.kernels.cuda import prompts

    kind = "float16" if dtype == "float32" else dtype  # torch's is for 16 bits
    spec, pages = AttentionSpec(8, 2, 128, 128, 128**-0.5), {"float16": "f16", "bfloat16": "bf16"}[kind]
    rng, reference = np.random.default_rng(7), ReferenceBackend()
    angles = rng.uniform(0, 6, (max(lengths), 64)).astype(np.float32)
    rotary = Rotary(np.cos(angles), np.sin(angles))
    for torchs in (False, True):
        with (
            mock.patch.object(kernel, "torchs_is_faster", lambda *_, torchs=torchs: torchs),
            mock.patch.object(prompts, "LEAST", 1),
        ):
            backend = make(device, dtype=kind)
            got, want = both(backend, reference, rng, spec, rotary, pages, lengths, lengths)
        who = "torch" if torchs else "our kernel"
        yield f"attention of whole prompts {lengths} by {who}", error(got, want), TOLERANCE[kind]


def both(
    backend: Any, reference: ReferenceBackend, rng: np.random.Generator, spec: AttentionSpec,
    rotary: Rotary, pages: str, contexts: list[int], queries: list[int],
) -> tuple[F32, F32]:  # fmt: skip
    """The context is computed first, whole; then the queries, whose results are compared."""
    state = rng.bit_generator.state
    results = []
    computers: tuple[Any, ...] = (backend, reference)
    width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    for computer in computers:
        # NumPy has no bfloat16; the rounding of our pages is within what is allowed.
        stored = "f32" if pages == "bf16" and computer is reference else pages
        kv = KVSpec(spec.num_kv_heads, spec.head_dim, spec.v_head_dim, stored)
        rng.bit_generator.state = state
        whole = batch_of(rng, contexts, contexts, 16)
        part = ForwardBatch(
            whole.token_ids, *tail(whole, queries), whole.context_lens, whole.page_tables, whole.sampled
        )
        cache = computer.kv_cache([kv], whole.page_tables.size, 16).layer(0)
        x = rng.standard_normal((whole.num_tokens, width)).astype(np.float32)
        x = torch.tensor(x).to(backend.dtype).float().numpy()
        last = np.concatenate(
            [np.arange(e - n, e) for e, n in zip(whole.query_start[1:], queries, strict=True)]
        )
        for batch, rows in ((whole, x), (part, x[last])):
            if computer is backend:
                ops = backend.eager(batch)
                q = ops.rotary_append(Inputs(batch), ops.tensor(rows), cache, spec, rotary)
                y = ops.value(ops.attention(Inputs(batch), q, cache, spec))
            else:
                r = reference.ops
                tensor = Tensor(Rows.TOKENS, width, rows)
                q = r.rotary_append(Inputs(batch), tensor, cache, spec, rotary)
                y = r.attention(Inputs(batch), q, cache, spec).ref
        results.append(y)
    return results[0], results[1]


def tail(whole: ForwardBatch, queries: list[int]) -> tuple[Any, Any, Any]:
    """positions, slots and query_start of each sequence's last tokens."""
    rows = np.concatenate([np.arange(e - n, e) for e, n in zip(whole.query_start[1:], queries, strict=True)])
    start = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    return whole.positions[rows], whole.slots[rows], start


def trees(device: str, dtype: str) -> Iterator[Check]:
    """Siblings after one context, each as the last of its own path; in exact mode to the bit."""
    rng, parents = np.random.default_rng(3), [-1, 0, 0, 1, 1, 2, 5]
    spec, length, page = AttentionSpec(8, 2, 64, 64, 0.125, window=30), 25, 16
    rows = rng.standard_normal((length + len(parents), 12 * 64)).astype(np.float32)
    depth = trees_of(parents).sum(axis=1) - 1
    whole = batch_of(rng, [len(rows)], [len(rows)], page)
    for exact in (False, True):
        backend = make(device, dtype=dtype, exact=exact)

        def run(batch: ForwardBatch, x: F32, cache: Any, backend: Any = backend) -> F32:
            ops, inputs = backend.eager(batch), Inputs(batch)
            q = ops.rotary_append(inputs, ops.tensor(x), cache, spec, None)
            y: F32 = ops.value(ops.attention(inputs, q, cache, spec))
            return y

        def pages(backend: Any = backend) -> Any:
            return backend.kv_cache([KVSpec(2, 64, 64, backend.kv_dtype)], 2, page).layer(0)

        def cut(first: int, last: int, **other: Any) -> ForwardBatch:
            start, end = np.array([0, last - first], np.int32), np.array([last], np.int32)
            return ForwardBatch(
                whole.token_ids[first:last], other.pop("positions", whole.positions[first:last]),
                whole.slots[first:last], start, end, whole.page_tables,
                (end - 1 - first).astype(np.int32), **other,
            )  # fmt: skip

        cache = pages()
        run(cut(0, length), rows[:length], cache)
        step = cut(
            length, len(rows), positions=(length + depth).astype(np.int32), tree_masks=masks_of(parents)
        )
        got = run(step, rows[length:], cache)
        alone = []
        for path_mask in trees_of(parents):
            path = np.concatenate([np.arange(length), length + np.flatnonzero(path_mask)])
            alone.append(run(cut(0, len(path)), rows[path], pages())[-1])
        bound = 0.0 if exact and device != "cpu" else TOLERANCE[dtype]
        yield f"tree exact={exact}: its paths alone", error(got, np.array(alone)), bound


def trees_of(parents: list[int]) -> Any:
    """[T, T]: what each token of a tree sees of it."""
    return seen(masks_of(parents), len(parents))


def model(device: str, dtype: str, shape: Shape = TINY, steps: int = 4) -> Iterator[Check]:
    """A whole model: graphs against eager, and in exact mode equal bits alone, in a batch, in chunks."""
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, shape.vocab, n) for n in (37, 5, 20)]
    for kind in ("dense", "u4"):
        runs = {}
        for name, options in (("eager", {"graphs": False}), ("graphs", {})):
            drive = driver(make(device, dtype=dtype, **options), shape, kind, len(prompts))
            runs[name] = transcript(drive, prompts, steps)
        yield f"{kind} model: graphs equal eager", error(runs["graphs"], runs["eager"]), 0.0
        exact = make(device, dtype=dtype, exact=True)
        together = transcript(driver(exact, shape, kind, len(prompts)), prompts, steps)
        alone = transcript(driver(exact, shape, kind, 1), prompts[:1], steps)
        # The interpreter's BLAS adds by a row's place in its tile.
        allowed = 0.0 if device != "cpu" else TOLERANCE[dtype]
        yield f"{kind} model: alone equals in a batch (bits)", error(together[:, :1], alone), allowed
        chunked = driver(exact, shape, kind, 1)
        chunked.prefill([0], [prompts[0][:7]])
        pieces = transcript(chunked, [prompts[0][7:]], steps)
        yield f"{kind} model: chunked equals whole (bits)", error(pieces, alone), allowed


def pages(device: str, dtype: str) -> Iterator[Check]:
    """Pages copied on the device, swapped out to the host's memory and back: elements that differ."""
    stored = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
    for kind in (stored, "int8"):
        cache = make(device, dtype=dtype).kv_cache([KVSpec(2, 64, 64, kind)] * 3, 40, 16, 4)
        for tensor in cache.tensors:
            tensor.copy_(torch.randint(-100, 100, tensor.shape, device=tensor.device))
        before = [tensor.clone() for tensor in cache.tensors]
        cache.copy_pages([(7, 8), (8, 3), (1, 40), (2, 43)])  # a chain, and two pages to the host
        cache.copy_pages([(9, 1), (9, 2)])
        cache.copy_pages([(40, 30), (43, 31), (0, 41)])
        cache.wait()
        moved = {8: 7, 3: 8, 1: 9, 2: 9, 30: 1, 31: 2}
        order = torch.tensor([moved.get(page, page) for page in range(40)], device=before[0].device)
        wrong = sum(int((t != b[order]).sum()) for t, b in zip(cache.tensors, before, strict=True))
        yield f"pages of {kind} copied and swapped: elements that differ", float(wrong), 0.0


def draws(device: str, rows: int, vocab: int) -> Iterator[Check]:
    """Draws on the device against the CPU's sampler: how many rows differ."""
    from octavo.kernels.cuda.sample import Copied, DeviceSampler, Kind, Slate
    from octavo.sampling.device import DrawMaker, read
    from octavo.sampling.sampler import Sampler
    from octavo.sampling.sampling_batch import ROW, SamplingBatch, TokenLists

    rng, place = np.random.default_rng(4), torch.device(device)
    none = TokenLists.none(rows)
    for name, wish in {
        "greedy": {"temperature": 0.0},
        "temperature": {"temperature": 0.8, "min_p": 0.001},
        "top-k, top-p": {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
        "log-probabilities": {"temperature": 1.2, "top_p": 0.95, "num_logprobs": 5},
    }.items():
        params = np.zeros(rows, ROW)
        params["typical_p"] = 1
        params["top_p"], params["num_logprobs"], params["repetition_penalty"] = 1, -1, 1
        params["seed"] = rng.integers(0, 2**63, rows)
        for field, value in wish.items():
            params[field] = value
        logits = (rng.standard_normal((rows, vocab)) * rng.choice([1, 4, 8], (rows, 1))).astype(np.float32)
        batch = SamplingBatch(params, rng.integers(0, 2**33, rows), none, none, none)
        made = DrawMaker().draws(batch)
        sampler, slate = DeviceSampler(vocab, rows, place), Slate(rows, place)
        slate.write(made, range(rows))
        z = torch.from_numpy(logits).to(place)
        tokens = sampler.tokens(z, slate, Kind.of(made.numbers), z)
        most = made.numbers.most
        got = read(
            Copied(tokens, sampler.logprobs(z, tokens, slate, most) if most >= 0 else None).result(), batch
        )
        different = sum(a != b for a, b in zip(got, Sampler().sample(logits, batch), strict=True))
        yield f"draws, {name}: rows that differ from the CPU's", float(different), 0.0


def overlap(device: str, dtype: str, steps: int = 6) -> Iterator[Check]:
    """Greedy tokens with two steps in flight, and with a wait for the logits of each."""
    backend = make(device, dtype=dtype)
    first = np.array([5, 9, 11])
    late, waits = driver(backend, TINY, "dense", 3), driver(backend, TINY, "dense", 3)
    found = [late.stream(first, steps)]
    late.warm()
    late.lengths[:] = 0
    found.append(late.stream(first, steps))  # by graphs, where there are any
    tokens, want = first, []
    for _ in range(steps):
        tokens = waits.decode(tokens)
        want.append(tokens)
    for name, got in zip(("met first", "recorded"), found, strict=True):
        yield f"two steps in flight, {name}: tokens that differ", float((got != np.array(want)).sum()), 0.0


def driver(backend: Any, shape: Shape, kind: str, count: int) -> Driver:
    return Driver(Model(backend, shape, kind, pages=16 * count), count, 64 * 4, 256)


def transcript(drive: Driver, prompts: list[Any], steps: int) -> F32:
    """Logits [steps + 1, sequences, vocab] of prompts and of decoding fixed tokens after them."""
    who = np.arange(len(prompts))
    rows = [drive.step(drive.batch(who, prompts)).float().cpu().numpy().copy()]
    for step in range(steps):
        given = [np.array([step + 3]) for _ in prompts]
        rows.append(drive.step(drive.batch(who, given)).float().cpu().numpy().copy())
    return np.array(rows, np.float32)


def parts(device: str, dtype: str, small: bool) -> dict[str, Callable[[], Iterator[Check]]]:
    """Everything, in parts that know nothing of each other; small: the shapes that an interpreter can do."""
    sizes = [(3, 40, 64)] if small else [(1, 4096, 4096), (7, 1000, 576), (64, 576, 1536), (300, 512, 1024)]
    contexts = [40, 7] if small else [700, 33, 2100]
    found: dict[str, Callable[[], Iterator[Check]]] = {
        f"linear {'x'.join(map(str, size))}": partial(linear, device, dtype, [size]) for size in sizes
    }
    found["integers"] = partial(integers, device, dtype, *((24, 64) if small else (1000, 576)))
    for queries in ([1, 1, 1], [30, 5, 64]):
        some = queries[: len(contexts)]
        found[f"attention of {some}"] = partial(attention, device, dtype, contexts, some)
    found["whole prompts"] = partial(whole_prompts, device, dtype, [40, 40] if small else [700, 700])
    found["routing"] = partial(routing, device)
    found["trees"] = partial(trees, device, dtype)
    found["pages"] = partial(pages, device, dtype)
    found["draws"] = partial(draws, device, *((2, 600) if small else (64, 128256)))
    found["overlap"] = partial(overlap, device, dtype)
    found["verify"] = partial(verify, device, dtype)
    found["model"] = partial(model, device, dtype)
    return found


def all_checks(device: str, dtype: str, small: bool) -> Iterator[Check]:
    """All parts, one after another."""
    for part in parts(device, dtype, small).values():
        yield from part()
