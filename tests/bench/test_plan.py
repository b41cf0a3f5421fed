"""What is planned is what is allocated: the same code counts both, and the system agrees."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo import checkpoints
from octavo.assembly import Loaded, load
from octavo.bench import plan
from octavo.bench.plan import plan_model
from octavo.checkpoints import hub
from octavo.cli._app import run
from octavo.config import EngineConfig
from octavo.errors import CapacityError, UnsupportedError
from octavo.kernels.batch import ForwardBatch
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.weight import Weight
from octavo.runtime.memory import free_after

SMALL = {"max_model_len": 512, "max_num_seqs": 4, "num_pages": 512, "threads": 1}
LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


def anonymous_bytes() -> int:
    """Resident memory that no file is behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


@pytest.mark.parametrize("options", [{}, {"kv_cache_dtype": "int8"}, {"dtype": "float32", "num_pages": 64}])
def test_the_plan_is_what_a_start_allocates(options: dict[str, object]) -> None:
    user = EngineConfig("smollm2", **SMALL | options)  # type: ignore[arg-type]
    planned, loaded = plan_model(user), load(user)
    assert planned.weights == loaded.memory.weights
    assert planned.kv_cache == loaded.memory.kv_cache
    assert planned.activations == loaded.runner.activation_bytes > 0
    assert planned.rows == loaded.runner.state_bytes > 0
    assert planned.config == loaded.config
    assert planned.fits


@LINUX
def test_the_system_counts_the_same_within_three_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything touched: all pages written, a step as large as steps may be.

    The tokenizer and the file's metadata are part of "process": they are there before.
    """
    user = EngineConfig("smollm2", **SMALL)  # type: ignore[arg-type]
    words, checkpoint = load(user, planned=True), checkpoints.open_checkpoint(hub.resolve("smollm2"))
    monkeypatch.setattr("octavo.assembly.words.words_of", lambda *_: (words.tokenizer, words.template))
    monkeypatch.setattr(checkpoints, "open_checkpoint", lambda path: checkpoint)
    planned = plan_model(user)
    before = anonymous_bytes()
    loaded = load(user)
    touch(loaded)
    wanted = planned.weights + planned.kv_cache + planned.activations
    assert anonymous_bytes() - before == pytest.approx(wanted, rel=0.03)


def touch(loaded: Loaded) -> None:
    config, program, kv = loaded.config, loaded.runner._program, loaded.runner._moves._kv
    count, size = config.max_num_batched_tokens, config.page_size
    line = np.arange(count, dtype=np.int32)
    pages = -(-count // size)
    program.replay(
        ForwardBatch(
            token_ids=line % 100,
            positions=line,
            slots=line,
            query_start=np.array([0, count], np.int32),
            context_lens=np.array([count], np.int32),
            page_tables=np.arange(pages, dtype=np.int32)[None],
            sampled=line[-config.max_num_seqs :],
        )
    )
    kv.copy_pages([(page % pages, page) for page in range(pages, config.num_pages)])


@LINUX
def test_a_planned_model_takes_next_to_nothing() -> None:
    user = EngineConfig("smollm2", **SMALL)  # type: ignore[arg-type]
    plan_model(user)
    before = anonymous_bytes()
    planned = load(user, planned=True)
    assert anonymous_bytes() - before < planned.memory.weights / 3


def test_planned_weights_are_not_written() -> None:
    table = Weight.dense(np.ones((64, 64), np.float32))
    real, planned = (CpuBackend(1, planned=p).pack([table]) for p in (False, True))
    assert real.nbytes == planned.nbytes == 64 * 64 * 4
    assert real.shape == planned.shape


def test_weights_that_do_not_fit() -> None:
    assert free_after(10, 30) == 20
    with pytest.raises(CapacityError, match="the weights need 31 bytes, 30 are available"):
        free_after(31, 30)


def test_the_reference_is_not_planned() -> None:
    with pytest.raises(UnsupportedError, match="native kernels"):
        plan_model(EngineConfig("smollm2", backend="reference"))


# --- the command ------------------------------------------------------------------------------------

FLAGS = ("--max-model-len", "512", "--max-num-seqs", "4", "--num-pages", "128", "--threads", "1")
COST = '{"step_s": 0.003, "token_s": 0.0005}'


def written(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 100 * n, "input_length": 40, "output_length": 8} for n in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_the_command_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "smollm2", *FLAGS]) == 0
    text = capsys.readouterr().out
    assert "weights" in text
    assert "128 pages of 16" in text
    assert "2048 tokens of KV at 23760 bytes: 4.0 sequences of 512" in text


def test_a_trace_is_planned_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "smollm2", *FLAGS, "--trace", written(tmp_path), "--cost-model", COST]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory"]["config"]["num_pages"] == 128
    assert found["cost_model"]["token_s"] == 0.0005
    slow = found["simulated"]
    assert (slow["requests"], slow["refused"], slow["preemptions"]) == (20, 0, 0)
    assert slow["ttft"]["p50"] == pytest.approx(23.0)  # one request at a time
    assert run([*words, "--json", "--speed", "100"]) == 0
    fast = json.loads(capsys.readouterr().out)["simulated"]
    assert fast["seconds"] < slow["seconds"]
    assert fast["ttft"]["p99"] > slow["ttft"]["p99"]
    assert run(words) == 0
    assert "TTFT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--speed", "2"], "--trace"),
        (["--trace", "/no/such/file"], "No such file"),
        (["--trace", "TRACE", "--speed", "0"], "--speed"),
        (["--trace", "TRACE", "--cost-model", "{}"], "cost model"),
        (["--num-pages", "999999999"], "num_pages"),
    ],
)
def test_errors_are_one_line(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [written(tmp_path) if word == "TRACE" else word for word in words]
    assert run(["plan", "smollm2", *words]) == 1
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_what_does_not_fit_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "available_memory", lambda: 10**8)
    assert run(["plan", "smollm2", *FLAGS]) == 1
    assert capsys.readouterr().out.endswith("it does not fit\n")
