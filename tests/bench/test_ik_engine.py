"""engines/ik_llama_cpp.py against a program that prints what llama-batched-bench prints."""

from __future__ import annotations

import importlib
import stat
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """#!/bin/sh
[ "${{2##*/}}" = broken.gguf ] && {{ echo "unable to load model" >&2; exit 1; }}
[ "$1" = --version ] && {{ echo "version: 7 (abc)" >&2; exit 0; }}
echo "$@" > {said}
echo "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |"
echo "|    16 |      7 |    2 |     46 |    0.500 |    64.00 |    0.250 |    56.00 |    0.750 |    61.33 |"
"""


@pytest.fixture
def bench(tmp_path: Path) -> str:
    program = tmp_path / "bench"
    program.write_text(PROGRAM.format(said=tmp_path / "said"))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def engine(bench: str, model: str, **options: Any) -> Any:
    module = importlib.import_module("engines.ik_llama_cpp")
    return module.Engine(model, 2, {"bench": bench, **options})


def test_what_it_says_of_a_run(bench: str, tmp_path: Path) -> None:
    """Eight new tokens of each stream: the first ends its prompt, seven are decoded."""
    found = engine(bench, "model.gguf", repack=True, flash_attn=0)
    timing = found.run([[1] * 16] * 2, 8)
    assert found.version == "7 (abc)"
    assert (timing.prompt_tokens, timing.prompt_s, timing.decode_tokens, timing.decode_s) == (
        32,
        0.5,
        14,
        0.25,
    )
    asked = (tmp_path / "said").read_text().split()
    assert "-rtr" in asked
    for flag, value in (
        ("-m", str(Path("model.gguf").resolve())),
        ("-t", "2"),
        ("-fa", "0"),
        ("-c", "256"),
        ("-ntg", "7"),
    ):
        assert asked[asked.index(flag) + 1] == value


def test_what_fails_is_said(bench: str) -> None:
    with pytest.raises(RuntimeError, match="ended with 1: unable to load model"):
        engine(bench, "broken.gguf").run([[1] * 16] * 2, 8)
    with pytest.raises(RuntimeError, match="ended with 0"):  # other figures than the ones asked for
        engine(bench, "model.gguf").run([[1] * 16] * 3, 8)
