"""Start-up time and memory of the server, and the peak while weights are loaded.

    .venv/bin/python benchmarks/footprint.py [--model smollm2] [--repeat 5] [--json] [--write]

ready     from the process's start to "ready", beside the imports that it cannot do without
resident  of the server beyond weights, KV pages in use and what its imports hold: when ready, and after
          32 users have streamed
load      the most that loading the weights takes, beyond the imports
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from asked import ScriptError, at_least_one, tells
from harness import Server, put_load, report, write

from octavo.bench.resident import peak_bytes, resident_bytes
from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.sources import resolve
from octavo.errors import OctavoError

IMPORTS = "import fastapi, numpy, tokenizers, uvicorn"
BEYOND_LIMIT_MB = 70.0
LOAD_LIMITS_MB = {"smollm2": 146.0, "gemma3-270m": 485.0}
"""1.2 x the weights and the largest tensor, of the weights as they were first laid out. The numbers stay:
computed anew they would grow with what a new layout adds to the weights, which is what they are to limit."""
USERS, REQUESTS, PROMPT, NEW = 32, 64, 130, 64

MODULES = """
import json, sys
import octavo.cli.serve, octavo.server.app, octavo.server.run, octavo.server.state, octavo.server.listen
from octavo.bench.driver import Driver
loaded = Driver(sys.argv[1]).loaded
mine = [name for name in sys.modules if not name.startswith(("octavo.bench", "__main__"))]
print(json.dumps({"modules": mine, "weights": loaded.memory.weights, "pages": loaded.memory.num_pages,
                  "page_bytes": loaded.memory.bytes_per_token * loaded.memory.page_size,
                  "page_size": loaded.memory.page_size}))
"""
"""What a server has imported once its model is loaded, and what the model takes."""

HELD = """
import contextlib, importlib, json, sys, threading, time
from octavo.bench.resident import anonymous_bytes, peak_bytes, reset_peak, resident_bytes
for name in json.load(sys.stdin):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
before, found = resident_bytes(), {}
print(json.dumps({"imports": before}))
"""
"""Resident memory after these imports."""

LOAD = (
    HELD
    + """
def watch():
    while "peak" not in found:
        found["held"] = max(found["held"], anonymous_bytes() - own)
        time.sleep(2e-4)
def phase(name, seconds):
    if name == "weights":
        found["peak"] = peak_bytes() - before
found["held"], own = 0, anonymous_bytes()
reset_peak()
threading.Thread(target=watch, daemon=True).start()
from octavo.llm import LLM
LLM(sys.argv[1], progress=phase)
print(json.dumps(found))
"""
)
"""And the most that loading the weights took beyond them. peak: with the file's pages that were mapped just
then, which the system may drop, and maps more or fewer of by how it has them in its cache; held: without."""


def child(code: str, model: str, given: object = None) -> list[dict[str, Any]]:
    """Run code in a process of its own; the JSON lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, model],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ScriptError(done.stderr.strip().splitlines()[-1])
    return [json.loads(line) for line in done.stdout.splitlines()]


def start_up(model: str, repeat: int) -> dict[str, float]:
    """Seconds, medians of turns."""
    imports, ready = [], []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)
        imports.append(time.perf_counter() - start)
        with Server(model) as server:
            ready.append(server.ready_s)
    bare, ours = statistics.median(imports[1:]), statistics.median(ready[1:])
    return {"imports_s": round(bare, 3), "ready_s": round(ours, 3), "limit_s": round(2 * bare + 1.0, 3)}


def kv_bytes(facts: Mapping[str, Any]) -> int:
    """Of the load's pages: each request's are its own, and stay in the prefix cache as long as there is room.

    The last token that a request is given is never computed.
    """
    pages = REQUESTS * -(-(PROMPT + NEW - 1) // facts["page_size"])
    return int(min(pages, facts["pages"]) * facts["page_bytes"])


def accounted(ready: float, loaded: float, imports: float, facts: Mapping[str, Any]) -> dict[str, float]:
    """Bytes of KV pages in use after the load, and what is resident beyond all that is known of."""
    known, kv = imports + facts["weights"], kv_bytes(facts)
    return {"kv": kv, "ready_beyond": ready - known, "loaded_beyond": loaded - known - kv}


def megabytes(found: Mapping[str, float]) -> dict[str, float]:
    """Of bytes."""
    return {f"{name}_mb": round(value / 1e6, 2) for name, value in found.items()}


def resident(model: str, facts: dict[str, Any], imports: int) -> dict[str, float]:
    """Megabytes of the server's memory: in all, and beyond what is accounted for."""
    found: dict[str, float] = {
        "imports": imports, "weights": facts["weights"], "page": facts["page_bytes"]
    }  # fmt: skip
    with Server(model) as server:
        found["ready"] = resident_bytes(server.pid)
        found["ready_peak"] = peak_bytes(server.pid)
        put_load(server.url, 0, users=USERS, requests=REQUESTS, prompt_tokens=PROMPT, max_tokens=NEW)
        found["loaded"] = resident_bytes(server.pid)
    return megabytes({**found, **accounted(found["ready"], found["loaded"], imports, facts)})


def load_peak(model: str, facts: dict[str, Any]) -> dict[str, float]:
    """Megabytes that loading takes at its worst, and may, where that is known."""
    _, found = child(LOAD, model, facts["modules"])
    largest = max(t.data.nbytes for t in open_checkpoint(resolve(model)).tensors.values())
    sizes = {"weights": facts["weights"], "largest_tensor": largest}
    values = megabytes({"peak": found["peak"], "held": found["held"], **sizes})
    return values | ({"limit_mb": LOAD_LIMITS_MB[model]} if model in LOAD_LIMITS_MB else {})


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="footprint")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeat", type=at_least_one, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/footprint-*.json")
    options = parser.parse_args(arguments)
    (facts,) = child(MODULES, options.model)
    (held,) = child(HELD, options.model, facts["modules"])
    body = {
        "start_up": start_up(options.model, options.repeat),
        "resident": resident(options.model, facts, held["imports"]),
        "load": load_peak(options.model, facts),
    }
    settings = {"model": options.model, "repeat": options.repeat, "users": USERS, "requests": REQUESTS}
    limits = {"beyond_mb": BEYOND_LIMIT_MB}
    result = report("footprint", sys.argv, {"settings": settings, "limits": limits, **body})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for part, values in body.items():
            print(part)
            for name, value in values.items():
                print(f"  {name:<20} {value:>10}")
        print(f"beyond: at most {BEYOND_LIMIT_MB:.0f} MB")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
