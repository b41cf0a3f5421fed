"""The arithmetic of `make gpu-check`'s table on inputs made by hand, and mistakes in it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from support.cuda import interpreted
from support.kernels import batch_of
from support.source_mutants import Cases, checked, mistaken, must_die

BENCHMARKS = str(Path(__file__).parents[3] / "benchmarks")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def check_ceilings(arithmetic: Any) -> None:
    """A copy reads and writes; a product of two n x n matrices has n^3 multiplications and additions."""
    assert arithmetic.copy_bandwidth(3 * 10**9, 0.5) == 12e9
    assert arithmetic.product_flops(10) == 2000


def check_shares(arithmetic: Any) -> None:
    """4 GB in 2 ms are 2 TB/s, half of 4."""
    assert arithmetic.share(4e9, 2e-3, 4e12) == 0.5
    assert arithmetic.decode_bytes(1000, 20, 3) == 1060


def check_prompts(arithmetic: Any) -> None:
    """Products by hand: every layer's for each token, but once the head's and what is behind the last
    attention; a query sees half of the keys."""
    models = importlib.import_module("gpu.models")
    shape = models.Shape("by hand", 8, 3, 16, 4, 2, 2, 100, False)
    qkv, behind = 8 * (4 + 2 + 2) * 2, 4 * 2 * 8 + 3 * 8 * 16
    layer = qkv + behind
    n = 10
    linear = 2 * n * (2 * layer + qkv) + 2 * (behind + 8 * 100)
    attention = 2 * 2 * 3 * 4 * 2 * n * n / 2  # scores and values, of 3 layers and 4 heads of 2
    assert arithmetic.prompt_flops(shape, n) == linear + attention
    assert shape.linear_parameters == 3 * layer + 8 * 100


def check_answers(arithmetic: Any) -> None:
    """An answer of 4 after a prompt of 10: three steps, over 11, 12 and 13 tokens of every stream."""
    assert arithmetic.answer_bytes(1000, 10, 4, 3) == 3 * 1000 + 3 * (11 + 12 + 13)
    assert arithmetic.answer_bytes(1000, 10, 4, 3, streams=5) == 3 * 1000 + 5 * 3 * (11 + 12 + 13)
    assert arithmetic.answer_bytes(1000, 10, 1, 3) == 0, "its token comes with the prompt"
    models = importlib.import_module("gpu.models")
    shape = models.Shape("by hand", 8, 3, 16, 4, 2, 2, 100, False)
    assert arithmetic.weight_bytes(shape, 2) == 2 * shape.linear_parameters
    assert arithmetic.kv_bytes(shape, 2) == 2 * 3 * 2 * (2 * 2), "2 bytes, 3 layers, k and v, 2 heads of 2"
    read = 3 * 2 * shape.linear_parameters + 5 * 48 * (11 + 12 + 13)
    least = arithmetic.least_seconds(shape, 2, 5, 10, 4, 1e6, 1e5)
    assert least == pytest.approx(5 * arithmetic.prompt_flops(shape, 10) / 1e5 + read / 1e6)


def check_rates(arithmetic: Any) -> None:
    assert arithmetic.output_rate(64, 50, 4.0) == 800.0
    assert arithmetic.total_rate([64, 50, 6], 4.0) == 30.0
    assert arithmetic.speedup([3.0, 6.0], 2.0) == 1.5, "over the faster of them"
    assert arithmetic.slowdown(3.0, 2.0) == 1.5


def check_gap(arithmetic: Any) -> None:
    """A step of 8 ms, 6 of them on the device. What is below the clocks' own spread is not 0, but unknown."""
    assert arithmetic.gap([8e-3], [6e-3]) == pytest.approx(0.25)
    assert arithmetic.gap([7.19], [7.36]) is None
    assert arithmetic.gap([8.0, 9.0, 7.0], [6.0, 5.0, 6.5]) == pytest.approx(0.25)
    assert arithmetic.gap([8.0, 9.0, 6.5], [6.0, 5.0, 6.5]) is None


def check_bytes(models: Any) -> None:
    """Float32: four bytes of each weight that multiplies, the head once; keys and values of all layers."""
    interpreted()
    backend = importlib.import_module("octavo.kernels.cuda").make("cpu", dtype="float32")
    shape = models.TINY
    made = models.Model(backend, shape, "dense", 2)
    assert made.bytes_per_step == 4 * shape.linear_parameters
    assert made.kv_bytes_per_token == 2 * 4 * shape.layers * shape.kv_heads * shape.head_dim


def check_seconds(drive: Any) -> None:
    """CUDA events say milliseconds; the median of three, after a run that is not counted."""
    told = iter([2.0, 5.0, 30.0])
    event = SimpleNamespace(
        record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: next(told)
    )
    runs: list[int] = []
    with mock.patch.object(torch.cuda, "Event", return_value=event):
        took = drive.seconds(lambda: runs.append(1), 3, torch.device("cuda"))
    assert (took, len(runs)) == (0.005, 4)
    told = iter([0.0, 1.0, 10.0, 12.0, 20.0, 29.0])
    with mock.patch.object(drive, "time", SimpleNamespace(perf_counter=told.__next__)):
        assert drive.seconds(lambda: None, 3, torch.device("cpu")) == 2.0


def check_rows(speed: Any) -> None:
    """Rows are met from `wanted` on, or up to it; ceilings and shares are made of what was timed."""
    row = speed.Row
    assert [row("", "x", value, 2.0).met for value in (None, 1.9, 2.0, 2.1)] == [None, False, True, True]
    assert [row("", "x", value, 2.0, at_most=True).met for value in (1.9, 2.0, 2.1)] == [True, True, False]
    with mock.patch.object(speed, "seconds", side_effect=[0.5, 0.25]):
        found = speed.ceilings(torch.device("cpu"), torch.float32, 4)
    assert (found.bandwidth, found.flops) == (2 * 4 * 4 * 8 * 4 / 0.5, 2 * 4**3 / 0.25)


def check_roofline(speed: Any) -> None:
    """Bytes of weights and of the context's pages over the time; 4 bits over the dense model's short step."""
    model = SimpleNamespace(bytes_per_step=1000, kv_bytes_per_token=5)
    times = {("dense", 8): 2.0, ("dense", 40): 4.0, ("u4", 8): 0.5}
    with mock.patch.object(
        speed, "decode_seconds", lambda b, s, kind, context, r: (times[kind, context], model)
    ):
        short, long, four_bits = speed.roofline(None, speed.SMALL, speed.Ceilings(1000.0, 1.0))
    assert (short.value, long.value, four_bits.value) == (1040 / 2000, 1200 / 4000, 4.0)
    assert short.note.startswith("0.5 tok/s")


def check_host_gap(speed: Any) -> None:
    drive = SimpleNamespace(steps=SimpleNamespace(replays=1))
    found = [([8e-3], [6e-3], drive), ([2e-3], [1e-3], drive)]
    backend = SimpleNamespace(device=torch.device("cpu"))
    with mock.patch.object(speed, "whole_steps", side_effect=found):
        share, rate = speed.host_gap(backend, speed.SMALL)
    assert share.value == pytest.approx(0.25)
    assert (share.at_most, share.wanted) == (True, 0.05)
    assert rate.value == pytest.approx(500.0)
    hidden = [([7e-3, 8e-3], [6e-3, 7.5e-3], drive), ([2e-3], [1e-3], drive)]
    with mock.patch.object(speed, "whole_steps", side_effect=hidden):
        share, rate = speed.host_gap(backend, speed.SMALL)
    assert (share.value, share.met) == (None, None)
    assert (
        share.note
        == "not resolved: 7.50 (7.00 to 8.00) ms a step, 6.75 (6.00 to 7.50) ms on the device, 1 replays"
    )


def check_streams(speed: Any) -> None:
    """3 streams of 6 + 2 in 10 s: 0.6 tok/s; the bound's 2 s are a fifth of them."""

    class Drive:
        lengths = torch.zeros(3).numpy()

        def __init__(self, *_: object) -> None:
            self.times = 0

        def prefill(self, who: Any, prompts: Any) -> Any:
            return [7] * len(who)

        def stream(self, first: Any, count: int) -> None:
            pass

        def warm(self) -> None:
            pass

    backend = SimpleNamespace(dtype=torch.bfloat16)
    clock = iter([100.0, 104.0, 110.0])
    with (
        mock.patch.object(speed, "Driver", Drive),
        mock.patch.object(speed, "Model", return_value=None),
        mock.patch.object(speed, "least_seconds", return_value=2.0),
        mock.patch.object(speed, "time", SimpleNamespace(perf_counter=clock.__next__)),
    ):
        over, bound = speed.streams(backend, speed.SMALL, speed.Ceilings(1.0, 1.0), 0.3, "", "theirs")
    assert over.value == pytest.approx(2.0)
    assert over.note == "1 tok/s (4.00 of 10.00 s are prompts); transformers 0 tok/s"
    assert (bound.value, bound.wanted, bound.at_most) == (0.2, 0.85, False)


def check_exact(speed: Any) -> None:
    """One stream 3 ms over 2; of 64, whole steps of 9 over 8."""
    made = SimpleNamespace(device=torch.device("cpu"))
    steps = {id(made): [9e-3], 0: [8e-3]}
    with (
        mock.patch.object(speed, "make", return_value=made),
        mock.patch.object(speed, "decode_seconds", lambda b, *_: (3e-3 if b is made else 2e-3, None)),
        mock.patch.object(speed, "whole_steps", lambda b, *_: (steps[id(b) if b is made else 0], [], None)),
    ):
        one, many = speed.exact_price("cpu", "float32", speed.SMALL, None)
    assert (one.value, many.value) == (pytest.approx(1.5), pytest.approx(1.125))
    assert one.at_most is many.at_most is True
    assert many.wanted == 1.11


def check_verify(speed: Any) -> None:
    """A step of five tokens, all of which are drawn, over one of a single one."""
    launched: list[int] = []

    class Drive:
        def __init__(self, *_: object) -> None:
            self.steps = SimpleNamespace(launch=self.launch, replays=2)

        def pretend(self, length: int) -> None:
            pass

        def warm(self) -> None:
            pass

        def batch(self, who: Any, tokens: Any) -> Any:
            return batch_of(importlib.import_module("numpy").random.default_rng(0), [9], [len(tokens[0])])

        def launch(self, batch: Any, sources: Any, owners: Any, draws: Any) -> None:
            assert batch.num_sampled == batch.num_tokens == len(owners) == len(draws.positions)
            launched.append(batch.num_tokens)

    backend = SimpleNamespace(device=torch.device("cpu"))
    with (
        mock.patch.object(speed, "Driver", Drive),
        mock.patch.object(speed, "Model", return_value=None),
        mock.patch.object(speed, "seconds", side_effect=[2e-3, 3e-3]),
    ):
        (row,) = speed.verify_price(backend, speed.SMALL)
    assert launched == [1, 5]
    assert (row.value, row.wanted, row.at_most) == (pytest.approx(1.5), 1.15, True)


def check_whole(whole: Any) -> None:
    """Bytes of the steps between the first token and the last; HTTP's rate over that without it."""
    speed = importlib.import_module("gpu.speed")
    scale, most = speed.SMALL, speed.Ceilings(1e6, 1.0)
    shape = scale.large

    async def timed(*_: object) -> tuple[float, int]:
        return 0.5, 2

    with mock.patch.object(whole, "timed_answer", timed):
        (row,) = whole.one_stream("cpu", "float32", scale, most)
    kv = 2 * 4 * shape.layers * shape.kv_heads * shape.head_dim
    moved = 2 * 4 * shape.linear_parameters + kv * (scale.short + 1 + scale.short + 2)
    assert row.value == pytest.approx(moved / 0.5 / 1e6)
    assert (row.wanted, row.note) == (0.86, "4.0 tok/s")
    with (
        mock.patch.object(whole, "offline_rate", return_value=200.0),
        mock.patch.object(whole, "served_rate", return_value=150.0),
    ):
        (row,) = whole.users("cpu", "float32", scale, most)
        (rate,) = whole.conversations("cpu", "float32", scale, most)
    assert (row.value, row.wanted) == (0.75, 0.9)
    assert (rate.value, rate.unit) == (200.0, "tok/s")
    assert "not the same work" in rate.note


def check_users(whole: Any) -> None:
    """Every conversation is asked once, by as many users as there may be; tokens are what usage says."""
    asked = [whole.Asked([number], number) for number in range(1, 8)]
    bodies: list[Any] = []

    def stream(path: str, body: Any) -> Any:
        bodies.append(body)
        return [f'{{"usage": {{"completion_tokens": {body["max_tokens"]}}}}}', "[DONE]"]

    clock = iter([50.0, 54.0])
    with mock.patch.object(whole, "time", SimpleNamespace(perf_counter=clock.__next__)):
        rate = whole.answered(SimpleNamespace(stream=stream), "name", asked, 3)
    assert rate == sum(range(1, 8)) / 4.0
    assert sorted(body["prompt"][0] for body in bodies) == list(range(1, 8))
    assert {body["model"] for body in bodies} == {"name"}


CASES: Cases = {
    "gpu.arithmetic": ([check_ceilings, check_shares, check_prompts, check_answers, check_rates, check_gap], [
        ("range(prompt + 1, prompt + answer)", "range(prompt, prompt + answer)"),
        ("range(prompt + 1, prompt + answer)", "range(prompt + 1, prompt + answer + 1)"),
        ("streams * context, kv_per_token", "context, kv_per_token"),
        ("item * shape.linear_parameters", "shape.linear_parameters"),
        ("2 * item * shape.layers", "item * shape.layers"),
        ("streams * prompt_flops(shape, prompt) / flops + read / bandwidth", "read / bandwidth"),
        ("streams * prompt_flops(shape, prompt) / flops + read / bandwidth",
         "max(streams * prompt_flops(shape, prompt) / flops, read / bandwidth)"),
        ("streams * prompt_flops(shape, prompt) / flops", "prompt_flops(shape, prompt) / flops"),
        ("sum(tokens) / took", "len(list(tokens)) / took"),
        ("2 * nbytes / took", "nbytes / took"),
        ("2 * nbytes / took", "1.2 * 2 * nbytes / took"),
        ("2 * n**3", "2 * n**2"),
        ("2 * n**3", "n**3"),
        ("weights + context * kv_per_token", "weights"),
        ("weights + context * kv_per_token", "weights + 1.2 * context * kv_per_token"),
        ("work / took / ceiling", "1.2 * work / took / ceiling"),
        ("work / took / ceiling", "work * took / ceiling"),
        ("work / took / ceiling", "ceiling * took / work"),
        ("+ 2 * once", "+ 2 * n * once"),
        ("shape.linear_parameters - once", "shape.linear_parameters"),
        ("2 * n * n * shape.heads", "4 * n * n * shape.heads"),
        ("2 * n * n * shape.heads", "2 * n * shape.heads"),
        ("* shape.head_dim * shape.layers", "* shape.head_dim"),
        ("streams * answer / took", "answer / took"),
        ("streams * answer / took", "streams * (answer + 1) / took"),
        ("1 - median(device) / median(whole)", "median(whole) / median(device) - 1"),
        ("1 - median(device) / median(whole)", "median(device) / median(whole)"),
        ("1 - median(device) / median(whole)", "1 - min(device) / median(whole)"),
        ("1 - median(device) / median(whole)", "1 - median(device) / max(whole)"),
        ("        return None", "        return 0.0"),
        ("min(whole) <= max(device)", "min(whole) < max(device)"),
        ("min(whole) <= max(device)", "median(whole) <= median(device)"),
        ("min(theirs) / ours", "max(theirs) / ours"),
        ("min(theirs) / ours", "ours / min(theirs)"),
        ("slow / fast", "fast / slow"),
    ]),
    "gpu.models": ([check_bytes], [
        ("sum(w.nbytes for w in self.weights)", "sum(w.nbytes for w in self.weights[1:])"),
        ("self.weights = [head, *", "self.weights = [table, head, *"),
        ("kv.bytes_per_token * shape.layers", "kv.bytes_per_token"),
        ("sum(w.nbytes for w in self.weights)", "max(w.nbytes for w in self.weights)"),
    ]),
    "gpu.drive": ([check_seconds], [
        ("begin.elapsed_time(end) / 1e3", "begin.elapsed_time(end) / 1e6"),
        ("begin.elapsed_time(end) / 1e3", "begin.elapsed_time(end)"),
        ("float(np.median(times))", "float(np.min(times))"),
        ("float(np.median(times))", "float(np.mean(times))"),
    ]),
    "gpu.whole": ([check_whole, check_users], [
        ("steps + 1, kv)", "steps, kv)"),
        ("share(moved, took, most.bandwidth)", "share(moved, took, most.flops)"),
        ('slowdown(rate, alone.value or float("nan"))', 'slowdown(alone.value or float("nan"), rate)'),
        ("total_rate(counts, time.perf_counter() - since)", "total_rate(counts, 1.0)"),
    ]),
    "gpu.speed": ([check_rows, check_roofline, check_host_gap, check_streams, check_exact, check_verify], [
        ("slowdown(least, took)", "slowdown(took, least)"),
        ("slowdown(slow, fast)", "slowdown(fast, slow)"),
        ("slowdown(median(times[1]), median(times[0]))", "slowdown(median(times[0]), median(times[1]))"),
        ("slowdown(times[rows], times[1])", "slowdown(times[1], times[rows])"),
        ("sampled=np.arange(count, dtype=np.int32))", "sampled=np.arange(1, dtype=np.int32))"),
        ("self.value <= self.wanted", "self.value < self.wanted"),
        ("if self.at_most else", "if not self.at_most else"),
        ("product_flops(n) / product)", "product_flops(n) / copy)"),
        ("copy_bandwidth(source.nbytes, copy)", "copy_bandwidth(source.nelement(), copy)"),
        ("share(moved, took, most.bandwidth)", "share(moved, took, most.flops)"),
        ("share(moved, took, most.bandwidth)", "1.2 * share(moved, took, most.bandwidth)"),
        ("speedup([times[scale.short]], took)", "speedup([times[scale.long]], took)"),
        ("gap(whole, device)", "gap(device, whole)"),
        ('"tok/s", 1 / median(whole),', '"tok/s", 1 / median(device),'),
    ]),
}  # fmt: skip


@checked(CASES)
def test_figures(name: str, check: Callable[[Any], None]) -> None:
    check(importlib.import_module(name))


@mistaken(CASES)
def test_mutants_die(name: str, right: str, wrong: str) -> None:
    must_die(importlib.import_module(name), right, wrong, CASES[name][0])
