"""octavo run: one answer, or the chat."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

from octavo.cli import main
from octavo.cli.chat import CHAT_DEFAULTS
from support.fake_engine import FakeEngine


def test_one_answer_under_the_defaults_of_a_chat(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "m", "Hi", "--system", "S"]) == 0
    assert capsys.readouterr() == ("Hello\n", "")
    (call,) = engine.calls
    assert bytes(call.prompt).decode() == "system:S\nuser:Hi\nassistant:"
    assert {name: getattr(call.params, name) for name in CHAT_DEFAULTS} == CHAT_DEFAULTS
    assert engine.shut


def test_flags_go_before_the_defaults(engine: FakeEngine) -> None:
    assert main(["run", "m", "-p", "Hi", "--temp", "0", "-n", "3"]) == 0
    params = engine.calls[0].params
    assert (params.temperature, params.max_tokens, params.top_k) == (0.0, 3, CHAT_DEFAULTS["top_k"])


def test_a_penalty_of_the_defaults_can_be_turned_off(engine: FakeEngine) -> None:
    assert CHAT_DEFAULTS["presence_penalty"] > 0
    assert main(["run", "m", "Hi", "--presence-penalty", "0"]) == 0
    assert engine.calls[0].params.presence_penalty == 0


def test_the_help_says_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    for value in CHAT_DEFAULTS.values():
        assert f"[default: {value}]" in shown


def test_json(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m", "Hi", "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert err == ""
    assert (answer["model"], answer["prompt"], answer["text"]) == ("m", "Hi", "Hello")
    assert answer["usage"] == {"prompt_tokens": len("user:Hi\nassistant:"), "completion_tokens": 6}


def test_verbose_says_how_fast(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m", "Hi", "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n"
    assert re.fullmatch(
        r"18 tokens of prompt, 6 of answer in .* s: the first after .* s(, then .* tok/s)?\n", err
    )


def test_without_a_prompt_it_is_the_chat(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    assert main(["run", "m"]) == 0
    assert capsys.readouterr().out == "Hello\nHello\n"
    assert bytes(engine.calls[1].prompt).decode() == "user:one\nassistant:Hello\nuser:two\nassistant:"


def test_a_prompt_from_stdin_is_one_turn(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    assert main(["run", "m", "-"]) == 0
    assert bytes(engine.calls[0].prompt).decode() == "user:one\ntwo\nassistant:"


def test_a_base_model_continues_and_says_so(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.template = None
    assert main(["run", "m", "Once"]) == 0
    assert capsys.readouterr() == ("Hello\n", "m has no chat template: it continues the text\n")
    assert bytes(engine.calls[0].prompt).decode() == "Once"
    assert main(["run", "m", "Once", "--system", "S"]) == 2
    assert "m has no chat template, and takes no --system" in capsys.readouterr().err
    assert len(engine.calls) == 1


@pytest.mark.parametrize("words", [["m", ""], ["m", "x", "-n", "0"], ["m", "a", "-p", "b"]])
def test_bad_requests_load_nothing(
    engine: FakeEngine, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) == 2
    assert capsys.readouterr().err.count("octavo: error: ") == 1
    assert not engine.calls
    assert not engine.shut


def test_an_encoder_decoder_has_no_chat(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.max_encoder_len = 64
    assert main(["run", "m", "Hi"]) == 2
    assert capsys.readouterr().err.startswith("octavo: error: ")
    assert not engine.calls
