"""Figures of measuring itself: what `octavo bench` reads beside others, what `octavo plan` predicts."""

from __future__ import annotations

from functools import partial
from typing import Any

from figure_runs import At, Result, Row, Table, value_at

BESIDE, PLANNED = "benchmarks/bench_beside.py --write", "benchmarks/plan_beside.py --write"


OWN, SHARED = "own_cores", "shared_cores"
PLACES = {OWN: "on a core of its own", SHARED: "on cores that its clients share"}
READ = {"ttft_ms": "TTFT", "itl_ms": "ITL", "output_rate": "tokens a second"}


def served(place: str, figure: str) -> Row:
    """What guidellm reads of `octavo serve`, over what `octavo bench serve` reads."""
    paths = (f"{figure}/ratio", f"{figure}/control/0", f"{figure}/control/1")
    return Row(
        f"{READ[figure]} of `octavo serve` {PLACES[place]}: guidellm's over `octavo bench serve`'s (control)",
        "bench_beside",
        (*(partial(seen, place, path) for path in paths), partial(verdict, place, figure)),
        ("{0:.3f} ({1:.3f} to {2:.3f}), {3}",), BESIDE,
    )  # fmt: skip


def seen(place: str, path: str, result: Result) -> Any:
    """What was read in a place; older results have one alone, of shared cores."""
    found = value_at(result, f"{place}/{path}")
    return value_at(result, f"served/{path}") if found is None and place == SHARED else found


def verdict(place: str, figure: str, result: Result) -> str | None:
    """Of cores that are shared it is no claim, and not bold; None: that was not measured."""
    within = seen(place, f"{figure}/within", result)
    if within is None:
        return None
    apart = "**apart**" if place == OWN else "apart"
    return "within the control" if within else apart


def drawn() -> Row:
    """What guidellm's requests cost the server as they are by default."""
    paths = tuple(f"{OWN}/drawn/{figure}" for figure in ("itl_ms", "output_rate"))
    return Row(
        f"the same server {PLACES[OWN]}, where guidellm names no temperature and tokens are drawn: its ITL "
        "and tokens a second over ours of greedy answers", "bench_beside", paths,
        ("{0:.3f} and {1:.3f}",), BESIDE,
    )  # fmt: skip


def taken(place: str) -> Row:
    """What each client computes in a run, and what the server waits for a core."""
    paths = (f"{place}/{cost}/{name}" for cost in ("cpu_s", "waited_s") for name in ("octavo", "guidellm"))
    return Row(
        f"CPU seconds of a run of `octavo bench serve` and of guidellm; the server {PLACES[place]} waits for "
        "a core meanwhile", "bench_beside", tuple(paths),
        ("{0:.1f} and {1:.1f} s; {2:.1f} and {3:.1f} s",), BESIDE,
    )  # fmt: skip


def planned(model: str, batch: int) -> Row:
    """A prediction beside what was measured; the first value is how far it is off."""
    return Row(
        f"`octavo plan --measure`, {model}, batch {batch}: decoding predicted and measured (two measurements "
        "apart)", "plan_beside",
        tuple(partial(of_row, model, batch, field) for field in ("off", "predicted", "measured", "control")),
        ("{1:rate} and {2:rate} tok/s, off by {0:.0%} ({3:.0%})",), PLANNED, most=0.2, bound="{:.0%}",
    )  # fmt: skip


def of_row(model: str, batch: int, field: str, result: Result) -> Any:
    """A field of one model's line; None where that was not measured."""
    rows = (value_at(result, "models") or {}).get(model, ())
    return next((row[field] for row in rows if row["batch"] == batch), None)


def off_by(label: str, at: tuple[At, ...], shown: str) -> Row:
    """The most that a client's medians are off what a scripted server does."""
    return Row(label, "bench_beside", at, (shown,), BESIDE, most=0.02, bound="{:.0%}")


def agreeing(result: Result) -> int:
    """Figures of all servers whose two medians are farther apart than either run says."""
    return sum(not each["agree"] for each in result["figures"])


def worst(result: Result) -> float:
    """The farthest that two medians lie apart."""
    return max(float(each["apart"]) for each in result["figures"])


TABLES = {
    "measuring": Table((
        off_by("a scripted server's TTFT, ITL and tokens a second: `octavo bench serve` is off by at most",
               ("most_off/octavo",), "{0:.2%}"),
        off_by("guidellm, likewise", ("most_off/guidellm", "guidellm"), "{0:.2%} ({1})"),
        *(row for place in PLACES for row in (*(served(place, figure) for figure in READ), taken(place))),
        drawn(),
        Row("two runs of `octavo bench compare`: medians farther apart than the spread that they print, of "
            "so many (the farthest; highest over lowest of the reference product)", "compare_twice",
            (agreeing, lambda result: len(result["figures"]), worst, "noise"),
            ("{0:.0f} of {1:.0f} ({2:.3f}; {3:.2f})",), "benchmarks/compare_twice.py --write", most=0),
        *(planned(model, batch) for model in ("smollm2", "gemma3-270m") for batch in (1, 8, 32)),
    )),
}  # fmt: skip
