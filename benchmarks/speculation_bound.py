"""What drafts copied from the text so far could gain at most, by a proposer that knows the answer.

    .venv/bin/python benchmarks/speculation_bound.py FOLDER [--workloads sum,edits] [--write]

FOLDER and the workloads are those of speculation.py; the engine answers every prompt plainly, one stream.
Then for each answer the cheapest way is computed to decode it in steps that verify drafts, by dynamic
programming over its tokens: a step at a token may verify any number m of the tokens that really come next, as
far as they stand somewhere in the prompt or in the answer before. It costs what this machine takes for m + 1
rows, all of them drawn from, and gives m + 1 tokens. No draft is ever wrong, none is too long or too short,
and looking up takes no time. So no proposer that copies from the text gains more, whatever it looks at:

free        steps of any number of tokens take as long as those of one: tokens a step at best
copy        the draft may be copied from any place
after 1, 2  from a place that comes after the same 1 or 2 tokens, which is how a proposer finds it
ngram       what the proposer of that name drafts is verified as far as it is right: no policy gains more with
            it, since none knows that before; "ngram from 1": with prompt_lookup_min 1
suffix      the same of that proposer, which has seen the answers before

No policy knows which drafts are right; it may know how often those after matches of equal length are. "ngram,
by length" verifies a fixed number of tokens for each length of the match, the numbers under which this very
set takes least, chosen when all of it is known.

A step's seconds are the table that the engine measures at start, the least of several such starts, to which
what the workload needs is added: pairs of tokens attended. Figures are medians over the prompts, and over
those whose answers do not loop.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from asked import at_least_one, not_negative, tells
from harness import conclude, report, usable_cores
from speculation import FILES, opening, read

from octavo.bench.speculate import Answering, repeats
from octavo.config.speculation import read_speculation
from octavo.errors import OctavoError
from octavo.params import SamplingParams
from octavo.params.drafts import Draft
from octavo.runtime.speculation import Speculation
from octavo.spec import Begin, Proposer, Wanted, policy
from octavo.spec.costs import CostTable, Load
from octavo.spec.policy import Auto

MOST = 64
"""Tokens of a draft, as the engine's own bound."""
STARTS = 3
AFTER = (0, 1, 2)
"""Tokens before a copied draft that must agree with the row's last ones."""
METHODS: dict[str, tuple[str, dict[str, float]]] = {
    "ngram": ("ngram", {}), "ngram from 1": ("ngram", {"prompt_lookup_min": 1}), "suffix": ("suffix", {}),
}  # fmt: skip
Cost = Callable[[int, int], float]
"""(tokens of a step, tokens of context before it) -> seconds."""
BY_LENGTH = "ngram, by length"
COUNTS = (*range(17), 24, 32, 48, MOST)
"""Of tokens, from which a fixed number is chosen for drafts of equal support."""


class Drafted(NamedTuple):
    """A draft at one place of an answer: how many tokens of it are right, of how many; and its support."""

    right: int = 0
    length: int = 0
    support: int = 0


def longest(text: Sequence[int], at: int, after: int) -> int:
    """How many of text[at:] stand somewhere in text[:at], after the same `after` tokens."""
    best, last = 0, list(text[at - after : at])
    for place in range(after, at):
        if list(text[place - after : place]) != last:
            continue
        length = 0
        while length < MOST and at + length < len(text) and place + length < at:
            if text[place + length] != text[at + length]:
                break
            length += 1
        best = max(best, length)
    return best


def least_seconds(right: Sequence[int], begin: int, cost: Cost) -> float:
    """Of decoding len(right) tokens in steps, each of which may verify as many as right says of its place.

    Args:
        begin: tokens before the first one.
    """
    spent = [0.0] * (len(right) + 1)
    for at in range(len(right) - 1, -1, -1):
        most = min(right[at], len(right) - at - 1)
        spent[at] = min(cost(drafts + 1, begin + at) + spent[at + drafts + 1] for drafts in range(most + 1))
    return spent[0]


def right_of(draft: Draft | None, tokens: Sequence[int]) -> int:
    """How many of these tokens a draft says in their order."""
    edges = () if draft is None else zip(draft.parents, draft.tokens, strict=True)
    children = {edge: node for node, edge in enumerate(edges)}
    node, right = -1, 0
    for token in tokens:
        node = children.get((node, token), len(children))
        if node == len(children):
            break
        right += 1
    return right


def drafted(proposer: Proposer, prompt: Sequence[int], answer: Sequence[int]) -> list[Drafted]:
    """At each token of an answer: what a proposer drafts of those that follow."""
    proposer.start(0, Begin(prompt, len(prompt)))
    found = [Drafted()]
    for at in range(1, len(answer)):
        proposer.observe(0, answer[at - 1 : at])
        draft = proposer.propose({0: MOST}).get(0)
        length, support = (0, 0) if draft is None else (len(draft.tokens), draft.support)
        found.append(Drafted(right_of(draft, answer[at:]), length, support))
    proposer.remove(0)
    return found


def fixed_seconds(drafts: Sequence[Drafted], begin: int, cost: Cost, counts: Mapping[int, int]) -> float:
    """Of decoding len(drafts) tokens in steps that verify counts[support] of a draft's, right or not."""
    at, spent = 0, 0.0
    while at < len(drafts):
        draft = drafts[at]
        count = min(counts.get(draft.support, 0), draft.length, len(drafts) - at - 1)
        spent += cost(count + 1, begin + at)
        at += 1 + min(draft.right, count)
    return spent


def best_counts(answers: Sequence[tuple[Sequence[Drafted], int]], cost: Cost) -> dict[int, int]:
    """Support -> the number under which these answers take least, each beside its plain time."""
    plain = [fixed_seconds(drafts, begin, cost, {}) for drafts, begin in answers]
    counts = {draft.support: 0 for drafts, _ in answers for draft in drafts if draft.length}

    def spent(tried: Mapping[int, int]) -> float:
        each = zip(answers, plain, strict=True)
        return sum(fixed_seconds(drafts, begin, cost, tried) / whole for (drafts, begin), whole in each)

    before = None
    while counts != before:
        before = dict(counts)
        for support in sorted(counts):
            counts[support] = min(COUNTS, key=lambda count: spent({**counts, support: count}))
    return counts


def gains(
    prompt: Sequence[int], answer: Sequence[int], cost: Cost, drafts: Mapping[str, Sequence[Drafted]]
) -> dict[str, float]:
    """Time of plain decoding over the least with drafts. The first token comes with the prompt.

    Args:
        drafts: of each proposer at each of the answer's tokens but the first.
    """
    text, begin = [*prompt, *answer], len(prompt) + 1
    plain = sum(cost(1, at) for at in range(begin, len(text)))
    copied = {after: [longest(text, at, after) for at in range(begin, len(text))] for after in AFTER}
    found = {"free": (len(text) - begin) / least_seconds(copied[0], begin, lambda tokens, at: 1.0)}
    for after, right in copied.items():
        found[f"after {after}" if after else "copy"] = plain / least_seconds(right, begin, cost)
    for name, each in drafts.items():
        found[name] = plain / least_seconds([draft.right for draft in each], begin, cost)
    return found


def tables(options: argparse.Namespace) -> tuple[Answering, list[CostTable]]:
    """An engine that answers plainly, and what steps cost at several starts."""
    costs = []
    for _ in range(STARTS):
        with mock.patch.object(policy, "native_class", return_value=None):  # Python's policy shows its table
            engine = Answering(
                options.model, max_num_seqs=1, threads=options.threads,
                speculative_config={"method": "ngram", "num_speculative_tokens": MOST},
            )  # fmt: skip
        speculation = engine.loaded.speculation
        assert isinstance(speculation, Speculation)
        assert isinstance(speculation.policy, Auto)
        costs.append(speculation.policy.costs)
    return Answering(options.model, max_num_seqs=1, threads=options.threads), costs


def cost_of(costs: Sequence[CostTable]) -> Cost:
    """The least seconds of a step's size of all starts: none is disturbed twice in the same way."""
    known: dict[int, float] = {}
    pair_s = min(table.pair_s for table in costs)

    def cost(tokens: int, before: int) -> float:
        if tokens not in known:
            known[tokens] = min(table.measured_at_start(Load(tokens, tokens)) for table in costs)
        return known[tokens] + pair_s * tokens * (before + (tokens + 1) / 2)

    return cost


def answered(engine: Answering, options: argparse.Namespace, workload: str) -> Iterator[tuple[Any, Any]]:
    """(prompt, answer) of each line, as speculation.py asks for them."""
    params = SamplingParams(
        temperature=options.temperature, seed=0, max_tokens=options.max_tokens, detokenize=False
    )
    for problem in read(options.folder / FILES[workload])[: options.limit]:
        prompt = engine.render_chat(opening(workload, problem))
        yield prompt, engine.answer([prompt], params).token_ids[0]


def made(method: str, options: Mapping[str, float]) -> Proposer:
    """A proposer as the engine makes it."""
    limits = Wanted(max_num_seqs=1, max_model_len=8192)
    registration = read_speculation({"method": method, **options})
    return registration.proposer.make(replace(limits, options=registration.options))


def medians(found: Sequence[dict[str, float]]) -> dict[str, float] | None:
    if not found:
        return None
    return {name: round(statistics.median(each[name] for each in found), 4) for name in found[0]}


def bounds(engine: Answering, cost: Cost, options: argparse.Namespace, workload: str) -> dict[str, Any]:
    """Of one workload: medians over all answers of more than one token, and over those that do not loop."""
    every, kept, fresh = list[dict[str, float]](), list[tuple[list[Drafted], int]](), list[int]()
    proposers = {name: made(*method) for name, method in METHODS.items()}
    for prompt, answer in answered(engine, options, workload):
        if len(answer) < 2:
            continue
        drafts = {name: drafted(each, prompt, answer)[1:] for name, each in proposers.items()}
        if not repeats(answer):
            fresh.append(len(every))
        every.append(gains(prompt, answer, cost, drafts))
        kept.append((drafts["ngram"], len(prompt) + 1))
        print(f"\r{workload}: {len(every)} answers ", end="", file=sys.stderr, flush=True)
    print("\r", end="", file=sys.stderr)
    counts = best_counts(kept, cost)
    for found, (each, begin) in zip(every, kept, strict=True):
        found[BY_LENGTH] = fixed_seconds(each, begin, cost, {}) / fixed_seconds(each, begin, cost, counts)
    return {
        "answers": len(every), "all": medians(every),
        "fresh": len(fresh), "unrepeated": medians([every[place] for place in fresh]), "by_length": counts,
    }  # fmt: skip


def arguments_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="speculation_bound", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="with the .jsonl files")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--workloads", default="sum,edits")
    parser.add_argument("--temperature", type=not_negative, default=0.0)
    parser.add_argument("--max-tokens", type=at_least_one, default=128)
    parser.add_argument(
        "--limit", type=at_least_one, help="the first so many lines: shows that everything works"
    )
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--write", action="store_true", help="write benchmarks/results/speculation_bound-*.json"
    )
    return parser.parse_args(arguments)


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    options = arguments_of(arguments)
    engine, costs = tables(options)
    cost = cost_of(costs)
    steps = {
        str(size): round(cost(size, 0) / cost(1, 0), 3) for size in (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 64)
    }
    found = {workload: bounds(engine, cost, options, workload) for workload in options.workloads.split(",")}
    kept = ("model", "temperature", "max_tokens", "limit", "threads")
    settings = {name: getattr(options, name) for name in kept}
    body = {"settings": settings, "step_ms": round(1e3 * cost(1, 0), 4), "steps": steps, "workloads": found}
    lines = ["a step of n tokens beside one: " + ", ".join(f"{n}: {value}" for n, value in steps.items())]
    for workload, each in found.items():
        for name in ("all", "unrepeated"):
            if each[name]:
                said = ", ".join(f"{key} {value:.2f}" for key, value in each[name].items())
                lines.append(f"{workload}, {name}: at most {said}")
    return conclude(report("speculation_bound", sys.argv, body), lines, False, options.json, options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
