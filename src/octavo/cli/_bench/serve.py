"""octavo bench serve: what the users of a server see, whoever's server it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._bench import INTERRUPTED, Output, dataset_options, until_interrupted, wanted_of
from octavo.cli._flags import declared_flags, option_group
from octavo.cli._progress import count_progress
from octavo.errors import InvalidRequestError, OctavoError

if TYPE_CHECKING:
    from octavo.bench.serving.apis import Api
    from octavo.bench.serving.client import Client
    from octavo.bench.serving.exchange import LoadRequest
    from octavo.bench.serving.figures import Figures
    from octavo.bench.serving.generator import LoadRecord, Pace

NAME = "serve"


@dataclass(frozen=True, slots=True)
class Server:
    """Which server is asked, as the options declare it."""

    base_url: Annotated[str, typer.Option("--base-url", help="The same as URL.")] = ""
    host: Annotated[str, typer.Option("--host", help="The server's, where no URL is given.")] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", help="The same.", min=1, max=65535)] = 8000
    asked_as: Annotated[
        str, typer.Option("--backend", help="How it is asked: openai (completions), openai-chat, tgi.")
    ] = "openai"
    endpoint: Annotated[str, typer.Option("--endpoint", help="Another path than the backend's.")] = ""
    model: Annotated[
        str,
        typer.Option(
            "--model", "--served-model-name", help="The name in requests; by default the first it lists."
        ),
    ] = ""
    api_key: Annotated[str, typer.Option("--api-key", help="Key that is sent with every request.")] = ""
    header: Annotated[
        list[str] | None,
        typer.Option("--header", help="NAME=VALUE, for every request; may be given several times."),
    ] = None
    extra_body: Annotated[
        str, typer.Option("--extra-body", help="More fields of every request.", metavar="JSON")
    ] = ""
    temperature: Annotated[float, typer.Option("--temperature", help="Of the draws.", min=0.0)] = 0.0
    top_p: Annotated[float | None, typer.Option("--top-p", help="Of the draws.", show_default=False)] = None
    full_length: Annotated[
        bool, typer.Option("--ignore-eos", help="Answers are as long as asked for (if the server can).")
    ] = False
    request_timeout: Annotated[
        float, typer.Option("--request-timeout", help="Seconds to wait for an answer.", min=0.001)
    ] = 600.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked and when, as the options declare it."""

    dataset_name: Annotated[
        str,
        typer.Option(
            "--dataset-name", help="random, prefix_repetition, custom (JSON lines), sharegpt or trace."
        ),
    ] = "random"
    dataset_path: Annotated[
        Path | None, typer.Option("--dataset-path", help="The file of a data set.", show_default=False)
    ] = None
    num_prompts: Annotated[int, typer.Option("--num-prompts", help="Requests in all.", min=1)] = 100
    request_rate: Annotated[
        float | None,
        typer.Option(
            "--request-rate",
            help="Requests a second, at random; inf: all at once.  [default: inf; of a trace: its times]",
            show_default=False,
        ),
    ] = None
    burstiness: Annotated[
        float, typer.Option("--burstiness", help="1: Poisson; below: bursts; above: more evenly.")
    ] = 1.0
    max_concurrency: Annotated[
        int | None,
        typer.Option(
            "--max-concurrency",
            help="Most on the way at once: a closed load of so many users.",
            min=1,
            show_default=False,
        ),
    ] = None
    speed: Annotated[
        float, typer.Option("--speed", help="Replay a trace so many times as fast.", show_default=True)
    ] = 1.0
    num_warmups: Annotated[
        int, typer.Option("--num-warmups", help="Requests before it, which count for nothing.", min=0)
    ] = 1
    seed: Annotated[int, typer.Option("--seed", help="Another seed makes other prompts and times.")] = 0
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds for the whole measurement.", min=0.001)
    ] = 3600.0


@dataclass(frozen=True, slots=True)
class Reporting:
    """What is reported, as the options declare it."""

    goodput: Annotated[
        list[str] | None,
        typer.Option(
            "--goodput",
            help="Count answers within limits in ms, such as ttft:500 (ttft, tpot, e2el); several times.",
        ),
    ] = None
    percentile_metrics: Annotated[
        str, typer.Option("--percentile-metrics", help="Which times are printed.")
    ] = "ttft,tpot,itl,e2el"
    metric_percentiles: Annotated[str, typer.Option("--metric-percentiles", help="Which percentiles.")] = (
        "50,90,99"
    )
    save_result: Annotated[
        bool, typer.Option("--save-result", help="Write the figures as JSON, see --result-filename.")
    ] = False
    result_dir: Annotated[Path, typer.Option("--result-dir", help="The folder for it.")] = Path(".")
    result_filename: Annotated[str, typer.Option("--result-filename", help="Its name.")] = "serve.json"


@option_group("server", Server)
@option_group("traffic", Traffic)
@declared_flags("lengths", dataset_options)
@option_group("wishes", Reporting)
@option_group("output", Output)
def command(
    server: Server,
    traffic: Traffic,
    lengths: Mapping[str, Any],
    wishes: Reporting,
    output: Output,
    url: str = typer.Argument("", help="The server, http(s)://host:port", show_default=False),
) -> int:
    """Measure what users of any server see: OpenAI's API or TGI's, Octavo's or another's."""
    from octavo.bench.serving.figures import METRICS, figures, read_slo
    from octavo.bench.serving.generator import Pace
    from octavo.bench.serving.shown import charts, tables

    percentiles = read_percentiles(wishes.metric_percentiles)
    metrics = [word.strip() for word in wishes.percentile_metrics.split(",")]
    if not set(metrics) <= set(METRICS):
        raise InvalidRequestError(
            f"--percentile-metrics knows {', '.join(METRICS)}, not {', '.join(metrics)}"
        )
    slo = read_slo(wishes.goodput or [])
    saved = wishes.result_dir / wishes.result_filename
    output = Output(output.as_json, [*(output.plot or []), *([saved] if wishes.save_result else [])])
    output.check()
    asks = Asks(server, url)
    calls, warm = calls_for(asks.api, traffic, lengths)
    pace = Pace(times_for(calls, traffic), traffic.max_concurrency, traffic.timeout)
    with count_progress("answered", output.as_json) as progress:
        recorded = until_interrupted(lambda stop: measure(asks, calls, warm, pace, (stop, progress)))
    found = figures(recorded, slo, percentiles, traffic.max_concurrency is not None)
    body = {"url": asks.url, "backend": server.asked_as, **facts_of(traffic), **found.summary()}
    shown = tables(found, metrics, shared_of(traffic, lengths))
    output.show(f"{asks.url}: {server.asked_as}", shown, charts(recorded), body)
    return status_of(found)


def status_of(found: Figures) -> int:
    """130 after Ctrl-C, 1 if nothing was answered, else 0."""
    if found.cut == "interrupted":
        return INTERRUPTED
    return 0 if found.completed else 1


class Asks:
    """The server's address and API, checked."""

    def __init__(self, server: Server, url: str) -> None:
        """
        Raises:
            InvalidRequestError: what the flags say is no server.
        """
        from octavo.bench.serving.apis import api_of
        from octavo.bench.wire import Wire

        if url and server.base_url and url != server.base_url:
            raise InvalidRequestError(f"URL {url!r} and --base-url {server.base_url!r} differ: give one")
        headers = dict(_pair(text) for text in server.header or [])
        self.server = server
        self.url = url or server.base_url or f"http://{server.host}:{server.port}"
        self.wire = Wire(self.url, server.api_key or None, headers)
        self.api = api_of(server.asked_as)
        self.extra = _object(server.extra_body)

    async def client(self) -> Client:
        """
        Raises:
            OctavoError: the server does not answer, or lists no models and none was named.
        """
        from octavo.bench.serving.client import Client
        from octavo.bench.serving.exchange import Asked
        from octavo.bench.wire import first_model

        server = self.server
        model = server.model
        if not model and "tgi" not in self.api.names:
            model = await first_model(self.wire)
        sampling = {"temperature": server.temperature}
        if server.top_p is not None:
            sampling["top_p"] = server.top_p
        asked = Asked(model, server.full_length, sampling, self.extra)
        return Client(self.wire, self.api, asked, server.endpoint, server.request_timeout)


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise InvalidRequestError(f"--header takes NAME=VALUE, and not {text!r}")
    return name, value


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"--extra-body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("--extra-body is an object")
    return value


def calls_for(
    api: Api, traffic: Traffic, lengths: Mapping[str, Any]
) -> tuple[list[LoadRequest], list[LoadRequest]]:
    """What is asked, and what is asked before it to warm up, which is none of it where there is more.

    Raises:
        InvalidRequestError: the data set is none, or its file is wrong.
    """
    from octavo.bench.serving.datasets import calls_of, data_set

    data, count, warm = data_set(traffic.dataset_name), traffic.num_prompts, traffic.num_warmups
    ids = "openai" in api.names
    wanted = wanted_of(data, lengths, count + warm, traffic.dataset_path, ids=ids, seed=traffic.seed)
    found = calls_of(data, wanted)
    extra = found[count:] or found[-1:]
    return found[:count], [extra[n % len(extra)] for n in range(warm)]


def shared_of(traffic: Traffic, lengths: Mapping[str, Any]) -> float:
    """Which part of the prompts' tokens the data set lets others begin with too (DataSet.shared)."""
    from octavo.bench.serving.datasets import data_set

    data = data_set(traffic.dataset_name)
    return data.shared({option.name: lengths.get(option.name, option.default) for option in data.options})


def times_for(calls: list[LoadRequest], traffic: Traffic) -> list[float]:
    """When each is sent: as --request-rate says, else as the trace, else at once."""
    from octavo.bench.serving.arrivals import drawn, of_trace

    timed = all(call.arrival_s is not None for call in calls)
    if (traffic.request_rate is None and timed) or traffic.speed != 1.0:
        return of_trace(calls, traffic.speed)
    rate = float("inf") if traffic.request_rate is None else traffic.request_rate
    return drawn(len(calls), rate, traffic.burstiness, traffic.seed)


async def measure(
    asks: Asks,
    calls: list[LoadRequest],
    warm: list[LoadRequest],
    pace: Pace,
    watch: tuple[asyncio.Event, Callable[[int, int], None]],
) -> LoadRecord:
    """Warm up, then put the load on.

    Args:
        watch: what ends it early, and who is told how far it is.

    Raises:
        OctavoError: the server does not answer what warms it up.
    """
    from octavo.bench.serving.generator import Pace, generate

    stop, progress = watch
    client = await asks.client()
    first = await generate(client, warm, Pace([0.0] * len(warm), 1, pace.timeout_s), stop) if warm else None
    if first is not None:
        failed = next((reply.error for reply in first.replies if reply.error is not None), None)
        if failed is not None:
            raise OctavoError(f"{asks.url} does not answer: {failed}")
    return await generate(client, calls, pace, stop, progress)


def read_percentiles(text: str) -> list[float]:
    """50,90,99 as numbers.

    Raises:
        InvalidRequestError: one is not above 0 and at most 100.
    """
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = [0.0]
    if not all(0 < value <= 100 for value in found):
        raise InvalidRequestError(f"--metric-percentiles takes numbers above 0 up to 100, not {text!r}")
    return found


def facts_of(traffic: Traffic) -> dict[str, Any]:
    """What was asked, for JSON."""
    return {
        "dataset_name": traffic.dataset_name,
        "num_prompts": traffic.num_prompts,
        "request_rate": traffic.request_rate if traffic.request_rate not in (None, float("inf")) else None,
        "burstiness": traffic.burstiness,
        "max_concurrency": traffic.max_concurrency,
    }


COMMAND = command
