"""octavo eval perplexity, as it is typed: against transformers' own numbers, and what is refused."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.cli import main
from octavo.lab.quality import WindowScorer
from support.tiny_engine import VOCAB_SIZE, save_tiny_llama, save_words

CONTEXT = 32


def random_ids(count: int) -> list[int]:
    """Ids of words that a tiny model knows, no special ones."""
    rng = random.Random(5)
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(count)]


def text_of(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


IDS = random_ids(CONTEXT * 4 + 7)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_words(save_tiny_llama(tmp_path_factory.mktemp("tiny")), reads=True)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with other numbers in its first layer."""
    import torch
    from transformers import LlamaForCausalLM

    folder = save_words(save_tiny_llama(tmp_path_factory.mktemp("other")), reads=True)
    model = LlamaForCausalLM.from_pretrained(folder)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.model.layers[0].parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(text_of(IDS))
    return file


def measured(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    assert main(["eval", "perplexity", *words, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def logits_of(folder: Path) -> list[Any]:
    """transformers' log-probabilities of the second half of each window, [positions, vocab]."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for start in range(0, len(IDS) - CONTEXT + 1, CONTEXT):
            window = torch.tensor([IDS[start : start + CONTEXT]])
            found.append(model(window).logits[0].double().log_softmax(-1)[CONTEXT // 2 : -1])
    return found


def test_against_transformers(
    tiny: Path, other: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    flags = ["--text", str(text), "--context", str(CONTEXT), "--dtype", "float32"]
    found = measured(capsys, str(other), "--against", str(tiny), *flags)
    assert (found["windows"], found["against"], found["interrupted"]) == (4, f"{tiny}, float32", False)
    q, p = torch.cat(logits_of(other)), torch.cat(logits_of(tiny))
    halves = [IDS[start + CONTEXT // 2 + 1 : start + CONTEXT] for start in range(0, 4 * CONTEXT, CONTEXT)]
    targets = torch.tensor([i for half in halves for i in half])
    mine, reference = found["models"]
    assert mine["positions"] == len(targets)
    for row, logs in ((mine, q), (reference, p)):
        expected = float(torch.nn.functional.nll_loss(logs, targets).exp())
        assert row["perplexity"] == pytest.approx(expected, rel=1e-4)
    kl = float(torch.nn.functional.kl_div(q, p, reduction="batchmean", log_target=True))
    assert mine["kl"] == pytest.approx(kl, rel=1e-3)
    assert kl > 1e-3, "the models differ: the comparison says something"
    assert mine["agreement"] == pytest.approx(float((q.argmax(-1) == p.argmax(-1)).double().mean()), abs=1e-9)
    assert (reference["kl"], reference["agreement"]) == (0.0, 1.0)
    assert mine["bits"] == 32.0


def test_a_row_for_each_quantization(tiny: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer bits lose more, and are named."""
    flags = ["--text", str(text), "--context", str(CONTEXT), "--against", str(tiny)]
    found = measured(capsys, str(tiny), "--quantization", "none,int8,int4", *flags)["models"]
    assert [row["model"] for row in found] == [
        str(tiny), f"{tiny}, int8", f"{tiny}, int4", f"{tiny}, float32",
    ]  # fmt: skip
    stored, int8, int4, exact = found
    assert exact["kl"] <= stored["kl"] < int8["kl"] < int4["kl"]
    assert exact["bits"] > int8["bits"] > int4["bits"]


def test_the_table(tiny: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "perplexity", str(tiny), "--text", str(text), "-c", str(CONTEXT), "--windows", "2"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["model", "bits", "MB", "perplexity", "+/-", "tok/s"]
    assert out.splitlines()[1].startswith(str(tiny))
    assert f"scoring 2 windows of {CONTEXT} tokens by 1 model ..." in err
    assert all(line.endswith((" ...", " s")) for line in err.splitlines()), (
        "what is done, and how long it took"
    )
    assert main([*words, "--against", str(tiny)]) == 0
    head = capsys.readouterr().out.splitlines()[0].split()
    assert head[5:] == ["over", "+/-", "KL", "agreement", "flips", "tok/s"]


def test_ctrl_c_prints_what_was_measured(
    tiny: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [str(tiny), "--text", str(text), "--context", str(CONTEXT)]
    whole = measured(capsys, *flags, "--windows", "2")
    scored, real = [0], WindowScorer.logits

    def ends(self: WindowScorer, ids: Any, first: int = 0) -> Any:
        scored[0] += 1
        if scored[0] == 3:
            raise KeyboardInterrupt
        return real(self, ids, first)

    monkeypatch.setattr(WindowScorer, "logits", ends)
    found = measured(capsys, *flags, status=130)
    assert (found["windows"], found["interrupted"]) == (2, True)
    assert found["models"][0]["perplexity"] == whole["models"][0]["perplexity"]
    scored[0] = 0
    assert main(["eval", "perplexity", *flags]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted: 2 of 4 windows are in it"


def test_files(tiny: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, drawn = tmp_path / "a.json", tmp_path / "a.svg"
    flags = ["--plot", str(plain), "--plot", str(drawn)]
    found = measured(capsys, str(tiny), "--text", str(text), "-c", "32", *flags)
    written = json.loads(plain.read_text())
    assert {name: written[name] for name in found} == found
    assert "perplexity, by bits a weight in memory" in drawn.read_text()


def test_a_plot_that_cannot_be_made_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["eval", "perplexity", "no/such-model", "--text", str(text), "--plot", "x.png"]) == 2
    assert "a PNG needs matplotlib" in capsys.readouterr().err


def test_what_is_refused(tiny: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    save_words(save_tiny_llama(elsewhere), reads=True, shift=1)
    wrong, short, long = (tmp_path / f"{name}.txt" for name in ("wrong", "short", "long"))
    long.write_text(text_of(random_ids(200)))
    wrong.write_bytes(np.arange(128, 255, dtype=np.uint8).tobytes())
    short.write_text("w3 w4")

    def refused(*words: str) -> str:
        status, said = main(["eval", "perplexity", *words]), capsys.readouterr().err.splitlines()[-1]
        assert status == (1 if "No such file" in said else 2)
        return said

    asked = [str(tiny), "--text"]
    assert "wrong.txt is no text: it must be UTF-8" in refused(*asked, str(wrong))
    assert "short.txt has 2 tokens, and a window 32: give a longer" in refused(*asked, str(short), "-c", "32")
    assert "No such file" in refused(*asked, str(tmp_path / "none.txt"))
    assert "context of 192 tokens is above the 160 of" in refused(*asked, str(long), "-c", "192")
    assert "reads" in refused(str(tiny), str(elsewhere), "--text", str(text), "-c", "32")
    assert "quantization" in refused(*asked, str(text), "-c", "32", "--quantization", "int3")
    assert "names nothing" in refused(*asked, str(text), "--quantization", ",")
