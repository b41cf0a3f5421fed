"""octavo bench: how fast a model is here, how fast it could be, and what a server stands."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from octavo.cli._bench import INTERRUPTED, batches, find, numbers
from octavo.cli._flags import NO_MATTER, EngineChoice, engine_flags
from octavo.cli._load import fetch
from octavo.cli._progress import saying

if TYPE_CHECKING:
    from octavo.assembly.loading import Loaded
    from octavo.bench.calibrate import Machine
    from octavo.bench.driver import Driver
    from octavo.bench.roofline import Asked, Line, ModelCost
    from octavo.bench.speculate import Speculated
    from octavo.config.speculation import Speculative

DEFAULT = "inference"
NOT_MEASURED = (*NO_MATTER, "enable_prefix_caching")
"""Engine flags that benchmarks decide for themselves, or that change nothing in them."""
JSON_FLAG = typer.Option(False, "--json", help="Print one JSON object.")
ROOFLINE_TOKENS = 32
"""New tokens of a roofline's runs."""
ROOFLINE_CONTEXTS = "2048,8000"
ROOFLINE_LEGEND = (
    "share: tok/s of the bound; limit: what sets the bound; bandwidth: what must be read a second, of the "
    "GB/s that reading alone gets"
)
PROMPTS = typer.Option(
    None, "--prompts", help="JSON lines, each with a prompt, messages or turns; three examples by default."
)
TRACE = typer.Option(None, "--trace", help="Take the requests from a file, as octavo plan does.")


class DefaultGroup(TyperGroup):
    """A group whose words may leave the command out: `octavo bench smollm2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [DEFAULT, *args]
        return list(super().parse_args(ctx, args))


bench = typer.Typer(
    cls=DefaultGroup,
    help=f"Measure speed and memory. Without a command: {DEFAULT}. All take --json and --help.",
    rich_markup_mode=None,
)


@bench.command(DEFAULT)
@engine_flags(leave_out=NOT_MEASURED)
def inference(
    engine: EngineChoice,
    prompt_tokens: int = typer.Option(128, "--prompt-tokens", help="Length of the prompts.", min=1),
    max_tokens: int = typer.Option(
        64, "--max-tokens", "-n", help="Tokens to generate after each prompt.", min=2
    ),
    batch_sizes: str = typer.Option(
        "1,4,16,32", "--batch-sizes", help="Numbers of prompts at once; one run for each."
    ),
    num_runs: int = typer.Option(3, "--num-runs", help="Repetitions; medians are printed.", min=1),
    as_json: bool = JSON_FLAG,
) -> int:
    """Measure load time, prefill, decoding at several batch sizes, time to first token and memory."""
    from octavo.bench.sweep import sweep

    sizes = batches(batch_sizes)
    driver = load(engine, max(sizes), as_json)
    begins = _progress(num_runs + 1)
    result = sweep(driver, prompt_tokens, max_tokens, sizes, num_runs, begins)
    if as_json:
        print(json.dumps({"model": engine.model, **dataclasses.asdict(result)}))
        return 0
    first = result.batches[0]
    print(
        f"{engine.model}: loaded in {result.load_s:.2f} s, prompts of {prompt_tokens} and {max_tokens} new "
        f"tokens\nprefill {first.prefill_ms:.1f} ms, then {_or_dash(first.tpot)} ms a token; at the peak "
        f"{result.memory_gb:.2f} GB resident, {result.weights_gb:.2f} GB of it weights\n"
    )
    print(line("batch", "prompt tok/s", "decode tok/s", "TTFT ms", "TPOT ms", "latency ms"))
    for row in result.batches:
        values = (row.prompt_rate, row.decode_rate, row.ttft, row.tpot, row.latency)
        print(line(row.batch, *map(_or_dash, values)))
    return 0


def _progress(runs: int) -> Callable[[int], None]:
    """Says on stderr which batch size is measured."""

    def begins(batch: int) -> None:
        print(f"batch {batch}: {runs} runs ...", file=sys.stderr, flush=True)

    return begins


def _or_dash(value: float | None) -> str:
    """A figure; one that could not be measured is none."""
    return "-" if value is None else f"{value:.1f}"


@bench.command()
@engine_flags(leave_out=NOT_MEASURED)
def roofline(
    engine: EngineChoice,
    prompt_tokens: str = typer.Option("128,512", "--prompt-tokens", help="Lengths of prompts."),
    batch_sizes: str = typer.Option("1,2,4,8,16,32", "--batch-sizes", help="Sequences that decode at once."),
    contexts: str = typer.Option(
        ROOFLINE_CONTEXTS,
        "--contexts",
        help="Tokens that one sequence decodes after; too long ones are left out.",
    ),
    num_runs: int = typer.Option(3, "--num-runs", help="Repetitions; medians are printed.", min=1),
    as_json: bool = JSON_FLAG,
) -> int:
    """Compare measured speed with what this machine's memory and arithmetic allow: 3 minutes on two cores."""
    from octavo.assembly.memory import page_specs
    from octavo.bench.calibrate import bandwidth_of, calibrate, rates_of_prompts, rates_of_rows
    from octavo.bench.roofline import Asked, Meter, attention_of, cost_of
    from octavo.checkpoints import open_checkpoint
    from octavo.kernels.weight import Layout

    sizes, lengths = batches(batch_sizes), numbers(prompt_tokens, "--prompt-tokens")
    wished = numbers(contexts, "--contexts") if contexts else []
    asked = Asked(lengths, sizes, wished, ROOFLINE_TOKENS)
    check_typed(engine, asked)
    driver = load(engine, max(sizes), as_json)
    loaded = driver.loaded
    check_loaded(loaded, asked)
    long = asked.contexts_within(loaded.config.max_model_len)
    if contexts != ROOFLINE_CONTEXTS and (left_out := sorted(set(wished) - set(long))):
        print(f"--contexts: no room for {', '.join(map(str, left_out))}, left out", file=sys.stderr)
    checkpoint = open_checkpoint(loaded.path)
    pages = page_specs(loaded.model, loaded.backend, loaded.user)
    work = cost_of(loaded.model, loaded.backend, checkpoint, pages[0].dtype)
    layout = Layout(work.layout)
    with saying("measuring what this machine's memory and arithmetic allow", as_json):
        machine = calibrate(loaded.backend, layout)
    attention = attention_of(loaded.model, loaded.backend, pages[0].dtype)
    meter = Meter(
        driver, work, machine, ROOFLINE_TOKENS, num_runs, lambda nbytes: bandwidth_of(loaded.backend, nbytes),
        rates_of_prompts(loaded.backend, layout),
        lambda rows: rates_of_rows(loaded.backend, layout, attention, rows),
    )  # fmt: skip
    lines: list[Line] = []
    cut = False
    with saying(f"measuring {len(lengths) + len(sizes) + len(long)} workloads (minutes)", as_json):
        try:
            for each in meter.lines(lengths, sizes, long):
                lines.append(each)
        except KeyboardInterrupt:  # what was measured is told
            cut = True
    if as_json:
        facts = {"machine": dataclasses.asdict(machine), "work": dataclasses.asdict(work)}
        rows = [dataclasses.asdict(each) for each in lines]
        told = {"model": engine.model, **facts, "ridge": work.ridge(machine), "lines": rows}
        print(json.dumps({**told, "cut": "interrupted"} if cut else told))
    else:
        print_roofline(engine.model, machine, work, lines)
        if cut:
            print("interrupted: fewer lines than asked for")
    return INTERRUPTED if cut else 0


def check_typed(engine: EngineChoice, asked: Asked) -> None:
    """What the flags alone say against a roofline, before the model is loaded.

    Raises:
        InvalidRequestError: they leave no room for what is asked, or name no native kernels.
    """
    from octavo.bench.calibrate import check_native

    given = engine.options
    if given.get("device", "").startswith("cuda") or given.get("backend", "auto") != "auto":
        check_native(given.get("backend", "cuda"))
    if "max_model_len" in given:
        asked.check_length(given["max_model_len"])
    if "max_num_seqs" in given:
        asked.check_batches(given["max_num_seqs"])


def check_loaded(loaded: Loaded, asked: Asked) -> None:
    """The same of the engine as it is, before anything is measured.

    Raises:
        InvalidRequestError: it has no room for what is asked, or no native kernels.
    """
    from octavo.bench.calibrate import check_native

    config = loaded.config
    check_native(loaded.backend.name)
    asked.check_length(config.max_model_len)
    asked.check_batches(config.max_num_seqs, config.num_pages, config.page_size)


def print_roofline(model: str, machine: Machine, work: ModelCost, lines: Sequence[Line]) -> None:
    print(
        f"{machine.isa}, {machine.threads} threads at {machine.clock / 1e9:.2f} GHz: "
        f"{machine.bandwidth / 1e9:.1f} GB/s read, tile {machine.tile_rate / 1e9:.0f} GMAC/s "
        f"({machine.tile_per_cycle:.1f} a cycle and core), fp32 {machine.attention_rate / 1e9:.0f} GMAC/s"
    )
    print(
        f"{model}: {work.step_bytes(1) / 1e6:.1f} MB of the file read by a step, "
        f"{(work.linear_macs + work.head_macs) / 1e6:.0f} M MACs a token, {work.kv_bytes} bytes of KV a "
        f"token; memory and compute meet at batch {work.ridge(machine):.1f}\n"
    )
    print(ROOFLINE_LEGEND)
    print(line("work", "size", "context", "tok/s", "bound", "share", "limit", "bandwidth", "GB/s"))
    for row in lines:
        rates = (f"{row.rate:.1f}", f"{row.bound_rate:.1f}", f"{row.share:.0%}")
        read = (f"{row.bandwidth_share:.0%}", f"{row.bandwidth / 1e9:.1f}")
        print(line(row.work, row.size, row.context, *rates, row.limit, *read))


@bench.command()
@engine_flags(leave_out=NOT_MEASURED)
def speculate(
    engine: EngineChoice,
    prompts: Path | None = PROMPTS,
    limit: int = typer.Option(16, "--limit", help="Take so many of them.", min=1),
    max_tokens: int = typer.Option(128, "--max-tokens", "-n", help="Tokens of an answer.", min=2),
    temperature: float = typer.Option(0.0, "--temperature", help="Of the draws.", min=0.0),
    as_json: bool = JSON_FLAG,
) -> int:
    """Measure what --speculative-config (else "ngram") gains on your prompts, one at a time, and why."""
    from octavo.bench.speculate import Speculating, conversations, speculate

    talks = conversations(prompts)[:limit]
    options = {"max_num_seqs": 1, **engine.options}
    wanted = options.pop("speculative_config", None) or {"method": "ngram"}
    fetch(engine.model, as_json)
    measured = Speculating(engine.model, options, wanted)
    with saying(f"answering {len(talks)} prompts, with drafts and without", as_json):
        result = speculate(measured, talks, {"temperature": temperature, "max_tokens": max_tokens})
    if as_json:
        print(json.dumps({"model": engine.model, "speculative_config": wanted, **dataclasses.asdict(result)}))
    else:
        print_speculated(engine.model, measured.asked, result)
    return 0


def print_speculated(model: str, asked: Speculative, result: Speculated) -> None:
    places = " ".join(f"{share:.2f}" for share in result.accepted_at) or "none"
    policy = "auto" if asked.auto else "fixed"
    print(
        f"{model} with {asked.method}, drafts of at most {asked.most} tokens, policy {policy}\n"
        f"{result.tokens} tokens of {result.prompts} answers, {result.step_ms:.2f} ms a step without drafts\n"
        f"{result.drafting:.0%} of the steps verified drafts, tau {result.tau:.2f}\n"
        f"accepted by position, of the drafts that reach it: {places}\n"
        f"proposing costs {result.c_d:.1%} of a step\n"
    )
    print(line("drafted", "steps", "tau", "c_v"))
    for each in result.steps:
        print(line(each.drafted, f"{each.share:.1%}", f"{each.tau:.2f}", f"{each.c_v:.2f}"))
    fresh = "every answer loops"
    if result.unrepeated is not None:
        fresh = f"{result.unrepeated:.2f} over answers that do not loop"
    print(f"\ngain {result.measured:.2f} measured, {result.predicted:.2f} predicted, {fresh}")


@bench.command()
def fragmentation(
    requests: int = typer.Option(400, "--requests", help="Requests to simulate.", min=1),
    rate: float = typer.Option(4.0, "--rate", help="Requests that arrive in a second.", min=0.001),
    max_model_len: int = typer.Option(
        2048, "--max-model-len", help="Tokens that a contiguous KV cache reserves for each sequence.", min=64
    ),
    page_size: int = typer.Option(16, "--page-size", "--block-size", help="Tokens in a page.", min=1),
    kv_tokens: int = typer.Option(
        32_768, "--kv-tokens", help="Tokens that the KV memory holds in all.", min=64
    ),
    trace: Path | None = TRACE,
    as_json: bool = JSON_FLAG,
) -> int:
    """Simulate how much KV memory stays unused with pages and with contiguous allocation; loads no model."""
    from octavo.bench.trace import conversations, read_trace
    from octavo.config import SchedulerConfig
    from octavo.lab.fragmentation import fragmentation as run

    config = SchedulerConfig(
        num_pages=kv_tokens // page_size,
        page_size=page_size,
        max_model_len=max_model_len,
        max_num_batched_tokens=512,
        step_target_s=0.1,
        enable_prefix_caching=False,
        max_waiting=10**9,
    )
    mix = conversations(requests, rate, max_model_len) if trace is None else read_trace(trace)
    found = run(config, mix)
    if as_json:
        print(json.dumps({each.name: dataclasses.asdict(each) for each in found}))
        return 0
    print(line("KV", "waste", "running", "tok/s"))
    for each in found:
        print(line(each.name, f"{each.waste:.1%}", f"{each.running:.1f}", f"{each.output_rate:.0f}"))
    return 0


def load(engine: EngineChoice, max_batch: int, quiet: bool) -> Driver:
    """The engine to measure: no request may find another's prefix."""
    from octavo.bench.driver import Driver

    fetch(engine.model, quiet)
    options = {"max_num_seqs": max_batch, **engine.options, "enable_prefix_caching": False}
    return Driver(engine.model, **options)


def line(*cells: object) -> str:
    return "".join(f"{cell!s:>14}" for cell in cells)


for _name, _command in find().items():
    bench.command(_name)(_command)
