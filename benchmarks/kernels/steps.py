"""Steps of a real model without the engine around them, and where their time goes.

    python benchmarks/kernels/steps.py smollm2 --work decode:1,decode:32,prompt:512,decode:1@8000 --ops

decode:B@C is one step of B sequences whose context is C tokens (default 64), prompt:S@C the last S tokens of
a prompt of C (default S). Each figure is the best of many replays in one process, so a busy machine moves it
little. With --ops the calls of each kind are replayed as a program of their own, on random activations; their
sum is less than the step's time by what following each other costs. One thread (--threads 1) is timed by the
CPU time that it had, which other work on the machine lengthens only through caches and memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from asked import above_zero, at_least_one, several

from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.sources import resolve
from octavo.config.user import KV_DTYPES
from octavo.errors import OctavoError
from octavo.kernels import _native
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.cpu_lower import Built, RecordedCalls, build, parts
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import Rows
from octavo.kernels.program import Buffer, Call, Recorder, fuse, record
from octavo.models.load import load_model
from support.kernels import batch_of, limits_of

PAGE = 16


@dataclass(frozen=True)
class Work:
    """Sequences of `context` tokens, the last `queries` of which are computed."""

    name: str
    sequences: int
    queries: int
    context: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.queries


def parse(text: str) -> Work:
    """A type of argparse."""
    kind, _, rest = text.partition(":")
    size, _, context = rest.partition("@")
    if kind == "decode":
        return Work(text, at_least_one(size), 1, at_least_one(context or "64"))
    if kind == "prompt":
        return Work(text, 1, at_least_one(size), at_least_one(context or size))
    raise argparse.ArgumentTypeError(f"{text!r} is neither decode:B[@C] nor prompt:S[@C]")


def label(call: Call, recorder: Recorder) -> str:
    if call.name != "linear":
        return call.name
    found = []
    for part in parts(call.args["weight"]):
        found.append(f"{part.shape[0]}x{part.shape[1]}")
    return f"linear {'+'.join(found)}"


def times(run: Callable[[], object], spend: float, clock: Callable[[], float]) -> list[float]:
    """Seconds of each of as many runs as fit into `spend`, at least one; the run before them warms up."""
    run()
    found: list[float] = []
    end = time.perf_counter() + spend
    while not found or time.perf_counter() < end:
        start = clock()
        run()
        found.append(clock() - start)
    return found


class Step:
    """A model's recorded calls, replayed whole or by kind on one batch."""

    def __init__(self, backend: CpuBackend, model: Any, kv_dtype: str, work: Work) -> None:
        self.backend = backend
        rng = np.random.default_rng(0)
        contexts, queries = [work.context] * work.sequences, [work.queries] * work.sequences
        self.batch: ForwardBatch = batch_of(
            rng, contexts, queries, PAGE, vocab=model.vocab_size, ascending=True
        )
        self.limits = limits_of(self.batch)
        pages = int(self.batch.page_tables.max()) + 1
        kv = backend.kv_cache(model.kv_specs(kv_dtype), pages, PAGE)
        self.recorder, result = record(lambda ops, inputs: model.forward(ops, inputs, kv), self.limits)
        self.calls = fuse(self.recorder.calls, result.ref)
        self._fill(kv, work)

    def _fill(self, kv: Any, work: Work) -> None:
        """Write every page once: pages never written share one page of zeros."""
        for start in range(0, work.context, 256):
            end = min(start + 256, work.context)
            line = np.arange(start, end, dtype=np.int32)
            for table in self.batch.page_tables:
                batch = ForwardBatch(
                    token_ids=line % 1000,
                    positions=line,
                    slots=table[line // PAGE] * PAGE + line % PAGE,
                    query_start=np.array([0, end - start], np.int32),
                    context_lens=np.array([end], np.int32),
                    page_tables=np.ascontiguousarray(table[None]),
                    sampled=np.array([end - start - 1], np.int32),
                )
                self._replay([c for c in self.calls if c.name == "rotary_append"], batch)

    def _replay(self, calls: Sequence[Call], batch: ForwardBatch) -> None:
        self.program(calls, batch).program.replay(batch)

    def program(self, calls: Sequence[Call], batch: ForwardBatch) -> Built:
        recorded = RecordedCalls(calls, self.recorder.buffers, calls[-1].output)
        built = build(recorded, limits_of(batch), self.backend.pool, self.backend.isa)
        written = {call.output for call in calls}
        rng = np.random.default_rng(1)
        for number in sorted({b for call in calls for b in call.inputs} - written):
            buffer = self.recorder.buffers[number]
            rows = rows_of(buffer, batch)
            built.program.memory(built.place(number), rows)[:] = rng.standard_normal(
                (rows, buffer.width), np.float32
            )
        return built

    def seconds(
        self, calls: Sequence[Call], spend: float, which: Callable[[Sequence[float]], float] = min,
        batch: ForwardBatch | None = None,
    ) -> float:  # fmt: skip
        """A replay's seconds, of those that fit into `spend`: the shortest, or `which` says another.

        Args:
            batch: the step's own, where None.
        """
        on = self.batch if batch is None else batch
        built = self.program(calls, on)
        clock = time.thread_time if self.backend.threads == 1 else time.perf_counter
        return which(times(lambda: built.program.replay(on), spend, clock))

    def kinds(self) -> Iterator[tuple[str, list[Call]]]:
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            found[label(call, self.recorder)].append(call)
        yield from found.items()

    def rows(self, call: Call) -> int:
        return rows_of(self.recorder.buffers[call.output], self.batch)


def rows_of(buffer: Buffer, batch: ForwardBatch) -> int:
    return batch.num_tokens if buffer.rows is Rows.TOKENS else batch.num_sampled


def product_rates(macs: int, nbytes: int, seconds: float, cycles: float) -> dict[str, float]:
    """Of a product: multiply-adds a cycle, bytes of weights a second.

    Args:
        cycles: of all cores, a second.
    """
    return {"mac_per_cycle": macs / seconds / cycles, "gb_per_s": nbytes / seconds / 1e9}


def of_ops(step: Step, backend: CpuBackend, total: float, spend: float) -> list[dict[str, Any]]:
    cycles = _native.clock_rate() * backend.threads
    rows = []
    for name, calls in step.kinds():
        seconds = step.seconds(calls, spend)
        row: dict[str, Any] = {"op": name, "calls": len(calls), "us": 1e6 * seconds, "share": seconds / total}
        if name.startswith("linear"):
            weights = [part for call in calls for part in parts(call.args["weight"])]
            macs = step.rows(calls[0]) * sum(w.shape[0] * w.shape[1] for w in weights)
            row |= product_rates(macs, sum(w.nbytes for w in weights), seconds, cycles)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=at_least_one, default=2)
    parser.add_argument("--kv-dtype", default="f16", choices=sorted(set(KV_DTYPES.values())))
    parser.add_argument("--work", type=several(parse), default="decode:1,decode:32,prompt:512")
    parser.add_argument("--seconds", type=above_zero, default=1.0)
    parser.add_argument("--ops", action="store_true", help="each kind of op by itself")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        backend = CpuBackend(args.threads, args.isa)
        model, _ = load_model(open_checkpoint(resolve(args.model)), backend, "auto")
    except (OctavoError, ValueError) as error:
        parser.error(str(error))
    results = []
    for work in args.work:
        step = Step(backend, model, args.kv_dtype, work)
        seconds = step.seconds(step.calls, args.seconds)
        result: dict[str, Any] = {"work": work.name, "us": 1e6 * seconds, "tok_per_s": work.tokens / seconds}
        if args.ops:
            result["ops"] = of_ops(step, backend, seconds, args.seconds / 2)
        results.append(result)
        if not args.json:
            show(backend, result)
    if args.json:
        print(json.dumps({"isa": backend.isa, "threads": backend.threads, "steps": results}))


def show(backend: CpuBackend, result: dict[str, Any]) -> None:
    print(f"{backend.isa} {result['work']:16} {result['us']:10.0f} us {result['tok_per_s']:8.1f} tok/s")
    for op in result.get("ops", []):
        rates = f"{op['mac_per_cycle']:6.1f} MAC/cycle {op['gb_per_s']:6.1f} GB/s" if "gb_per_s" in op else ""
        print(f"  {op['op']:24} x{op['calls']:<3} {op['us']:9.0f} us {100 * op['share']:5.1f} %  {rates}")


if __name__ == "__main__":
    main()
