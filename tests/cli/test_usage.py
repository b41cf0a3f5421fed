"""Flags, help, and how commands end."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from typing import Any

import pytest

import octavo
from octavo.checkpoints.sources import ALIASES
from octavo.cli import _app, main
from octavo.cli._flags import ENGINE_HELP, SAMPLING_HELP, EngineChoice, engine_flags, flag_of, sampling_flags
from octavo.config import EngineConfig
from octavo.errors import CheckpointError, InvalidRequestError, OctavoError
from octavo.params import SamplingParams
from support.cli import command as octavo_words
from support.cli import octavo_command


def test_every_engine_setting_has_a_flag() -> None:
    assert {field.name for field in dataclasses.fields(EngineConfig)} - {"model"} == set(ENGINE_HELP)
    assert set(SAMPLING_HELP) <= {field.name for field in dataclasses.fields(SamplingParams)}


def parse(*words: str) -> tuple[EngineChoice, dict[str, Any]]:
    """What a command with all shared flags is given for these words."""
    got: list[Any] = []

    @sampling_flags()
    @engine_flags(leave_out=("seed",))
    def probe(engine: EngineChoice, sampling: dict[str, Any], own: bool = False) -> int:
        got.extend((engine, sampling))
        return 0

    import typer

    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    app.command("probe")(probe)
    app(args=["probe", *words], standalone_mode=False)
    return got[0], got[1]


def test_nothing_typed_is_nothing_passed() -> None:
    assert parse() == (EngineChoice("smollm2", {}), {})


def test_typed_values_have_their_types() -> None:
    engine, sampling = parse(
        "m.gguf", "--max-model-len", "99", "--no-enable-prefix-caching", "--step-target-ms", "5.5",
        "--dtype", "float32", "--gpu-memory-utilization", "0.5", "--block-size", "32",
        "--temperature", "0", "-n", "7", "--stop", "a", "--stop", "b", "--seed", "3", "--ignore-eos",
    )  # fmt: skip
    assert engine.model == "m.gguf"
    assert engine.options == {
        "max_model_len": 99,
        "enable_prefix_caching": False,
        "step_target_ms": 5.5,
        "dtype": "float32",
        "gpu_memory_utilization": 0.5,
        "page_size": 32,
    }
    assert sampling == {
        "temperature": 0.0,
        "max_tokens": 7,
        "stop": ["a", "b"],
        "seed": 3,
        "ignore_eos": True,
    }


@pytest.mark.parametrize(
    "words", [("x",), ("--model", "x"), ("--model-id", "x"), ("-m", "x"), ("x", "--model", "x")]
)
def test_the_model_by_position_or_flag(words: tuple[str, ...]) -> None:
    assert parse(*words)[0].model == "x"


def test_names_that_other_engines_taught() -> None:
    engine, sampling = parse("-m", "x.gguf", "-c", "99", "-t", "2", "-n", "5", "--temp", "0.5")
    assert (engine.model, engine.options) == ("x.gguf", {"max_model_len": 99, "threads": 2})
    assert sampling == {"max_tokens": 5, "temperature": 0.5}
    engine, sampling = parse("--ctx-size", "98", "--n-predict", "6")
    assert (engine.options, sampling) == ({"max_model_len": 98}, {"max_tokens": 6})
    assert parse("--max-total-tokens", "97")[0].options == {"max_model_len": 97}


def test_a_model_gets_several_names() -> None:
    engine, _ = parse("m", "--served-model-name", "gpt-4", "--served-model-name", "m/x")
    assert EngineConfig(engine.model, **engine.options).served_names == ("gpt-4", "m/x")
    assert EngineConfig("m", served_model_name="one").served_names == ("one",)
    assert EngineConfig("m").served_names == ()
    wrong: list[Any] = [["a", ""], [3], [None]]
    for names in wrong:
        with pytest.raises(InvalidRequestError, match="served_model_name must hold non-empty names"):
            EngineConfig("m", served_model_name=names)
    for other in (3, 0.5, True, {"a"}):
        wrong_type: Any = other
        with pytest.raises(InvalidRequestError, match="must be a name or a list of names, not") as caught:
            EngineConfig("m", served_model_name=wrong_type)
        assert caught.value.param == "served_model_name"


def test_an_empty_name_is_the_models_own() -> None:
    """As a script gives it whose variable is unset; on the command line and in Python."""
    engine, _ = parse("m", "--served-model-name", "")
    assert EngineConfig(engine.model, **engine.options).served_names == ()
    for own in ("", [""], [], None):
        assert EngineConfig("m", served_model_name=own).served_names == ()


@pytest.mark.parametrize("words", [("",), ("--model", "")])
def test_an_empty_model_is_not_the_default_one(words: tuple[str, ...]) -> None:
    """As a script gives it whose variable is unset."""
    with pytest.raises(InvalidRequestError, match="model is empty"):
        parse(*words)


def test_two_models_are_one_too_many() -> None:
    with pytest.raises(InvalidRequestError, match="give one of them"):
        parse("x", "--model", "y")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--tensor-parallel-size", "2"), "not supported yet (--tensor-parallel-size)"),
        (("--num-shard", "2"), "not supported yet (--num-shard)"),
        (("--quantize", "q3"), "quantization 'q3' is not supported; gguf, gptq"),
        (("--speculative-config", '{"method": "magic"}'), "(--speculative-config)"),
        (("--speculative-config", "{"), "--speculative-config is not valid JSON"),
        (("--dtype", "int3"), "dtype must be one of"),
        (("--kv-cache-dtype", "fp8"), "(--kv-cache-dtype)"),
        (("--max-num-seqs", "0"), "positive integer, not 0 (--max-num-seqs)"),
        (("--max-num-seqs", "100000000"), "must be at most 65536, not 100000000 (--max-num-seqs)"),
        (("--gpu-memory-utilization", "nan"), "(--gpu-memory-utilization)"),
        (("--model", "a", "b"), "give one of them"),
    ],
)
@pytest.mark.parametrize("name", ["serve", "generate", "chat"])
def test_wrong_engine_flags_are_errors_before_any_work(
    name: str, words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = ["-p", "x"] if name == "generate" else []
    assert main([name, *extra, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("octavo: error: ")
    assert err.count("\n") == 1
    assert text in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("srve",), "no such command 'srve'"),
        (("serve", "--prot", "1"), "no such option: --prot"),
        (("serve", "--port", "many"), "--port"),
        (("serve", "--port", "70000"), "--port"),
        (("serve", "a", "b"), "unexpected extra argument"),
        (
            ("serve", "m", "--served-model-name", "a", "b"),
            "; for several values repeat the flag: --served-model-name a --served-model-name b\n",
        ),
        (
            ("generate", "m", "--stop", "x", "y", "z", "-p", "a"),
            "; for several values repeat the flag: --stop x --stop y --stop z\n",
        ),
        (("serve", "a", "b", "--served-model-name", "c"), "(b)\n"),
        (("generate",), "--prompt"),
        (("pull", "--force=3"), "--force"),
        (("--nope",), "no such option: --nope"),
    ],
)
def test_wrong_usage_is_status_2(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("octavo: error: ")
    assert err.count("\n") == 1
    assert text in err


def test_without_words_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert {"pull", "serve", "chat", "generate", "env"} <= set(_app.command_names())
    for name in _app.command_names():
        assert f"\n  {name.replace('_', '-')} " in out


@pytest.mark.parametrize("name", _app.command_names())
def test_every_command_has_help_and_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name.replace("_", "-"), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--json" in shown
    assert main([name.replace("_", "-"), "-h"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("words", [[], ["bench"], ["bench", "load"]])
def test_h_is_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "-h, --help" in shown
    assert main([*words, "-h"]) == 0
    assert capsys.readouterr().out == shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"octavo {octavo.__version__}\n"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (OctavoError("it broke\nin two"), 1, "octavo: error: it broke in two\n"),
        (CheckpointError("bad file"), 1, "octavo: error: bad file\n"),
        (
            InvalidRequestError("x is wrong", "max_model_len"),
            2,
            "octavo: error: x is wrong (--max-model-len)\n",
        ),
        (
            OSError(28, "No space left on device", "/a/b"),
            1,
            "octavo: error: no space left on the disk: /a/b\n",
        ),
        (PermissionError(13, "Permission denied", "/a"), 1, "octavo: error: Permission denied: /a\n"),
        (
            MemoryError("std::bad_alloc"),
            1,
            "octavo: error: not enough memory (std::bad_alloc): --max-num-seqs, --max-num-batched-tokens, "
            "--num-pages and --gpu-memory-utilization say how much is taken\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_endings(
    error: BaseException,
    status: int,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> dict[str, Any]:
        raise error

    monkeypatch.setattr("octavo.cli.env.collect", fail)
    assert main(["env"]) == status
    assert capsys.readouterr().err == line


def test_standard_streams_may_be_missing() -> None:
    command = " ".join(shlex.quote(word) for word in octavo_words("env", "--json"))
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(f"{command} {closed}", shell=True, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), closed
        assert ("cpu" in done.stdout) is (">&- " not in f"{closed} ".replace("2>&-", "")), closed


def test_bugs_keep_their_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.cli.env.collect", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["env"])


def test_flags_by_field() -> None:
    assert flag_of("max_model_len") == "--max-model-len"
    assert flag_of("top_p") == "--top-p"
    assert flag_of("messages") is None


@pytest.mark.parametrize("words", [("--help",), ("serve", "--help"), ("--version",)])
def test_help_is_light(words: tuple[str, ...]) -> None:
    """Nobody should wait for numpy to read a help page."""
    script = (
        "import sys; from octavo.cli import main; main(sys.argv[1:]); "
        "print([m for m in ('numpy', 'fastapi', 'uvicorn', 'tokenizers', 'rich') if m in sys.modules])"
    )
    import subprocess

    from support.cli import environment

    result = subprocess.run(
        [sys.executable, "-c", script, *words], env=environment(), capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_python_m_octavo_is_the_command() -> None:
    result = octavo_command("pull", "no-such-model")
    assert result.returncode == 2
    assert result.stdout == ""
    assert (
        result.stderr
        == f"octavo: error: unknown model alias 'no-such-model'; there are: {', '.join(ALIASES)}\n"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--tool-call-parser", "xml"), "no tool format 'xml'; there are: deepseek_v3"),
        (
            ("--reasoning-parser", "xml"),
            "no reasoning format 'xml'; there are: qwen3, deepseek_r1, mistral, none",
        ),
    ],
)
@pytest.mark.parametrize("command", [["serve"], ["run-batch", "in.jsonl", "out.jsonl"]])
def test_unknown_parsers_are_errors_before_any_work(
    command: list[str], words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *words]) == 2
    assert text in capsys.readouterr().err


def test_a_body_of_the_largest_size_finds_room() -> None:
    """Beside what all requests may hold by default."""
    from octavo.cli.serve import Serving, _settings
    from octavo.server.state import ServerSettings

    assert ServerSettings(**_settings(Serving())) == ServerSettings()
    assert _settings(Serving(max_body_bytes=1 << 30))["max_buffered_bytes"] == 1 << 30
