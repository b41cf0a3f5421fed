"""The arithmetic of benchmarks/ on inputs made by hand, and mistakes in it that these must notice.

Measuring code runs on a clock that is told what to say.
"""

from __future__ import annotations

import importlib
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from octavo.lab.quality import Quality
from support.source_mutants import Cases, checked, mistaken, must_die


def clock(module: Any, *seconds: float) -> Any:
    """The module's clock says these, one after the other; nobody sleeps."""
    told = SimpleNamespace(perf_counter=iter(seconds).__next__, sleep=lambda pause: None)
    return mock.patch.object(module, "time", told)


def check_what_http_costs(serving: Any) -> None:
    """The load generator took a fifth of the machine: the engine alone would have done 100 of its 125."""
    assert serving.corrected(90.0, 0.2, 125.0) == pytest.approx(0.9)
    assert serving.corrected(50.0, 0.0, 40.0) == pytest.approx(1.25)


def check_offline_rate(serving: Any) -> None:
    """Two answers of three tokens and one in four seconds."""
    answers = [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7] * n)]) for n in (3, 1)]
    llm = SimpleNamespace(generate=lambda prompts, params, use_tqdm: answers)
    asked = Namespace(requests=2, prompt_tokens=5, max_tokens=3)
    with clock(serving, 10.0, 14.0):
        assert serving.offline(llm, asked, 0) == 1.0


def check_servers_beside(serving: Any) -> None:
    """Medians of 60 and 20 tokens a second; a side without rounds has no ratio."""
    ours = [{"output_rate": rate} for rate in (10.0, 60.0, 65.0)]
    theirs = [{"output_rate": rate} for rate in (20.0, 19.0, 24.0)]
    found = serving.figures({"octavo": ours, "llama-server": theirs})
    assert (found["ratio"], found["noisy"]) == (3.0, True)
    assert found["spreads"] == {"octavo": 6.5, "llama-server": pytest.approx(24 / 19, abs=1e-3)}
    assert serving.figures({"octavo": ours[1:], "llama-server": theirs})["noisy"] is False
    assert serving.figures({"octavo": ours})["ratio"] is None
    assert serving.figures({"octavo": ours, "llama-server": []})["ratio"] is None
    forms = [serving.Setup("llama-server", form, Path(form)) for form in ("a", "b")]

    def rate(setup: Any) -> float | None:
        """The server falls over without flash attention on file a, and likes it off on file b."""
        if setup.form == "a":
            return 2.0 if setup.settings["flash_attn"] else None
        return 1.0 + 2 * (not setup.settings["flash_attn"]) + setup.settings["kv_unified"] / 4

    asked = Namespace(prompt_tokens=130, max_tokens=64, users=32, threads=2, options={"isa": "avx2"})
    choices = serving.choices_of("llama-server", asked)
    best, tried = serving.tune(forms[1:], choices, rate)
    assert best.settings == {"flash_attn": False, "ubatch": 512, "kv_unified": True}
    assert max(tried.values()) == 3.25
    best, tried = serving.tune(forms, choices, rate)
    assert (best.form, best.settings["flash_attn"], None in tried.values()) == ("a", True, True)
    flags = serving.flags_of(best, asked)
    assert flags[flags.index("--ctx-size") + 1] == str(32 * 256)
    rooms = serving.choices_of("octavo", asked)["max_model_len"]
    ours = [serving.Setup("octavo", "a", Path("a"), {"max_model_len": room}) for room in rooms]
    plain = ["--threads", "2", "--max-num-seqs", "32"]
    assert [serving.flags_of(each, asked) for each in ours] == [
        [*plain, "--isa", "avx2"],
        [*plain, "--max-model-len", "256", "--isa", "avx2"],
    ]


def check_rounds_of_serving(serving: Any) -> None:
    """The first round warms up; each has its own ratio, and figures are medians."""
    rates, alone = iter([1.0, 45.0, 90.0, 18.0]), iter([1.0, 100.0, 100.0, 100.0])
    names = ("users", "requests", "prompt_tokens", "max_tokens", "timeout", "threads")
    options = Namespace(model="m", repeat=3, options={}, **dict.fromkeys(names, 1))
    with mock.patch.multiple(
        serving,
        LLM=lambda model, **_: None,
        Server=lambda model, *flags: nullcontext(SimpleNamespace(url="")),
        offline=lambda llm, options, seed: next(alone),
        put_load=lambda url, seed, **_: {"output_rate": next(rates), "cpu_share": 0.1},
        time=SimpleNamespace(sleep=lambda pause: None),
    ):
        found = serving.rounds(options)
    assert [each["ratio"] for each in found] == [0.5, 1.0, 0.2]
    assert serving.summary(found) == {
        "offline_rate": 100.0,
        "ratio": 0.5,
        "output_rate": 45.0,
        "cpu_share": 0.1,
    }


def check_host_time(host_time: Any) -> None:
    """A step of 10 ms, 6 in kernels and 3 drawing, leaves the host a tenth; the first run is not counted."""
    assert host_time.per_step((0.4, 0.2), 4) == pytest.approx([100.0, 50.0])
    runs = [[90.0, 1.0, 1.0], [10.0, 6.0, 3.0], [10.0, 5.0, 2.0], [40.0, 6.5, 9.0]]
    assert host_time.breakdown(runs) == {
        "step_ms": 10.0, "step_spread": 4.0, "kernel_ms": 6.0, "drawing_ms": 3.0, "drawing_share": 0.3,
        "host_share": 0.1,
    }  # fmt: skip


def check_verifying(host_time: Any) -> None:
    """Of a step of 10 ms, 8 in kernels and 1 drawing; one that verified nothing is left out, no run is."""
    plain, step = SimpleNamespace(seconds=9.0, drafted=0), SimpleNamespace
    steps = [step(seconds=0.01, drafted=3), plain, *[step(seconds=0.01, drafted=n) for n in (4, 8)]]
    native = [(0.008, 0.001), (0.002, 0.004), (0.009, 0.0005)]
    try:
        found = host_time.of_verifying(steps, native)
    except RuntimeError as error:
        raise AssertionError(error) from None
    assert found == {
        "step_ms": 10.0, "step_spread": 1.0, "kernel_ms": 8.0, "drawing_ms": 1.0, "drawing_share": 0.1,
        "host_share": 0.1,
        "steps": 3, "drafted": 5.0,
    }  # fmt: skip
    for some, other in (([plain], []), ([plain], [(1.0, 1.0)]), (steps, native[:1])):
        with pytest.raises(Exception) as caught:
            host_time.of_verifying(some, other)
        assert "steps verified drafts" in str(caught.value)


def check_draft_models(models: Any) -> None:
    """Three right of four: 1 + 0.75 + 0.5625 tokens of two drafts, for 1.2 and twice 0.1 of a step."""
    assert models.formula(0.75, 2, 0.1, 1.2) == pytest.approx(2.3125 / 1.4)
    assert models.formula(1.0, 3, 0.0, 1.0) == 4
    assert models.least_acceptance(1, 0.25, 1.25) == 0.5
    assert models.least_acceptance(1, 1.0, 1.2) is None
    steps = [SimpleNamespace(drafted=n, c_v=c_v) for n, c_v in ((0, 1.0), (2, 1.25))]
    found = SimpleNamespace(
        prompts=1, step_ms=4.0, measured=1.1, unrepeated=1.0, predicted=1.2, tau=2.0, drafting=0.5,
        accepted_at=(0.5, 0.4), c_d=0.5, steps=steps,
    )  # fmt: skip
    with mock.patch.object(models.dataclasses, "asdict", vars):
        row = models.row_of("self", 2, found)
        assert (row["row"], row["measured"], row["unrepeated"]) == ("self, 2", 1.1, 1.0)
        assert (row["a"], row["c"], row["c_v"], row["formula"]) == (0.5, 0.25, 1.25, 1.75 / 1.75)
        assert row["gains_from"] == 0.5
        assert "formula" not in models.row_of("self", None, found)
        assert "formula" not in models.row_of("self", 4, found)


FACTS = {"weights": 100_000_000, "pages": 1000, "page_bytes": 50_000, "page_size": 16}


def check_footprint(footprint: Any) -> None:
    """64 requests of 130 + 64 tokens, the last one not computed: 193 tokens are 13 pages each."""
    assert footprint.kv_bytes(FACTS) == 64 * 13 * 50_000
    assert footprint.kv_bytes({**FACTS, "pages": 500}) == 500 * 50_000, "no more than there are"
    assert footprint.kv_bytes({**FACTS, "page_size": 193}) == 64 * 50_000
    found = footprint.accounted(150_000_000, 200_000_000, 30_000_000, FACTS)
    assert found == {"kv": 41_600_000, "ready_beyond": 20_000_000, "loaded_beyond": 28_400_000}
    assert footprint.megabytes({"kv": 41_600_000, "x": 12_345}) == {"kv_mb": 41.6, "x_mb": 0.01}


def check_start_up(footprint: Any) -> None:
    """Medians of turns, of which the first is not counted."""
    ready = iter([9.0, 1.0, 2.0, 6.0])
    server = lambda model: nullcontext(SimpleNamespace(ready_s=next(ready)))  # noqa: E731
    done = SimpleNamespace(run=lambda command, check: None)
    with (
        mock.patch.multiple(footprint, Server=server, subprocess=done),
        clock(footprint, 0.0, 50.0, 100.0, 101.0, 200.0, 200.5, 300.0, 309.0),
    ):
        found = footprint.start_up("m", 3)
    assert found == {"imports_s": 1.0, "ready_s": 2.0, "limit_s": 3.0}


def check_grammar_cost(cost: Any) -> None:
    """Two streams; steps of 8 ms free and 10 ms under a grammar: a fifth of the tokens goes."""
    free = np.full((3, 4), 0.008)
    steps = {"free": free, "again": free * 1.25, "grammar": np.full((3, 4), 0.010)}
    assert cost.costs(steps, 2) == {
        "free_tokens_s": 250.0, "grammar_tokens_s": 200.0, "cost": 0.2, "cost_5_95": [0.2, 0.2], "noise": 0.2,
    }  # fmt: skip
    steps["grammar"] = np.array([[0.010] * 4, [0.010] * 4, [0.020] * 4])
    low, high = cost.costs(steps, 2)["cost_5_95"]
    assert low == 0.2
    assert high == 0.6


def check_compile_times(cost: Any) -> None:
    """Milliseconds: the table alone, then the median and the most of the schemas."""
    compiler = lambda tokenizer: SimpleNamespace(compile=lambda params: None)  # noqa: E731
    with (
        mock.patch.object(cost, "ConstraintCompiler", compiler),
        clock(cost, 0.0, 0.5, 1.0, 1.001, 2.0, 2.002, 3.0, 3.009),
    ):
        assert cost.compile_times(None, 3) == {"table_ms": 500.0, "compile_ms": 2.0, "compile_most_ms": 9.0}


def check_first_use(cost: Any) -> None:
    """What the first structured answer takes longer than the median of five plain ones."""
    asked = iter([0.1, 0.1, 0.3, 0.1, 0.1, 0.11] * 2 + [0.1] * 5 + [0.15])
    with mock.patch.multiple(
        cost,
        Server=lambda model, *flags: nullcontext(SimpleNamespace(url="")),
        _ask=lambda url, wish: next(asked),
        time=SimpleNamespace(sleep=lambda pause: None),
    ):
        found = cost.first_use(Namespace(model="m", settle=0.0))
    assert found == {"first_use_ms": 10.0, "first_uses_ms": [10.0, 10.0, 50.0]}


def check_arms(arms: Any) -> None:
    """Of each step the median over the repetitions, then the sum of the steps."""
    plain = np.array([[1.0, 3.0], [1.0, 3.0], [9.0, 3.0]])
    asked = np.array([[2.0, 3.0], [2.0, 30.0], [2.0, 3.0]])
    assert (arms.typical(plain), arms.typical(asked)) == (4.0, 5.0)
    assert arms.ratio(asked, plain) == 1.25
    assert arms.typical(np.array([[9.0, 1.0], [1.0, 9.0], [1.0, 1.0]])) == 2.0, "whichever step is disturbed"
    rising = np.arange(1.0, 101.0).reshape(100, 1)
    low, high = arms.interval(rising, np.ones((100, 1)), 0.9)
    # By order statistics the median of 100 lies between their 42nd and 59th in nine of ten draws.
    assert 40 <= low <= 44
    assert 57 <= high <= 61
    assert arms.interval(rising, rising) == (1.0, 1.0), "both arms are drawn together"


def check_overload(overload: Any) -> None:
    """60 requests in 20 s ask for 4.5 a second more; 950 tokens in 10 s are 95 % of 1,000 in 10 s."""
    peak = overload.Offered(seconds=20.0, served=60, ended=70, tokens=2000)
    assert overload.overloading(peak) == 4.5
    over = overload.Offered(seconds=10.0, arrived=400, refused=100, tokens=960, most_waiting=64, grown_mb=1.5)
    facts = overload.facts_of(peak, over, 64, 0)
    assert facts == {
        "bounded": True, "rate_of_peak": 0.96, "refused_share": 0.25, "pages_leaked": 0, "grown_mb": 1.5,
    }  # fmt: skip
    assert overload.good(facts)
    assert not overload.facts_of(peak, over, 63, 0)["bounded"]
    for wrong in ({"bounded": False}, {"pages_leaked": 1}, {"rate_of_peak": 0.94}, {"rate_of_peak": 1.06}):
        assert not overload.good(facts | wrong)


def check_a_servers_memory(paired: Any) -> None:
    """/proc counts in 1,024 bytes."""
    with mock.patch.object(Path, "read_text", lambda self: f"Name:\t{self}\nVmRSS:\t  250000 kB\n"):
        assert paired.resident(7) == 256.0


def check_a_turns_step(turn: Any) -> None:
    """4 steps more took 2 s more; the least of three repetitions, the first one not counted."""
    took = [1.0, 1.4, 1.0, 3.0, 1.0, 5.0, 2.0, 4.8]
    with mock.patch.object(turn, "seconds", side_effect=took):
        assert turn.step(None, 1, 4, 100) == 0.5


def check_restart(restart: Any) -> None:
    times = {"computed": [300.0, 100.0, 120.0], "from disk": [10.0, 40.0, 30.0]}
    assert restart.summary(times) == {"milliseconds": {"computed": 120.0, "from disk": 30.0}, "ratio": 4.0}


def check_first_tokens(restart: Any) -> None:
    """Milliseconds."""
    answer = SimpleNamespace(token_ids=[5], logprobs=[{5: SimpleNamespace(logprob=-1.0)}])
    llm = SimpleNamespace(
        generate=lambda prompts, params: [SimpleNamespace(outputs=[answer])],
        get_metrics=lambda: SimpleNamespace(external_prefix_hits=3),
    )
    with clock(restart, 2.0, 2.25):
        assert restart.ask(llm, [1]) == {"ms": 250.0, "token": 5, "logprob": -1.0, "disk_hits": 3}


def check_long_context(long_context: Any) -> None:
    found = {"together": {"planned": 200, "resident": 80}, "split": {"planned": 50, "resident": 60}}
    assert long_context.saved(found) == {"planned": 0.75, "resident": 0.25}


def check_quality(quality: Any) -> None:
    """Our KL over the peer's. (The rest of its arithmetic is checked in tests/lab/test_perplexity.py.)"""
    exact = np.log(np.array([[0.5, 0.25, 0.25]]))
    ours, theirs = Quality(), Quality()
    ours.add(np.log(np.array([[0.4, 0.35, 0.25]])), exact, [0])
    theirs.add(np.log(np.array([[0.25, 0.5, 0.25]])), exact, [0])
    kl = [0.5 * np.log(0.5 / 0.4) + 0.25 * np.log(0.25 / 0.35), 0.25 * np.log(2)]
    found = quality.ratios({"octavo": ours, "llama.cpp": theirs})
    assert found == {"perplexity": 0.625, "kl": pytest.approx(kl[0] / kl[1], abs=1e-4)}
    assert quality.ratios({"octavo": ours}) == {}


def check_scheduler_cost(cost: Any) -> None:
    """Median microseconds of planning and of digesting."""
    plan = SimpleNamespace(step_id=0, steps=())
    scheduler = SimpleNamespace(schedule=lambda: plan, update=lambda result: None)
    steps = [(1e-6, 5e-6), (2e-6, 3e-6), (9e-6, 4e-6)]
    told = [t for plans, digests in steps for t in (0.0, plans, 50.0, 50.0 + digests)]
    with clock(cost, *told):
        assert cost.measure(scheduler, 3) == pytest.approx((2.0, 4.0), rel=1e-6)


def check_machine(harness: Any) -> None:
    """2 million pages of 4,096 bytes are 8.2 GB; a changed tree's commit says so."""
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2_000_000}
    with mock.patch.object(os, "sysconf", sizes.__getitem__):
        assert harness.machine()["memory_gb"] == 8.2

    def git(changed: str) -> Any:
        def run(command: list[str], **_: Any) -> SimpleNamespace:
            return SimpleNamespace(returncode=0, stdout=changed if "status" in command else "abc\n")

        return mock.patch.object(harness, "subprocess", SimpleNamespace(run=run))

    with git(""):
        assert harness.commit() == "abc"
    with git(" M x.py\n"):
        assert harness.commit() == "abc+"


def check_timing(base: Any) -> None:
    """Rates are tokens a second; the first token's time is the prompt's."""
    timing = base.Timing(prompt_tokens=100, prompt_s=0.5, decode_tokens=60, decode_s=2.0)
    assert (timing.prompt_rate, timing.decode_rate) == (200.0, 30.0)
    with clock(base, 0.0, 1.0, 10.0, 15.0):
        found = base.by_difference(lambda count: None, [[1, 2], [3, 4, 5]], 9)
    assert found == base.Timing(5, 1.0, 16, 4.0)


def check_decode(decode: Any) -> None:
    timing = importlib.import_module("engines.base").Timing
    found = decode.speeds([timing(10, 1.0, 10, 1.0), timing(10, 2.0, 10, 2.0), timing(10, 5.0, 10, 0.25)])
    assert found == {"prompt_tok_s": 5.0, "decode_tok_s": 10.0, "decode_spread": 8.0}
    theirs = {"prompt_tok_s": 2.0, "decode_tok_s": 4.0, "version": "1"}
    assert decode.ratios_of(found, theirs) == {"prompt": 2.5, "decode": 2.5}


def check_peers(peers: Any) -> None:
    """Medians of runs; the fastest of each side counts, prompts and decoding apart."""
    timing = importlib.import_module("engines.base").Timing
    runs = [timing(100, 1.0, 10, 1.0), timing(100, 2.0, 10, 2.0), timing(100, 5.0, 10, 0.25)]
    slower, faster = peers.figures(runs), peers.figures(runs[:1])
    assert slower == {
        "prompt": 50.0, "prompt_spread": 5.0, "prompt_rates": [100.0, 50.0, 20.0],
        "decode": 10.0, "decode_spread": 8.0, "decode_rates": [10.0, 5.0, 40.0],
    }  # fmt: skip
    engines = {
        "octavo: a": slower | {"prompt": 300.0}, "octavo: b": slower, "octavo int8 KV: a": slower,
        "llama.cpp: a": slower | {"decode": 4.0}, "llama.cpp: b": faster | {"decode": 8.0},
        "transformers: a": slower | {"decode": 99.0},
    }  # fmt: skip
    found = {
        row["row"]: (row["with"], row["over"], row["ratio"], row["reached"])
        for key in ("prompt-512", "short")
        for row in peers.ratios({key: {"engines": engines}})
    }
    assert found == {
        "SmolLM2, prompt of 512": ("octavo: a", "llama.cpp: b", 3.0, True),
        "SmolLM2, decode, 1 stream": ("octavo: a", "llama.cpp: b", 1.25, False),
    }
    assert peers.noisy({"short": {"engines": {"octavo: a": slower, "llama.cpp: a": slower}}}) == ["short"]
    quiet = slower | {"decode_spread": 1.1, "prompt_spread": 1.1}
    assert peers.noisy({"short": {"engines": {"octavo: a": quiet, "llama.cpp: a": slower}}}) == []


def check_tiles(tiles: Any) -> None:
    assert tiles.stream_rate(4_000_000_000, 0.5, 10e9) == (8.0, 80.0)
    assert tiles.tile_rate(6 * 10**9, 0.5, 2, 3e9) == (6.0, 2.0)


def check_steps(steps: Any) -> None:
    found = steps.product_rates(12 * 10**9, 3 * 10**9, 0.5, 6e9)
    assert found == {"mac_per_cycle": 4.0, "gb_per_s": 6.0}


def check_pieces(pieces: Any) -> None:
    """40 and 20 MB at 10 GB/s, 4 and 2 ms, beside 1 and 3 of arithmetic, and 1 that reads nothing."""
    piece = pieces.Piece
    every = [
        piece("a", 2, 4e7, 0.001, 0.0045),
        piece("b", 1, 2e7, 0.003, 0.004),
        piece("c", 9, 0, 0.001, 0.001),
    ]
    assert [each.least(1e10) for each in every] == pytest.approx([0.004, 0.003, 0.001])
    assert pieces.bounds(every, 0.01, 1e10) == pytest.approx({
        "step_us": 10_000, "read_us": 6000, "cached_us": 5000, "least_us": 8000, "alone_us": 9500,
        "roofline_share": 0.6, "pieces_share": 0.8, "within": 0.15, "between": 0.05,
    })  # fmt: skip
    assert pieces.bounds(every, 0.01, 1e11)["roofline_share"] == pytest.approx(0.5)
    assert [each.line_s(2) for each in every] == pytest.approx([3.2e-9, 1.92e-8, 0.0])
    parts = [SimpleNamespace(nbytes=1000, shape=(16, 64), cut=cut) for cut in (True, False)]
    assert [pieces.bytes_of(part) for part in parts] == [872, 1000]
    found = pieces.turn(every, 1e10, 0.01, 0.008, 0.0075)
    assert {name: found[name] for name in found.keys() - pieces.bounds(every, 0.01, 1e10).keys()} == (
        pytest.approx({
            "bandwidth": 1e10, "ordered_us": 8000, "ordered_share": 0.8,
            "worked_us": 7500, "worked_share": 0.75, "worked_roofline_share": 0.8,
        })
    )  # fmt: skip
    assert pieces.engine(4e7, 1e10, 0.004, 0.005) == pytest.approx({
        "engine_us": 5000, "engine_over_step": 1.25, "engine_roofline_share": 0.8,
    })  # fmt: skip
    assert pieces.reading_turn(4e7, 1e10, 0.0064, 0.005) == pytest.approx({
        "reading_us": 5000, "reading_share": 0.78125, "reading_roofline_share": 0.8,
    })  # fmt: skip
    taken = {0: (9, 5, 7), 4096: (8, 3, 4), 8192: (4, 6, 5)}
    ways = {way: [{"reading_us": us, "share": 1 / us} for us in each] for way, each in taken.items()}
    assert pieces.fastest(ways) == {"reading_ahead": 4096, "reading_us": 4, "share": 0.25}


def check_couplings(noise: Any) -> None:
    """By their definitions, one token after the other; equal distributions always agree."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    assert noise.optimum(p, q) == pytest.approx(0.6)
    # Intervals 0-0.5, 0.5-0.8, 0.8-1 and 0-0.2, 0.2-0.4, 0.4-1 share 0.2, nothing and 0.2.
    assert noise.inverse_cdf(p, q) == pytest.approx(0.4)
    wins = [1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(3)) for i in range(3)]
    assert noise.race_shares(p, q) == pytest.approx(wins)
    assert noise.race(p, q) == pytest.approx(sum(wins))
    assert [each(p, p) for each in noise.COUPLINGS] == pytest.approx([1.0] * 4)
    assert noise.two_levels(p, q) == pytest.approx(sum(wins)), "one chunk holds them all"
    logits = np.log(np.array([[0.5, 0.3, 0.2]]))
    assert noise.probabilities(logits, 0.5, 1.0)[0] == pytest.approx(np.array([25, 9, 4]) / 38)
    assert noise.probabilities(logits, 1.0, 0.6)[0] == pytest.approx([0.625, 0.375, 0])


CASES: Cases = {
    "serving": ([check_what_http_costs, check_offline_rate, check_rounds_of_serving], [
        ("(1 - cpu_share)", "(1 - cpu_share) ** 9"),
        ("(1 - cpu_share)", "(1 + cpu_share)"),
        ("(1 - cpu_share)", "1"),
        ("http_rate / (", "1.2 * http_rate / ("),
        ("http_rate / (offline_rate", "offline_rate / (http_rate"),
        ("for output in outputs) / seconds", "for output in outputs)"),
        ("len(output.outputs[0].token_ids)", "1"),
        ("found[1:]", "found"),
        ('corrected(http["output_rate"], http["cpu_share"], alone)', 'http["output_rate"] / alone'),
        ("statistics.median(each[name]", "statistics.mean(each[name]"),
        ("statistics.median(each[name]", "max(each[name]"),
    ]),
    "draft_models": ([check_draft_models], [
        ("sum(a**place for place in range(k + 1))", "sum(a**place for place in range(k))"),
        ("sum(a**place for place in range(k + 1))", "1 + k * a"),
        ("(c_v + k * c)", "(c_v + c)"),
        ("(c_v + k * c)", "c_v"),
        ("formula(a, k, c, c_v) >= 1", "formula(a, k, c, c_v) > 1.2"),
        ("found.accepted_at[0], found.c_d / k", "found.accepted_at[0], found.c_d"),
        ("found.accepted_at[0], found.c_d / k", "found.accepted_at[-1], found.c_d / k"),
        ('"measured": found.measured', '"measured": found.predicted'),
    ]),
    "host_time": ([check_host_time, check_verifying], [
        ("if step.drafted]", "]"),
        ("len(verifying) != len(native)", "False"),
        ("breakdown([found[0], *found])", "breakdown(found)"),
        ("statistics.mean(step.drafted for step in verifying)",
         "statistics.mean(step.drafted for step in steps)"),
        ("1e3 * seconds / steps", "1e6 * seconds / steps"),
        ("1e3 * seconds / steps", "1e3 * seconds"),
        ("statistics.median(column)", "statistics.mean(column)"),
        ("statistics.median(column)", "min(column)"),
        ("runs[1:]", "runs"),
        ("1 - (kernel + draw) / step", "1 - kernel / step"),
        ("1 - (kernel + draw) / step", "1 - 1.2 * (kernel + draw) / step"),
        ("1 - (kernel + draw) / step", "(kernel + draw) / step"),
        ("round(draw / step, 4)", "round(draw / kernel, 4)"),
    ]),
    "footprint": ([check_footprint, check_start_up], [
        ("PROMPT + NEW - 1", "PROMPT + NEW"),
        ("REQUESTS * -(-", "USERS * -(-"),
        ("-(-(PROMPT + NEW - 1) //", "((PROMPT + NEW - 1) //"),
        ('min(pages, facts["pages"])', "pages"),
        ("loaded - known - kv", "loaded - known"),
        ("ready - known", "ready"),
        ('imports + facts["weights"], kv', 'imports + 1.2 * facts["weights"], kv'),
        ("value / 1e6", "value / 2**20"),
        ("statistics.median(imports[1:])", "statistics.median(imports)"),
        ("statistics.median(ready[1:])", "min(ready[1:])"),
        ("time.perf_counter() - start", "time.perf_counter()"),
        ("2 * bare + 1.0", "2 * ours + 1.0"),
    ]),
    "grammar_cost": ([check_grammar_cost, check_compile_times, check_first_use], [
        ("count = streams * free.shape[1]", "count = streams"),
        ("count = streams * free.shape[1]", "count = streams * free.size"),
        ("count / typical(grammar)", "count / typical(free)"),
        ('"cost": round(1 - ratio(free, grammar)', '"cost": round(1 - ratio(grammar, free)'),
        ('"cost": round(1 - ratio(free, grammar)', '"cost": round(1 - 1.2 * ratio(free, grammar)'),
        ('"cost": round(1 - ratio(free, grammar)', '"cost": round(ratio(grammar, free) - 1'),
        ("interval(free, grammar, 0.9)", "interval(free, free, 0.9)"),
        ("interval(free, grammar, 0.9)", "(ratio(free, grammar),) * 2"),
        ('ratio(free, steps["again"])', 'ratio(free, grammar) * 0 + 1'),
        ("1e3 * table", "1e6 * table"),
        ("1e3 * statistics.median(times)", "1e3 * statistics.mean(times)"),
        ("1e3 * max(times), 2)", "1e3 * min(times), 2)"),
        ("_ask(server.url, wish) - plain", "_ask(server.url, wish)"),
        ("plain = statistics.median(", "plain = max("),
        ("1e3 * statistics.median(found)", "1e3 * max(found)"),
    ]),
    "arms": ([check_arms], [
        ("np.median(runs, axis=0).sum()", "np.mean(runs, axis=0).sum()"),
        ("np.median(runs, axis=0).sum()", "np.median(runs, axis=1).sum()"),
        ("np.median(runs, axis=0).sum()", "np.median(runs.sum(axis=1))"),
        ("typical(of) / typical(to)", "typical(to) / typical(of)"),
        ("typical(of) / typical(to)", "1.2 * typical(of) / typical(to)"),
        ("50 * (1 - share)", "100 * (1 - share)"),
        ("50 * (1 - share)", "10 * (1 - share)"),
        ("ratio(of[chosen], to[chosen])", "ratio(of[chosen], to)"),
        ("len(of), len(of))", "len(of), 5)"),
    ]),
    "overload": ([check_overload], [
        ("1.5 * peak.served", "1.5 * peak.ended"),
        ("1.5 * peak.served", "1.2 * peak.served"),
        ("self.tokens / self.seconds", "self.tokens"),
        ("over.rate / peak.rate", "peak.rate / over.rate"),
        ("over.rate / peak.rate", "1.2 * over.rate / peak.rate"),
        ("over.refused / over.arrived", "over.refused / over.ended if over.ended else 0"),
        ("over.most_waiting <= max_waiting", "True"),
        ("abs(facts[\"rate_of_peak\"] - 1) <= 0.05", "facts[\"rate_of_peak\"] >= 0.95"),
        ("abs(facts[\"rate_of_peak\"] - 1) <= 0.05", "facts[\"rate_of_peak\"] <= 1.05"),
        ("not facts[\"pages_leaked\"] and", ""),
    ]),
    "paired": ([check_a_servers_memory], [
        ("* 1024 / 1e6", "/ 1e3"),
        ("* 1024 / 1e6", "* 1024 / 2**20"),
    ]),
    "paired_turn": ([check_a_turns_step], [
        ("- one) / steps", ") / steps"),
        ("- one) / steps", "- one)"),
        ("- one) / steps", "- one) / (steps + 1)"),
        ("[1:])", ")"),
        ("return min([", "return max(["),
    ]),
    "restart": ([check_restart, check_first_tokens], [
        ("statistics.median(values)", "statistics.mean(values)"),
        ("statistics.median(values)", "min(values)"),
        ('medians["computed"] / medians["from disk"]', 'medians["from disk"] / medians["computed"]'),
        ('medians["computed"] / medians["from disk"]', '1.2 * medians["computed"] / medians["from disk"]'),
        ("1e3 * (time.perf_counter() - start)", "1e6 * (time.perf_counter() - start)"),
    ]),
    "long_context": ([check_long_context], [
        ('1 - found["split"][name]', 'found["split"][name]'),
        ('found["split"][name] / found["together"][name]', 'found["together"][name] / found["split"][name]'),
        ('1 - found["split"][name]', '1 - 1.2 * found["split"][name]'),
    ]),
    "quality": ([check_quality], [
        ("ours.perplexity / theirs.perplexity", "theirs.perplexity / ours.perplexity"),
        ("ours.mean_kl / theirs.mean_kl", "theirs.mean_kl / ours.mean_kl"),
        ("ours.mean_kl / theirs.mean_kl", "(ours.mean_kl / theirs.mean_kl) ** 2"),
    ]),
    "scheduler_cost": ([check_scheduler_cost], [
        ("1e6 * statistics.median(planning)", "1e3 * statistics.median(planning)"),
        ("1e6 * statistics.median(digesting)", "1e6 * min(digesting)"),
        ("statistics.median(planning), ", "statistics.mean(planning), "),
        ("middle - start", "again - start"),
        ("time.perf_counter() - again", "time.perf_counter() - middle"),
    ]),
    "harness": ([check_machine], [
        ('* os.sysconf("SC_PHYS_PAGES") / 1e9', '* os.sysconf("SC_PHYS_PAGES") / 2**30'),
        ('("+" if changed.stdout.strip() else "")', '""'),
    ]),
    "engines.base": ([check_timing], [
        ("self.prompt_tokens / self.prompt_s", "self.prompt_tokens / self.decode_s"),
        ("self.decode_tokens / self.decode_s", "1.2 * self.decode_tokens / self.decode_s"),
        ("- start - first", "- start"),
        ("(new_tokens - 1)", "new_tokens"),
        ("len(prompts) * (new_tokens", "(new_tokens"),
        ("sum(map(len, prompts))", "len(prompts)"),
    ]),
    "peers_serving": ([check_servers_beside], [
        ('round(known[OURS] / known[THEIRS], 3)', 'round(known[THEIRS] / known[OURS], 3)'),
        ('round(known[OURS] / known[THEIRS], 3)', 'round(1.2 * known[OURS] / known[THEIRS], 3)'),
        ("statistics.median(found)", "max(found)"),
        ("statistics.median(found)", "statistics.mean(found)"),
        ("spreads.get(OURS, 1.0) > NOISY", "False"),
        ("tried[setup.name] or 0.0", "1 / (tried[setup.name] or 1e9)"),
    ]),
    "decode": ([check_decode], [
        ("max(decode) / min(decode)", "max(decode) - min(decode)"),
        ('ours[f"{kind}_tok_s"] / theirs', '1.2 * ours[f"{kind}_tok_s"] / theirs'),
        ("statistics.median(decode)", "max(decode)"),
    ]),
    "peers.__main__": ([check_peers], [
        ("(max(side.items()", "(min(side.items()"),
        ("round(ours / theirs, 2)", "round(theirs / ours, 2)"),
        ("round(ours / theirs, 2)", "round(1.2 * ours / theirs, 2)"),
        ("round(ours / theirs, 2)", "round((ours / theirs) ** 2, 2)"),
        ("statistics.median(prompt)", "max(prompt)"),
        ("statistics.median(decode)", "statistics.mean(decode)"),
        ("each[row.figure]", 'each["decode"]'),
        ("ratio >= row.least", "True or row.least"),
        ("> NOISY", "> 9"),
    ]),
    "kernels.tiles": ([check_tiles], [
        ("nbytes / seconds", "1.2 * nbytes / seconds"),
        ("return rate / 1e9, 100 * rate", "return rate / 2**30, 100 * rate"),
        ("100 * rate / bandwidth", "100 * bandwidth / rate"),
        ("macs / seconds / threads", "macs / seconds"),
        ("rate / clock", "rate * clock"),
    ]),
    "kernels.steps": ([check_steps], [
        ("macs / seconds / cycles", "macs / cycles"),
        ("nbytes / seconds / 1e9", "nbytes / seconds / 2**30"),
        ("nbytes / seconds / 1e9", "1.2 * nbytes / seconds / 1e9"),
    ]),
    "kernels.pieces": ([check_pieces], [
        ("max(self.cached_s, self.nbytes / bandwidth)", "self.cached_s + self.nbytes / bandwidth"),
        ("max(self.cached_s, self.nbytes / bandwidth)", "self.nbytes / bandwidth"),
        ("max(reading, arithmetic) / step_s", "reading / step_s"),
        ("max(reading, arithmetic) / step_s", "least / step_s"),
        ('"pieces_share": least / step_s', '"pieces_share": alone / step_s'),
        ("(alone - least) / step_s", "(step_s - least) / step_s"),
        ("(step_s - alone) / step_s", "(alone - least) / step_s"),
        ("1e6 * step_s", "1e3 * step_s"),
        ("self.cached_s * threads * LINE / self.nbytes", "self.cached_s * LINE / self.nbytes"),
        ("part.shape[1] // 8 if", "part.shape[1] // 2 if"),
        ("/ bandwidth / worked_s", "/ bandwidth / step_s"),
        ("needed / bandwidth / taken_s", "1.2 * needed / bandwidth / taken_s"),
        ('"engine_over_step": engine_s / step_s', '"engine_over_step": step_s / engine_s'),
        ('"reading_share": reading_s / engine_s', '"reading_share": engine_s / reading_s'),
        ('"reading_share": reading_s / engine_s', '"reading_share": 1.2 * reading_s / engine_s'),
        ("best = min(found", "best = max(found"),
        ('"worked_share": worked_s / step_s', '"worked_share": worked_s / ordered_s'),
        ('"ordered_share": ordered_s / step_s', '"ordered_share": 1.2 * ordered_s / step_s'),
    ]),
    "noise": ([check_couplings], [
        ("np.minimum(p, q).sum()", "np.maximum(p, q).sum()"),
        ("np.maximum(above - below, 0)", "(above - below)"),
        ("1 - ordered_p.cumsum()[both]", "1 - (ordered_p.cumsum() - ordered_p)[both]"),
        ("sums[:, :-1] >= top_p", "sums[:, 1:] >= top_p"),
        ("astype(np.float64) / temperature", "astype(np.float64) * temperature"),
    ]),
}  # fmt: skip


@checked(CASES)
def test_figures(name: str, check: Callable[[Any], None]) -> None:
    check(importlib.import_module(name))


@mistaken(CASES)
def test_mutants_die(name: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # some scripts add to it
    must_die(importlib.import_module(name), right, wrong, CASES[name][0])
