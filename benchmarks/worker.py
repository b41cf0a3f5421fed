"""One engine in one process, driven by lines of JSON: what benchmarks interleave.

    worker.py octavo MODEL --threads 2
    worker.py llama_cpp FILE.gguf --threads 2

Answers each line {"prompts": [[ids]], "new_tokens": n} with engines.base.Timing's fields, and each line
{"ids": [ids], "first": i, "out": "file.npy"} with {} after writing logits there. The first line
written is {"engine": name, "version": v, "notes": text}. Needs nothing but the engine's own package.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asked import at_least_one, json_object


def names() -> list[str]:
    """The engines that there is a file for."""
    files = (Path(__file__).parent / "engines").glob("*.py")
    return sorted(path.stem for path in files if path.stem not in ("__init__", "base"))


def answer(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    if "out" not in task:
        return dataclasses.asdict(engine.run(task["prompts"], task["new_tokens"]))
    import numpy as np

    np.save(task["out"], engine.logits(task["ids"], task["first"]))
    return {}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="worker")
    parser.add_argument("engine", choices=names())
    parser.add_argument("model")
    parser.add_argument("--threads", type=at_least_one, required=True)
    parser.add_argument(
        "--options", type=json_object, default={}, help="JSON object of the engine's own options"
    )
    options = parser.parse_args(arguments)
    # Engines print what they like; the answers have the standard output to themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = importlib.import_module(f"engines.{options.engine}").Engine(
        options.model, options.threads, options.options
    )
    about = {"engine": options.engine, "version": engine.version, "notes": engine.notes}
    print(json.dumps(about), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
