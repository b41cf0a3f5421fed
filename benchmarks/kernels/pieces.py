"""What one stream's step of decoding is made of, piece by piece, beside what each piece could take at least.

    .venv-test/bin/python benchmarks/kernels/pieces.py smollm2 [--contexts 2048,8000] [--write]

A piece is all calls of one kind in a step: attention, the products of one shape, what is left. For each:

    cached   its arithmetic: the same calls on weights and pages that stay in the second-level caches, waking
             and waiting for each other included (of a matrix too large for these, a tile's rate on another;
             of attention one layer's, a few pages again and again)
    read     its bytes at the bandwidth, at which all bytes of the step are read over and over (roofline.py)
    least    the longer of both: reading and arithmetic overlap without a rest
    alone    as it is: only these calls, each on its own weights and pages

A layer's product needs what its attention gives, so pieces follow each other and their least times add up. A
step that waits for one thing only would take the longer of all reading and all arithmetic: the roofline. What
a step takes beyond the sum of the least times is lost within pieces (alone - least: reading and arithmetic do
not overlap), or between them (step - sum of alone: caches that keep a part of one piece's weights from one
replay to the next keep less of all). Pieces alone are medians, arithmetic is the shortest of its replays.
Pages follow each other, as the engine's pool gives them to a sequence that has room.

Beside them the whole step's reads, in the step's order and nothing computed ("in order"): each product's
weights and each layer's KV in as many pieces as the step has, threads waiting for each other after each of
them as they do in a step. That is what memory gives to these reads. And the same once more ("worked"): each
line is multiplied as often as its piece's arithmetic leaves time for, in caches, and rounded down. A core
hides the arithmetic of so simple a loop as well as it hides any, and not all of it. The step, both and the
bandwidth are timed in turns, 40 of them, since others share the memory. Shares are of one turn, and of every
figure the middle one counts.

All logits are computed: no bits of the head are spared. In the same turns an engine decodes one sequence of
as many tokens, which needs no logits but the largest: how long its whole step takes beside the kernels' one,
and its share of its own roofline, whose bytes are those of `octavo bench roofline`. And the same of a second
one, whose kernels are replaced by such as compute nothing: each phase reads the panels and pages that it
would compute with, in the pieces that threads claim, and all between phases and between steps is as it was.
What it takes, in the fastest of some ways to ask for lines ahead, is what memory gives to this program.

Give it the machine alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice, pairwise
from pathlib import Path
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from harness import report, usable_cores, write
from steps import PAGE, Step, Work

from octavo.bench.calibrate import CACHED_TOKENS, TILE_BYTES, tile
from octavo.bench.driver import Drawn, Driver
from octavo.bench.roofline import apart, cost_of, layout_of
from octavo.bench.workload import random_prompts
from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.sources import resolve
from octavo.config.user import KV_DTYPES
from octavo.errors import OctavoError
from octavo.kernels import _native
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.cpu_calibrate import products_within, read_bandwidth, read_in_order
from octavo.kernels.cpu_lower import parts
from octavo.kernels.program import Call
from octavo.models.load import load_model

OTHERS = "norms, rotations, sums"
LINE = 64
"""Bytes of a cache line."""
TURNS = 40
"""Of the step beside its reads and the bandwidth: short ones, as the memory's rate changes within seconds."""
STEPS = 4
"""That the engine takes in a turn, but for one before them, which finds caches full of what others read."""
ROUNDS = 3
"""Of each way to read, in each turn: of one alone, the luckiest way would count, not the fastest."""
LEARNS = 64
"""Steps until it chooses tokens without their logits (csrc/head_bounds.h: 32 rows, then 16 steps)."""
PAGES = {kept: name for name, kept in KV_DTYPES.items() if name != "auto"}
"""Types of pages -> what --kv-cache-dtype calls them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """All calls of a kind; seconds of a step.

    Attributes:
        nbytes: of weights or KV that they read.
    """

    name: str
    calls: int
    nbytes: float
    cached_s: float
    alone_s: float

    def least(self, bandwidth: float) -> float:
        return max(self.cached_s, self.nbytes / bandwidth)

    def line_s(self, threads: int) -> float:
        """What a cache line's arithmetic takes one thread of so many, everything in caches."""
        return self.cached_s * threads * LINE / self.nbytes if self.nbytes else 0.0


def bytes_of(part: Any) -> int:
    """What a product reads of a part of its weight: of a head cut in two all but the fifth bits, which lie
    apart for who reads them without the low ones (csrc/types.h, S8Cut)."""
    return int(part.nbytes) - (part.shape[0] * part.shape[1] // 8 if part.cut else 0)


def reads(calls: Sequence[Call], kv_bytes: float, threads: int) -> list[list[int]]:
    """What a step's calls read in their order: of each its pieces' bytes, as the kernels cut them.

    Args:
        kv_bytes: of all layers.
    """
    layers = sum(call.name == "attention" for call in calls)
    phases = []
    for call in calls:
        if call.name == "attention":
            total, count = kv_bytes / layers, 6 * threads  # csrc/attention_op.cpp: kPieces
        elif call.name == "linear":
            total = sum(bytes_of(part) for part in parts(call.args["weight"]))
            count = 3 * threads  # csrc/program.cpp: kPiecesOfFew
        else:
            continue
        phases.append([max(int(total / count), 1)] * count)
    return phases


def bounds(pieces: Sequence[Piece], step_s: float, bandwidth: float) -> dict[str, float]:
    """Of a step of seconds: its bounds, its shares of them, and where the rest went, as parts of the step.

    Args:
        bandwidth: bytes a second.
    """
    reading = sum(piece.nbytes for piece in pieces) / bandwidth
    arithmetic = sum(piece.cached_s for piece in pieces)
    least = sum(piece.least(bandwidth) for piece in pieces)
    alone = sum(piece.alone_s for piece in pieces)
    return {
        "step_us": 1e6 * step_s,
        "read_us": 1e6 * reading,
        "cached_us": 1e6 * arithmetic,
        "least_us": 1e6 * least,
        "alone_us": 1e6 * alone,
        "roofline_share": max(reading, arithmetic) / step_s,
        "pieces_share": least / step_s,
        "within": (alone - least) / step_s,
        "between": (step_s - alone) / step_s,
    }


def share_of(needed: float, bandwidth: float, taken_s: float) -> float:
    """Of its roofline: what a step that needs so many bytes reaches."""
    return needed / bandwidth / taken_s


def engine(needed: float, bandwidth: float, step_s: float, engine_s: float) -> dict[str, float]:
    """What one turn found of an engine.

    Args:
        needed: bytes that its step reads at least; bandwidth: bytes a second.
        step_s: seconds of the kernels' step; engine_s: of the engine's.
    """
    return {
        "engine_us": 1e6 * engine_s,
        "engine_over_step": engine_s / step_s,
        "engine_roofline_share": share_of(needed, bandwidth, engine_s),
    }


def reading_turn(needed: float, bandwidth: float, engine_s: float, reading_s: float) -> dict[str, float]:
    """What one turn found of an engine that only reads, in so many seconds, beside one that computes."""
    return {
        "reading_us": 1e6 * reading_s,
        "reading_share": reading_s / engine_s,
        "reading_roofline_share": share_of(needed, bandwidth, reading_s),
    }


def unrest(turns: Sequence[Mapping[str, float]]) -> float:
    """The larger of how far the memory's rates, and how far an engine's steps, lie apart (roofline.apart)."""
    return max(apart([each[name] for each in turns]) for name in ("bandwidth", "engine_us"))


def medians(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each number that turns found."""
    return {name: statistics.median(each[name] for each in turns) for name in turns[0]}


def fastest(ways: Mapping[int, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Medians of what each way's turns found, of the way with the shortest step."""
    found = {way: medians(turns) for way, turns in ways.items()}
    best = min(found, key=lambda way: found[way]["reading_us"])
    return {"reading_ahead": best, **found[best]}


def turn(
    pieces: Sequence[Piece], bandwidth: float, step_s: float, ordered_s: float, worked_s: float
) -> dict[str, float]:
    """What one turn found: a step's bounds, and the step and the bandwidth beside its reads.

    Args:
        ordered_s, worked_s: what the step's reads took, without and with arithmetic.
    """
    return {
        "bandwidth": bandwidth,
        "ordered_us": 1e6 * ordered_s,
        "ordered_share": ordered_s / step_s,
        "worked_us": 1e6 * worked_s,
        "worked_share": worked_s / step_s,
        "worked_roofline_share": sum(piece.nbytes for piece in pieces) / bandwidth / worked_s,
        **bounds(pieces, step_s, bandwidth),
    }


class Pieces:
    """The pieces of one stream's step.

    Attributes:
        all: in the order in which a step first has one of them.
    """

    def __init__(self, step: Step, kv_bytes: float, seconds: float) -> None:
        self._step, self._kv_bytes, self._seconds = step, kv_bytes, seconds
        kinds: dict[str, list[Call]] = {}
        for name, calls in step.kinds():
            known = name if name == "attention" or name.startswith("linear") else OTHERS
            kinds.setdefault(known, []).extend(calls)
        self.all = [self._piece(name, calls) for name, calls in kinds.items()]
        self._kinds = list(kinds.values())

    def products(self) -> list[int]:
        """Of each phase of reads(): how often a line is multiplied while its piece's arithmetic lasts."""
        threads = self._step.backend.threads
        most = [products_within(piece.line_s(threads)) for piece in self.all]
        of = {id(call): n for n, calls in zip(most, self._kinds, strict=True) for call in calls}
        return [of[id(call)] for call in self._step.calls if call.name in ("attention", "linear")]

    def _piece(self, name: str, calls: list[Call]) -> Piece:
        alone = self._step.seconds(calls, self._seconds, statistics.median)
        if name == OTHERS:  # their few kilobytes stay in a cache anyway
            return Piece(name, len(calls), 0.0, alone, alone)
        if name == "attention":
            few = self._step.batch.page_tables % (CACHED_TOKENS // PAGE)
            cached = self._step.seconds(
                [calls[0]] * len(calls), self._seconds, batch=replace(self._step.batch, page_tables=few)
            )
            return Piece(name, len(calls), self._kv_bytes, cached, alone)
        weights = [part for call in calls for part in parts(call.args["weight"])]
        nbytes = sum(map(bytes_of, weights))
        return Piece(name, len(calls), nbytes, self._cached(calls, weights), alone)

    def _cached(self, calls: list[Call], weights: Sequence[Any]) -> float:
        backend = self._step.backend
        largest = max(sum(part.nbytes for part in parts(call.args["weight"])) for call in calls)
        if largest <= TILE_BYTES * backend.threads:
            return float(self._step.seconds([calls[0]] * len(calls), self._seconds))
        macs = sum(weight.shape[0] * weight.shape[1] for weight in weights)
        layout = layout_of([call.args["weight"] for call in calls])
        return float(macs / tile(backend, layout, 1).rate(self._seconds))


class Engine:
    """An engine that decodes one sequence, in turns; their mean context is the one asked for, from 100 on."""

    def __init__(self, options: argparse.Namespace, context: int) -> None:
        new = TURNS * (STEPS + 1) + 1
        self._prompt, self._new = max(context - new // 2, 1), new
        self._driver = Driver(
            options.model, max_model_len=self._prompt + new + LEARNS,
            isa=options.isa, threads=options.threads,
            kv_cache_dtype=PAGES[options.kv_dtype],
        )  # fmt: skip
        self._driver.run(random_prompts(1, STEPS, self._driver.vocab_size, 1), LEARNS)
        runner: Any = self._driver.loaded.runner
        self._program: _native.Program = runner._program.native

    def turns(self, turn: Callable[[float], None], ways: Iterator[int] | None = None) -> None:
        """Call turn with the seconds of a step, TURNS times.

        Args:
            ways: of each turn, how far ahead its kernels, which then only read, ask for lines.
        """
        ended: list[float] = []
        way: int | None = None

        def after_step(drawn: Sequence[Drawn]) -> None:
            nonlocal way
            if not sum(each.tokens for each in drawn):
                return  # a part of the prompt
            if not ended:
                way = next(ways) if ways else None
                self._program.only_read(way)
            ended.append(time.perf_counter())
            if len(ended) > STEPS:
                self._program.only_read(way)  # as before, but workers leave the step that they have begun
                turn(statistics.median(end - begin for begin, end in pairwise(ended)))
                ended.clear()

        prompts = random_prompts(1, self._prompt, self._driver.vocab_size, 0)
        self._driver.run(prompts, self._new, watch=after_step)

    def only_reads(self) -> Iterator[tuple[int, float]]:
        """turns() of an engine whose kernels compute nothing, and read what they would compute with.

        What it draws is no text, so it is an engine of its own. Its thread rests until a turn is asked for.

        Yields:
            How far ahead lines were asked for (csrc/reading.h), in each turn another, and the seconds.
        """
        asked, found = Semaphore(0), SimpleQueue[float]()

        def turn(seconds: float) -> None:
            found.put(seconds)
            asked.acquire()

        def run() -> None:
            asked.acquire()
            self.turns(turn, cycle(_native.reading_ahead()))

        Thread(target=run, daemon=True).start()
        for way in islice(cycle(_native.reading_ahead()), TURNS):
            asked.release()
            yield way, found.get()
        asked.release()


def measure(backend: CpuBackend, model: Any, options: argparse.Namespace, context: int) -> dict[str, Any]:
    kv_bytes = context * sum(spec.bytes_per_token for spec in model.kv_specs(options.kv_dtype))
    step = Step(backend, model, options.kv_dtype, Work("step", 1, 1, context))
    pieces = Pieces(step, kv_bytes, options.seconds / 4)
    moved = int(sum(piece.nbytes for piece in pieces.all))
    phases, products = reads(step.calls, kv_bytes, backend.threads), pieces.products()
    needed = cost_of(model, backend, options.checkpoint, options.kv_dtype).decode_bytes(1, context)
    turns: list[dict[str, float]] = []
    ways: defaultdict[int, list[dict[str, float]]] = defaultdict(list)
    reading = Engine(options, context).only_reads()

    def take_turn(engine_s: float) -> None:
        bandwidth = read_bandwidth(backend, moved, ROUNDS)
        step_s = step.seconds(step.calls, options.seconds / 20, statistics.median)
        ordered_s, worked_s = (read_in_order(backend, phases, each, ROUNDS) for each in ((), products))
        beside = engine(needed, bandwidth, step_s, engine_s)
        turns.append({**turn(pieces.all, bandwidth, step_s, ordered_s, worked_s), **beside})
        ahead, reading_s = next(reading)
        ways[ahead].append(reading_turn(needed, bandwidth, engine_s, reading_s))

    Engine(options, context).turns(take_turn)
    found = medians(turns) | fastest(ways)
    least = [asdict(piece) | {"least_s": piece.least(found["bandwidth"])} for piece in pieces.all]
    return {**found, "unrest": unrest(turns), "bytes": moved, "pieces": least}


def lines(context: str, found: Mapping[str, Any]) -> list[str]:
    heads = ("MB", "cached", "read", "least", "alone")
    said = [f"{context} tokens, {found['bandwidth'] / 1e9:.1f} GB/s; microseconds"]
    said.append(f"{'':30}" + "".join(f"{head:>9}" for head in heads))
    for piece in found["pieces"]:
        read = piece["nbytes"] / found["bandwidth"]
        times = [1e6 * t for t in (piece["cached_s"], read, piece["least_s"], piece["alone_s"])]
        said.append(
            f"{piece['name']:24} x{piece['calls']:<4}{piece['nbytes'] / 1e6:>9.1f}"
            + "".join(f"{t:>9.0f}" for t in times)
        )
    sums = "".join(f"{found[f'{head}_us']:>9.0f}" for head in heads[1:])
    said.append(f"{'sum':30}{found['bytes'] / 1e6:>9.1f}{sums}")
    said.append(
        f"the step: {found['step_us']:.0f}; share of the roofline {found['roofline_share']:.1%}, of the sum "
        f"of its pieces' least times {found['pieces_share']:.1%}; lost within pieces "
        f"{found['within']:.1%}, between them {found['between']:.1%}"
    )
    said.append(f"its reads in order: {found['ordered_us']:.0f}, {found['ordered_share']:.1%} of the step")
    said.append(
        f"worked: {found['worked_us']:.0f}, {found['worked_share']:.1%} of the step, with a share of the "
        f"roofline of {found['worked_roofline_share']:.1%}"
    )
    said.append(
        f"an engine's whole step: {found['engine_us']:.0f}, {found['engine_over_step']:.1%} of the step, "
        f"with a share of its own roofline of {found['engine_roofline_share']:.1%}"
    )
    said.append(
        f"one that only reads, asking {found['reading_ahead']:,} bytes ahead: {found['reading_us']:.0f}, "
        f"{found['reading_share']:.1%} of the engine's, with a share of that roofline of "
        f"{found['reading_roofline_share']:.1%}"
    )
    return said


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="pieces", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--contexts", default="2048,8000")
    parser.add_argument("--kv-dtype", default="int16", choices=PAGES)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help="a quarter of it for each piece, a twentieth for the step in each turn",
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/pieces-*.json")
    options = parser.parse_args(arguments)
    lengths = options.contexts.split(",")
    if not all(each.isdecimal() and int(each) for each in lengths):
        parser.error(f"--contexts: {options.contexts!r} are no numbers of tokens, at least 1 each")
    if options.threads < 1 or not 0 < options.seconds < float("inf"):
        parser.error("--threads is at least 1, --seconds above 0")
    try:
        backend = CpuBackend(options.threads, options.isa)
        options.checkpoint = open_checkpoint(resolve(options.model))
        model, _ = load_model(options.checkpoint, backend, "auto")
    except (OctavoError, ValueError) as error:
        parser.error(str(error))
    contexts = {name: measure(backend, model, options, int(name)) for name in lengths}
    left_out = ("json", "write", "checkpoint")
    settings = {name: value for name, value in vars(options).items() if name not in left_out}
    settings["options"] = {"isa": backend.isa}
    result = report("pieces", sys.argv, {"settings": settings, "contexts": contexts})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print("\n".join(line for name, found in contexts.items() for line in lines(name, found)))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
