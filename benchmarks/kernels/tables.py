"""Two-bit weights looked up in tables of sums, as T-MAC does, beside multiplying them: which takes less?

    .venv/bin/python benchmarks/kernels/tables.py [--write]

Compiles tables.cpp for this machine with the compiler that builds the kernels ($CXX, else g++) and runs it on
all cores, from the first-level cache: what decision 0038 asks of the arithmetic of small formats. Both sides'
sums are checked to be exact. --generic leaves out AVX-512.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from asked import at_least_one
from harness import conclude, report, usable_cores

SOURCE = Path(__file__).with_suffix(".cpp")


def measure(generic: bool, threads: int) -> dict[str, Any]:
    """What tables.cpp prints."""
    flags = ["-mavx2", "-mfma"] if generic else ["-march=native"]
    with tempfile.TemporaryDirectory(prefix="octavo-tables-") as folder:
        program = Path(folder) / "tables"
        compiler = os.environ.get("CXX", "g++")
        subprocess.run(
            [compiler, "-O3", "-std=c++17", *flags, str(SOURCE), "-pthread", "-o", str(program)], check=True
        )
        done = subprocess.run([str(program), str(threads)], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "over": round(found["tables_ps"] / found["products_ps"], 3)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tables", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--generic", action="store_true", help="AVX2, whatever this machine has")
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/tables-*.json")
    options = parser.parse_args(arguments)
    found = measure(options.generic, options.threads)
    settings = {"generic": options.generic, "threads": options.threads}
    result = report("tables", sys.argv, {"settings": settings, "result": found})
    lines = [
        f"{found['isa']}: multiplied {found['products_ps']} ps, looked up {found['tables_ps']} ps a "
        f"multiply-add of {options.threads} threads: {found['over']} times as long"
    ]
    return conclude(result, lines, False, options.json, options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
