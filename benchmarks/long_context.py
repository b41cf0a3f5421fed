"""What a long context takes of memory where some layers have a window, beside pages that hold all layers.

    .venv/bin/python benchmarks/long_context.py [--model gemma3-270m] [--context 8192] [--json] [--write]

planned   bytes of KV pages for one sequence of that length
resident  what the process has grown by once such a sequence has been computed, a step's buffers included

Two processes: `split`, as the model is loaded by default, and `together`, with a local page for every page:
the prefix cache keeps what nobody sees as long as nobody needs it, so that one keeps everything.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from asked import at_least_one, tells
from footprint import child
from harness import report, write

NEW = 4

RUN = """
import json, sys
from octavo.bench.driver import Driver
from octavo.bench.resident import resident_bytes
from octavo.bench.workload import random_prompts
asked = json.load(sys.stdin)
length, pages = asked["context"], -(-asked["context"] // 16)
options = {"num_pages": pages, "num_local_pages": pages} if asked["together"] else {}
driver = Driver(sys.argv[1], max_model_len=length, max_num_seqs=1, **options)
memory, before = driver.loaded.memory, resident_bytes()
driver.run(random_prompts(1, length - asked["new"], driver.vocab_size, 0), asked["new"])
print(json.dumps({"pages": memory.num_pages, "local_pages": memory.num_sliding_pages or memory.num_pages,
                  "planned": memory.kv_cache, "resident": resident_bytes() - before}))
"""
"""One sequence, computed; by a process that has done nothing else."""


def measure(model: str, context: int, together: bool) -> dict[str, int]:
    asked = {"context": context, "new": NEW, "together": together}
    (found,) = child(RUN, model, asked)
    return {name: int(value) for name, value in found.items()}


def saved(found: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """The share of the pages' bytes, planned and touched, that `split` does without."""
    return {
        name: round(1 - found["split"][name] / found["together"][name], 3) for name in ("planned", "resident")
    }


@tells()
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="long_context")
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--context", type=at_least_one, default=8192)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/long-context-*.json")
    options = parser.parse_args(arguments)
    found = {
        name: measure(options.model, options.context, together)
        for name, together in (("together", True), ("split", False))
    }
    less = saved(found)
    settings = {"model": options.model, "context": options.context, "new_tokens": NEW}
    result = report("long-context", sys.argv, {"settings": settings, **found, "saved": less})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"{'':<10}{'pages':>8}{'local':>8}{'planned':>14}{'resident':>14}")
        for name, values in found.items():
            print(
                f"{name:<10}{values['pages']:>8}{values['local_pages']:>8}"
                f"{values['planned'] / 1e6:>11.1f} MB{values['resident'] / 1e6:>11.1f} MB"
            )
        print(f"saved: {less['planned']:.1%} of the pages planned, {less['resident']:.1%} of what is touched")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
