"""What is planned is what is allocated: the same code counts both, and the system agrees."""

from __future__ import annotations

import importlib
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from octavo import checkpoints
from octavo.assembly import Loaded, least_bytes, load, planning
from octavo.assembly.memory import free_after
from octavo.assembly.tokenizer import tokenizer_and_template
from octavo.bench import plan
from octavo.bench.plan import plan_model
from octavo.checkpoints import sources
from octavo.cli._app import run
from octavo.config import EngineConfig
from octavo.errors import CapacityError, CheckpointError, UnsupportedError
from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.cuda.device import NO_DRIVER, Choice
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.weight import Weight

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
    checkpoint = checkpoints.open_checkpoint(path := sources.resolve("smollm2"))
    made = tokenizer_and_template(user, checkpoint, path)
    for place in ("tokenizer", "planning"):
        monkeypatch.setattr(f"octavo.assembly.{place}.tokenizer_and_template", lambda *_: made)
    monkeypatch.setattr(checkpoints, "open_checkpoint", lambda path: checkpoint)
    monkeypatch.setattr(planning, "open_checkpoint", lambda path, headers: checkpoint)
    planned = plan_model(user)
    before = anonymous_bytes()
    loaded = load(user)
    touch(loaded)
    wanted = planned.weights + planned.kv_cache + planned.activations
    assert anonymous_bytes() - before == pytest.approx(wanted, rel=0.03)


def touch(loaded: Loaded) -> None:
    config, program, kv = loaded.config, loaded.runner._program, loaded.runner._moves.kv
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
    planned = planning.plan(user)
    assert anonymous_bytes() - before < planned.budget.weights / 3


def test_planned_weights_are_not_written() -> None:
    table = Weight.dense(np.ones((64, 64), np.float32))
    real, planned = (CpuBackend(1, planned=p).pack([table]) for p in (False, True))
    assert real.nbytes == planned.nbytes == 64 * 64 * 4
    assert real.shape == planned.shape


LLAMA_405B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("method", "nbytes"),
    [
        (None, 2),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 128),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "int-quantized",
                "config_groups": {"all": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}},
                "ignore": ["lm_head"],
            },
            1 + 4 / 16384,
        ),
    ],
)
def test_a_giant_is_planned_by_its_config_alone(
    method: dict[str, object] | None, nbytes: float, tmp_path: Path
) -> None:
    """405e9 weights, of which nothing is there to be read: what is allocated is no matter of their number."""
    config = LLAMA_405B | ({} if method is None else {"quantization_config": method})
    (tmp_path / "config.json").write_text(json.dumps(config))
    user = EngineConfig(str(tmp_path), max_model_len=4096, max_num_seqs=8, threads=1)
    tracemalloc.start()
    try:
        planned = plan_model(user, free=2 << 40)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    tables = 2 * 128256 * 16384
    assert planned.weights == pytest.approx((405.8e9 - tables) * nbytes + tables * 2, rel=1e-3)
    assert planned.kv_cache == 8 * 4096 * planned.bytes_per_token
    assert planned.fits
    assert peak < 100e6
    with pytest.raises(CapacityError, match="the weights need"):
        plan_model(user, free=1 << 30)


def test_a_header_is_planned_as_the_whole_file(tmp_path: Path) -> None:
    whole = sources.resolve("smollm2")
    header = tmp_path / "header.gguf"
    with whole.open("rb") as file:
        header.write_bytes(file.read(16 << 20))
    assert header.stat().st_size < whole.stat().st_size
    planned = [plan_model(EngineConfig(str(path), **SMALL)) for path in (whole, header)]  # type: ignore[arg-type]
    assert planned[0].weights == planned[1].weights
    assert planned[0].config == planned[1].config
    assert [plan.cut for plan in planned] == [None, (16 << 20, whole.stat().st_size)]
    with pytest.raises(CheckpointError, match="past the file's end"):
        load(EngineConfig(str(header), **SMALL))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [4 << 20, -1])
def test_a_file_that_is_cut_is_planned_and_called_so(
    size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = sources.resolve("smollm2").read_bytes()
    (path := tmp_path / "cut.gguf").write_bytes(data[:size])
    assert run(["plan", str(path), *FLAGS]) == 0
    line = f"cannot be loaded: it has {len(data[:size])} of the {len(data)} bytes its header names\n"
    assert line in capsys.readouterr().out
    assert run(["plan", str(path), *FLAGS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["cut"] == [len(data[:size]), len(data)]
    assert run(["plan", "smollm2", *FLAGS]) == 0
    assert "cannot be loaded" not in capsys.readouterr().out


RECORDED = {
    # weights, pages, activations, rows, pages of the pool, sliding pages, swap blocks, max_model_len
    "plain": ({}, 100793856, 724584960, 12781056, 2229504, 1906, 0, 0, 8192),
    "lengths": (
        {"max_model_len": 512, "max_num_seqs": 4},
        100793856,
        48660480,
        6684672,
        8784,
        128,
        0,
        0,
        512,
    ),
    "pages": (
        {"max_model_len": 512, "num_pages": 100, "page_size": 32},
        *(100793856, 76032000, 12781056, 136448, 100, 0, 0, 512),
    ),
    "swap": (
        {"max_num_seqs": 8, "swap_space": 0.25},
        *(100793856, 926069760, 6684672, 278688, 1730, 0, 706, 8192),
    ),
    "int8": (
        {"kv_cache_dtype": "int8", "gpu_memory_utilization": 0.5},
        *(100793856, 1449411840, 12781056, 2229504, 7401, 0, 0, 8192),
    ),
    "float32": (
        {"dtype": "float32", "max_num_batched_tokens": 64},
        *(537919488, 614891520, 12877824, 2229504, 834, 0, 0, 8192),
    ),
    "tight": ({"gpu_memory_utilization": 0.004}, 100793856, 11404800, 12781056, 131840, 30, 0, 0, 480),
}


def test_a_cards_share_is_capped_on_a_cpu_and_said(smollm2_path: Path) -> None:
    """A lesson's 0.9 takes what 0.5 does, unless num_pages says how many pages there are."""
    half = plan_model(EngineConfig("smollm2", gpu_memory_utilization=0.5), free=1 << 30)
    with pytest.warns(RuntimeWarning, match=r"gpu_memory_utilization 0\.9 is taken as 0\.5 on a CPU"):
        most = plan_model(EngineConfig("smollm2", gpu_memory_utilization=0.9), free=1 << 30)
    assert most.kv_cache == half.kv_cache
    asked = plan_model(EngineConfig("smollm2", num_pages=2500, max_model_len=256), free=1 << 30)
    assert asked.config.num_pages == 2500
    assert asked.kv_cache > half.kv_cache


SLIDING = {
    "plain": ({}, 268752896, 682804224, 67329024, 9438464, 2904, 2176, 0, 32768),
    "named": (
        {"max_model_len": 8192, "num_sliding_pages": 700},
        *(268752896, 682804224, 67329024, 2360576, 10284, 700, 0, 8192),
    ),
    "tight": ({"gpu_memory_utilization": 0.02}, 268752896, 54588672, 67329024, 2844416, 617, 97, 0, 9872),
    "float32": (
        {"dtype": "float32", "num_pages": 2048},
        *(1072168960, 1207959552, 67436544, 9438464, 2048, 2048, 0, 32768),
    ),
}
KNOWN = {f"smollm2-{name}": ("smollm2", *case) for name, case in RECORDED.items()} | {
    f"gemma3-{name}": ("gemma3-270m", *case) for name, case in SLIDING.items()
}


@pytest.mark.skipif("avx2" not in instruction_sets(), reason="recorded with AVX2's layouts")
@pytest.mark.parametrize("case", KNOWN.values(), ids=KNOWN)
def test_the_numbers_are_those_of_the_first_plans(case: tuple[object, ...]) -> None:
    """Recorded on 3e9 free bytes, before memory was planned in one place and without reading weights.

    Gemma's matrices of 2,048 columns take 9 MB less since, at the file's own width (decision 36). Activations
    are smaller since the last layer has fewer rows (decision 44).
    """
    model, options, *numbers = case
    user = EngineConfig(model, threads=1, isa="avx2", **options)  # type: ignore[arg-type]
    found = plan_model(user, free=3 * 10**9)
    c = found.config
    rows = found.rows + 8 * c.max_num_seqs  # which counted their pages then
    assert [found.weights, found.kv_cache, found.activations, rows] == numbers[:4]
    assert [c.num_pages, c.num_sliding_pages, c.num_swap_pages, c.max_model_len] == numbers[4:]


@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_gpu_is_refused_not_planned_as_a_cpu(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "smollm2", *FLAGS, "--device", device]) == 2
    error = capsys.readouterr().err
    assert f"octavo plan cannot plan for device {device} yet" in error
    assert error.count("\n") == 1


def test_a_gpu_that_is_not_there_is_no_reason_to_wait_for_planning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("octavo.kernels.cuda.device.find_gpu", lambda index: NO_DRIVER)
    assert run(["plan", "smollm2", *FLAGS, "--device", "cuda:3"]) == 2
    error = capsys.readouterr().err
    assert f"plans for the CPU; and here no GPU can be used: {NO_DRIVER}\n" in error
    assert error.count("\n") == 1


def test_auto_is_refused_where_it_takes_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "choose", lambda *_, **__: Choice("cuda"))
    with pytest.raises(UnsupportedError, match="octavo plan cannot plan for device cuda yet"):
        plan_model(EngineConfig("smollm2"))


def test_weights_without_words_are_refused_as_by_a_load(tmp_path: Path) -> None:
    """A folder of weights that lacks its tokenizer cannot be loaded; config.json alone can be planned."""
    importlib.import_module("paired").golden_models.save("llama", tmp_path)  # scripts/ is on its path
    for words in tmp_path.glob("tokenizer*"):
        words.unlink()
    user = EngineConfig(str(tmp_path), threads=1, max_model_len=64, num_pages=16)
    said = []
    for start in (load, plan_model):
        with pytest.raises(CheckpointError, match="tokenizer") as caught:
            start(user)
        said.append(str(caught.value))
    assert said[0] == said[1]
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()
    assert plan_model(user).fits


@pytest.mark.parametrize("kind", ["config", "header"])
def test_a_gpu_is_weighed_against_what_is_not_there(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """auto compares a GPU's memory with the weights of the whole model, though their bytes lie elsewhere."""
    path, least = tmp_path, 800_000_000_000
    if kind == "config":
        (tmp_path / "config.json").write_text(json.dumps(LLAMA_405B))
    else:
        whole, path = sources.resolve("smollm2"), tmp_path / "header.gguf"
        path.write_bytes(whole.read_bytes()[: 4 << 20])
        least = least_bytes(checkpoints.open_checkpoint(whole), "auto")
        assert least > 80_000_000
    weighed: list[int] = []

    def choose(*_: object, weights: Callable[[], int], **__: object) -> Choice:
        weighed.append(weights())
        return Choice("cpu")

    monkeypatch.setattr(planning, "choose", choose)
    plan_model(EngineConfig(str(path), threads=1, max_model_len=512, num_pages=64), free=2 << 40)
    assert weighed[0] == least if kind == "header" else weighed[0] > least


def test_another_machine_is_planned_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "smollm2", *FLAGS, "--memory", "0.25"]) == 0
    assert "268.4 MB are available" in capsys.readouterr().out
    assert run(["plan", "smollm2", *FLAGS, "--memory", "0.01"]) == 1
    assert "the weights need" in capsys.readouterr().err
    assert run(["plan", "smollm2", "--memory", "-1"]) == 2
    assert "--memory must be 0 or" in capsys.readouterr().err


def test_weights_that_do_not_fit() -> None:
    assert free_after(10, 30) == 20
    with pytest.raises(CapacityError, match="the weights need 31 bytes, 30 bytes are available"):
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
    ("words", "status", "text"),
    [
        (["--speed", "2"], 2, "--trace"),
        (["--trace", "/no/such/file"], 1, "No such file"),
        (["--trace", "TRACE", "--speed", "0"], 2, "--speed"),
        (["--trace", "TRACE", "--cost-model", "{}"], 2, "cost model"),
        (["--num-pages", "999999999"], 1, "num_pages"),
    ],
)
def test_errors_are_one_line(
    words: list[str], status: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [written(tmp_path) if word == "TRACE" else word for word in words]
    assert run(["plan", "smollm2", *words]) == status
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_what_does_not_fit_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "available_memory", lambda: 10**8)
    assert run(["plan", "smollm2", *FLAGS]) == 1
    assert capsys.readouterr().out.endswith("it does not fit\n")
