"""What a machine in three numbers can do: by hand, and as it is typed."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from octavo.assembly.planning import outline
from octavo.bench.calibrate import Machine
from octavo.bench.machines import MACHINES, machine_of
from octavo.bench.predict import NEAR, Work, as_machine, outlook, speed
from octavo.bench.roofline import ModelCost, cost_of
from octavo.cli._app import run
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError

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
    one = speed(COST, MACHINE, WORK, 1)
    assert (one.tpot, one.limit, one.fits) == (pytest.approx(11.0), "bandwidth", True)
    assert one.rate == pytest.approx(1000 / 11)
    assert one.ttft == pytest.approx(900.0), "900 tokens at 1 ms; two chunks of weights take 20 ms"
    assert one.latency == pytest.approx(900 + 199 * 11)
    many = speed(COST, MACHINE, WORK, 50)
    assert many.tpot == pytest.approx(60.0)
    assert many.rate == pytest.approx(50 / 0.060)
    assert not speed(COST, MACHINE, WORK, 101).fits


def test_what_limits_and_the_best_batch() -> None:
    found = outlook(COST, MACHINE, WORK, [1, 8])
    assert [each.batch for each in found.speeds] == [1, 8]
    assert (found.requests, found.ridge, found.held_by) == (100, None, "bandwidth"), (
        "keys and values use it up"
    )
    assert found.best is not None
    rates = {batch: speed(COST, MACHINE, WORK, batch).rate for batch in range(1, 101)}
    assert found.best.batch == min(b for b, rate in rates.items() if rate >= NEAR * max(rates.values()))
    few = outlook(COST, MACHINE, Work(900, 200, 512, 5_500), [])
    assert few.best is not None
    assert (few.best.batch, few.held_by) == (5, "memory")
    slow = Machine("slow", 1, 1e12, 5e11, 5e11, 1.0)  # arithmetic: batch x 10 ms
    bound = outlook(COST, slow, WORK, [])
    assert (bound.ridge, bound.held_by) == (2, "arithmetic")
    assert bound.best is not None
    assert bound.best.batch == 2, "from there on more add nothing"


def test_the_limit_of_a_token_is_kept() -> None:
    for limit in (11.0, 20.0, 20.5, 59.0):
        found = outlook(COST, MACHINE, Work(900, 200, 512, 110_000, limit), []).best
        assert found is not None
        assert found.tpot <= limit
    allowed = outlook(COST, MACHINE, Work(900, 200, 512, 110_000, 20.0), [])
    assert allowed.best is not None
    assert (allowed.best.batch, allowed.held_by) == (10, "TPOT")
    assert outlook(COST, MACHINE, Work(900, 200, 512, 110_000, 10.9), []).best is None
    nothing = outlook(COST, MACHINE, Work(900, 200, 512, 500), [])
    assert (nothing.requests, nothing.best, nothing.ridge) == (0, None, None)


def test_a_model_of_seven_billion(folder: Path) -> None:
    """13.5 GB in 16 bits, half a MB of KV a token: on a memory of 1 TB/s at most 76 tokens a second."""
    found = outline(EngineConfig(str(folder), threads=1, kv_cache_dtype="float16"))
    cost = cost_of(found.model, found.backend, None, found.kv_dtype)
    table = 2 * 32000 * 4096
    assert found.weights == pytest.approx(13.48e9, rel=0.002)
    assert cost.weight_bytes == pytest.approx(found.weights - table, rel=0.002), "the table is looked up"
    assert cost.linear_macs + cost.head_macs == pytest.approx(6.607e9, rel=0.001)
    assert cost.kv_bytes == 2 * 32 * 4096 * 2
    one = speed(cost, Machine("m", 1, 1e12, 1e15, 1e15, 1.0), Work(1, 1, 512, 4096), 1)
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
        assert machine.source
        assert 1 < machine.flops / machine.bandwidth < 1000, "operations a byte"
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
    assert found["source"] == "measured here"
    assert found["machine"]["bandwidth"] > 0
    assert found["outlook"]["requests"] == 128 * 16 // 640


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--machine", "abacus"], "--machine knows"),
        (["--bandwidth", "100"], "both --bandwidth and --flops"),
        (["--bandwidth", "nan", "--flops", "1"], "--bandwidth must be a positive number"),
        (["--bandwidth", "-5", "--flops", "1"], "--bandwidth must be a positive number"),
        (["--measure", "--machine", "h100"], "--measure is for this machine"),
        (["--machine", "h100", "--memory", "inf"], "--memory must be 0 or a positive number"),
        (["--machine", "h100", "--trace", "no/such"], "no such file"),
        (["--machine", "epyc-9654", "--prompt-tokens", "5000"], "--max-model-len is 4096"),
        (["--machine", "epyc-9654", "--batch-sizes", "0"], "--batch-sizes takes positive numbers"),
    ],
)
def test_errors_are_one_line(
    words: list[str], text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(folder), *words]) == 1
    err = capsys.readouterr().err
    assert text.lower() in err.lower()
    assert err.count("\n") == 1
