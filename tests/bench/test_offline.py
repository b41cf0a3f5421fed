"""octavo bench latency and throughput: what is counted, what an interruption leaves, and the commands."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.driver import Drawn, Driver
from octavo.bench.offline import Batch, Count, latency, throughput
from octavo.cli import main
from octavo.errors import InvalidRequestError

SMALL = ["--max-model-len", "128", "--num-pages", "64"]


def test_counting() -> None:
    count = Count([[1] * 5, [1] * 7, [1] * 9])
    assert count.add([Drawn(0, 1, False), Drawn(1, 0, False)], 0.5) == 0
    assert count.add([Drawn(0, 2, True), Drawn(1, 1, False)], 1.0) == 1
    assert (count.ended, count.prompt_tokens, count.output_tokens) == (1, 12, 4)
    assert count.over_time == [(0.5, 1), (1.0, 4)]


def test_a_run_is_told_as_it_goes(driver: Driver) -> None:
    told: list[Drawn] = []
    run = driver.run([[5, 6, 7], [8, 9]], [4, 2], watch=told.extend)
    assert [len(ids) for ids in run.token_ids] == [4, 2]
    assert [sum(each.tokens for each in told if each.place == place) for place in (0, 1)] == [4, 2]
    assert [each.place for each in told if each.is_last] == [1, 0]


def test_latency_of_a_batch(driver: Driver) -> None:
    ended: list[tuple[int, int]] = []
    found = latency(driver, Batch(2, 5, 6, 1, 3), lambda done, every: ended.append((done, every)))
    assert ended == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert len(found.latencies) == 3
    assert found.avg_latency == pytest.approx(statistics.fmean(found.latencies))
    assert found.percentiles[99] == max(found.latencies)
    assert found.output_rate == pytest.approx(12 / found.avg_latency)
    assert found.memory > 0
    assert found.ttft is not None
    assert 0 < found.ttft < found.avg_latency
    with pytest.raises(InvalidRequestError, match="--batch-size 5 is above the 4 of --max-num-seqs"):
        latency(driver, Batch(5, 5, 6, 0, 1))


def test_one_token_has_no_step_of_decoding(driver: Driver) -> None:
    assert latency(driver, Batch(2, 5, 1, 0, 1)).tpot is None


def test_throughput_counts_everything(driver: Driver) -> None:
    found = throughput(driver, [[5] * 4, [6] * 9, [7] * 2, [8] * 3, [9] * 6], [3, 1, 4, 1, 5])
    assert (found.requests, found.prompt_tokens, found.output_tokens, found.cut) == (5, 24, 14, None)
    assert found.over_time[-1] == (found.seconds, 14)
    assert found.output_rate == pytest.approx(14 / found.seconds)
    assert found.total_rate == pytest.approx(38 / found.seconds)


def interrupted_after(driver: Driver, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ctrl-C come after so many steps."""
    core: Any = driver._core
    step: Callable[[], Any] = core.step
    done = 0

    def counted() -> Any:
        nonlocal done
        if done == steps:
            raise KeyboardInterrupt
        done += 1
        return step()

    monkeypatch.setattr(core, "step", counted)


def test_ctrl_c_keeps_what_was_measured(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupted_after(driver, 2 + 4, patch)  # two steps warm up
        found = throughput(driver, [[5] * 4, [6] * 4], [2, 50])
    assert (found.requests, found.output_tokens, found.cut) == (1, 6, "interrupted")
    with monkeypatch.context() as patch:
        interrupted_after(driver, 9, patch)
        partial = latency(driver, Batch(1, 4, 4, 1, 5))
    assert (len(partial.latencies), partial.cut) == (1, "interrupted")
    with monkeypatch.context() as patch:
        interrupted_after(driver, 0, patch)
        nothing = latency(driver, Batch(1, 4, 4, 0, 5))
    assert (nothing.avg_latency, nothing.ttft, nothing.tpot, nothing.output_rate) == (None, None, None, None)
    assert driver.run([[5, 6]], 2).token_ids, "the engine is empty, and goes on"


def test_latency_as_it_is_typed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--batch-size", "2", "--input-len", "5", "--output-len", "3", "--num-iters", "2"]
    words = ["bench", "latency", *words, "--num-iters-warmup", "0", *SMALL]
    assert main([*words, "--json", "--plot", str(tmp_path / "a.svg")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["size"], found["input_len"], len(found["latencies"]), found["cut"]) == (2, 5, 2, None)
    assert "p99" in (tmp_path / "a.svg").read_text()
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "smollm2: 2 prompts of 5 and 3 new tokens each, 2 runs"
    assert lines[2].startswith("batch, mean (ms)")


def test_throughput_as_it_is_typed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["bench", "throughput", "--num-prompts", "3", "--input-len", "6", "--output-len", "4", *SMALL]
    assert main([*words, "--json", "--plot", str(tmp_path / "a.html")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["prompt_tokens"], found["output_tokens"]) == (3, 18, 12)
    assert "Tokens of answers over the run" in (tmp_path / "a.html").read_text()
    own = tmp_path / "own.jsonl"
    own.write_text(
        '{"prompt": "Hello there", "output_tokens": 2}\n{"turns": ["How are you?"], "output_tokens": 3}'
    )
    assert main(["bench", "throughput", "--dataset-name", "custom", "--dataset-path", str(own), *SMALL]) == 0
    assert "2 of 2 prompts" in capsys.readouterr().out
    own.write_text('{"messages": [{"role": "user", "content": "a"}]}')
    assert main(["bench", "throughput", "--dataset-name", "custom", "--dataset-path", str(own), *SMALL]) == 2
    assert "messages are for octavo bench serve" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_files_are_checked_before_the_model_is(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", command, "no/such-model", "--plot", "a.gif"]) == 2
    assert "a report is one of" in capsys.readouterr().err


def test_too_long_is_said_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["latency", "--input-len", "500"], ["throughput", "--input-len", "500"]):
        assert main(["bench", *words, *SMALL]) == 2
        assert "max_model_len 128" in capsys.readouterr().err
