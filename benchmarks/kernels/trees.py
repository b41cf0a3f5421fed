"""What verifying a tree costs beside a chain of as many tokens, at several lengths of context.

    .venv-test/bin/python benchmarks/kernels/trees.py smollm2 [--contexts 2048,8000] [--json] [--write]

A step computes one row's last token and its drafts, and logits after each of them. Chains and trees take
turns on the same pages, each tree right before or after a chain. The figure is the median of such pairs'
ratios, a tree's time to the chain's, with its bootstrap interval (paired.py). "chain" in the table is a chain
beside a chain: what the machine does. The aim is a ratio of at most 1.10. Exits 1 where it is missed. Give it
the machine alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from asked import at_least_one, checked, several, tells
from harness import report, usable_cores, write
from paired import ratio_of

from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.sources import resolve
from octavo.config.user import KV_DTYPES
from octavo.errors import OctavoError
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.trees import masks_of
from octavo.models.load import load_model
from octavo.runtime.drafted import depths_of
from support.kernels import batch_of, limits_of

PAGE, CHUNK = 16, 256
AIM = 1.10


def shapes(drafts: int) -> dict[str, list[int]]:
    """Parents of each shape's drafts."""
    half = drafts // 2
    return {
        "chain": list(range(-1, drafts - 1)),
        "two chains": [*range(-1, half - 1), -1, *range(half, drafts - 1)],
        "bush": [(child - 2) // 2 for child in range(drafts)],
        "siblings": [-1] * drafts,
    }


class Steps:
    """One row with a context, and steps after it.

    Args:
        nodes: of a step, the last known token included.
    """

    def __init__(self, model: Any, backend: CpuBackend, kv_dtype: str, context: int, nodes: int) -> None:
        self._context = context
        plain = batch_of(np.random.default_rng(0), [context + nodes], [nodes], PAGE, vocab=model.vocab_size)
        self.chain = replace(plain, sampled=np.arange(nodes, dtype=np.int32))
        kv = backend.kv_cache(model.kv_specs(kv_dtype), plain.page_tables.shape[1] + 1, PAGE)
        limits = replace(limits_of(self.chain), max_tokens=max(CHUNK, nodes))
        self._program = backend.capture(lambda ops, inputs: model.forward(ops, inputs, kv), limits)
        for start in range(0, context, CHUNK):
            self._program.replay(self._chunk(start, min(start + CHUNK, context)))

    def _chunk(self, start: int, end: int) -> ForwardBatch:
        line, table = np.arange(start, end, dtype=np.int32), self.chain.page_tables[0]
        return replace(
            self.chain,
            token_ids=line % 1000,
            positions=line,
            slots=table[line // PAGE] * PAGE + line % PAGE,
            query_start=np.array([0, end - start], np.int32),
            context_lens=np.array([end], np.int32),
            sampled=np.array([end - start - 1], np.int32),
        )

    def tree(self, parents: Sequence[int]) -> ForwardBatch:
        depths = [0, *(1 + depth for depth in depths_of(parents))]
        positions = (self._context + np.array(depths)).astype(np.int32)
        masks = masks_of([-1, *(1 + parent for parent in parents)])
        return replace(self.chain, positions=positions, tree_masks=masks)

    def seconds(self, batch: ForwardBatch) -> float:
        begin = time.perf_counter()
        self._program.replay(batch)
        return time.perf_counter() - begin


def measure(steps: Steps, drafts: int, rounds: int) -> dict[str, Any]:
    """Of each shape: milliseconds, and the ratio to the chain's with its interval."""
    wanted = {name: steps.tree(parents) for name, parents in shapes(drafts).items() if name != "chain"}
    wanted["chain"] = steps.chain
    names, found = [*wanted], dict[str, list[float]]()
    base: list[float] = []
    for turn in range(rounds + 3):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order:  # each beside a chain of its own, before it and after it in turns
            both = [steps.chain, wanted[name]] if turn % 2 == 0 else [wanted[name], steps.chain]
            took = [steps.seconds(batch) for batch in both]
            chain, tree = took if turn % 2 == 0 else took[::-1]
            if turn >= 3:  # the first ones warm up
                base.append(chain)
                found.setdefault(name, []).extend([chain, tree])
    table: dict[str, Any] = {"chain_ms": round(1e3 * statistics.median(base), 4)}
    for name, times in found.items():
        ratio = ratio_of(times[0::2], times[1::2], 2000)
        table[name] = {
            "ms": round(1e3 * statistics.median(times[1::2]), 4),
            "ratio": [round(r, 4) for r in ratio],
        }
    return table


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="trees", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--contexts", type=checked(several(at_least_one)), default="2048,8000")
    parser.add_argument("--drafts", type=at_least_one, default=8)
    parser.add_argument("--rounds", type=at_least_one, default=40)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--kv-dtype", default="f16", choices=sorted(set(KV_DTYPES.values())))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/trees-*.json")
    options = parser.parse_args(arguments)
    backend = CpuBackend(options.threads, options.isa)
    model, _ = load_model(open_checkpoint(resolve(options.model)), backend, "auto")
    contexts: dict[str, Any] = {}
    for context in map(int, options.contexts.split(",")):
        steps = Steps(model, backend, options.kv_dtype, context, options.drafts + 1)
        contexts[str(context)] = measure(steps, options.drafts, options.rounds)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    result = report("trees", sys.argv, {"settings": settings, "isa": backend.isa, "contexts": contexts})
    print(json.dumps(result, indent=2) if options.json else "\n".join(lines(contexts)))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    ratios = [
        each["ratio"][0] for table in contexts.values() for each in table.values() if isinstance(each, dict)
    ]
    return int(max(ratios) > AIM)


def lines(contexts: dict[str, Any]) -> list[str]:
    shown = [f"{'context':>8}  {'shape':12}{'ms':>9}   beside a chain"]
    for context, table in contexts.items():
        for name, each in table.items():
            if isinstance(each, dict):
                ratio = "{:.3f} ({:.3f}-{:.3f})".format(*each["ratio"])
                shown.append(f"{context:>8}  {name:12}{each['ms']:>9.3f}   {ratio}")
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
