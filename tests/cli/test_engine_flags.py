"""Lines by which other engines' servers are started: each of their flags is obeyed, said or refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import typer

from octavo.cli import main
from octavo.cli._app import build
from octavo.cli._engines import Mapped, Meaning, NoEffect, Refused, engines, meanings, translated
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError, OctavoError, UnsupportedError
from support.cli import ROOT, environment, octavo_command

ENGINES = pytest.mark.parametrize("table", engines().values(), ids=list(engines()))
EVERY = [(name, meaning) for name, (_, meaning) in meanings().items()]
VALUES = {"--speculate": "2"} | dict.fromkeys(("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"), "f16")
FIELDS = {each.name for each in dataclasses.fields(EngineConfig)}


def serve() -> Any:
    group: Any = typer.main.get_command(build(["serve"]))
    return group.commands["serve"]


def params(line: str) -> dict[str, Any]:
    """What `octavo serve` makes of a line, but for what was not said."""
    given: dict[str, Any] = serve().make_context("serve", line.split()).params
    return given


@ENGINES
def test_its_first_lines_are_taken(table: ModuleType) -> None:
    for line in table.LINES:
        given = params(line)
        assert "smollm2" in (given["model"], given["model_flag"])
        typed = {name: given[name] for name in FIELDS & given.keys() - {"model"} if given[name]}
        EngineConfig("smollm2", **typed)  # (or it is refused)


@ENGINES
def test_a_flag_is_octavos_own_or_in_a_table(table: ModuleType) -> None:
    own = serve().own()
    assert set(table.SAME.split()) | set(table.NOTES) <= set(own)
    names = [name for names in table.FLAGS for name in names.split()]
    assert len(set(names)) == len(names)
    assert not set(names) & set(own), "Octavo's own flag would win"
    for meaning in table.FLAGS.values():
        if isinstance(meaning, Mapped):
            assert own[meaning.flag] is not meaning.bare


def test_a_name_of_two_engines_means_one_thing() -> None:
    met: dict[str, Meaning] = {}
    for table in engines().values():
        for names, meaning in table.FLAGS.items():
            for name in names.split():
                other = met.setdefault(name, meaning)
                assert type(other) is type(meaning), name
                assert getattr(other, "flag", None) == getattr(meaning, "flag", None), name
                assert getattr(other, "takes", None) == getattr(meaning, "takes", None), name


@pytest.mark.parametrize(("name", "meaning"), EVERY, ids=[name for name, _ in EVERY])
def test_a_flag_does_what_its_table_says(name: str, meaning: Meaning) -> None:
    value = [VALUES.get(name, "7")] if meaning.takes is not False else []
    if isinstance(meaning, Refused):
        with pytest.raises(UnsupportedError, match="is not supported: ") as refusal:
            translated([name, *value], {})
        assert str(refusal.value).startswith(name)
        for neutral in meaning.neutral:
            assert translated([name, neutral, "x"], {}) == (["x"], [])
            assert translated([f"{name}={neutral}", "x"], {}) == (["x"], [])
        return
    made, notes = translated([name, *value, "x"], {})
    if isinstance(meaning, NoEffect):
        assert made == ["x"]
        assert notes[0].startswith(f"{name} (")
        assert notes[0].endswith(meaning.why)
    else:
        assert notes == []
        assert (made[0], made[-1]) == (meaning.flag, "x")
        assert len(made) == 2 + (not meaning.bare)
        assert serve().own()[meaning.flag] is not meaning.bare


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--model-path M --tp 1 --context-length 512", {"model_flag": "M", "max_model_len": 512}),
        ("--model-id M --max-batch-size 3 --hostname h --port 80",
         {"max_num_seqs": 3, "host": "h", "port": 80}),
        ("--model-id M --max-input-length 5 --max-total-tokens 9",
         {"max_input_tokens": 5, "max_model_len": 9}),
        ("M --max_model_len=512 --max-num_seqs 4", {"max_model_len": 512, "max_num_seqs": 4, "model": "M"}),
        ("-m M -c 512 -t 2 -ngl 99 -np 4", {"max_model_len": 512, "threads": 2, "max_num_seqs": 4}),
        ("-m M -fa -np 4", {"max_num_seqs": 4}),
        ("-m M -fa on -np 4", {"max_num_seqs": 4, "model": None}),
        ("M --disable-radix-cache --disable-cuda-graph",
         {"enable_prefix_caching": False, "enforce_eager": True}),
        ("M --speculate 3", {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}'}),
        ("M --json-output", {"log_format": "json"}),
        ("M -O3 -np 4 -O 2", {"max_num_seqs": 4, "model": "M"}),
        ("M -O.level=3", {"model": "M"}),
        ("M -c 0", {"max_model_len": 0}),
        ("M -ctk f16 -ctv f16", {"kv_cache_dtype": "float16"}),
        ("M --cache-type-k=q8_0 --cache-type-v q8_0", {"kv_cache_dtype": "int8"}),
        ("M --tp 1 --tp-size 1 --tp 1", {"tensor_parallel_size": 1}),
        ("M --watermark-gamma .50 --watermark-delta 2.00", {"model": "M"}),
        ("M --num-shard 1 --tp 1 -m M -m N", {"tensor_parallel_size": 1, "model_flag": "N"}),
        ("M --served-model-name -ngl", {"served_model_name": ["-ngl"]}),
        ("--port 7 -- M", {"port": 7, "model": "M"}),
    ],
)  # fmt: skip
def test_lines(line: str, found: dict[str, Any]) -> None:
    given = params(line)
    assert {name: given[name] for name in found} == found


@pytest.mark.parametrize(
    ("line", "error", "text"),
    [
        ("M --tp", InvalidRequestError, "--tp needs a value"),
        ("M --num-shard", Exception, "requires an argument"),
        ("M --dp 2", UnsupportedError, "--dp is not supported: start several servers"),
        ("M --chunked-prefill-size -1", UnsupportedError, "-1 is not supported: prompts are always cut"),
        ("M --watermark-gamma .25", UnsupportedError, r"\(0\.5 is taken\)"),
        (
            "--context-length 2048 --max-total-tokens 4096",
            InvalidRequestError,
            "--context-length 2048 and --max-total-tokens 4096 are one flag: give one of them",
        ),
        ("--model-id M --model N", InvalidRequestError, "--model-id M and --model N are one flag"),
        (
            "M --max-model-len 512 --context-length 1024",
            InvalidRequestError,
            "--max-model-len 512 and --context-length 1024 are one flag",
        ),
        ("M --tp 1 --tp-size=2", InvalidRequestError, "--tp 1 and --tp-size 2 are one flag"),
        ("M -ctk f16 -ctv q8_0", InvalidRequestError, "-ctk float16 and -ctv int8 are one flag"),
        ("M -ctk q4_0", UnsupportedError, "a KV cache of 'q4_0' is not supported: f32, f16, bf16, q8_0 are"),
        ("M --offline", UnsupportedError, "--offline is not supported: set the variable HF_HUB_OFFLINE"),
        ("M --enable-lora", UnsupportedError, "--enable-lora is not supported: no adapters"),
        ("M --no-such-flag", Exception, "--no-such-flag"),
    ],
)
def test_what_is_not_done_is_named(line: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        params(line)


def test_refusals_are_one_line_and_notes_go_to_standard_error() -> None:
    done = octavo_command("serve", "-m", "M", "-ngl", "99", "--mlock", scripted=True)
    assert done.returncode == 2
    assert done.stderr == "octavo: error: --mlock is not supported: memory is not locked\n"
    done = octavo_command("serve", "-m", "M", "-ngl", "99", "--port", "70000", scripted=True)
    assert done.returncode == 2
    assert done.stderr.startswith("octavo: note: -ngl (llama.cpp) has no effect: ")
    assert done.stdout == ""


def test_other_commands_have_their_own_flags_alone() -> None:
    done = octavo_command("plan", "--model-path", "M")
    assert (done.returncode, "--model-path" in done.stderr) == (2, True)
    assert issubclass(UnsupportedError, OctavoError)


def test_the_module_of_vllms_name_is_serve() -> None:
    module = [sys.executable, "-m", "octavo.entrypoints.openai.api_server"]
    done = subprocess.run(
        [*module, "--model", "M", "--enable-lora"],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "octavo: error: --enable-lora is not supported: no adapters are loaded\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--model-path M --max-total-tokens 4096", ["--max-total-tokens is not SGLang's: here, as in TGI"]),
        ("--model-id M --max-total-tokens 4096", []),
        ("M --max-total-tokens 4096", []),
        (
            "--model-id M --max-waiting-tokens 20",
            ["--max-waiting-tokens (TGI) has no effect: it is a number"],
        ),
    ],
)
def test_a_flag_of_another_meaning_is_said(line: str, said: list[str]) -> None:
    _, notes = translated(line.split(), serve().own())
    assert [note[: len(each)] for note, each in zip(notes, said, strict=True)] == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("smollm2 --lora-adapters x", "--lora-adapters is not supported"),
        ("smollm2 --max-num-seqs 0", "(--max-num-seqs)"),
        ("smollm2 --max-batch-size 0", "(--max-batch-size)"),
        ("smollm2 --tp 2", "(--tp)"),
        ("smollm2 --api-key-file /nope", "cannot read the API keys of /nope"),
        ("nope --port 0", "unknown model 'nope'"),
        ("smollm2 --port 0 --max-total-tokens 100000", "(--max-total-tokens)"),
        ("smollm2 --max-input-length 4000 --max-total-tokens 2048", "prompts of 2047 tokens at most"),
        ("smollm2 --port 0 --max-input-tokens 9000", "prompts of 8191 tokens at most"),
    ],
)
def test_a_wrong_flag_is_not_started_again(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The unit starts what fails again, but for this status; the flag is named as it was typed."""
    unit = (ROOT.parent / "deploy" / "octavo.service").read_text(encoding="utf-8")
    assert main(["serve", *line.split()]) == 2
    assert "\nRestartPreventExitStatus=2\n" in unit
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("octavo: error: ")
    assert said in last
