"""What each number format costs a model on a text: perplexity, KL divergence, first choices, bits a weight.

    .venv/bin/python benchmarks/formats.py --text FILE [--model smollm2] [--windows 40]
        [--form int8 --form Q8_0 ...] [--write]

The model is written as a GGUF file of 16 bits first (its weights widened, where they are quantized). Of it
`octavo quantize` makes the others, and it is what --quantization rounds while it loads; types that Octavo
only reads are made by llama.cpp, where it is there (--peer-python). Each is scored by the arithmetic of
`octavo eval perplexity` beside the 16-bit file in float32, so its loss has both roundings in it, of weights
and of activations; "f16" has neither, and "Q8_0, float32" that of weights alone: what Q8_0 loses beside it
is what activations do. --plot FILE draws quality against size (.svg,
.png, .html). How fast they are is format_speed.py's.

A K-quant is of rows of whole blocks of 256; of others llama.cpp and `octavo quantize` take the next larger
type. Bits a weight say what was held.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asked import at_least_one
from harness import conclude, python_with, report, usable_cores

from octavo.bench.report.writers import Report, write_all
from octavo.checkpoints.sources import resolve
from octavo.cli._progress import count_progress, saying
from octavo.config import EngineConfig
from octavo.errors import OctavoError
from octavo.lab.perplexity import Measured, charts, compare, cut, rows_of
from octavo.lab.quality import WindowScorer, text_ids
from octavo.quantize.asked import Asked
from octavo.quantize.job import quantize

BASE, EXACT = "f16", "float32"
ON_LOAD = ("int8", "eetq", "int4", "nf4", "fp8")
INT8, INT8_EXACT = "Q8_0", "Q8_0, float32"
MADE = ("Q8_0", "Q5_0", "Q4_1", "Q4_0", "Q4_K_M")
READ = ("Q6_K", "Q5_K_M", "Q3_K_M", "Q2_K", "IQ4_NL", "IQ4_XS")
"""What llama.cpp makes without a text to calibrate on."""
INT8_LIMIT = 1.001
"""Perplexity over that of float32 of the same file, at most: of 8-bit weights made while the 16-bit file is
loaded, and of a file of 8 bits."""
REQUANTIZE = Path(__file__).parent / "peers" / "requantize.py"


@dataclass(frozen=True, slots=True)
class Form:
    """A format, and how the model comes into it: a file, and what is made of it while it loads."""

    name: str
    path: Path
    method: str | None = None
    dtype: str = "auto"

    @property
    def options(self) -> dict[str, Any]:
        return {"quantization": self.method, "dtype": self.dtype}


def made(model: str, folder: Path, peer_python: str | None, names: Collection[str] = ()) -> Iterator[Form]:
    """The forms of a model, as their files are written: the 16-bit one first. One that lies there is taken.

    Args:
        peer_python: a Python that has llama_cpp; None: one is looked for.
        names: of the forms that are wanted; what makes several is left out where none of them is among
            these. Empty: all are wanted.
    """
    wanted = set(names)
    base = folder / "f16.gguf"
    if not base.exists():
        with saying(f"writing {model} in 16 bits"):
            quantize(Asked(resolve(model), base, kind="F16", requantize=True))
    yield Form(BASE, base)
    for method in ON_LOAD:
        yield Form(method, base, method)
    for kind in MADE:
        if wanted and wanted.isdisjoint((kind, f"{kind}, float32")):
            continue
        path = folder / f"{kind}.gguf"
        if not path.exists():
            with saying(f"making {kind}"):
                quantize(Asked(base, path, kind=kind))
        yield Form(kind, path)
        if kind == INT8:
            yield Form(INT8_EXACT, path, dtype="float32")
    if wanted and wanted.isdisjoint(READ):
        return
    python = python_with("llama_cpp", peer_python)
    if python is None:
        print("llama.cpp is not installed here: its types are left out (make oracle-env)", file=sys.stderr)
        return
    for kind in READ:
        if wanted and kind not in wanted:
            continue
        path = folder / f"{kind}.gguf"
        failed = None if path.exists() else made_by_llama_cpp(python, base, path, kind)
        if failed:
            print(f"{kind} is left out: {failed}", file=sys.stderr)
            continue
        yield Form(kind, path)


def made_by_llama_cpp(python: str, base: Path, path: Path, kind: str) -> str | None:
    """Write llama.cpp's file of a type, whole or not at all. Returns its last line if it fails."""
    part = path.with_suffix(".part")
    with saying(f"{kind} by llama.cpp"):
        command = [python, str(REQUANTIZE), str(base), str(part), "--type", kind]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        part.unlink(missing_ok=True)
        return (done.stderr.strip().splitlines() or ["no word"])[-1]
    part.rename(path)
    return None


def scored(forms: Sequence[Form], options: argparse.Namespace) -> list[Measured]:
    """A row for each, and the reference's; a few lie in memory at a time."""
    read = text_ids(EngineConfig(str(forms[0].path)), options.text.read_text(encoding="utf-8"))
    windows = cut(read, options.window, options.windows, options.text.name)
    exact = WindowScorer(
        EngineConfig(str(forms[0].path), threads=options.threads, dtype="float32"), options.window
    )
    rows: list[Measured] = []
    for start in range(0, len(forms), options.together):
        some = forms[start : start + options.together]
        scorers = {
            form.name: WindowScorer(
                EngineConfig(str(form.path), threads=options.threads, **form.options), options.window
            )
            for form in some
        }
        with count_progress(f"windows by {', '.join(scorers)}") as progress:
            compared = compare({**scorers, EXACT: exact}, EXACT, windows, read.before, progress)
        if compared.interrupted:
            raise KeyboardInterrupt
        found = rows_of(compared, {**scorers, EXACT: exact}, EXACT)
        rows += found if not rows else found[:-1]
    return sorted(rows, key=lambda row: row.model == EXACT)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="octavo-formats-", dir=options.folder) as folder:
        every = made(options.model, Path(folder), options.peer_python, options.form or ())
        forms = [each for each in every if is_wanted(each, options.form)]
        rows = scored(forms, options)
    if options.plot:
        title = f"{options.model} on {options.text.name}"
        write_all(Report(title, [], charts(rows), {}, {}), [options.plot])
    found = {row.model: as_result(row) for row in rows}
    ratios = {
        f"{name}_over_float32": round(found[name]["perplexity"] / found[exact]["perplexity"], 6)
        for name, exact in (("int8", EXACT), (INT8, INT8_EXACT))
        if name in found and exact in found
    }
    return {"forms": found, **ratios}


def is_wanted(form: Form, names: Sequence[str] | None) -> bool:
    """Whether it is measured: all are, or those that are named; the 16-bit file always is."""
    return not names or form.name in names or form.name == BASE


def as_result(row: Measured) -> dict[str, Any]:
    """Without its speed, which is of prompts, and of a machine that did other things too."""
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in asdict(row).items()
        if name not in ("model", "tokens_per_s")
    }


def table(result: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{'format':<14}{'bits':>8}{'MB':>9}{'perplexity':>12}{'over':>10}{'+/-':>9}{'KL':>11}{'same':>9}"
    ]
    for name, row in result["forms"].items():
        lines.append(
            f"{name:<14}{row['bits']:>8.3f}{row['weights_mb']:>9.1f}{row['perplexity']:>12.4f}"
            f"{row['over']:>10.5f}{row['over_error']:>9.5f}"
            f"{row['kl']:>11.6f}{row['agreement']:>9.2%}"
        )
    for name in ("int8", INT8):
        if f"{name}_over_float32" not in result:
            continue
        ratio = result[f"{name}_over_float32"]
        reached = "reached" if ratio <= INT8_LIMIT else "NOT reached"
        lines.append(f"{name} over float32 of the same file: {ratio:.5f}, wanted {INT8_LIMIT}: {reached}")
    return lines


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="formats")
    parser.add_argument("--text", type=Path, required=True, help="a UTF-8 file, such as WikiText-2's test")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--window", type=at_least_one, default=512, help="tokens; the second half is scored")
    parser.add_argument("--windows", type=at_least_one, default=40, help="so many from the text's beginning")
    parser.add_argument(
        "--form", action="append", metavar="NAME", help="measure this one, beside f16; repeatable; else all"
    )
    parser.add_argument("--together", type=at_least_one, default=4, help="formats in memory at a time")
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--folder", help="where files of the model may lie meanwhile")
    parser.add_argument("--peer-python", help="a Python that has llama_cpp; else one is looked for")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/formats-*.json")
    options = parser.parse_args(arguments)
    settings = {name: getattr(options, name) for name in ("model", "window", "windows", "threads")}
    settings["text"] = options.text.name
    try:
        found = measure(options)
    except OctavoError as error:
        print(f"formats: {error}", file=sys.stderr)
        return 1
    result = report("formats", sys.argv, {"settings": settings, **found})
    return conclude(result, table(result), False, options.json, options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
