"""What benchmarks of hostile clients count as a fault, and each of them once on a tiny model."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.cli import environment
from support.source_mutants import Cases, checked, mistaken, must_die
from support.tiny_engine import save_tiny_llama, save_words

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROBE = {
    "name": "six bodies: a", "statuses": {"400": 6}, "seconds": 1.0, "refused_s": 0.5, "held_ms": 40.0,
    "late_loops": 1, "before_mb": 200.0, "taken_mb": 250.0, "after_mb": 208.0, "faults": [],
}  # fmt: skip


def check_probes(probes: Any) -> None:
    """The worst of two servers' probes."""
    other = PROBE | {
        "held_ms": 90.0,
        "taken_mb": 10.0,
        "before_mb": 100.0,
        "after_mb": 99.0,
        "refused_s": 0.9,
    }
    servers = [
        {
            "server": "open",
            "quiet_ms": 5.0,
            "crowd_mb": 20.0,
            "rss_end": 1.01,
            "rss_again": 1.0,
            "status": 0,
            "probes": [PROBE],
        },
        {
            "server": "keyed",
            "quiet_ms": 7.0,
            "crowd_mb": 21.0,
            "rss_end": 1.04,
            "rss_again": 1.01,
            "status": 0,
            "probes": [other],
        },
    ]
    facts = probes.facts_of(servers)
    assert facts == {
        "probes": 2, "faults": 0, "held_ms": 90.0, "quiet_ms": 7.0, "late_loops": 2, "refused_s": 0.9,
        "taken_mb": 250.0, "crowd_mb": 21.0, "rss_back": 1.04, "rss_end": 1.04, "rss_again": 1.01,
    }  # fmt: skip
    assert not probes.missed(facts)
    for name, value in {
        "faults": 1,
        "held_ms": 101,
        "refused_s": 1.1,
        "taken_mb": 301,
        "crowd_mb": 41,
        "rss_back": 1.06,
        "rss_again": 1.03,
    }.items():
        assert [what.split()[0] for what in probes.missed(facts | {name: value})] == [name]
    servers[0]["status"] = -6
    assert probes.facts_of(servers)["faults"] == 1, "a server that aborts is one"
    servers[1]["probes"] = [other | {"faults": ["a", "b"]}]
    assert probes.facts_of(servers)["faults"] == 3


def check_honest_eyes(probes: Any) -> None:
    seen = {"unhealthy": {}, "failed": {}, "texts": {"right": 7}}
    assert list(probes.unjust(seen, "right")) == []
    assert len(list(probes.unjust(seen | {"texts": {"right": 7, "wrong": 2}}, "right"))) == 1
    assert len(list(probes.unjust(seen | {"unhealthy": {"503": 1}}, "right"))) == 1
    refused = seen | {"failed": {"status 429": 3, "no end": 1}}
    assert len(list(probes.unjust(refused, "right"))) == 2
    assert len(list(probes.unjust(refused, "right", ("status 429",)))) == 1
    late = {
        "octavo_event_loop_lag_seconds_count": 50.0,
        'octavo_event_loop_lag_seconds_bucket{le="0.1"}': 47.0,
    }
    assert probes.lags(late) == 3


def check_overload(overload: Any) -> None:
    """Peaks of 900, 1,000, 1,100 and 1,000 tokens a second; 950 of them under ten times the load."""
    peaks = [{"rate": 0.9 * alone, "alone": alone, "admitted": 120, "seconds": 20.0}
             for alone in (900.0, 1000.0, 1100.0, 1000.0)]  # fmt: skip
    over = {"rate": 810.0, "alone": 950.0, "arrived": 1000, "admitted": 100, "late": 1, "refused": 900,
            "unusable": 0, "failed": {}, "grown": 0.002}  # fmt: skip
    bare = {"rate": 900.0, "alone": 980.0}
    assert overload.capacity(peaks) == 6.0
    facts = overload.facts_of(peaks, bare, over, 0, True)
    assert facts == {
        "rate_of_peak": 0.95, "bare_of_peak": 0.98, "of_bare": 0.9, "as_counted": 0.9,
        "peak_spread": 1.222, "in_time": 0.99,
        "offered_over_answered": 10.0, "refused": 900, "unusable": 0, "failed": 0, "crashed": 0,
        "grown": 0.002,
    }  # fmt: skip
    assert not overload.missed(facts)
    for wrong in (
        {"rate_of_peak": 0.949},
        {"in_time": 0.98},
        {"unusable": 1},
        {"failed": 1},
        {"grown": 0.02},
    ):
        assert len(overload.missed(facts | wrong)) == 1
    failed = over | {"failed": {"status 500": 2, "OSError": 1}}
    assert overload.facts_of(peaks, bare, failed, 0, True)["failed"] == 3
    assert overload.facts_of(peaks, bare, over, -6, True)["crashed"] == 1
    assert overload.facts_of(peaks, bare, over, 0, False)["crashed"] == 1
    memory = [
        (float(second), 500.0 if second < 50 else 100.0 if second < 75 else 101.0) for second in range(101)
    ]
    assert overload.growth(memory) == 0.01, "what was taken in the first half is no growth"
    assert overload.growth([]) == 0.0


def check_soak(soak: Any) -> None:
    """100 answers of 1 to 100 ms: their p99 is 100; beside honest clients it was 50."""
    alone = {"wholes_ms": [10.0], "texts": {"right": 1}, "failed": {}, "unhealthy": {}, "answers": 1,
             "health_worst_ms": 1.0}  # fmt: skip
    beside = alone | {"wholes_ms": [50.0]}
    minutes = [
        alone | {"wholes_ms": [float(ms) for ms in range(first, 101, 2)], "texts": {"right": 50},
                 "answers": 50, "health_worst_ms": float(first)}
        for first in (1, 2)
    ]  # fmt: skip
    sizes = [900.0] * 100 + [100 + (second - 200) / 200 for second in range(100, 301)]
    memory = [(float(second), mb) for second, mb in enumerate(sizes)]
    facts = soak.facts_of((alone, beside), minutes, "right", memory)
    expected = {"answers": 100, "wrong": 0, "failed": 0, "p99_ms": 100.0, "p99_ratio": 2.0, "held_ms": 2.0}
    assert {name: facts[name] for name in expected} == expected
    assert facts["p99_over_alone"] == 10.0
    assert facts["grown"] == pytest.approx(0.01, abs=1e-4), "from 99.5 to 100.5 MB in the last two thirds"
    good = facts | {"grown": 0.009, "faults": 0, "kept": 0, "crashed": 0}
    assert not soak.missed(good)
    for wrong in (
        {"wrong": 1},
        {"failed": 1},
        {"p99_ratio": 3.1},
        {"grown": 0.011},
        {"kept": 1},
        {"answers": 0},
    ):
        assert len(soak.missed(good | wrong)) == 1
    minutes[1]["texts"] = {"right": 48, "other": 2}
    beside["failed"] = {"no end": 1}
    facts = soak.facts_of((alone, beside), minutes, "right", memory)
    assert (facts["wrong"], facts["failed"]) == (2, 1)


def check_vanish(vanish: Any) -> None:
    before = dict.fromkeys(vanish.HELD, 5.0)
    assert vanish.kept(before, before | {"pages": 4.0}) == {}
    assert vanish.kept(before, before | {"threads": 7.0}) == {"threads": 2.0}
    found = {"kept": {}, "wrong": 0, "traces": 0, "crashed": 0, "statuses": {"200": 9, "429": 1, "none": 3}}
    assert not vanish.faults(found)
    for wrong in (
        {"kept": {"pages": 1.0}},
        {"wrong": 1},
        {"traces": 1},
        {"crashed": 1},
        {"statuses": {"500": 1}},
    ):
        assert len(vanish.faults(found | wrong)) == 1


CASES: Cases = {
    "probes": ([check_probes, check_honest_eyes], [
        ('server["status"] != 0 for', 'server["status"] > 0 for'),
        ('f["after_mb"] / max(f["before_mb"], 1)', 'f["before_mb"] / f["after_mb"]'),
        ('sum(len(found["faults"])', 'sum(bool(found["faults"])'),
        ('"rss_back": round(max(', '"rss_back": round(min('),
        ("if said != text", "if said == text"),
        ("if why not in allowed", "if why in allowed"),
        ("if facts[name] > most", "if facts[name] > 2 * most"),
        ('{le="0.1"}', '{le="0.25"}'),
    ]),
    "overload_served": ([check_overload], [
        ('over["alone"] / statistics.median(rates)', 'over["rate"] / statistics.median(rates)'),
        ('over["alone"] / statistics.median(rates)', 'over["alone"] / max(rates)'),
        ('(ended - over["late"]) / ended', 'ended / over["arrived"]'),
        ('over["rate"] / bare["rate"]', 'over["alone"] / bare["alone"]'),
        ('not alive or status != 0', 'not alive'),
        ('not alive or status != 0', 'status != 0'),
        ('(0.5, 0.75), (0.75, 1)', '(0, 0.5), (0.5, 1)'),
        ('fourth / third - 1', 'third / fourth - 1'),
        ('if facts[name] < least', 'if facts[name] > least'),
        ('found["admitted"] / found["seconds"]', 'found["seconds"] / found["admitted"]'),
    ]),
    "soak": ([check_soak], [
        ('p99 / usual, 3', 'usual / p99, 3'),
        ('p99 / alone, 2', 'p99 / usual, 2'),
        ("if said != text", "if said == text"),
        ("slope(last(memory, 2 / 3))", "slope(memory)"),
        ("slope(last(memory, 2 / 3))", "slope(last(memory, 1 / 3))"),
        (" * (samples[-1][0] - samples[0][0])", ""),
        ("seen = [controls[1], *minutes]", "seen = [*minutes]"),
    ]),
    "vanish": ([check_vanish], [
        ("if after[name] > before[name]", "if after[name] != before[name]"),
        ("if after[name] > before[name]", "if after[name] < before[name]"),
        ('("200", "429", "none")', '("200", "429", "none", "500")'),
    ]),
}  # fmt: skip


@checked(CASES)
def test_what_is_counted(name: str, check: Callable[[Any], None]) -> None:
    check(importlib.import_module(name))


@mistaken(CASES)
def test_mistakes_are_noticed(name: str, right: str, wrong: str) -> None:
    must_die(importlib.import_module(name), right, wrong, CASES[name][0])


@pytest.mark.parametrize(
    ("told", "usable"),
    [("1", True), ("60", True), ("61", False), ("0", False), ("", False), ("soon", False), ("1.5", False)],
)
def test_a_retry_after_that_a_client_can_use(told: str, usable: bool) -> None:
    found = importlib.import_module("hostile.arrivals").Arrived()
    found.refuse(told)
    assert (found.refused, found.unusable) == (int(usable), int(not usable))


def test_every_attack_has_a_name_and_can_be_asked_for() -> None:
    attacks = importlib.import_module("hostile.attacks")
    assert set(attacks.named("")) == set(attacks.ATTACKS)
    assert list(attacks.named("half heads,half bodies")) == ["half heads", "half bodies"]


@pytest.mark.parametrize("name", list(importlib.import_module("hostile.bodies").WORST))
def test_bodies_have_the_size_that_is_asked_for(name: str) -> None:
    bodies = importlib.import_module("hostile.bodies")
    path, body = bodies.WORST[name]
    assert path.startswith("/")
    assert 50_000 < len(body(300_000)) <= 300_000
    assert len(body(bodies.FULL)) <= 4 << 20


# --- once on a tiny model -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_words(save_tiny_llama(tmp_path_factory.mktemp("model")))


def run(name: str, model: Path, *words: str) -> Any:
    """The result of a benchmark."""
    command = [sys.executable, str(BENCHMARKS / name), "--model", str(model), "--json", *words]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.startswith("{"), done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("server", "attacks"), [("open", "half bodies,odd bodies"), ("keyed", "every path,half heads")]
)
def test_probes_find_no_fault(model: Path, server: str, attacks: str) -> None:
    found = run("probes.py", model, "--only", attacks, "--servers", server)
    assert found["faults"] == 0, found["servers"]
    assert found["probes"] == 2


def test_ten_times_the_load_is_refused_in_order(model: Path) -> None:
    found = run(
        "overload_served.py", model, "--seconds", "6", "--seats", "2", "--max-waiting", "4", "--longest",
        "60", "--factor", "4",
    )  # fmt: skip
    over = found["over"]
    assert found["crashed"] == found["failed"] == found["unusable"] == 0, over
    assert over["arrived"] == over["admitted"] + over["refused"]
    assert over["admitted"] > 0
    assert over["refused"] > 0


def test_who_vanishes_gives_everything_back(model: Path) -> None:
    found = run("vanish.py", model, "--clients", "60", "--at-once", "30")
    assert found["faults"] == 0, [found[name] for name in ("kept", "statuses", "wrong", "traces", "crashed")]
    assert sum(found["kinds"].values()) == 60


def test_a_soak_of_seconds(model: Path) -> None:
    found = run("soak.py", model, "--minutes", "0.2", "--clients", "8")
    assert (found["wrong"], found["failed"], found["kept"], found["crashed"]) == (0, 0, 0, 0), found
    faults = {**found["crowd"]["faults"], **found["beside_honest"]["faults"]}
    assert all(what.endswith(": 400") for what in faults), "this model has no chat template, and few words"
    assert found["answers"] > 0
