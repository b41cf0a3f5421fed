"""Tables of what drafts gain, from results of speculation.py, speculation_bound.py,
trees.py, draft_models.py and host_time.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from figure_runs import At, Result, Row, Table, value_at

STREAMS = (1, 2, 4, 8, 16, 32)
AIMS = {("ngram", "sum"): 1.8, ("ngram", "edits"): 1.8, ("suffix", "loop"): 1.5}
WORKLOADS = {
    "sum": "summaries", "edits": "code edits", "loop": "a tool loop of 8 turns", "chat": "MT-bench",
}  # fmt: skip
NEVER_BELOW = 0.98
PIECES = "benchmarks/speculation.py FOLDER --state FILE --minutes 14"
SMOLLM2 = {"settings/model": "smollm2", "settings/limit": None}


def cell(result: Result, method: str, workload: str, temperature: float, streams: int) -> Mapping[str, Any]:
    """One of speculation.py's; {} where it was not measured."""
    wanted = (method, workload, temperature, streams)
    for each in result.get("cells", ()):
        if (each["method"], each["workload"], each["temperature"], each["streams"]) == wanted:
            return dict(each)
    return {}


def gain(values: tuple[float, float, float], drafting: float) -> str:
    """A cell's figure, its interval, and the share of steps that verify drafts."""
    return "{:.2f} ({:.2f}-{:.2f}), {:.0%}".format(*values, drafting).replace("%", " %")


def said_of(method: str, workload: str, temperature: float, streams: int) -> At:
    def find(result: Result) -> str:
        found = cell(result, method, workload, temperature, streams)
        return gain(found["gain"], found["drafting_steps"]) if found else ""

    return find


def worst_of(method: str, workload: str, temperature: float) -> At:
    """The least upper end of all cells' intervals: one that lies wholly below 0.98 has lost."""

    def find(result: Result) -> float | None:
        found = [cell(result, method, workload, temperature, streams) for streams in STREAMS]
        return min((each["gain"][2] for each in found if each), default=None)

    return find


def grid(method: str, workload: str, temperature: float) -> Row:
    return Row(
        f"{method}, {WORKLOADS[workload]}, temperature {temperature:g}", "speculation",
        (worst_of(method, workload, temperature),
         *(said_of(method, workload, temperature, streams) for streams in STREAMS)),
        (*(f"{{{i}}}" for i in range(1, 1 + len(STREAMS))), "{0:.2f}"), least=NEVER_BELOW, only=SMOLLM2,
    )  # fmt: skip


def decides(method: str, workload: str, temperature: float, key: str) -> At:
    """Of one stream: the answers that do not loop; all, where every one does."""

    def find(result: Result) -> Any:
        found = cell(result, method, workload, temperature, 1)
        if not found:
            return None
        values = found["unrepeated"] or found["gain"]
        return values[0] if key == "decides" else found["gain"][0] if key == "gain" else found[key]

    return find


def wins(method: str, workload: str, temperature: float) -> Row:
    at = partial(decides, method, workload, temperature)
    return Row(
        f"{WORKLOADS[workload]}, {method}, 1 stream, temperature {temperature:g}: gain over answers that do "
        "not loop (all; tokens a step)",
        "speculation", (at("decides"), at("gain"), at("tau")), ("{0:.2f} ({1:.2f}; {2:.2f})",), PIECES,
        least=AIMS[method, workload], bound="{:g}x", only=SMOLLM2,
    )  # fmt: skip


def copied(workload: str, temperature: float) -> Row:
    """What n-gram's own drafts could gain by a policy that knows which are right, and any copies could."""
    at = f"workloads/{workload}/unrepeated"
    return Row(
        f"{WORKLOADS[workload]}, 1 stream, temperature {temperature:g}: the most that ngram's drafts can "
        "gain if verified just as far as they are right (from one token on; copied from any place after the "
        "same last token; from anywhere; steps of any size as long as one of one)",
        "speculation_bound",
        (f"{at}/ngram", f"{at}/ngram from 1", f"{at}/after 1", f"{at}/copy", f"{at}/free"),
        ("{0:.2f} ({1:.2f}; {2:.2f}; {3:.2f}; {4:.2f})",), "benchmarks/speculation_bound.py FOLDER --write",
        only={**SMOLLM2, "settings/temperature": temperature},
    )  # fmt: skip


def by_length(workload: str, temperature: float) -> Row:
    """What a policy could gain that knows how often drafts are right, and not which."""
    at = "workloads/{}/{}/ngram, by length"
    return Row(
        f"{WORKLOADS[workload]}, 1 stream, temperature {temperature:g}: the most that fixed numbers of "
        "ngram's tokens gain, one for each length of the match, chosen when the whole set is known (all "
        "answers)",
        "speculation_bound", (at.format(workload, "unrepeated"), at.format(workload, "all")),
        ("{0:.2f} ({1:.2f})",), "benchmarks/speculation_bound.py FOLDER --write",
        only={**SMOLLM2, "settings/temperature": temperature},
    )  # fmt: skip


def worst_tree(context: int) -> At:
    """The slowest shape beside a chain of as many tokens. (A chain beside a chain is the control.)"""

    def find(result: Result) -> float | None:
        table = value_at(result, f"contexts/{context}")
        shapes = {k: v for k, v in (table or {}).items() if isinstance(v, Mapping) and k != "chain"}
        return max((float(each["ratio"][0]) for each in shapes.values()), default=None)

    return find


def tree(context: int, kv: str) -> Row:
    return Row(
        f"the slowest tree of 8 drafts beside a chain of 8, {context:,} tokens of context, {kv} KV (a chain "
        "beside a chain)",
        "trees", (worst_tree(context), f"contexts/{context}/chain/ratio/0"), ("{0:.3f} ({1:.3f})",),
        f"benchmarks/kernels/trees.py --kv-dtype {kv} --write", most=1.1, only={"settings/kv_dtype": kv},
    )  # fmt: skip


def verifying(method: str) -> Row:
    return Row(
        f"host time of a step that verifies drafts, {method}, 1 stream (tokens drafted)", "host_time",
        (f"verify/{method}/host_share", f"verify/{method}/drafted"), ("{0:.1%} ({1:.1f})",),
        "benchmarks/host_time.py --write", most=0.06, bound="{:.0%}",
    )  # fmt: skip


def model_drafts(row: str, label: str) -> Row:
    """One of draft_models.py's: what was gained, and what the formula says of fixed numbers of tokens."""

    def said(result: Result) -> str | None:
        found = value_at(result, f"rows/{row}")
        if found is None:
            return None
        if found.get("formula") is None:
            return "{:.0%} of the steps draft".format(found["drafting"]).replace("%", " %")
        least = (
            "gains from no a on"
            if found["gains_from"] is None
            else f"gains from a {found['gains_from']:.2f} on"
        )
        return (
            f"{found['formula']:.2f} by the formula: a {found['a']:.2f}, c {found['c']:.2f}, "
            f"c_v {found['c_v']:.2f}; {least}"
        )

    return Row(
        label, "draft_models", (f"rows/{row}/measured", f"rows/{row}/unrepeated", said),
        ("{0:.2f} ({1:.2f} where no answer loops); {2}",),
        "benchmarks/draft_models.py TARGET.gguf DRAFTER.gguf [--prompts FILE] --write",
    )  # fmt: skip


def drafted() -> list[Row]:
    names = {"self": "its first third of layers", "draft": "the 0.5B model"}
    of = "Qwen2.5-Coder-1.5B, drafts of"
    return [
        model_drafts(f"{method}, {k}", f"{of} {who}, {k if k == 'auto' else f'always {k}'}: gain")
        for method, who in names.items()
        for k in ("1", "2", "4", "auto")
    ]


SPECULATION = Table((
    *(wins(*key, temperature) for key in AIMS for temperature in (0.0, 0.7)),
    *(copied(workload, temperature) for workload in ("sum", "edits") for temperature in (0.0, 0.7)),
    *(by_length(workload, temperature) for workload in ("sum", "edits") for temperature in (0.0, 0.7)),
    *(tree(context, kv) for context in (2048, 8000) for kv in ("int16", "f16")),
    verifying("ngram"), verifying("suffix"), *drafted(),
))  # fmt: skip
CELLS = Table(
    tuple(grid(method, workload, temperature) for method in ("ngram", "suffix") for workload in WORKLOADS
          for temperature in (0.0, 0.7)),
    (*(f"{streams} stream{'s' * (streams > 1)}" for streams in STREAMS), "highest of the worst interval"),
    command=PIECES, whole=True,
)  # fmt: skip
TABLES = {"speculation": SPECULATION, "speculation-cells": CELLS}
