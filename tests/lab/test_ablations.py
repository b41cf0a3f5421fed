"""What techniques are worth, on the real model, far too small to say anything about speed."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from octavo.assembly import Loaded
from octavo.bench.driver import Driver
from octavo.cli import main
from octavo.cli._bench.ablate import body_of, sentences, table_of
from octavo.engine.scheduler import Scheduler
from octavo.errors import InvalidRequestError, OctavoError, UnsupportedError
from octavo.lab import ablations
from octavo.lab.ablations import Found, Setting, Technique, ablate, chosen, continuous_batching, find
from octavo.lab.ablations._forward import Step
from octavo.lab.ablations.chunked_prefill import Arrivals, Chunking, chunking
from octavo.lab.ablations.continuous_batching import LONG, SHORT, Mix, batching, mix
from octavo.lab.ablations.copy_on_write import sharing
from octavo.lab.ablations.flash_attention import naive
from octavo.lab.ablations.prefix_cache import prefix_hit
from octavo.lab.baselines import StaticScheduler
from octavo.lab.drive import Job, config_of, drive

TINY = {"max_model_len": 384, "max_num_seqs": 4, "num_pages": 128}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return Driver("smollm2", **TINY).loaded


@pytest.fixture(scope="module")
def setting(loaded: Loaded) -> Setting:
    found = Setting("smollm2", TINY, rounds=1, quick=True)
    found.__dict__["loaded"] = loaded
    return found


def test_the_mix_is_85_to_15() -> None:
    jobs = mix(Mix(200, 4, 8), 1000, seed=1)
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


def test_batching(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous_batching, "SHORT", (1, 4))
    found = batching(loaded, Mix(7, 4, 8, long=40), rounds=1)
    assert min(found.continuous, found.static) > 0
    assert found.ratio == pytest.approx(found.continuous / found.static)
    assert found.bound > 2


def test_a_hit_computes_less(loaded: Loaded) -> None:
    found = prefix_hit(loaded, shared=256, own=5, rounds=1)
    assert found.ratio == pytest.approx(found.computed_ms / found.cached_ms)
    assert found.cached_ms > 0


def test_chunks(loaded: Loaded) -> None:
    found = chunking(loaded, Arrivals(streams=2, prompt_tokens=300, count=1, new_tokens=12), rounds=1)
    assert found.target_ms == 100.0
    assert found.allowed_ms >= 100.0
    assert min(found.quiet_p50, found.chunked_p99, found.whole_p99) > 0


def test_beams_share_their_prompt_and_their_past(loaded: Loaded) -> None:
    found = sharing(loaded, beams=4, prompt_tokens=96, new_tokens=20, rounds=1)
    assert found.copied_pages == 4 * 8
    assert 8 <= found.shared_pages <= 6 + 4 * 2
    assert found.saved >= 0.3
    assert sharing(loaded, beams=1, prompt_tokens=96, new_tokens=4, rounds=1).saved == 0.0


def test_what_holds_is_said() -> None:
    chunks = Chunking(11.0, 95.0, 2200.0, 100.0, 4000)
    assert chunks.held
    assert not dataclasses.replace(chunks, chunked_p99=101.0).held
    assert dataclasses.replace(chunks, chunked_p99=101.0, quiet_p50=51.0).held


def test_naive_attention_is_attention() -> None:
    """Beside a loop over queries, of which each sees those before it and itself."""
    draw = np.random.default_rng(0)
    q, k, v = (draw.standard_normal((2, 7, 64), np.float32) for _ in range(3))
    mask = np.triu(np.full((7, 7), -np.inf, np.float32), 1)
    found = naive(q, k, v, mask)
    for head in range(2):
        for place in range(7):
            weights = np.exp(k[head, : place + 1] @ q[head, place] / 8)
            wanted = weights @ v[head, : place + 1] / weights.sum()
            assert np.allclose(found[head, place], wanted, atol=1e-5)


def test_an_unfused_program_computes_the_same_bits(loaded: Loaded) -> None:
    """Fusing a norm is a matter of speed alone."""
    step = Step(loaded, 5)
    fused, unfused = step.captured(), step.unfused()
    assert np.array_equal(fused.replay(step.batch), unfused.replay(step.batch))
    assert fused.nbytes != unfused.nbytes, "they are two programs"


# What the shared engine of this module is too small for, and so says.
TOO_SMALL = {
    "prefix-cache": "it needs a context of 763 tokens, and --max-model-len is 384",
    "chunked-prefill": "it needs a context of 1001 tokens",
    "kv-cache": "it needs a context of 389 tokens",
    "kv-formats": "it needs a context of 1037 tokens",
    "sliding-window": "no layer of this model has a window",
    "batched-decode": "it needs --max-num-seqs of 16",
}


def test_requirements_come_first(setting: Setting) -> None:
    """Nothing is measured of what cannot be; every other row can."""
    lacks = ablations.missing(list(find().values()), setting)
    assert lacks.keys() == TOO_SMALL.keys()
    assert all(lacks[name].startswith(why) for name, why in TOO_SMALL.items())


FAST = ["captured-step", "fused-norms", "flash-attention", "quantized-weights", "copy-on-write"]


@pytest.mark.parametrize("name", FAST)
def test_rows_measure(name: str, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has two sides at least, a sentence, and figures; their sizes are cut down."""
    monkeypatch.setattr(setting, "size", lambda full, quick: min(quick, 64))
    found = find()[name].measure(setting)
    assert len(found.bars) >= 2
    assert all(value > 0 for _, value in found.bars)
    assert found.why
    assert not found.why.endswith(".")
    assert found.figures
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_memory_of_attention_is_of_tokens_not_of_pairs(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times the pairs: the naive way takes four times the memory, blocks at most twice."""
    sizes = {}
    for tokens in (256, 512):
        monkeypatch.setattr(setting, "size", lambda full, quick, tokens=tokens: tokens if full > 100 else 0)
        sizes[tokens] = find()["flash-attention"].measure(setting).figures["flash_attention"]
    assert sizes[512]["naive_mb"] > 3.5 * sizes[256]["naive_mb"]
    assert sizes[512]["blocks_mb"] <= 2.1 * sizes[256]["blocks_mb"]


def row(
    name: str, measure: Callable[[Setting], Found], needs: Callable[[Setting], None] | None = None
) -> Technique:
    return Technique(name, f"{name} is good", "nobody 2026", measure, needs or (lambda setting: None))


def good(setting: Setting) -> Found:
    bars = (("with", 30.0), ("without", 10.0))
    return Found("tokens/s", bars, True, "it is", {"group": {"a": 1}}, {"with over without": 3.0})


def bad(setting: Setting) -> Found:
    raise OctavoError("it broke")


def interrupted(setting: Setting) -> Found:
    raise KeyboardInterrupt


def lacking(setting: Setting) -> None:
    raise UnsupportedError("it needs more")


def test_rows_that_fail_leave_the_others(setting: Setting) -> None:
    begun: list[str] = []
    rows = [row("a", good), row("b", bad), row("c", good, lacking), row("d", interrupted), row("e", good)]
    lines = ablate(rows, setting, lambda name, done, every: begun.append(f"{name} {done} {every}"))
    assert begun == ["a 0 4", "b 1 4", "d 2 4"]
    assert [line.not_measured for line in lines] == [None, "it broke", "it needs more", *["interrupted"] * 2]
    assert [line.found is None for line in lines] == [False, True, True, True, True]
    text = table_of(lines, "title").text()
    assert "3.00 x" in text
    assert text.count("not measured") == 4
    assert "0.0" not in text.replace("3.00", "").replace("30", "").replace("10", "")
    body = body_of(lines)
    assert (body["group"], body["ratios"]) == ({"a": 1}, {"with over without": 3.0})
    assert body["rows"][0]["gain"] == 3.0
    assert sentences(lines[0]) == (
        "a: a is good (nobody 2026). Here 3.00 x (with 30, without 10; tokens/s): it is."
    )
    assert sentences(lines[2]).endswith("Not measured: it needs more.")


def test_less_may_be_better() -> None:
    assert Found("ms", (("with", 5.0), ("without", 20.0)), False, "x").gain == 4.0


def test_every_file_is_a_row(tmp_path: Path) -> None:
    folder = Path(ablations.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if path.stem[0] != "_"}
    rows = find()
    assert {name.replace("-", "_") for name in rows} == files
    for each in rows.values():
        assert each.claim[-1] != "."
        assert any(letter.isdigit() for letter in each.source) or "lessons" in each.source
    assert [each.name for each in chosen(["paging", "kv-cache"])] == ["paging", "kv-cache"]
    with pytest.raises(InvalidRequestError, match=r"--only knows batched-decode, .*, and not 'x'"):
        chosen(["x"])


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch, loaded: Loaded) -> None:
    """Rows that need no time."""
    rows = {each.name: each for each in (row("a", good), row("b", bad), row("c", good, lacking))}
    monkeypatch.setattr(ablations, "find", lambda: rows)
    monkeypatch.setattr(ablations, "load", lambda config: loaded)


@pytest.mark.usefixtures("three")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ablate", "--out", str(tmp_path / "x"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.items() <= json.loads((tmp_path / "x.json").read_text()).items()
    assert printed["machine"]["cpu"]["model"]
    assert [each["not_measured"] for each in printed["rows"]] == [None, "it broke", "it needs more"]
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["bench", "ablate", "--plot", str(tmp_path / "x.html")]) == 0
    out, err = capsys.readouterr()
    assert "a: a is good (nobody 2026). Here 3.00 x" in out
    assert "measuring a (1 of 2)" in err
    assert "a: 3.00 x" in (tmp_path / "x.html").read_text()
    assert main(["bench", "ablate", "--only", "c"]) == 1


def test_ctrl_c_saves_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], loaded: Loaded
) -> None:
    rows = {each.name: each for each in (row("a", good), row("b", interrupted), row("c", good))}
    monkeypatch.setattr(ablations, "find", lambda: rows)
    monkeypatch.setattr(ablations, "load", lambda config: loaded)
    assert main(["bench", "ablate", "--plot", str(tmp_path / "x.json")]) == 130
    assert "Here 3.00 x" in capsys.readouterr().out
    kept = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert [each["not_measured"] for each in kept] == [None, "interrupted", "interrupted"]


@pytest.mark.usefixtures("three")
def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ablate", "--list", "--only", "a"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["a", "a", "is", "good", "nobody", "2026"]
    assert main(["bench", "ablate", "--list", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["a", "b", "c"]


def test_words_of_the_list_stand_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Names, claims and sources begin each in one column, however long they are."""
    assert main(["bench", "ablate", "--list"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    for line, each in zip(lines, find().values(), strict=True):
        assert line.startswith(each.name)
        assert line[head.index("claim") :].startswith(each.claim)
        assert line[head.index("source") :] == each.source


def test_no_matplotlib_is_said_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(ablations, "load", SimpleNamespace())
    assert main(["bench", "ablate", "no/such-model", "--out", "x"]) == 2
    assert "'.[bench]'" in capsys.readouterr().err


def test_fragmentation_as_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "fragmentation", "--requests", "30"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["paged"]["waste"] < 0.04 < 0.6 < found["contiguous"]["waste"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "paged"
    assert main(["bench", "fragmentation", "--kv-tokens", "64"]) == 2
    assert "max_model_len 2048 needs 128 pages" in capsys.readouterr().err
