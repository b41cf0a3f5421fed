"""octavo eval: what a model, or a quantized form of it, makes of a text."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._bench import INTERRUPTED, Output
from octavo.cli._flags import DEFAULT_MODEL, ENGINE_HELP, option_group
from octavo.cli._load import fetch
from octavo.cli._progress import count_progress, saying
from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.bench.report.table import Table
    from octavo.config import EngineConfig
    from octavo.lab.perplexity import Measured
    from octavo.lab.quality import TextIds

MODELS = typer.Argument(
    None,
    help="Aliases, .gguf files, folders with config.json or hub ids: a row each.  "
    f"[default: {DEFAULT_MODEL}]",
    show_default=False,
)
TEXT = typer.Option(..., "--text", help="A UTF-8 file, such as the test split of WikiText-2.")

eval = typer.Typer(
    help="Measure what models make of texts. All take --json and --help.", rich_markup_mode=None
)


@eval.callback()
def group() -> None:
    """Measure what models make of texts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What `octavo eval perplexity` measures, and how each model is computed: flags of the engine."""

    against: Annotated[
        str, typer.Option("--against", help="A model that the others are compared with, in float32.")
    ] = ""
    windows: Annotated[
        int, typer.Option("--windows", help="So many windows from the text's beginning; 0: all.", min=0)
    ] = 40
    context: Annotated[
        int, typer.Option("--context", "-c", help="Tokens of a window; its second half is scored.", min=4)
    ] = 512
    quantization: Annotated[
        str,
        typer.Option(
            "--quantization",
            help="What 16-bit weights become when loaded: a row each, such as none,int8,nf4.",
        ),
    ] = "none"
    tokenizer: Annotated[str | None, typer.Option("--tokenizer", help=ENGINE_HELP["tokenizer"])] = None
    dtype: Annotated[str | None, typer.Option("--dtype", help=ENGINE_HELP["dtype"])] = None
    kv_cache_dtype: Annotated[
        str | None, typer.Option("--kv-cache-dtype", help=ENGINE_HELP["kv_cache_dtype"])
    ] = None
    threads: Annotated[int | None, typer.Option("--threads", "-t", help=ENGINE_HELP["threads"])] = None
    isa: Annotated[str | None, typer.Option("--isa", help=ENGINE_HELP["isa"])] = None
    backend: Annotated[str | None, typer.Option("--backend", help=ENGINE_HELP["backend"])] = None

    def config(self, model: str, **options: Any) -> EngineConfig:
        """The user's configuration for this model.

        Raises:
            InvalidRequestError: a flag is wrong.
        """
        from octavo.config import EngineConfig

        names = ("tokenizer", "dtype", "kv_cache_dtype", "threads", "isa", "backend")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return EngineConfig(model, **given | options)


@eval.command()
@option_group("wanted", Wanted)
@option_group("output", Output)
def perplexity(output: Output, wanted: Wanted, models: list[str] = MODELS, text: Path = TEXT) -> int:
    """Measure perplexity on a text; with --against KL divergence and how often first choices agree.

    All models of the table lie in memory together. Ctrl-C prints what was measured by then.
    """
    from octavo.lab.perplexity import charts, compare, cut, rows_of
    from octavo.lab.quality import WindowScorer

    output.check()  # before minutes are spent on measuring
    quiet = output.as_json
    configs = configs_of(wanted, models or [DEFAULT_MODEL])
    for config in configs.values():
        fetch(config.model, quiet)
    read = ids_of(configs, text)
    found = cut(read, wanted.context, wanted.windows or None, str(text))
    scorers = {}
    for name, config in configs.items():
        with saying(f"loading {name}", quiet):
            scorers[name] = WindowScorer(config, wanted.context)
    reference = list(configs)[-1] if wanted.against else None
    what = f"scoring {len(found)} windows of {wanted.context} tokens by {counted(len(scorers))}"
    with saying(what, quiet), count_progress("windows", quiet) as progress:
        compared = compare(scorers, reference, found, read.before, progress)
    rows = rows_of(compared, scorers, reference)
    body = {
        "text": str(text),
        "context": wanted.context,
        "windows": compared.windows,
        "interrupted": compared.interrupted,
        "against": reference,
        "models": [dataclasses.asdict(row) for row in rows],
    }
    title = f"{text.name}, {compared.windows} windows of {wanted.context}"
    output.show(title, [table_of(rows, reference)], charts(rows), body)
    if compared.interrupted and not quiet:
        print(f"interrupted: {compared.windows} of {len(found)} windows are in it", file=sys.stderr)
    return INTERRUPTED if compared.interrupted else 0


def counted(models: int) -> str:
    return f"{models} model{'s' * (models > 1)}"


def configs_of(wanted: Wanted, models: list[str]) -> dict[str, EngineConfig]:
    """The rows of the table by their names, the reference last.

    Raises:
        InvalidRequestError: a flag is wrong.
    """
    methods = [word.strip() for word in wanted.quantization.split(",") if word.strip()]
    if not methods:
        raise InvalidRequestError("--quantization names nothing: none is the weights as they are stored")
    found = {}
    for model in models:
        for method in methods:
            plain = method == "none"
            name = model if plain else f"{model}, {method}"
            found[name] = wanted.config(model, quantization=None if plain else method)
    if wanted.against:
        found[f"{wanted.against}, float32"] = wanted.config(wanted.against, dtype="float32")
    return found


def ids_of(configs: dict[str, EngineConfig], text: Path) -> TextIds:
    """The text as all of them read it.

    Raises:
        InvalidRequestError: it is no text, or two models read it as other tokens.
    """
    from octavo.lab.quality import text_ids

    try:
        words = text.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{text} is no text: it must be UTF-8") from None
    read: dict[str, TextIds] = {}
    for config in configs.values():
        if config.model not in read:
            read[config.model] = text_ids(config, words)
    first, *others = read
    for other in others:
        if read[other] != read[first]:
            raise InvalidRequestError(
                f"{other} reads {text} as other tokens than {first}: perplexities of two tokenizers are not "
                "of one table"
            )
    return read[first]


def table_of(rows: list[Measured], reference: str | None) -> Table:
    """The table; columns beside a reference only where there is one."""
    from octavo.bench.report.table import Table

    headers = ["model", "bits", "MB", "perplexity", "+/-", "tok/s"]
    if reference:
        headers[5:5] = ["over", "+/-", "KL", "agreement", "flips"]
    cells = []
    for row in rows:
        numbers = [f"{row.bits:.3f}", f"{row.weights_mb:,.1f}"]
        numbers += [f"{row.perplexity:,.4f}", f"{row.perplexity_error:.4f}"]
        if reference:
            numbers += [
                f"{row.over:.5f}",
                f"{row.over_error:.5f}",
                f"{row.kl:.6f}",
                f"{row.agreement:.2%}",
                str(row.flips),
            ]
        cells.append((row.model, *numbers, f"{row.tokens_per_s:,.1f}"))
    return Table(tuple(headers), tuple(cells))
