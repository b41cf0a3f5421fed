"""Every file of examples/ runs as it stands, on the real model, and says what it should."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
Run = Callable[..., str]


@pytest.fixture
def run(smollm2_path: Path) -> Run:
    """Run an example with arguments; its standard output."""
    assert smollm2_path.exists()

    def run(name: str, *arguments: str) -> str:
        command = [sys.executable, str(EXAMPLES / name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


def test_all_are_listed_and_tested() -> None:
    files = {path.name for path in EXAMPLES.glob("*.py")}
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert {name for name in files if f"({name})" in readme} == files
    here = Path(__file__).read_text(encoding="utf-8")
    assert {name for name in files if f'run("{name}"' in here} == files


def test_vllm_style(run: Run) -> None:
    said = run("vllm_style.py", "--max-tokens", "6")
    assert len(re.findall(r"^  \d tokens, (?:length|stop), seed \d+$", said, re.MULTILINE)) == 3
    assert "the same alone and in a batch: True" in said


def test_async_stream(run: Run) -> None:
    lines = run("async_stream.py", "--max-tokens", "8").splitlines()
    names = [line.split(":")[0] for line in lines if line.startswith(("tale:", "fact:"))]
    assert set(names) == {"tale", "fact"}
    assert sum("(length)" in line for line in lines) == 2
    last_of_first = max(i for i, name in enumerate(names) if name == names[0])
    assert any(name != names[0] for name in names[:last_of_first])  # the streams interleave


def test_openai_client(run: Run) -> None:
    said = run("openai_client.py", "--max-tokens", "12")
    assert said.startswith("Hello")
    assert "completion_tokens=12" in said
    assert len(said.splitlines()[2:]) >= 1  # the stream


def test_pipeline(run: Run) -> None:
    said = run("pipeline.py", "--max-tokens", "6")
    assert said.startswith("AI will change the world")
    assert "'role': 'assistant'" in said


def test_continuous_batching(run: Run) -> None:
    said = run("continuous_batching.py", "--max-tokens", "8")
    steps = re.findall(r"^step +\d+ +(.*)$", said, re.MULTILINE)
    batches = [re.findall(r"([A-E])(?:\+\d+)?", step) for step in steps]
    assert batches[0] == ["A", "B", "C"]  # three rows are full from the first step
    lines = said.splitlines()
    ended = next(i for i, line in enumerate(lines) if "B ends" in line)
    assert re.match(r"step +\d+ +A +D\+\d+ +C", lines[ended + 1])  # D enters as B leaves, the others go on
    assert batches[-1] != ["A", "B", "C"]
    assert said.count(" ends: ") == 5
    assert "Paris" in said


def test_encoder_decoder(run: Run) -> None:
    lines = run("encoder_decoder.py", "--max-tokens", "5").splitlines()
    assert len(re.findall(r"read \d+ tokens, went on from \[0", "\n".join(lines))) == 2
    assert "3 samples of one encoder output, seed 1" in lines
    assert lines[-1].startswith("{'summary_text':")


@pytest.mark.parametrize(("draft", "rejected"), [("smollm2", False), ("20", True)])
def test_speculative(run: Run, draft: str, rejected: bool) -> None:
    said = run("speculative.py", "--max-tokens", "16", "--draft", draft, "--k", "3")
    assert said.count("the same without drafts: True") == 2
    counts = re.findall(r"(\d+) drafted tokens accepted, (\d+) rejected", said)
    assert len(counts) == 2
    assert any(int(accepted) for accepted, _ in counts)
    assert any(int(count) for _, count in counts) is rejected
