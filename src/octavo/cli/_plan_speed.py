"""What octavo plan says of speed: of a machine by name or numbers, or of this one, measured in seconds."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._bench import columns
from octavo.cli._flags import EngineChoice
from octavo.cli._progress import saying
from octavo.errors import CapacityError, InvalidRequestError

if TYPE_CHECKING:
    from octavo.bench.calibrate import Machine
    from octavo.bench.machines import Described
    from octavo.bench.predict import Outlook, Work
    from octavo.bench.roofline import ModelCost
    from octavo.config import SchedulerConfig

GPU_SHARE = 0.9
"""Of a GPU's memory, where --gpu-memory-utilization says nothing."""
GPU_STEP = 8192
"""Tokens of a step on a GPU, where --max-num-batched-tokens says nothing."""
GIB = 2**30
HELD = {
    "memory": "memory holds no more",
    "TPOT": "more take longer a token",
    "bandwidth": "more add nothing, bandwidth is used up",
    "arithmetic": "more add nothing, arithmetic is used up",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """The machine to say the speed of, as the options declare it, and what is asked of it."""

    machine: Annotated[
        str, typer.Option("--machine", help="Plan for a machine by name; another word lists the names.")
    ] = ""
    bandwidth: Annotated[
        float, typer.Option("--bandwidth", help="GB/s of its memory: how fast then, and what limits.")
    ] = 0.0
    flops: Annotated[float, typer.Option("--flops", help="TFLOP/s of it, beside --bandwidth.")] = 0.0
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure both here, in seconds; no weights are loaded.")
    ] = False
    planned_prompt: Annotated[int, typer.Option("--prompt-tokens", help="Of each request.", min=1)] = 512
    planned_answer: Annotated[int, typer.Option("--max-tokens", "-n", help="Of each answer.", min=1)] = 128
    planned_batches: Annotated[str, typer.Option("--batch-sizes", help="Requests that decode at once.")] = (
        "1,8,32"
    )
    tpot_limit: Annotated[
        float, typer.Option("--tpot-limit", help="Most ms a token for the best batch; 0: no limit.")
    ] = 0.0

    @property
    def is_named(self) -> bool:
        """Whether there is a machine to say the speed of."""
        return bool(self.machine or self.bandwidth or self.flops or self.measure)


@dataclasses.dataclass(frozen=True, slots=True)
class Speeds:
    """A machine, where its numbers are from, what a model costs there, and what comes of it."""

    machine: Machine
    source: str
    cost: ModelCost
    work: Work
    outlook: Outlook

    def summary(self) -> dict[str, Any]:
        """For JSON."""
        found = {name: getattr(self, name) for name in ("machine", "cost", "work", "outlook")}
        return {"source": self.source} | {name: dataclasses.asdict(value) for name, value in found.items()}


def folder_of(model: str) -> str:
    """A config.json is named by itself as well as by its folder."""
    path = Path(model)
    return str(path.parent) if path.name == "config.json" and path.is_file() else model


def described_of(target: Target, memory: float) -> Described | None:
    """The machine of the flags; None: it is this one, to be measured.

    Args:
        memory: GiB as typed; 0: the named machine's.

    Raises:
        InvalidRequestError: the flags contradict each other, or are no machine.
    """
    from octavo.bench.machines import Described, machine_of

    typed = {"bandwidth": target.bandwidth, "flops": target.flops, "tpot-limit": target.tpot_limit}
    for name, value in typed.items():
        if not 0 <= value < math.inf:
            raise InvalidRequestError(f"--{name} must be a positive number, not {value}")
    if target.measure:
        if target.machine or target.bandwidth or target.flops:
            raise InvalidRequestError("--measure is for this machine, and not for one that flags describe")
        return None
    known = machine_of(target.machine) if target.machine else None
    if known is None and not (target.bandwidth and target.flops):
        raise InvalidRequestError("a machine has both --bandwidth and --flops (or a name: --machine)")
    if known is None:
        rates = (target.bandwidth * 1e9, target.flops * 1e12)
        return Described("this machine", int(memory * GIB), *rates, False, "as typed")
    changes = {
        "memory": int(memory * GIB) or known.memory,
        "bandwidth": target.bandwidth * 1e9 or known.bandwidth,
        "flops": target.flops * 1e12 or known.flops,
    }
    return dataclasses.replace(known, **changes)  # type: ignore[arg-type]  # (an int and two floats)


def speeds_of(
    engine: EngineChoice, target: Target, described: Described | None, config: SchedulerConfig
) -> Speeds:
    """What a machine with the pages of a plan can do.

    Raises:
        InvalidRequestError: requests are longer than the engine's.
    """
    from octavo.assembly.planning import outline
    from octavo.bench.predict import as_machine
    from octavo.bench.roofline import cost_of
    from octavo.engine_args import EngineArgs

    length = target.planned_prompt + target.planned_answer
    if length > config.max_model_len:
        raise InvalidRequestError(
            f"--prompt-tokens and --max-tokens are {length} together, and "
            f"--max-model-len is {config.max_model_len}"
        )
    user = EngineArgs(engine.model, **engine.options).config
    found = outline(user)
    cost = cost_of(found.model, found.backend, None, found.kv_dtype)
    work = work_of(target, config.max_num_batched_tokens, config.num_pages * config.page_size)
    if described is not None:
        return speeds(as_machine(described), described.source, cost, work, target)
    return speeds(measured(user.threads, user.isa, cost.layout), "measured here", cost, work, target)


def measured(threads: int | None, isa: str, layout: str) -> Machine:
    """This machine's limits, with the kernels themselves on weights of that layout."""
    from octavo.bench.calibrate import calibrate
    from octavo.kernels.cpu import CpuBackend
    from octavo.kernels.weight import Layout
    from octavo.runtime.hardware import usable_threads

    with saying("measuring what this machine's memory and arithmetic allow", quiet=True):
        return calibrate(CpuBackend(threads or usable_threads(), isa), Layout(layout))


def work_of(target: Target, chunk: int, kv_tokens: int) -> Work:
    from octavo.bench.predict import Work

    return Work(target.planned_prompt, target.planned_answer, chunk, kv_tokens, target.tpot_limit or None)


def speeds(machine: Machine, source: str, cost: ModelCost, work: Work, target: Target) -> Speeds:
    """At the batch sizes that were asked for."""
    from octavo.bench.predict import outlook
    from octavo.cli._bench import numbers

    sizes = numbers(target.planned_batches, "--batch-sizes")
    return Speeds(machine, source, cost, work, outlook(cost, machine, work, sizes))


def on_gpu(engine: EngineChoice, target: Target, described: Described, as_json: bool) -> int:
    """Plan for a GPU by its numbers: the memory by arithmetic, and the speed.

    Raises:
        CapacityError: the weights do not fit.
    """
    from octavo.assembly.planning import outline
    from octavo.bench.predict import as_machine
    from octavo.bench.roofline import cost_of
    from octavo.engine_args import EngineArgs

    options = {"kv_cache_dtype": "float16", **engine.options}
    if options["kv_cache_dtype"] == "auto":
        options["kv_cache_dtype"] = "float16"
    user = EngineArgs(engine.model, **options).config
    found = outline(user)
    share = float(engine.options.get("gpu_memory_utilization", GPU_SHARE))
    room = int(share * described.memory) - found.weights
    if room <= 0:
        raise CapacityError(
            f"the weights need {found.weights / 1e9:.1f} GB, and {share:.0%} of {described.name} are "
            f"{share * described.memory / 1e9:.1f} GB"
        )
    tokens = room // found.bytes_per_token
    cost = cost_of(found.model, found.backend, None, found.kv_dtype)
    chunk = int(engine.options.get("max_num_batched_tokens", GPU_STEP))
    result = speeds(as_machine(described), described.source, cost, work_of(target, chunk, tokens), target)
    memory = {
        "memory": described.memory,
        "weights": found.weights,
        "parameters": found.parameters,
        "bytes_per_token": found.bytes_per_token,
        "num_tokens": tokens,
    }
    if as_json:
        print(json.dumps({"model": engine.model, "memory": memory, "speed": result.summary()}))
        return 0
    print(
        f"{engine.model} on {described.name}: {found.weights / 1e9:.2f} GB of weights, as the CPU's kernels "
        f"pack them, of {share * described.memory / 1e9:.1f} GB; activations are not counted\n"
        f"{tokens} tokens of KV at {found.bytes_per_token} bytes"
    )
    print_speed(result)
    return 0


def print_speed(found: Speeds) -> None:
    """What fits, how fast, what limits."""
    from octavo.bench.report.table import Table, number

    work, outlook = found.work, found.outlook
    rows = [
        (
            str(s.batch),
            *(number(value) for value in (s.ttft, s.tpot, s.rate, s.latency)),
            s.limit if s.fits else "does not fit",
        )
        for s in outlook.speeds
    ]
    title = (
        f"\nat best on {found.machine.isa} ({found.source}): {found.machine.bandwidth / 1e9:,.0f} GB/s, "
        f"{2 * found.machine.tile_rate / 1e12:,.2f} TFLOP/s\n"
        f"prompts of {work.prompt} tokens, answers of {work.output}:"
    )
    headers = ("batch", "TTFT ms", "TPOT ms", "tok/s", "request ms", "decoding waits for")
    best = outlook.best
    limit = "" if work.tpot_limit_ms is None else f" within {work.tpot_limit_ms:g} ms a token"
    most = (
        f"no request fits{limit}"
        if best is None
        else f"{best.batch} at once{limit} give the most, {best.rate:,.1f} tok/s "
        f"at {best.tpot:.1f} ms a token: {HELD[outlook.held_by]}"
    )
    print(Table(headers, tuple(rows), title).text(columns()))
    print(f"{outlook.requests} such requests fit together; {most}")
    if outlook.ridge is not None:
        print(f"from {outlook.ridge} requests on arithmetic limits, below it bandwidth")
