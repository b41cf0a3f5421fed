"""scripts/gallery.py: plots and the pages that show them are what the result files say."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])


def gallery() -> Any:
    return importlib.import_module("gallery")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in ("docs", "benchmarks/results"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def test_plots_and_pages_are_what_the_files_say() -> None:
    """`make gallery` draws them."""
    assert gallery().check(ROOT) == []


def source(root: Path, plot: str) -> Path:
    """The result file that the page names below a plot."""
    text = (root / "docs/how-to/measure.md").read_text("utf-8")
    block = re.search(rf"<!-- plot {plot} -->(.*?)<!-- end -->", text, re.DOTALL)
    assert block is not None
    named = re.search(r"`benchmarks/results/([^`]+)`", block[1])
    assert named is not None
    return root / "benchmarks" / "results" / named[1]


def test_another_figure_is_another_plot(copy: Path) -> None:
    path = source(copy, "peers")
    result = json.loads(path.read_text("utf-8"))
    for rates in result["shapes"]["batch-32"]["engines"].values():
        rates["decode"] += 40.0
    path.write_text(json.dumps(result), "utf-8")
    assert gallery().check(copy) == [
        "docs/gallery/peers.svg is not what the files of results say: make gallery"
    ]
    assert gallery().check(copy, write=True) == []
    assert gallery().check(copy) == []
    rate = max(
        e["decode"] for n, e in result["shapes"]["batch-32"]["engines"].items() if n.startswith("octavo:")
    )
    assert f">{rate:,.0f}</text>" in (copy / "docs/gallery/peers.svg").read_text("utf-8")


def test_a_file_that_is_gone_and_one_that_nobody_draws(copy: Path) -> None:
    (copy / "docs/gallery/other.svg").write_text("<svg/>")
    (copy / "docs/gallery/roofline.svg").unlink()
    wrong = gallery().check(copy)
    assert [each.split()[0] for each in wrong] == ["docs/gallery/roofline.svg", "docs/gallery/other.svg"]
    gallery().check(copy, write=True)
    assert not (copy / "docs/gallery/other.svg").exists()
    assert gallery().check(copy) == []


def test_what_was_not_measured_is_no_plot(copy: Path) -> None:
    for path in (copy / "benchmarks/results").glob("peers-*.json"):
        path.unlink()
    gallery().check(copy, write=True)
    assert not (copy / "docs/gallery/peers.svg").exists()
    text = (copy / "README.md").read_text("utf-8")
    assert "Not measured yet: SmolLM2-135M on two cores." in text
    assert "peers.svg" not in text


def test_a_page_without_a_plot(copy: Path) -> None:
    page = copy / "docs/how-to/measure.md"
    text = page.read_text("utf-8")
    page.write_text(text.replace("<!-- plot roofline -->", ""), "utf-8")
    assert "no page has the plot roofline" in gallery().check(copy)
    page.write_text(text.replace("<!-- plot roofline -->", "<!-- plot nothing -->"), "utf-8")
    with pytest.raises(SystemExit, match="and gallery"):
        gallery().check(copy)


def test_an_engine_counts_with_its_fastest_file_and_all_have_to_be_there() -> None:
    def engines(**rates: float) -> dict[str, Any]:
        return {name: {"decode": rate, "prompt": rate} for name, rate in rates.items()}

    names = {"octavo: a": 3.0, "octavo: b": 5.0, "octavo int8 KV: a": 9.0, "llama.cpp: x": 2.0,
             "openvino-genai: x": 1.0, "transformers: x": 0.5}  # fmt: skip
    whole = {"shapes": {shape: {"engines": engines(**names)} for shape in gallery().PANELS}}
    first, *_ = panels = gallery().beside_peers(whole)
    assert len(panels) == 4
    assert first.bars == (("Octavo", 5.0), ("llama.cpp", 2.0), ("OpenVINO GenAI", 1.0), ("transformers", 0.5))
    assert gallery().peers_missing(whole) == ["vLLM"]
    del whole["shapes"]["batch-8"]["engines"]["transformers: x"]
    assert gallery().beside_peers(whole) == []


def test_rows_of_techniques() -> None:
    rows = [{"name": "a", "gain": 2.0, "not_measured": None}, {"name": "b", "not_measured": "no window"}]
    (chart,) = gallery().techniques({"result": {"rows": rows}})
    assert chart.bars == (("a", 2.0),)
    assert gallery().techniques_missing({"result": {"rows": rows}}) == ["b (no window)"]
    assert gallery().techniques({"ratios": {}}) == []
