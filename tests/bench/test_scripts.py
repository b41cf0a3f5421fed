"""What the scripts of benchmarks/ decide; what they measure is theirs."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.bench.calibrate import random_weight
from octavo.bench.driver import Driver
from octavo.engine.admission import Admission
from octavo.engine.core import EngineCore
from octavo.kernels._native import line_seconds
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.cpu_calibrate import products_within, read_in_order
from octavo.kernels.weight import Layout
from octavo.params import CompletionOutput, RequestOutput

ROOT = Path(__file__).parents[2]


def script(name: str) -> Any:
    """A module of benchmarks/ (conftest.py has put the folder on the path)."""
    return importlib.import_module(name)


def test_every_row_has_its_shape_and_engines() -> None:
    rows, peers = script("peers.rows"), script("peers.__main__")
    assert {row.shape for row in rows.ROWS} == set(rows.SHAPES)
    assert {row.ours for row in rows.ROWS} | {row.over for row in rows.ROWS} <= set(rows.GROUPS)
    assert set(peers.MODULES) <= set(rows.GROUPS)
    assert all(row.figure in ("prompt", "decode") for row in rows.ROWS)
    for shape in rows.SHAPES.values():
        limit = 2048 if shape.model == script("peers.files").TINYLLAMA else 8192
        assert shape.prompt + shape.new <= limit
        assert shape.streams == 1 or shape.streams * shape.prompt <= 512, "prompts fit into one step"
        assert shape.quick().prompt < shape.prompt


def engine(decode: float, prompt: float = 1.0, spread: float = 1.0) -> dict[str, float]:
    """What peers writes of one."""
    return {"prompt": prompt, "prompt_spread": spread, "decode": decode, "decode_spread": spread}


def test_a_ratio_counts_against_the_fastest_of_a_group() -> None:
    peers = script("peers.__main__")
    engines = {
        "octavo: as shipped": engine(30.0), "octavo: Q4_0": engine(24.0),
        "octavo int8 KV: as shipped": engine(45.0), "octavo f16 KV: as shipped": engine(30.0),
        "llama.cpp: Q4_0, flash_attn=1": engine(10.0), "llama.cpp: Q4_0, flash_attn=0": engine(12.0),
        "llama.cpp q8_0 KV: Q4_0": engine(15.0, 2.0), "transformers: as shipped": engine(99.0),
    }  # fmt: skip

    def found() -> dict[str, tuple[str, str, float]]:
        rows = peers.ratios({"context-8k": {"engines": engines}})
        return {row["row"]: (row["with"], row["over"], row["ratio"]) for row in rows}

    eight = "SmolLM2, decode at 8k"
    assert found() == {
        f"{eight} of context": ("octavo: as shipped", "llama.cpp: Q4_0, flash_attn=0", 2.5),
        f"{eight}, int8 over q8_0 KV": ("octavo int8 KV: as shipped", "llama.cpp q8_0 KV: Q4_0", 3.0),
        f"{eight}, int8 KV over f16": ("octavo int8 KV: as shipped", "octavo f16 KV: as shipped", 1.5),
        "SmolLM2, prompt of 8,000": ("octavo: as shipped", "llama.cpp: Q4_0, flash_attn=1", 1.0),
    }
    engines["octavo: Q4_0"] = engine(36.0)
    assert found()[f"{eight} of context"][::2] == ("octavo: Q4_0", 3.0)


def test_without_a_peer_there_is_no_ratio() -> None:
    peers = script("peers.__main__")
    (row,) = peers.ratios({"short": {"engines": {"octavo: Q4_0": engine(1.0)}}})
    assert row["ratio"] is None
    assert row["why"] == "llama.cpp is missing or failed"
    shapes = {
        "short": {"shape": "x", "engines": {"octavo: Q4_0": engine(1.0)}, "missing": ["llama.cpp: Q4_0"]}
    }
    text = peers.table({"shapes": shapes, "ratios": [row], "noisy": []})
    assert "no ratio: llama.cpp is missing" in text
    assert "llama.cpp: Q4_0: does not start" in text


@pytest.mark.parametrize(("spread", "marked"), [(1.10, []), (1.11, ["short"])])
def test_a_noisy_machine_marks_the_table(spread: float, marked: list[str]) -> None:
    peers = script("peers.__main__")
    engines = {"octavo: Q4_0": engine(1.0, spread=spread), "llama.cpp: Q4_0": engine(1.0, spread=2.0)}
    assert peers.noisy({"short": {"engines": engines}}) == marked
    text = peers.table({"shapes": {}, "ratios": [], "noisy": marked})
    assert ("NOISY" in text) is bool(marked)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (
            "peers --python llama.cpp=/opt/avx2/bin/python --write",
            "peers --python llama.cpp=PATH/python --write",
        ),
        (
            "load http://127.0.0.1:8000/v1 ~/.cache/octavo/a.gguf",
            "load http://127.0.0.1:8000/v1 ~/.cache/octavo/a.gguf",
        ),
        ("benchmarks/peers results/a.json /tmp", "benchmarks/peers results/a.json /tmp"),
        ("quality --text=../texts/a.jsonl ../../b/c.txt", "quality --text=PATH/a.jsonl PATH/c.txt"),
        ("quality results/../a.jsonl ...", "quality results/../a.jsonl ..."),
        ('peers --options {"isa":"avx2"}', 'peers --options \'{"isa":"avx2"}\''),
    ],
)
def test_a_result_names_no_folder_of_the_machine(given: str, kept: str) -> None:
    harness = script("harness")
    result = harness.report("x", given.split(), {"settings": {"python": "/a/b/python", "repeat": 5}})
    assert result["command"] == kept
    assert result["settings"] == {"python": "PATH/python", "repeat": 5}


@pytest.mark.parametrize(
    ("name", "words", "text"),
    [
        ("kernels.pieces", ["--contexts", "x"], "--contexts: 'x' are no numbers"),
        ("kernels.pieces", ["--contexts", "64,0"], "at least 1 each"),
        ("kernels.pieces", ["--seconds", "nan"], "--seconds above 0"),
        ("kernels.pieces", ["no-such"], "unknown model 'no-such'"),
        ("kernels.pieces", ["--isa", "no-such"], "instruction set 'no-such'"),
        ("peers.__main__", ["--repeat", "0"], "--repeat: '0' is no whole number from 1 on"),
        ("peers.__main__", ["--threads", "-1"], "--threads: '-1' is no whole number from 1 on"),
        ("peers.__main__", ["--tuned", "/no/such"], "/no/such is no result of --tune-peer: No such file"),
        ("peers.__main__", ["--tuned", str(ROOT / "README.md")], "it holds no settings that were found"),
        ("peers.__main__", ["--python", "llama.cpp=/no/such"], "/no/such cannot be run: No such file"),
        ("quality", ["/no/such"], "quality: /no/such cannot be read: No such file"),
        ("quality", [str(ROOT / "README.md"), "--model", "no-such"], "quality: unknown model 'no-such'"),
    ],
)
def test_what_is_wrong_ends_in_a_line(
    name: str, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        script(name).main(words)
    said = capsys.readouterr().err + str(ended.value)
    assert ended.value.code not in (0, None)
    assert text in said


class TestTuning:
    """With engines whose rates are made up."""

    def entries(self, *, heavy: bool = False) -> tuple[list[Any], Any]:
        entries, rows = script("peers.entries"), script("peers.rows")
        forms = [entries.Entry(rows.THEIRS, "llama_cpp", Path(form), "python", form) for form in ("a", "b")]
        return forms, dataclasses.replace(rows.SHAPES["short"], heavy=heavy, streams=2)

    def tuner(self, rates: Any) -> Any:
        base = script("engines.base")

        def run(entry: Any, shape: object, threads: int) -> Any:
            found = rates({"form": entry.form, **entry.chosen})
            return found and base.Timing(1, 1.0 / found[0], 1, 1.0 / found[1])

        return script("peers.tuning").Tuner(2, run)

    def test_the_fastest_settings_are_found_for_each_figure(self) -> None:
        forms, shape = self.entries()

        def rates(given: dict[str, Any]) -> tuple[float, float]:
            """Prompts like flash attention and large batches, decoding neither and file b."""
            prompt = 1 + given["flash_attn"] + given["ubatch"] / 2048 + (given["form"] == "a")
            decode = 3 - given["flash_attn"] + (given["form"] == "b") + (given["threads"] == 1)
            return prompt, decode + given["kv_unified"]

        tuner = self.tuner(rates)
        prompt, decode = tuner.best(forms, shape, "prompt"), tuner.best(forms, shape, "decode")
        assert (prompt.form, prompt.chosen["flash_attn"], prompt.chosen["ubatch"]) == ("a", 1, 2048)
        assert decode.form == "b"
        assert [decode.chosen[name] for name in ("flash_attn", "threads", "kv_unified")] == [0, 1, True]
        tried = tuner.tried[shape.name]
        assert len(tried) == len(set(tried))
        assert all(name.startswith("llama.cpp: ") for name in tried)

    def test_the_file_is_asked_for_again_with_what_was_found(self) -> None:
        """File a is the faster one with flash attention alone, which is the default and the slower way."""
        forms, shape = self.entries()
        rates = {("a", 1): 2.0, ("b", 1): 1.0, ("a", 0): 3.0, ("b", 0): 4.0}
        tuner = self.tuner(lambda given: (1.0, rates[given["form"], given["flash_attn"]]))
        best = tuner.best(forms, shape, "decode")
        assert (best.form, best.chosen["flash_attn"]) == ("b", 0)

    def test_what_fails_is_not_chosen(self) -> None:
        forms, shape = self.entries()
        tuner = self.tuner(lambda given: None if given["flash_attn"] else (1.0, 1.0))
        assert tuner.best(forms, shape, "decode").chosen["flash_attn"] == 0

    def test_quantized_values_need_flash_attention(self) -> None:
        (entry, _), shape = self.entries(heavy=True)
        choices = script("peers.tuning").choices
        assert choices(entry, shape, 2)["flash_attn"] == [1, 0]
        assert "threads" not in choices(entry, shape, 2), "a heavy shape takes minutes as it is"
        small = choices(dataclasses.replace(entry, fixed={"kv_type": "q8_0"}), shape, 2)
        assert small["flash_attn"] == [1]
        assert "kv_type" not in small


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are /proc's")
def test_loading_holds_no_tensor_twice() -> None:
    """What it holds beyond the imports stays under 1.2 x the weights + the largest tensor, the file's own
    pages apart: of those more or fewer are mapped at a time, by how the system has them in its cache."""
    footprint = script("footprint")
    (facts,) = footprint.child(footprint.MODULES, "smollm2")
    found = footprint.load_peak("smollm2", facts)
    assert found["weights_mb"] < found["held_mb"] < found["limit_mb"]
    assert found["held_mb"] < found["peak_mb"]


def test_figures_are_medians() -> None:
    timing = script("engines.base").Timing
    found = script("peers.__main__").figures(
        [timing(100, 1.0, 10, 1.0), timing(100, 2.0, 10, 2.0), timing(100, 4.0, 10, 0.5)]
    )
    assert found == {
        "prompt": 50.0, "prompt_spread": 4.0, "prompt_rates": [100.0, 50.0, 25.0],
        "decode": 10.0, "decode_spread": 4.0, "decode_rates": [10.0, 5.0, 20.0],
    }  # fmt: skip


def test_slow_peers_sit_out_what_is_heavy() -> None:
    entries, rows = script("peers.entries"), script("peers.rows")

    def takes_part(group: str, key: str) -> bool:
        entry = entries.Entry(group, "x", Path(), "python")
        return bool(entries.wanted(entry, rows.SHAPES[key], [row for row in rows.ROWS if row.shape == key]))

    assert takes_part("transformers", "short")
    assert not takes_part("transformers", "context-8k")
    assert takes_part(rows.THEIRS, "context-8k")
    assert takes_part(rows.OURS_INT8, "context-8k")
    assert not takes_part(rows.OURS_INT8, "context-2k")


def test_by_difference_takes_the_first_token_off() -> None:
    asked: list[int] = []
    found = script("engines.base").by_difference(asked.append, [[1, 2], [3, 4]], 5)
    assert asked == [1, 5]
    assert (found.prompt_tokens, found.decode_tokens) == (4, 8)


def test_synthetic_weights_have_unit_gain() -> None:
    synthetic, gguf = script("peers.synthetic"), importlib.import_module("gguf")
    packed = synthetic.q4_0(np.random.default_rng(0), 64, 2048)
    w = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_0)
    assert w.shape == (64, 2048)
    assert w.std() == pytest.approx(2048**-0.5, rel=0.1)
    elements = sum(n * k for n, k in synthetic.matrices().values())
    assert 1.0e9 < elements < 1.2e9


class TestWorker:
    def test_answers_a_line_for_a_line(self, capfd: pytest.CaptureFixture[str]) -> None:
        harness = script("harness")
        options = {"max_model_len": 64, "num_pages": 8, "max_num_seqs": 2}
        with harness.Worker("octavo", "smollm2", 1, options=options) as worker:
            assert worker.about["engine"] == "octavo"
            assert "max_num_seqs=2" in worker.about["notes"]
            timing = worker.run([[300, 301, 302], [400, 401, 402]], 4)
        assert (timing.prompt_tokens, timing.decode_tokens) == (6, 6)
        assert min(timing.prompt_rate, timing.decode_rate) > 0

    def test_an_engine_that_does_not_start_says_why(self) -> None:
        with pytest.raises(RuntimeError, match="unknown model 'nothing'"):
            script("harness").Worker("octavo", "nothing", 1)

    def test_every_engine_has_a_file(self) -> None:
        programs = {"ik_llama_cpp"}  # no Python has it: same_files.py is told where its program lies
        assert set(script("worker").names()) == {*script("peers.__main__").MODULES.values(), *programs}


def test_a_python_is_found_by_what_it_can_import(tmp_path: Path) -> None:
    harness = script("harness")
    assert harness.python_with("json") is not None
    assert harness.python_with("no_such_module_anywhere") is None
    assert harness.python_with("json", sys.executable) == sys.executable
    with pytest.raises(RuntimeError, match="cannot import no_such_module_anywhere"):
        harness.python_with("no_such_module_anywhere", sys.executable)
    with pytest.raises(RuntimeError, match="cannot be run"):
        harness.python_with("json", str(tmp_path / "python"))


def test_what_a_dead_script_leaves(tmp_path: Path) -> None:
    files, target = script("peers.files"), tmp_path / "made.gguf"
    with pytest.raises(RuntimeError, match=r"requantize\.py: "):
        files._made("requantize.py", "json", target, [str(tmp_path / "missing.gguf")], sys.executable)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--shapes", "short,long"], "there is no long"),
        (["--engines", "octavo,ik"], "there is no ik"),
        (["--python", "llama.cpp"], "ENGINE=PATH"),
        (["--tuned", "nothing.json"], "no result of --tune-peer"),
        (["--tuned", "nothing.json", "--tune-peer"], "give one of them"),
    ],
)
def test_wrong_words(words: list[str], text: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "peers"), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert text in done.stderr


def test_peers_from_end_to_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    peers = script("peers.__main__")
    monkeypatch.setattr(sys, "argv", ["peers"])
    words = ["--shapes", "short,batch-32", "--engines", "octavo", "--quick", "--json", "--threads", "1"]
    assert peers.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["quick"] is True
    assert set(found["shapes"]) == {"short", "batch-32"}
    assert found["shapes"]["batch-32"]["engines"]["octavo: as shipped"]["decode"] > 0
    assert {row["ratio"] for row in found["ratios"]} == {None}
    assert {"machine", "commit", "command", "date"} <= set(found)


def test_quality_of_the_model_beside_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quality = script("quality")
    monkeypatch.setattr(quality, "python_with", lambda module, wished=None: None)
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog, and the dog does not mind. " * 8)
    assert quality.main([str(text), "--window", "32", "--windows", "2", "--json", "--threads", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    exact, ours = found["engines"]["float32"], found["engines"]["octavo"]
    assert found["positions"] == 2 * 15
    assert (exact["kl"], exact["flips"]) == (0.0, 0)
    assert 0.0 < ours["kl"] < 0.05
    assert ours["perplexity"] == pytest.approx(exact["perplexity"], rel=0.1)
    assert found["ratios"] == {}


def test_a_text_too_short_for_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quality = script("quality")
    monkeypatch.setattr(quality, "python_with", lambda module, wished=None: None)
    (tmp_path / "text.txt").write_text("short")
    with pytest.raises(SystemExit):
        quality.main([str(tmp_path / "text.txt")])
    assert "quality: text.txt has 1 tokens, and a window 512" in capsys.readouterr().err


def test_ahead_puts_one_kind_of_step_over_the_other() -> None:
    steps = [(False, 0.004), (True, 0.003), (False, 0.001), (True, 0.003), (False, 0.005)]
    assert script("ahead").breakdown(steps) == {
        "plain_ms": 4.0, "ahead_ms": 3.0, "ratio": 0.75, "plain_steps": 3, "ahead_steps": 2,
    }  # fmt: skip


def test_host_time_adds_up() -> None:
    host_time = script("host_time")
    watch = host_time.Stopwatch()
    watch.log = [(1.0, 0.5), (2.0, 0.25), (3.0, 0.125)]
    assert watch.since(1.0) == 0.375
    assert watch.timed(lambda x: x + 1)(2) == 3
    assert len(watch.log) == 4


def test_host_time_reads_the_decoders_own_clocks() -> None:
    class Decoder:
        native = SimpleNamespace(forward_s=0.0, drawing_s=0.0)

        def step(self, rows: list[int], starts: list[int]) -> list[int]:
            self.native.forward_s += 0.5
            self.native.drawing_s += 0.25
            return [7]

    watched = script("host_time").WatchedDecoder(Decoder())
    assert watched.step([0], [3]) == [7]
    first_ended = watched.log[-1][0]
    watched.step([0], [4])
    assert watched.since(0.0) == (1.0, 0.5)
    assert watched.since(first_ended) == (0.5, 0.25)


def test_serving_takes_medians_of_numbers() -> None:
    found = script("serving").summary([{"ratio": 0.9, "errors": {}}, {"ratio": 0.8, "errors": {}}])
    assert found == {"ratio": 0.85}


def test_results_do_not_overwrite_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = script("harness")
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    result = harness.report("x", ["x.py"], {"a": 1})
    first, second = harness.write(result), harness.write(result)
    assert first != second
    assert json.loads(first.read_text()) == json.loads(second.read_text()) == result


@pytest.mark.parametrize("rate", [40.0, float("inf")])
def test_overload_counts_everybody(driver: Driver, rate: float) -> None:
    overload = script("overload")
    config = dataclasses.replace(driver.loaded.config, max_waiting=3)
    core = EngineCore(Admission(config), driver.loaded.runner)
    found = overload.offer(core, driver.vocab_size, rate, 0.5)
    assert found.ended + found.refused == found.arrived > 0
    assert found.most_waiting <= 3
    assert found.served <= found.ended
    core.check_integrity()
    assert core.scheduler.kv.num_available == config.num_pages


def test_grammar_costs_are_of_answers_that_do_not_end(driver: Driver) -> None:
    cost = script("grammar_cost")
    found = cost.compile_times(driver.loaded.tokenizer, 1)
    assert found["compile_ms"] > 0
    assert cost.mask_times(driver.loaded.tokenizer, 5)["masks"] == 5 * len(cost.SCHEMAS)
    assert cost.wide_schema(1) != cost.wide_schema(2)
    assert len(cost.wide_schema(1)["properties"]) == 200


def test_answers_are_judged_by_the_schema() -> None:
    judge = script("valid_json")

    def verdict(text: str, reason: str = "stop") -> str:
        answer = CompletionOutput(0, text, [], finish_reason=reason)
        return str(judge.verdict(RequestOutput("r", None, [1], [answer], True)))

    right = '{"name": "Bo", "age": 3, "tags": []}'
    assert verdict(right) == "valid"
    assert verdict(right, "length") == "ended with length"
    assert verdict(right[:-1]) == "not JSON"
    assert verdict(right.replace("3", "131")) == "against the schema"


def test_hot_answers_are_valid() -> None:
    judge = script("valid_json")
    llm = Driver("smollm2", max_model_len=judge.MAX_TOKENS + 64, max_num_seqs=4)
    assert judge.verdicts(llm, 4, 1.5) == {"valid": 4}


@pytest.mark.slow
def test_five_hundred_hot_answers_are_valid() -> None:
    judge = script("valid_json")
    llm = Driver("smollm2", max_model_len=judge.MAX_TOKENS + 64, max_num_seqs=32)
    assert judge.verdicts(llm, 500, 1.5) == {"valid": 500}


def test_reads_are_shares_of_their_own_rounds() -> None:
    reads = script("kernels.page_reads")
    together = ["-1 1 1 40", "-1 1 2 30", "-1 1 1 9", "-1 1 2 10", "-1 1 1 20", "-1 1 2 20"]
    pages = ["0 1 1 20", "0 64 2 40", "0 1 1 10", "0 64 2 5", "0 1 1 15", "0 64 2 20"]
    found = reads.rates([*together, *pages, "3 1 1 10", "3 1 1 1", "3 1 1 4"])
    more = {"runs, cache 2": [40, 5, 20], "pages, 3 multiply-adds, cache 1": [10, 1, 4]}
    assert found == {"together": [40, 10, 20], "pages, cache 1": [20, 10, 15], **more}
    # The machine slows down between rounds: medians of 0.5, 1, 0.75, of 1, 0.5 and 1, of 0.25, 0.1 and 0.2.
    shares = {"pages, cache 1": 0.75, "runs, cache 2": 1.0, "pages, 3 multiply-adds, cache 1": 0.2}
    assert reads.shares(found) == {"together": 1.0, **shares}


def test_a_mix_holds_what_it_counts_and_a_bound_adds_its_parts() -> None:
    pipes = script("kernels.pipes")
    for mix in pipes.MIXES.values():
        order = pipes.spread(mix.counts)
        assert {name: order.count(name) for name in order} == mix.counts
        assert pipes.loop(mix, 1).count(r"\n") == len(order) - 1
    half = {name: {"gmac_per_s": 0.5} for name in ("avx2 u4", "avx2 s8", "avx2 attention, f32")}
    shape, context = pipes.SHAPES["SmolLM2, 32 streams at 160 of context"]
    all_macs = (shape.u4 + shape.s8 + shape.attention * context) * 1e6
    found = pipes.bounds(half, 2)["SmolLM2, 32 streams at 160 of context"]
    assert found == {"avx2": round(1e9 / all_macs)}  # two cores of half a GMAC/s


def test_an_engine_that_fails_is_left_out_of_the_shape() -> None:
    peers, base = script("peers.__main__"), script("engines.base")

    def fails(prompts: object, new: int) -> object:
        raise RuntimeError("out of pages")

    fine = SimpleNamespace(run=lambda prompts, new: base.Timing(1, 1.0, 1, 1.0))
    shape = dataclasses.replace(next(iter(script("peers.rows").SHAPES.values())), streams=1, prompt=2, new=2)
    timings = peers.interleave({"broken": SimpleNamespace(run=fails), "fine": fine}, shape, 2)
    assert {name: len(each) for name, each in timings.items()} == {"fine": 2}


def test_arms_take_turns_in_every_place() -> None:
    arms, calls = script("arms"), []

    def arm(name: str) -> Any:
        return lambda repetition: calls.append((repetition, name)) or [1.0, 2.0]

    names = "abc"
    seconds = arms.in_turns({name: arm(name) for name in names}, 6)
    assert {name: runs.shape for name, runs in seconds.items()} == dict.fromkeys(names, (6, 2))
    turns = ["".join(name for number, name in calls if number == repetition) for repetition in range(6)]
    assert all(sorted(turn[place] for turn in turns) == sorted(names * 2) for place in range(3))
    before = [turn.index("a") < turn.index("b") for turn in turns]
    assert before.count(True) == 3


def test_a_ratio_is_of_the_median_of_each_step() -> None:
    arms = script("arms")
    plain = np.array([[1.0, 3.0], [1.0, 3.0], [9.0, 3.0]])  # a moment's disturbance
    asked = np.array([[2.0, 3.0], [2.0, 30.0], [2.0, 3.0]])
    assert arms.typical(plain) == 4.0
    assert arms.ratio(asked, plain) == 1.25
    assert arms.interval(plain[:2], plain[:2]) == (1.0, 1.0)
    low, high = arms.interval(asked, plain)
    assert low < 1.25 < high
    assert arms.interval(asked, plain, share=0.5)[1] <= high
    summary = script("one_scored_row").summary(asked, plain)
    assert summary == {"ratio": 1.25, "low": round(low, 4), "high": round(high, 4)}


def test_what_a_row_costs_apart_from_its_decoder() -> None:
    one = script("one_scored_row")
    log = [(9.0, 1.0, 1.0), (0.0, 10.0, 2.0), (0.0, 14.0, 3.0), (0.0, 17.0, 3.5)]
    assert one.outside([6.0, 4.0], log) == [1.0, 0.5]
    steps, beside = np.array([[10.0, 10.0]] * 3), np.array([[1.0, 1.5]] * 3)
    assert one.added(beside, beside * 0.5, steps) == pytest.approx(1.25 / 20)


@pytest.mark.parametrize("wish", ["logprobs", "details", "penalties", "mask", "narrowed mask"])
def test_one_row_of_a_crowd_asks_for_more(driver: Driver, wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, asked = script("one_scored_row"), []
    add = EngineCore.add

    def noted(core: EngineCore, request: Any, arrival: float) -> int:
        asked.append(request.params)
        return add(core, request, arrival)

    monkeypatch.setattr(EngineCore, "add", noted)
    run = driver.run([[300, 301], [302], [303]], 3, one.WISHES[wish])
    assert [len(ids) for ids in run.token_ids] == [3] * 3
    plain, same, last = asked
    assert plain == same
    assert (plain.temperature, plain.logprobs, plain.allowed_token_ids) == (0.0, None, None)
    assert last != plain
    assert (last.max_tokens, last.ignore_eos) == (3, True)


def test_reads_in_order_are_those_of_the_steps_calls() -> None:
    pieces = script("kernels.pieces")
    rng = np.random.default_rng(0)
    backend = CpuBackend(2)
    weight = backend.pack([random_weight(rng, Layout.U4, 64, 64), random_weight(rng, Layout.U4, 32, 64)])
    product = SimpleNamespace(name="linear", args={"weight": weight})
    calls = [
        product,
        *[SimpleNamespace(name=name) for name in ("rms_norm", "attention", "attention")],
        product,
    ]
    phases = pieces.reads(calls, 4800.0, 2)
    assert [len(phase) for phase in phases] == [6, 12, 12, 6]  # of a product three for each thread, six of KV
    assert phases[0] == phases[3] == [weight.nbytes // 6] * 6
    assert phases[1] == phases[2] == [200] * 12  # half of the bytes each
    head = backend.pack([random_weight(rng, Layout.S8, 64, 64)], head=True)
    apart = 64 * 64 // 8  # its fifth bits, which a whole product does not read
    assert pieces.reads([SimpleNamespace(name="linear", args={"weight": head})], 0.0, 1) == (
        [[(head.nbytes - apart) // 3] * 3]
    )
    assert read_in_order(backend, phases) > 0
    assert read_in_order(backend, phases, [0, 3, 32, 1]) > 0
    for wrong in ([], [[]], [[64, 0]]):
        with pytest.raises(ValueError, match=r"nothing to read|at least one byte"):
            read_in_order(backend, wrong)
    for products in ([1], [0, 0, 0, 33], [0, -1, 0, 0]):
        with pytest.raises(ValueError, match="products"):
            read_in_order(backend, phases, products)


def test_more_time_leaves_room_for_more_products_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert line_seconds(0, 3) > 0  # of the real ones only that they are measured
    monkeypatch.setattr("octavo.kernels.cpu_calibrate._native.line_seconds", lambda n, rounds: 1.0 + n)
    assert [products_within(line_s) for line_s in (0.0, 1.9, 2.0, 17.5, 100.0)] == [0, 0, 1, 16, 32]
