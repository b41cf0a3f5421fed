"""What a machine in three numbers can do: by hand, and as it is typed."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import pytest

from octavo.assembly.planning import outline, stand_in
from octavo.bench.calibrate import Machine
from octavo.bench.machines import MACHINES, machine_of
from octavo.bench.predict import NEAR, Bounds, Drafted, Split, Timed, Work, as_machine, outlook, speed
from octavo.bench.roofline import ModelCost, cost_of
from octavo.bench.stand_in import LEARNED_ROWS, LEARNING_STEPS, LEAST, StandIn
from octavo.cli._app import run
from octavo.config import EngineConfig
from octavo.engine.step_plan import StepPlan
from octavo.errors import InvalidRequestError
from octavo.kernels.cpu_program import CpuDecoder
from octavo.kernels.outline import Outline
from octavo.kernels.weight import Layout
from octavo.models.filled import filled
from octavo.quant import registry
from octavo.runtime.model_runner import Decoding

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
LLAMA_7B = LLAMA | {
    "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32,
    "num_hidden_layers": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
LLAMA_405B = LLAMA | {
    "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128, "num_key_value_heads": 8,
    "num_hidden_layers": 126, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip

# 10 GB of weights, 5e9 multiplications a token, 1 MB of KV a token, attention left out.
COST = ModelCost(5 * 10**9, 0, 10**10, 10**6, (), 16.0)
MACHINE = Machine("m", 1, 1e12, 5e12, 5e12, 1.0)
WORK = Work(prompt=900, output=200, chunk=512, kv_tokens=110_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_7B))
    return tmp_path


def test_a_step_by_hand() -> None:
    """Bandwidth: (10 GB + batch x 1,000 x 1 MB) / 1 TB/s; arithmetic: batch x 1 ms."""
    one = speed(Bounds(COST, MACHINE), WORK, 1)
    assert (one.tpot, one.limit, one.fits) == (pytest.approx(11.0), "bandwidth", True)
    assert one.rate == pytest.approx(1000 / 11)
    assert one.ttft == pytest.approx(900.0), "900 tokens at 1 ms; two chunks of weights take 20 ms"
    assert one.latency == pytest.approx(900 + 199 * 11)
    many = speed(Bounds(COST, MACHINE), WORK, 50)
    assert many.tpot == pytest.approx(60.0)
    assert many.rate == pytest.approx(50 / 0.060)
    assert not speed(Bounds(COST, MACHINE), WORK, 101).fits


def test_what_limits_and_the_best_batch() -> None:
    found = outlook(Bounds(COST, MACHINE), WORK, [1, 8])
    assert [each.batch for each in found.speeds] == [1, 8]
    assert (found.requests, found.ridge, found.held_by) == (100, None, "bandwidth"), (
        "keys and values use it up"
    )
    assert found.best is not None
    rates = {batch: speed(Bounds(COST, MACHINE), WORK, batch).rate for batch in range(1, 101)}
    assert found.best.batch == min(b for b, rate in rates.items() if rate >= NEAR * max(rates.values()))
    few = outlook(Bounds(COST, MACHINE), Work(900, 200, 512, 5_500), [])
    assert few.best is not None
    assert (few.best.batch, few.held_by) == (5, "memory")
    slow = Machine("slow", 1, 1e12, 5e11, 5e11, 1.0)  # arithmetic: batch x 10 ms
    bound = outlook(Bounds(COST, slow), WORK, [])
    assert (bound.ridge, bound.held_by) == (2, "arithmetic")
    assert bound.best is not None
    assert bound.best.batch == 2, "from there on more add nothing"


def test_the_limit_of_a_token_is_kept() -> None:
    for limit in (11.0, 20.0, 20.5, 59.0):
        found = outlook(Bounds(COST, MACHINE), Work(900, 200, 512, 110_000, limit), []).best
        assert found is not None
        assert found.tpot <= limit
    allowed = outlook(Bounds(COST, MACHINE), Work(900, 200, 512, 110_000, 20.0), [])
    assert allowed.best is not None
    assert (allowed.best.batch, allowed.held_by) == (10, "TPOT")
    assert outlook(Bounds(COST, MACHINE), Work(900, 200, 512, 110_000, 10.9), []).best is None
    nothing = outlook(Bounds(COST, MACHINE), Work(900, 200, 512, 500), [])
    assert (nothing.requests, nothing.best, nothing.ridge) == (0, None, None)


def test_a_model_that_devices_share() -> None:
    """Each has half the bytes and half the arithmetic; of every sum a ring of two sends once its bytes."""
    cost = dataclasses.replace(COST, attention=((0, None),) * 10, width=1000)
    two = Bounds(cost, MACHINE, Split(2, link=1e9))
    sums = 10 * 2 * 1000 * 2  # layers, sums of each, numbers of 2 bytes
    assert two.decode(1, 1000) == pytest.approx(11.0e-3 / 2 + sums / 1e9)
    assert two.decode(8, 1000) == pytest.approx(18.0e-3 / 2 + 8 * sums / 1e9)
    assert two.prompt(900, 512) == pytest.approx(0.9 / 2 + 900 * sums / 1e9)
    four = Bounds(cost, MACHINE, Split(4, link=1e9))
    assert four.decode(1, 1000) == pytest.approx(11.0e-3 / 4 + 1.5 * sums / 1e9), "2 x 3 / 4 of a sum's bytes"
    assert Bounds(cost, MACHINE).decode(1, 1000) == pytest.approx(11.0e-3)


def test_drafts_that_a_step_verifies() -> None:
    """Bandwidth: the same bytes; arithmetic: four rows a sequence. They give 1 + 1/2 + 1/4 + 1/8 tokens."""
    drafted = Bounds(COST, MACHINE, drafted=Drafted(3, 0.5))
    one = speed(drafted, WORK, 1)
    assert one.tpot == pytest.approx(11.0 / 1.875)
    assert one.rate == pytest.approx(1.875 / 11.0e-3)
    many = speed(drafted, WORK, 50)
    assert many.tpot == pytest.approx(4 * 50.0 / 1.875), "arithmetic of 200 rows, 1 ms each"
    assert many.limit == "arithmetic"
    assert Drafted(4, 1.0).tokens == 5.0
    assert Drafted(4, 0.0).tokens == Drafted().tokens == 1.0


def test_times_between_those_that_were_taken() -> None:
    times = Timed(Bounds(COST, MACHINE), ((1, 0.010), (4, 0.016), (8, 0.020)), 0.5)
    assert [times.decode(batch, 7) for batch in (1, 2, 4, 6, 8, 12)] == pytest.approx(
        [0.010, 0.012, 0.016, 0.018, 0.020, 0.024]
    )
    assert Timed(times.bounds, ((2, 0.010),), 0.5).decode(6, 7) == pytest.approx(0.030)
    found = outlook(times, WORK, [8])
    assert found.speeds[0].rate == pytest.approx(8 / 0.020)
    assert found.speeds[0].ttft == pytest.approx(500.0)


@pytest.mark.parametrize("chunk", [7, 16, 64])
def test_a_stand_in_computes_the_steps_that_it_times(smollm2_path: Path, chunk: int) -> None:
    """Its steps are the engine's: as many tokens, at the positions of that context, and nothing fails."""
    model, backend = stand_in(EngineConfig(str(smollm2_path), threads=1))
    seen: list[tuple[int, int, int]] = []

    class Watched(StandIn):
        def _runner(self, rows: int, tokens: int, pages: int) -> Any:
            runner = super()._runner(rows, tokens, pages)
            submit = runner.submit

            def noted(plan: StepPlan) -> Any:
                handle = submit(plan)
                result = handle.result()
                assert not result.errors
                seen.append((len(plan.steps), plan.num_tokens, len(result.tokens)))
                return handle

            runner.submit = noted  # type: ignore[method-assign]
            return runner

    times = Watched(model, backend, "int16", seconds=0.0, learns=False)
    found = times.decode([1, 3], 20)
    assert [batch for batch, _ in found] == [1, 3]
    assert all(seconds > 0 for _, seconds in found)
    assert seen == [(1, 1, 1)] * (1 + LEAST) + [(3, 3, 3)] * (1 + LEAST)
    seen.clear()
    assert times.prompt(20, chunk) > 0
    sizes = [min(chunk, 20 - begin) for begin in range(0, 20, chunk)]
    once = [(1, size, int(place == len(sizes) - 1)) for place, size in enumerate(sizes)]
    assert seen[: len(once)] == once
    assert len(seen) % len(once) == 0


@pytest.mark.parametrize("batches", [(1, 3), (3,), (4, 2)])
def test_a_stand_in_times_no_step_that_learns(smollm2_path: Path, batches: Sequence[int]) -> None:
    """The steps that are timed have their tokens from the head's bounds, as an engine's; none before has."""
    user = EngineConfig(str(smollm2_path), threads=1)
    found = outline(user)
    assert cost_of(found.model, found.backend, None, found.kv_dtype).spared_bytes, "the head has bounds"
    chosen: list[int] = []

    class Watched(StandIn):
        def _runner(self, rows: int, tokens: int, pages: int) -> Any:
            runner = super()._runner(rows, tokens, pages)
            submit, decoding = runner.submit, runner._decoding
            assert isinstance(decoding, Decoding)
            native = cast(CpuDecoder, decoding.decoder).native

            def noted(plan: StepPlan) -> Any:
                before = native.chosen
                handle = submit(plan)
                chosen.append(native.chosen - before)
                return handle

            runner.submit = noted  # type: ignore[method-assign]
            return runner

    Watched(*stand_in(user), found.kv_dtype, seconds=0.0).decode(batches, 20)
    learning = -(-LEARNED_ROWS // max(batches)) + LEARNING_STEPS
    assert chosen[:learning] == [0] * learning
    assert chosen[learning:] == [batch for batch in batches for _ in range(1 + LEAST)]


@pytest.mark.parametrize("layout", [Layout.F32, Layout.BF16, Layout.S8, Layout.U4, Layout.F8, Layout.NF4])
def test_numbers_in_place_of_an_outline(layout: Layout) -> None:
    """Of the outline's form, and such that a row meets x of members about 1 with a sum about 1."""
    if layout in (Layout.F32, Layout.BF16):
        outline = Outline.floats((64, 256), layout.dtype)
    else:
        outline = Outline.coded(layout, (64, 256), 256 // {Layout.F8: 128, Layout.NF4: 64}.get(layout, 32))
    weight = filled(outline)
    assert (weight.layout, weight.shape, weight.values.shape) == (layout, (64, 256), outline.values.shape)
    assert (weight.scale is None) is (outline.scale is None)
    sizes = np.linalg.norm(weight.dequantize().astype(np.float32), axis=1)
    assert np.isfinite(sizes).all()
    assert 0.3 < np.median(sizes) < 3


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_numbers_in_place_of_a_file_s(kind: str) -> None:
    """A norm of about 1, about 0: steps count, too."""
    numbers = filled(registry.outline(kind, (64, 1024))).dequantize()
    assert 0.3 < np.median(np.linalg.norm(numbers, axis=1)) < 3
    assert abs(numbers.mean()) < 0.1 * numbers.std()


def test_a_model_of_seven_billion(folder: Path) -> None:
    """13.5 GB in 16 bits, half a MB of KV a token: on a memory of 1 TB/s at most 76 tokens a second."""
    found = outline(EngineConfig(str(folder), threads=1, kv_cache_dtype="float16"))
    cost = cost_of(found.model, found.backend, None, found.kv_dtype)
    table = 2 * 32000 * 4096
    assert found.weights == pytest.approx(13.48e9, rel=0.002)
    assert cost.weight_bytes == pytest.approx(found.weights - table, rel=0.002), "the table is looked up"
    assert cost.linear_macs + cost.head_macs == pytest.approx(6.607e9, rel=0.001)
    assert cost.kv_bytes == 2 * 32 * 4096 * 2
    one = speed(Bounds(cost, Machine("m", 1, 1e12, 1e15, 1e15, 1.0)), Work(1, 1, 512, 4096), 1)
    assert one.rate == pytest.approx(1e12 / (13.48e9 - table + cost.kv_bytes), rel=0.003)


def test_packed_and_file_agree_for_a_file_that_is_kept_as_it_is(smollm2_path: Path) -> None:
    """What start-up packs, and what the file has: equal within the padding of layouts."""
    found = outline(EngineConfig(str(smollm2_path), threads=1))
    cost = cost_of(found.model, found.backend, None, found.kv_dtype)
    assert cost.weight_bytes <= found.weights
    assert cost.weight_bytes == pytest.approx(found.weights, rel=0.01), "a tied head is read whole"


def test_a_giant_is_outlined_without_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """405e9 weights by config.json alone; what is allocated meanwhile is no matter of their number."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_405B))
    tracemalloc.start()
    try:
        words = ["plan", str(tmp_path / "config.json"), "--machine", "mi300x", "--memory", "1000"]
        words += ["--max-model-len", "4096"]
        assert run([*words, "--json"]) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    found = json.loads(capsys.readouterr().out)
    assert found["memory"]["parameters"] == pytest.approx(405.9e9, rel=0.001)
    assert found["speed"]["outlook"]["speeds"][0]["tpot"] == pytest.approx(807.0 / 5.3, rel=0.02)
    assert peak < 100e6


def test_machines_by_name() -> None:
    for name, machine in MACHINES.items():
        assert machine_of(name) is machine
        maker = machine.source.split()[0]
        assert any(kind in machine.source for kind in ("data sheet", "product brief", "white paper"))
        assert urlsplit(machine.url).hostname in {f"{at}.{maker.lower()}.com" for at in ("www", "images")}
        assert bool(machine.memory) is machine.gpu, "a CPU's is what is fitted"
        assert 1 < machine.flops / machine.bandwidth < 1000, "operations a byte"
    assert MACHINES["epyc-9654"].bandwidth == pytest.approx(12 * 4.8e9 * 8, rel=1e-3)
    assert MACHINES["epyc-9654"].flops == pytest.approx(96 * 2.4e9 * 32, rel=1e-3)
    assert MACHINES["xeon-8480"].bandwidth == pytest.approx(8 * 4.8e9 * 8, rel=1e-3)
    assert MACHINES["xeon-8480"].flops == pytest.approx(56 * 2.0e9 * 64, rel=1e-3)
    assert as_machine(MACHINES["h100"]).tile_rate == pytest.approx(989e12 / 2)
    with pytest.raises(InvalidRequestError, match=r"--machine knows t4, .*h100.*, and not 'x'"):
        machine_of("x")


def test_a_gpu_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(folder), "--machine", "rtx-4090", "--tpot-limit", "20"]) == 0
    out = capsys.readouterr().out
    assert "13.48 GB of weights" in out
    assert "at best on rtx-4090" in out
    assert "within 20 ms a token" in out
    tokens = int((0.9 * 24 * 2**30 - 13.476e9) / 524288)
    assert int(out.split(" tokens of KV")[0].split()[-1]) == pytest.approx(tokens, abs=20)
    assert run(["plan", str(folder), "--machine", "t4", "--memory", "8"]) == 1
    assert "the weights need 13.5 GB" in capsys.readouterr().err


def test_a_machine_in_flags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", str(folder), "--memory", "64", "--bandwidth", "100", "--flops", "4", "--threads", "1"]
    assert run([*words, "--json", "--batch-sizes", "1,2"]) == 0
    found = json.loads(capsys.readouterr().out)
    speeds = found["speed"]["outlook"]["speeds"]
    assert [each["batch"] for each in speeds] == [1, 2]
    assert speeds[0]["limit"] == "bandwidth"
    assert 132 < speeds[0]["tpot"] < 138, "13.2 GB at 100 GB/s, and the KV"
    assert found["memory"]["weights"] == pytest.approx(13.48e9, rel=0.002)
    assert run(words) == 0
    assert "such requests fit together" in capsys.readouterr().out


def test_this_machine_measured(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--max-model-len", "1024", "--num-pages", "128", "--threads", "1"]
    assert run(["plan", "smollm2", "--measure", "--json", *small]) == 0
    found = json.loads(capsys.readouterr().out)["speed"]
    assert found["source"] == "greedy steps timed here"
    assert found["machine"]["bandwidth"] > 0
    assert found["outlook"]["requests"] == 128 * 16 // 640
    assert [batch for batch, _ in found["steps"]] == [1, 2, 3], "as many as fit"
    one = found["outlook"]["speeds"][0]
    assert one["rate"] == pytest.approx(1 / found["steps"][0][1])


def test_what_does_not_fit_is_said_at_best(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", str(folder), "--measure", "--memory", "1", "--threads", "1"]
    status = run(words)
    out, err = capsys.readouterr()
    assert status == 1
    assert "the weights need" in err or "does not fit" in out


def test_several_gpus(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", str(folder), "--machine", "t4", "--json"]
    assert run([*words, "--tensor-parallel-size", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory"]["devices"] == 4
    room = 0.9 * 16 * 2**30 - found["memory"]["weights"] / 4
    assert found["memory"]["num_tokens"] == int(room / (524288 / 4))
    assert found["speed"]["split"] == {"degree": 4, "link": 16e9}
    assert run([*words[:-1], "--tensor-parallel-size", "4"]) == 0
    text = capsys.readouterr().out
    assert "3.37 GB of weights on each of 4" in text
    assert "at best on t4 x 4" in text


def test_drafts_of_a_machine_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", str(folder), "--machine", "h100", "--json", "--batch-sizes", "1"]
    assert run(words) == 0
    plain = json.loads(capsys.readouterr().out)["speed"]["outlook"]["speeds"][0]
    config = ['--speculative-config={"method": "ngram", "num_speculative_tokens": 4}', "--acceptance", "0.8"]
    assert run([*words, *config]) == 0
    found = json.loads(capsys.readouterr().out)["speed"]
    assert found["drafted"] == {"most": 4, "accepted": 0.8}
    gain = found["outlook"]["speeds"][0]["rate"] / plain["rate"]
    assert gain == pytest.approx(sum(0.8**n for n in range(5)), rel=0.01), "of one stream all drafts are free"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--machine", "abacus"], "--machine knows"),
        (["--bandwidth", "100"], "both --bandwidth and --flops"),
        (["--bandwidth", "nan", "--flops", "1"], "--bandwidth must be a positive number"),
        (["--bandwidth", "-5", "--flops", "1"], "--bandwidth must be a positive number"),
        (["--machine", "h100", "--tpot-limit", "nan"], "--tpot-limit must be a positive number"),
        (["--machine", "h100", "--acceptance", "nan"], "invalid value for '--acceptance'"),
        (["--measure", "--machine", "h100"], "--measure is for this machine"),
        (["--machine", "h100", "--memory", "inf"], "--memory must be 0 or a positive number"),
        (["--machine", "h100", "--tensor-parallel-size", "5"], "5 does not divide the 32 KV heads"),
        (
            ["--machine", "h100", "--acceptance", "0.5"],
            "--acceptance is of the drafts of a --speculative-config",
        ),
        (["--measure", "--tensor-parallel-size", "2"], "--tensor-parallel-size is for GPUs by name"),
        (["--measure", "--acceptance", "0.5"], "what drafts gain here octavo bench speculate measures"),
        (["--machine", "h100", "--trace", "no/such"], "no such file"),
        (["--machine", "epyc-9654"], "how much memory epyc-9654 has"),
        (["--machine", "epyc-9654", "--memory", "64", "--prompt-tokens", "5000"], "--max-model-len is 4096"),
        (
            ["--machine", "epyc-9654", "--memory", "64", "--batch-sizes", "0"],
            "--batch-sizes takes positive numbers",
        ),
    ],
)
def test_errors_are_one_line(
    words: list[str], text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(folder), *words]) == (1 if text == "no such file" else 2)
    err = capsys.readouterr().err
    assert text.lower() in err.lower()
    assert err.count("\n") == 1
