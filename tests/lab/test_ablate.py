"""The ablation on the real model, far too small to say anything about speed."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from octavo.assembly import Loaded
from octavo.bench.driver import Driver
from octavo.cli import main
from octavo.engine.scheduler import Scheduler
from octavo.errors import UnsupportedError
from octavo.lab import ablate
from octavo.lab.ablate import (
    LONG,
    SHORT,
    Ablation,
    Batching,
    Chunking,
    Job,
    PrefixHit,
    Sharing,
    batching,
    chunking,
    config_of,
    drive,
    mix,
    prefix_hit,
    sharing,
)
from octavo.lab.baselines import StaticScheduler
from octavo.lab.plot import plot


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return Driver("smollm2", max_model_len=384, max_num_seqs=4, num_pages=128).loaded


def test_the_mix_is_85_to_15() -> None:
    jobs = mix(200, 8, 1000, seed=1)
    lengths = [job.new_tokens for job in jobs]
    assert lengths.count(LONG) == 30
    assert all(SHORT[0] <= length <= SHORT[1] for length in lengths if length != LONG)
    assert lengths[-30:] != [LONG] * 30
    assert len({tuple(job.prompt) for job in jobs}) == 200


def test_a_run_counts_what_callers_see(loaded: Loaded) -> None:
    config = config_of(loaded, enable_prefix_caching=False)
    jobs = [Job([5, 6, 7], 4), Job([8, 9], 1, arrival_s=0.02), Job([3] * 20, 9)]
    for make in (Scheduler, StaticScheduler):
        seen = drive(loaded, make(config), jobs)
        assert seen.tokens == 14
        assert [len(gaps) for gaps in seen.gaps] == [3, 0, 8]
        assert all(0 < first < seen.seconds for first in seen.first)
        assert seen.rate == pytest.approx(14 / seen.seconds)


def test_batching_compares_three(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablate, "LONG", 40)
    monkeypatch.setattr(ablate, "SHORT", (1, 4))
    found = batching(loaded, count=7, rows=4, prompt_tokens=8, rounds=1)
    assert min(found.continuous, found.static, found.contiguous) > 0
    assert found.ratio == pytest.approx(found.continuous / found.static)
    assert found.bound > 2
    assert found.contiguous_rows == 4


def test_a_hit_computes_less(loaded: Loaded) -> None:
    found = prefix_hit(loaded, shared=256, own=5, rounds=1)
    assert found.ratio == pytest.approx(found.computed_ms / found.cached_ms)
    assert found.cached_ms > 0


def test_chunks(loaded: Loaded) -> None:
    found = chunking(loaded, streams=2, prompt_tokens=300, arrivals=1, new_tokens=12, rounds=1)
    assert found.target_ms == 100.0
    assert found.allowed_ms >= 100.0
    assert min(found.quiet_p50, found.chunked_p99, found.whole_p99) > 0


def test_beams_share_their_prompt_and_their_past(loaded: Loaded) -> None:
    found = sharing(loaded, beams=4, prompt_tokens=96, new_tokens=20, rounds=1)
    assert found.copied_pages == 4 * 8
    assert 8 <= found.shared_pages <= 6 + 4 * 2
    assert found.saved >= 0.3
    assert sharing(loaded, beams=1, prompt_tokens=96, new_tokens=4, rounds=1).saved == 0.0


RESULT = Ablation(
    Batching(1400.0, 400.0, 700.0, 4.7, 8),
    PrefixHit(1500, 12.0, 800.0),
    Chunking(11.0, 95.0, 2200.0, 100.0, 4000),
    Sharing(4, 22, 64),
)


def test_what_holds_is_said() -> None:
    chunks = RESULT.chunking
    assert chunks.held
    assert not dataclasses.replace(chunks, chunked_p99=101.0).held
    assert dataclasses.replace(chunks, chunked_p99=101.0, quiet_p50=51.0).held


def test_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plot(RESULT, "smollm2", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"'\.\[bench\]'"):
        plot(RESULT, "smollm2", tmp_path / "b.png")


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], loaded: Loaded
) -> None:
    monkeypatch.setattr("octavo.assembly.load", lambda config: loaded)
    monkeypatch.setattr("octavo.lab.ablate.ablate", lambda loaded, rounds, say: RESULT)
    assert main(["bench", "ablate", "--out", str(tmp_path / "x"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "x.json").read_text())
    assert printed["ratios"]["continuous over static"] == 3.5
    assert printed["machine"]["cpu"]
    assert (tmp_path / "x.png").exists()
    assert main(["bench", "ablate"]) == 0
    assert "3.50 x (padding alone: 4.70 x)" in capsys.readouterr().out


def test_fragmentation_as_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "fragmentation", "--requests", "30"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["paged"]["waste"] < 0.04 < 0.6 < found["contiguous"]["waste"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "paged"
    assert main(["bench", "fragmentation", "--kv-tokens", "64"]) == 1
    assert "max_model_len 2048 needs 128 pages" in capsys.readouterr().err
