"""octavo bench throughput: how much is done in a second when there is always enough to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._bench import INTERRUPTED, Output, dataset_options, driver_of, wanted_of
from octavo.cli._flags import NO_MATTER, EngineChoice, declared_flags, engine_flags, option_group
from octavo.cli._progress import count_progress, saying
from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.bench.driver import Driver
    from octavo.bench.offline import Throughput
    from octavo.bench.serving.exchange import LoadRequest

NAME = "throughput"


@dataclasses.dataclass(frozen=True, slots=True)
class Prompts:
    """What is asked, as the options declare it."""

    num_prompts: Annotated[int, typer.Option("--num-prompts", help="Prompts in all.", min=1)] = 100
    dataset_name: Annotated[str, typer.Option("--dataset-name", help="As octavo bench serve has them.")] = (
        "random"
    )
    dataset_path: Annotated[
        Path | None, typer.Option("--dataset-path", help="The file of a data set.", show_default=False)
    ] = None
    input_len: Annotated[
        int | None, typer.Option("--input-len", help="The same as --random-input-len.", show_default=False)
    ] = None
    output_len: Annotated[
        int | None, typer.Option("--output-len", help="The same as --random-output-len.", show_default=False)
    ] = None


@engine_flags(leave_out=(*NO_MATTER, "enable_prefix_caching"))
@option_group("prompts", Prompts)
@declared_flags("lengths", dataset_options)
@option_group("output", Output)
def command(
    engine: EngineChoice,
    lengths: Mapping[str, Any],
    output: Output,
    prompts: Prompts,
) -> int:
    """Measure how many prompts and tokens a second are done here, without a server."""
    from octavo.bench.offline import throughput
    from octavo.bench.serving.datasets import calls_of, data_set

    output.check()
    short = {"random_input_len": prompts.input_len, "random_output_len": prompts.output_len}
    given = {**lengths, **{name: value for name, value in short.items() if value is not None}}
    data = data_set(prompts.dataset_name)
    wanted = wanted_of(data, given, prompts.num_prompts, prompts.dataset_path)
    calls = calls_of(data, wanted)[: prompts.num_prompts]
    driver = driver_of(engine, None, output.as_json)
    ids = [ids_of(driver, call) for call in calls]
    what = f"{len(calls)} prompts"
    with saying(what, output.as_json), count_progress("answered", output.as_json) as progress:
        found = throughput(driver, ids, [call.output_tokens for call in calls], progress)
    show(engine.model, found, output)
    return INTERRUPTED if found.cut else 0


def ids_of(driver: Driver, call: LoadRequest) -> list[int]:
    """A prompt's token ids.

    Raises:
        InvalidRequestError: it is the messages of a chat.
    """
    if isinstance(call.prompt, str):
        return list(driver.loaded.tokenizer.encode(call.prompt))
    ids = [part for part in call.prompt if isinstance(part, int)]
    if len(ids) != len(call.prompt):
        raise InvalidRequestError("messages are for octavo bench serve --backend openai-chat")
    return ids


def show(model: str, found: Throughput, output: Output) -> None:
    """Print and draw it."""
    from octavo.bench.report.chart import Lines, Series
    from octavo.bench.report.table import number, table

    rows = [
        ("requests a second", number(found.request_rate, 2)),
        ("tokens of answers a second", found.output_rate),
        ("tokens a second, prompts too", found.total_rate),
        ("memory at the peak (MB)", found.memory / 1e6),
    ]
    title = (
        f"{model}: {found.requests} of {found.asked} prompts in {found.seconds:.2f} s, "
        f"{found.prompt_tokens:,} tokens of prompts and {found.output_tokens:,} of answers"
    )
    every = max(len(found.over_time) // 200, 1)
    points = tuple((now, float(tokens)) for now, tokens in found.over_time[::every])
    series = (Series("tokens", points),)
    chart = Lines("Tokens of answers over the run", "seconds", "tokens so far", series)
    rates = {name: getattr(found, name) for name in ("request_rate", "output_rate", "total_rate")}
    figures = {k: v for k, v in dataclasses.asdict(found).items() if k != "over_time"}
    output.show(title, [table(("", "figure"), rows, title)], [chart], {"model": model, **rates, **figures})


COMMAND = command
