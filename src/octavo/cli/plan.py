"""octavo plan: what a model takes of this machine, and what a trace of requests would meet on it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from octavo.cli._flags import NO_MATTER, EngineChoice, engine_flags, option_group
from octavo.cli._plan_speed import Target, described_of, folder_of, on_gpu, print_speed, speeds_of
from octavo.cli._progress import saying
from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.bench.plan import ModelPlan
    from octavo.bench.trace import TraceRequest
    from octavo.config import SchedulerConfig
    from octavo.engine.cost import CostModel
    from octavo.lab.simulate import Simulated

TRACE = typer.Option(
    None, "--trace", help="A file of requests to simulate: JSON lines (Mooncake's fields) or CSV (Azure's)."
)


@engine_flags(leave_out=(*NO_MATTER, "tensor_parallel_size"))
@option_group("target", Target)
def plan(
    engine: EngineChoice,
    target: Target,
    trace: Path | None = TRACE,
    speed: float = typer.Option(1.0, "--speed", help="Let the requests arrive this many times as fast."),
    cost_model: str = typer.Option(
        "",
        "--cost-model",
        help="What a step costs, as JSON or a file; without it the model is loaded and measured.",
    ),
    memory: float = typer.Option(
        0.0, "--memory", help="Free memory in GiB of the machine to plan for; 0: of this machine."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Print the memory that a model will take, how fast a machine can be with it, and a trace simulated."""
    from octavo.bench.plan import plan_model
    from octavo.cli._load import fetch
    from octavo.engine_args import EngineArgs

    if not 0 <= memory < float("inf"):
        raise InvalidRequestError(f"--memory must be 0 or a positive number of GiB, not {memory}")
    engine = dataclasses.replace(engine, model=folder_of(engine.model))
    described = described_of(target, memory) if target.is_named else None
    if trace is None and (cost_model or speed != 1.0):  # without effect, which would not be seen
        raise InvalidRequestError("--cost-model and --speed need --trace")
    # Read first: a mistake in the trace should not show only after the model is planned.
    requests = _requests(trace, speed) if trace is not None else None
    fetch(engine.model, as_json)
    free = int(memory * 2**30) or None
    if described is not None and described.gpu:
        if trace is not None:
            raise InvalidRequestError("--trace is for this machine or a CPU, and not for a GPU's name")
        return on_gpu(engine, target, described, as_json)
    if target.devices > 1:
        raise InvalidRequestError("--tensor-parallel-size is for GPUs by name (--machine)")
    planned = plan_model(EngineArgs(engine.model, **engine.options).config, free)
    found: dict[str, object] = {"memory": planned.summary()}
    if not as_json:  # now: a simulation may first load the model and measure it
        print_memory(planned)
    if target.is_named:
        speeds = speeds_of(engine, target, described, planned)
        found["speed"] = speeds.summary()
        if not as_json:
            print_speed(speeds)
    if requests is not None:
        found |= _simulate(planned.config, _cost(engine, cost_model, as_json), requests, as_json)
    if as_json:
        print(json.dumps({"model": engine.model, **found}))
    return 0 if planned.fits else 1


def _requests(trace: Path, speed: float) -> list[TraceRequest]:
    """The requests of a trace, arriving so many times as fast."""
    from octavo.bench.trace import read_trace

    if not 0 < speed < float("inf"):
        raise InvalidRequestError(f"--speed must be above 0, not {speed}")
    return [dataclasses.replace(r, arrival_s=r.arrival_s / speed) for r in read_trace(trace)]


def _simulate(
    config: SchedulerConfig, cost: CostModel, requests: list[TraceRequest], as_json: bool
) -> dict[str, object]:
    """What the requests meet, for the JSON object; printed too where that is not asked for."""
    from octavo.lab.simulate import simulate

    result = simulate(config, cost, requests)
    if not as_json:
        print_simulated(cost, result)
    return {"cost_model": dataclasses.asdict(cost), "simulated": dataclasses.asdict(result)}


def _cost(engine: EngineChoice, given: str, quiet: bool) -> CostModel:
    from octavo.bench.driver import Driver
    from octavo.engine.cost import CostModel
    from octavo.lab.cost import calibrate

    if given:
        return CostModel.read(given)
    with saying("measuring what a step costs here (a minute or more; --cost-model takes a known one)", quiet):
        return calibrate(Driver(engine.model, **engine.options))


def print_memory(plan: ModelPlan) -> None:
    config = plan.config
    print(f"{plan.model}: up to {plan.total / 1e6:.1f} MB; {plan.available / 1e6:.1f} MB are available")
    lines = (
        ("weights", plan.weights, "packed"),
        ("KV cache", plan.kv_cache, f"{_pages(config)}, touched as used"),
        ("activations", plan.activations, f"steps of up to {config.max_num_batched_tokens} tokens"),
        ("rows", plan.rows, f"{config.max_num_seqs} sequences"),
        ("process", plan.process, "interpreter, libraries, tokenizer"),
    )
    for name, size, about in lines:
        print(f"  {name:<12}{size / 1e6:>10.1f} MB  {about}")
    full = plan.num_tokens / config.max_model_len
    print(
        f"{plan.num_tokens} tokens of KV at {plan.bytes_per_token} bytes: {full:.1f} sequences of "
        f"{config.max_model_len}"
    )
    if config.sliding_window is not None:
        print(
            f"{plan.sliding_bytes_per_token} of those bytes belong to layers with a sliding window of "
            f"{config.sliding_window} tokens, and are kept for "
            f"{config.num_sliding_pages * config.page_size} tokens at a time"
        )
    if plan.cut is not None:
        there, named = plan.cut
        print(f"the file is cut, and cannot be loaded: it has {there} of the {named} bytes its header names")
    if not plan.fits:
        print("it does not fit")


def _pages(config: SchedulerConfig) -> str:
    pages = f"{config.num_pages} pages of {config.page_size}"
    return pages if config.sliding_window is None else f"{pages}, {config.num_sliding_pages} sliding"


def print_simulated(cost: CostModel, result: Simulated) -> None:
    given = f", fitted within {cost.error:.0%}" if cost.error else ""
    print(
        f"\na step: {1e3 * cost.step_s:.2f} ms + {1e6 * cost.token_s:.1f} us a token + "
        f"{1e6 * cost.sample_s:.1f} us a row + {1e9 * cost.pair_s:.2f} ns a pair attended{given}"
    )
    print(
        f"{result.requests} requests in {result.seconds:.1f} s, {result.refused} refused; "
        f"{result.output_rate:.1f} tok/s, {result.request_rate:.2f} requests/s; busy {result.busy:.0%}\n"
        f"{result.preemptions} preemptions, {result.overhead:.2f} x the computation needed, prefix hits "
        f"{result.hit_rate:.0%}, at most {result.queue} waiting and {result.usage:.0%} of the pages held\n"
    )
    print(f"{'milliseconds':<14}{'p50':>12}{'p90':>12}{'p99':>12}{'most':>12}")
    for name, spread in (
        ("TTFT", result.ttft),
        ("ITL", result.itl),
        ("wait", result.wait),
        ("latency", result.latency),
    ):
        values = "".join(f"{value:>12.1f}" for value in dataclasses.astuple(spread))
        print(f"{name:<14}{values}")
