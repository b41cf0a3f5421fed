"""Measure what docs/status.md shows, one command after another, and render it: `make figures`.

    all_figures.py [--only speed|counts|WORD] [--text FILE] [--prompts FILE] [--list]

Each command writes its own result file. One that fails is said, and the others go on; the status is 1 then.
Speed needs a machine that does nothing else (two to three hours, most of them the peers'); counts do not.
What reads TEXT or PROMPTS runs where --text (WikiText-2's test split) or --prompts (MT-bench's questions)
names a file. Left out is what needs other models, a GPU or another build of llama.cpp:
benchmarks/speculation.py, benchmarks/draft_models.py, make gpu-check, benchmarks/peers_serving.py, and the
peers with --options '{"isa": "avx2"}' on a machine that has more. A changed checkout marks its figures:
commit first.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON, OCTAVO = ".venv/bin/python", ".venv/bin/octavo"
RECORD = f"{PYTHON} benchmarks/record.py"
TREES = ".venv-test/bin/python benchmarks/kernels/trees.py smollm2"


@dataclass(frozen=True, slots=True)
class Part:
    """A command of the shell, what it is for, and about how many minutes it takes on two cores."""

    kind: str
    minutes: float
    command: str


def tests(name: str, marks: str, what: str) -> str:
    """Those of a folder or file, by pytest's marks."""
    return f'{RECORD} {name} --tests -- .venv-test/bin/python -m pytest -m "{marks}" {what}'


QUICK = "not slow and not oracle and not clients"

PARTS = (
    Part("speed", 1, "make bench RESULT=1"),
    Part("speed", 90, f"{PYTHON} benchmarks/peers --tune-peer --write"),
    Part("speed", 3, f"{RECORD} roofline-1b -- {OCTAVO} bench roofline"
         " ~/.cache/octavo/benchmarks/tinyllama-1.1b.Q4_0.gguf --prompt-tokens 128 --batch-sizes 1"
         ' --contexts "" --json'),
    Part("speed", 2, f"{RECORD} roofline-smollm2 -- {OCTAVO} bench roofline smollm2"
         " --prompt-tokens 512 --num-runs 5 --json"),
    Part("speed", 2, f"{PYTHON} benchmarks/serving.py --write"),
    Part("speed", 1, f"{PYTHON} benchmarks/footprint.py --write"),
    Part("speed", 2, f"{PYTHON} benchmarks/footprint.py --write --model gemma3-270m"),
    Part("speed", 1, f"{PYTHON} benchmarks/host_time.py --write"),
    Part("speed", 1, f"{TREES} --kv-dtype int16 --write"),
    Part("speed", 1, f"{TREES} --kv-dtype f16 --write"),
    Part("speed", 4, f"{PYTHON} benchmarks/grammar_cost.py --repeat 24 --write"),
    Part("speed", 4, f"{PYTHON} benchmarks/one_scored_row.py --write"),
    Part("speed", 4, f"{PYTHON} benchmarks/watermark.py cost --write"),
    Part("speed", 8, f"{PYTHON} benchmarks/watermark.py cost --model gemma3-270m --write"),
    Part("speed", 2, f"{RECORD} ablate -- {OCTAVO} bench ablate smollm2 --json"),
    Part("speed", 3, f"{RECORD} sweep -- {OCTAVO} bench sweep smollm2 --json"),
    Part("speed", 5, f"{PYTHON} benchmarks/plan_beside.py --write"),
    Part("speed", 5, f"{PYTHON} benchmarks/compare_twice.py --write"),
    Part("speed", 12, f"make guidellm-env && {PYTHON} benchmarks/bench_beside.py --write"),
    Part("speed", 1, f"{RECORD} scheduler_cost -- {PYTHON} benchmarks/scheduler_cost.py --json"),
    Part("speed", 3, f"{PYTHON} benchmarks/overload.py --write"),
    Part("speed", 1, f"{PYTHON} benchmarks/restart.py --write"),
    Part("speed", 7, "make overload RESULT=1"),
    Part("speed", 15, "make probes RESULT=1"),
    Part("speed", 3, "make vanish RESULT=1"),
    Part("speed", 35, "make soak RESULT=1"),
    Part("speed", 25, "make kills RESULT=1"),
    Part("speed", 12, "make paired A=e9d8bdb B=HEAD ARGS=--write"),
    Part("speed", 20, f"{PYTHON} benchmarks/formats.py --text TEXT --speed --write"),
    Part("speed", 40, f"{PYTHON} benchmarks/formats.py --text TEXT --model gemma3-270m --speed --write"),
    Part("counts", 4, f"{PYTHON} benchmarks/quality.py TEXT --windows 40 --write"),
    Part("counts", 2, f"{PYTHON} benchmarks/kv_choices.py PROMPTS --write"),
    Part("counts", 4, f"{PYTHON} benchmarks/kv_choices.py PROMPTS --model gemma3-270m --write"),
    Part("counts", 1, f"{PYTHON} benchmarks/long_context.py --write"),
    Part("counts", 0.1, f"{RECORD} fragmentation -- {OCTAVO} bench fragmentation --json"),
    Part("counts", 3, f"{RECORD} valid_json -- .venv-test/bin/python benchmarks/valid_json.py --json"),
    Part("counts", 1, "make test-schemas RESULT=1"),
    Part("counts", 0.2, "make test-tool-calls RESULT=1"),
    Part("counts", 3, f"{RECORD} env-size -- python3 scripts/env_size.py --fresh --json"),
    Part("counts", 3, f"{RECORD} image -- .venv/bin/python scripts/image.py --json"),
    Part("counts", 5, f"{RECORD} compiled -- env PYTHONPATH=src:tests"
         " .venv-test/bin/python -m support.compile_kernels 90 --json"),
    Part("counts", 2, tests("against-transformers", QUICK, "tests/llm/test_against_transformers.py")),
    Part("counts", 1, tests("json-schema-suite", QUICK, "tests/structured/test_grammar_suite.py")),
    Part("counts", 5, tests("schemathesis", "slow", "tests/server/test_schemathesis.py")),
    Part("counts", 10, f"{PYTHON} benchmarks/watermark.py strength --write"),
    Part("counts", 15, tests("lessons", "not clients", "tests/test_lessons.py")),
    Part("counts", 10, tests("fuzzing", "slow", "tests/engine tests/model")),
    Part("counts", 40, "make fuzz RESULT=1"),
    Part("counts", 8, tests("families", QUICK, "tests/models")),
    Part("counts", 25, f"{RECORD} sanitize --tests -- make sanitize"),
)  # fmt: skip


def wanted(part: Part, word: str) -> bool:
    return word in ("", part.kind) or word in part.command


def named(part: Part, files: Mapping[str, str]) -> Part:
    """The part with paths where its command has TEXT or PROMPTS, as far as they are given."""
    words = [shlex.quote(files[word]) if word in files else word for word in part.command.split(" ")]
    return replace(part, command=" ".join(words))


def lacks_a_file(part: Part) -> bool:
    return not {"TEXT", "PROMPTS"}.isdisjoint(part.command.split(" "))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="all_figures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="speed, counts, or a word of the commands")
    parser.add_argument("--text", help="a UTF-8 file, such as WikiText-2's test split")
    parser.add_argument("--prompts", help="lines of JSON with turns, as MT-bench's questions")
    parser.add_argument("--list", action="store_true", help="print the commands and how long they take")
    options = parser.parse_args(arguments)
    given = {"TEXT": options.text, "PROMPTS": options.prompts}
    files = {name: str(Path(path).resolve()) for name, path in given.items() if path}
    parts = [named(part, files) for part in PARTS if wanted(part, options.only)]
    if not options.list:
        parts = [part for part in parts if not lacks_a_file(part)]
    failed = []
    for number, part in enumerate(parts, 1):
        print(f"{number} of {len(parts)}, about {part.minutes:g} min: {part.command}", flush=True)
        if options.list:
            continue
        since = time.monotonic()
        if subprocess.run(part.command, shell=True, cwd=ROOT, check=False).returncode:
            failed.append(part.command)
        print(f"took {(time.monotonic() - since) / 60:.1f} min", flush=True)
    if not options.list:
        subprocess.run([sys.executable, "scripts/figures.py", "--write"], cwd=ROOT, check=False)
        subprocess.run([sys.executable, "scripts/gallery.py", "--write"], cwd=ROOT, check=False)
    for command in failed:
        print(f"FAILED: {command}", file=sys.stderr)
    return int(bool(failed) or not parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
