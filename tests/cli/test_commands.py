"""What each command does, with a scripted engine instead of a model."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.checkpoints import sources
from octavo.cli import _load, main
from octavo.errors import CheckpointError
from octavo.kernels.cuda.device import NO_DRIVER
from octavo.server.listen import bind
from support.cli import command, environment, octavo_command
from support.fake_engine import FakeEngine


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    import io

    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


class TestGenerate:
    def test_text_streams_to_stdout(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["generate", "m", "-p", "Once", "--temperature", "0", "--seed", "4"]) == 0
        assert capsys.readouterr().out == "Hello\n"
        (call,) = engine.calls
        assert (call.params.temperature, call.params.seed, call.params.max_tokens) == (0.0, 4, 256)
        assert engine.shut

    def test_json(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["generate", "m", "--prompt", "Once", "-n", "2", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer.pop("seconds").keys() == {"first_token", "total"}
        assert answer == {
            "model": "m",
            "prompt": "Once",
            "text": "He",
            "finish_reason": "length",
            "seed": 77,
            "usage": {"prompt_tokens": 4, "completion_tokens": 2},
        }

    def test_the_prompt_may_come_from_stdin(
        self, engine: FakeEngine, stdin: Callable[[str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        stdin("from a pipe")
        assert main(["generate", "-p", "-", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["prompt"] == "from a pipe"

    @pytest.mark.parametrize(
        ("typed", "prompt"), [("one\n", "one"), ("one\n\n", "one\n"), ("one\r", "one\r"), ("\none", "\none")]
    )
    @pytest.mark.parametrize("words", [["m", "-"], ["-p", "-"]])
    def test_of_stdin_one_newline_is_dropped(
        self, engine: FakeEngine, stdin: Callable[[str], None], words: list[str], typed: str, prompt: str
    ) -> None:
        stdin(typed)
        assert main(["generate", *words]) == 0
        assert bytes(engine.calls[0].prompt).decode() == prompt

    @pytest.mark.parametrize(
        "words", [["m", "Once"], ["-m", "m", "-p", "Once"], ["m", "Once", "-p", "Once"], ["m", "--", "Once"]]
    )
    def test_the_prompt_by_position_or_flag(self, engine: FakeEngine, words: list[str]) -> None:
        assert main(["generate", *words]) == 0
        assert bytes(engine.calls[0].prompt).decode() == "Once"

    def test_a_mark_is_a_flag(self, engine: FakeEngine) -> None:
        assert main(["generate", "-p", "x", "--watermark"]) == 0
        assert main(["generate", "-p", "x"]) == 0
        assert main(["run", "m", "x", "--watermark"]) == 0
        assert [call.params.watermark for call in engine.calls] == [True, None, True]

    def test_two_prompts_are_one_too_many(
        self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["generate", "m", "a", "-p", "b"]) == 2
        assert capsys.readouterr().err.endswith("PROMPT 'a' and --prompt 'b' differ: give one of them\n")
        assert not engine.calls

    def test_only_a_newline_is_no_prompt(
        self, engine: FakeEngine, stdin: Callable[[str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        stdin("\n")
        assert main(["generate", "-p", "-"]) == 2
        assert "the prompt is empty" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "words", [["-p", ""], ["-p", "x", "-n", "0"], ["-p", "x", "--temperature", "nan"]]
    )
    def test_bad_requests_load_nothing(
        self, engine: FakeEngine, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["generate", *words]) == 2
        assert capsys.readouterr().err.count("octavo: error: ") == 1
        assert not engine.calls
        assert not engine.shut

    def test_ctrl_c(self, engine: FakeEngine) -> None:
        engine.fail_after = (1, KeyboardInterrupt())  # type: ignore[assignment]
        assert main(["generate", "-p", "x"]) == 130
        assert engine.shut

    def test_a_reader_that_has_enough(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        process = subprocess.run(
            command("generate", "-p", "x", scripted=True),
            env=environment(), stdout=writer, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
        os.close(writer)
        assert process.returncode == 1
        assert process.stderr == b"engine shut\n"


class TestChat:
    def test_a_pipe_is_a_conversation(
        self, engine: FakeEngine, stdin: Callable[[str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        stdin("one\n\ntwo\n/reset\nthree\n/exit\nfour\n")
        assert main(["chat", "m", "--system", "S"]) == 0
        assert capsys.readouterr().out == "Hello\nHello\nHello\n"
        assert [bytes(call.prompt).decode() for call in engine.calls] == [
            "system:S\nuser:one\nassistant:",
            "system:S\nuser:one\nassistant:Hello\nuser:two\nassistant:",
            "system:S\nuser:three\nassistant:",
        ]
        asked = {
            (p.temperature, p.top_k, p.top_p, p.max_tokens) for p in (call.params for call in engine.calls)
        }
        assert asked == {(0.8, 40, 0.9, 1024)}
        assert engine.shut

    def test_flags_go_before_the_defaults_of_a_chat(
        self, engine: FakeEngine, stdin: Callable[[str], None]
    ) -> None:
        stdin("one\n")
        assert main(["chat", "m", "--temperature", "0", "-n", "7"]) == 0
        params = engine.calls[0].params
        assert (params.temperature, params.top_p, params.max_tokens) == (0.0, 0.9, 7)

    def test_words_that_are_no_commands_are_no_turns(
        self, engine: FakeEngine, stdin: Callable[[str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        stdin("/help\n/save\n/usr/bin is what?\n/clear\n/bye\nnever\n")
        assert main(["chat", "m"]) == 0
        assert [bytes(call.prompt).decode() for call in engine.calls] == [
            "user:/usr/bin is what?\nassistant:"
        ]
        told = [line for line in capsys.readouterr().err.splitlines() if "/reset begins anew" in line]
        assert [line.startswith("there is no /save: ") for line in told] == [False, True]

    def test_the_oldest_turns_are_forgotten_where_the_context_is_full(
        self, engine: FakeEngine, stdin: Callable[[str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        engine.max_model_len = 96
        stdin("one\ntwo two two two\nthree three three\n")
        assert main(["chat", "m", "--system", "S"]) == 0
        assert bytes(engine.calls[-1].prompt).decode() == "system:S\nuser:three three three\nassistant:"
        assert "the context is full: the 2 oldest turns are forgotten" in capsys.readouterr().err

    def test_without_a_template_it_ends_before_the_first_turn(
        self, engine: FakeEngine, stdin: Callable[[str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        engine.template = None
        stdin("one\n")
        assert main(["chat", "m"]) == 2
        assert "no chat template; give one with --chat-template" in capsys.readouterr().err
        assert not engine.calls
        assert engine.shut

    def test_json_is_a_line_a_turn(
        self, engine: FakeEngine, stdin: Callable[[str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        stdin("one\ntwo")
        assert main(["chat", "--json", "-n", "3"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines == [{"role": "assistant", "content": "Hel", "finish_reason": "length"}] * 2

    def test_a_full_context_is_an_error_of_a_pipe(
        self, engine: FakeEngine, stdin: Callable[[str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        from octavo.errors import InvalidRequestError

        engine.refuse = InvalidRequestError("the prompt has 9 tokens too many", "prompt")
        stdin("one\ntwo\n")
        assert main(["chat"]) == 2
        assert capsys.readouterr().err == "octavo: error: the prompt has 9 tokens too many\n"

    def test_on_a_terminal_ctrl_c_stops_the_answer_and_then_the_program(self) -> None:
        master, slave = os.openpty()
        process = subprocess.Popen(
            command("chat", "slow", scripted=True),
            env=environment(), stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # What a shell runs in its background ignores Ctrl-C, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        os.close(slave)
        assert process.stdout is not None
        assert process.stderr is not None
        assert "Ctrl-C stops an answer" in process.stderr.readline()
        assert process.stdout.read(2) == "> "
        os.write(master, b"hi\n")
        assert process.stdout.read(2) == "He"
        process.send_signal(signal.SIGINT)
        rest = ""
        while not rest.endswith("\n> "):
            rest += process.stdout.read(1)
        assert rest.endswith(" (stopped)\n> ")
        while process.poll() is None:  # a signal between the prompt and the wait for a key is not seen
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)
        _, err = process.communicate(timeout=60)
        os.close(master)
        assert process.returncode == 130
        assert err == "engine shut\n"


class TestPull:
    def test_it_prints_where_the_model_lies(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        seen: list[Any] = []
        target = tmp_path / "model.gguf"
        target.write_bytes(b"12345")

        def pull(alias: str, progress: Callable[[int, int], None], force: bool) -> Path:
            seen.append((alias, force))
            for done in range(101):
                progress(done * 10**6, 100 * 10**6)
            return target

        monkeypatch.setattr(sources, "pull", pull)
        assert main(["pull"]) == 0
        out, err = capsys.readouterr()
        assert out == f"{target}\n"
        lines = [f"pulling smollm2: {mb} of 100 MB" for mb in range(0, 101, 10)]
        assert err.splitlines() == [*lines[:-1], f"{lines[-1]}, checking"]
        assert main(["pull", "other", "--force", "--json"]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out) == {"model": "other", "path": str(target), "bytes": 5}
        assert err == ""
        assert seen == [("smollm2", False), ("other", True)]

    def test_a_failure_is_one_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def pull(*_: Any) -> Path:
            raise CheckpointError("the hash is wrong")

        monkeypatch.setattr(sources, "pull", pull)
        assert main(["pull"]) == 1
        assert capsys.readouterr() == ("", "octavo: error: the hash is wrong\n")

    @pytest.mark.parametrize("done", [1 << 20, 2 << 20])
    def test_a_bar_on_a_terminal(
        self, done: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The label, and how much of how much, on stderr; no lines for tenths."""
        from octavo.cli import _progress

        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", "100")
        with _progress.byte_progress("pulling x") as progress:
            progress(done, 2 << 20)
        out, err = capsys.readouterr()
        assert out == ""
        assert "pulling x" in err
        assert ("checking" in err) == (done == 2 << 20)
        assert f"{done / 1e6:.1f}/2.1 MB" in err
        assert "MiB" not in err


class TestFetch:
    def test_only_aliases_that_are_not_there_are_pulled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pulled: list[str] = []
        monkeypatch.setattr(sources, "resolve", lambda model, progress: pulled.append(model))
        monkeypatch.setattr(sources, "cached", lambda model: None)
        _load.fetch("some.gguf", quiet=True)
        assert pulled == []
        _load.fetch("smollm2", quiet=True)
        assert pulled == ["smollm2"]
        monkeypatch.setattr(sources, "cached", lambda model: Path("there"))
        _load.fetch("smollm2", quiet=True)
        assert pulled == ["smollm2"]


class TestDevice:
    @pytest.mark.parametrize(
        ("device", "said"),
        [
            (f"cpu: {NO_DRIVER}", ""),
            ("cpu: a Tesla V100 is too old", "device: cpu: a Tesla V100 is too old\n"),
            ("NVIDIA H200 (sm_90)", "device: NVIDIA H200 (sm_90)\n"),
            (None, ""),
        ],
    )
    def test_a_gpu_that_is_there_is_spoken_of(
        self, device: str | None, said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        _load.say_facts({} if device is None else {"device": device})
        assert capsys.readouterr() == ("", said)

    def test_a_short_context_is_spoken_of(self, capsys: pytest.CaptureFixture[str]) -> None:
        _load.say_facts({"context": "16 tokens"})
        assert capsys.readouterr() == ("", "context: 16 tokens\n")


class TestEnv:
    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["env", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["cpu"]["threads_used"] >= 1
        assert 0 < facts["memory"]["usable"] <= facts["memory"]["total"]
        assert "reference" in facts["kernels"]["backends"]
        assert facts["kernels"]["why"]
        assert facts["packages"]["numpy"]

    def test_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["env"]) == 0
        out = capsys.readouterr().out
        for word in ("octavo", "python", "threads_used", "usable", "why", "numpy"):
            assert word in out
        assert re.search(r"^  total +\d+(\.\d)? [MG]B$", out, re.MULTILINE)

    def test_without_the_extension(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("octavo.kernels.select.native_available", lambda: False)
        assert main(["env", "--json"]) == 0
        kernels = json.loads(capsys.readouterr().out)["kernels"]
        assert kernels["backend"] == "reference"
        assert "not built" in kernels["why"]


class Serving:
    """`octavo serve` with a scripted engine; events come from its standard output."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            command("serve", "--port", "0", "--json", *words, scripted=True),
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def event(self, kind: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == kind:
                return event
        raise AssertionError(f"no {kind}: {self.process.communicate()[1]}")

    def end(self, name: signal.Signals) -> tuple[int, str, str]:
        self.process.send_signal(name)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


class TestServe:
    @pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
    def test_it_serves_until_a_signal(self, name: signal.Signals) -> None:
        serving = Serving("my-model", "--api-key", "k", "--api-key", "l")
        fact = serving.event("fact")
        assert (fact["name"], fact["value"]) == ("device", "cpu: a stand-in")
        ready = serving.event("ready")
        assert ready["model"] == "my-model"
        assert ready["url"].startswith("http://127.0.0.1:")
        headers = {"authorization": "Bearer l"}
        models = httpx.get(ready["url"] + "/v1/models", headers=headers).json()
        assert models["data"][0]["id"] == "my-model"
        assert httpx.get(ready["url"] + "/v1/models").status_code == 401
        status, out, err = serving.end(name)
        assert (status, err) == (0, "requests refused for want of a valid key: 1\nengine shut\n")
        assert json.loads(out) == {"event": "stopped", "finished": True}

    @pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
    def test_a_model_that_loads_for_long_can_be_left(self, name: signal.Signals) -> None:
        serving = Serving("stuck")
        url = serving.event("listening")["url"]
        health = httpx.get(url + "/health", timeout=60)
        assert (health.status_code, health.json()) == (503, {"status": "starting"})
        status, out, err = serving.end(name)
        assert (status, err) == (0, "")
        assert json.loads(out)["event"] == "stopped"

    def test_what_is_being_finished_is_said(self) -> None:
        serving = Serving("slow", "--drain-timeout", "600")
        url = serving.event("ready")["url"]
        body = {"prompt": "x", "stream": True, "max_tokens": 200}
        with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            serving.process.send_signal(signal.SIGINT)
            event = serving.event("draining")
            assert event == {"event": "draining", "requests": 1, "seconds": 600.0}
            serving.process.send_signal(signal.SIGINT)
            assert serving.event("stopped") == {"event": "stopped", "finished": False}
        serving.process.communicate(timeout=60)
        assert serving.process.returncode == 0

    def test_limits_come_from_flags(self) -> None:
        serving = Serving("--max-body-bytes", "10")
        url = serving.event("ready")["url"]
        assert httpx.post(url + "/v1/completions", json={"prompt": "x" * 20}).status_code == 413
        assert serving.end(signal.SIGTERM)[0] == 0

    def test_lines_for_people(self) -> None:
        process = subprocess.Popen(
            command("serve", "--port", "0", scripted=True),
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("ready: smollm2 at http://127.0.0.1:"):
                break
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "stopped\n"
        assert lines[0].startswith("listening on http://127.0.0.1:")

    def test_a_port_in_use_is_an_error_before_loading(self) -> None:
        with bind("127.0.0.1", 0) as listener:
            port = str(listener.getsockname()[1])
            result = octavo_command("serve", "no-such-model", "--port", port)
        assert result.returncode == 1
        assert result.stdout == ""
        assert result.stderr.startswith(f"octavo: error: cannot listen on 127.0.0.1:{port}: ")
        assert result.stderr.count("\n") == 1

    def test_a_model_that_cannot_be_loaded(self) -> None:
        result = octavo_command("serve", "no-such-model", "--port", "0")
        assert result.returncode == 2
        assert result.stderr.startswith("octavo: error: unknown model 'no-such-model'")
        assert result.stderr.count("\n") == 1

    def test_an_empty_key_would_let_everybody_in(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["serve", "--port", "0", "--api-key", ""]) == 2
        assert "--api-key" in capsys.readouterr().err

    def test_loading_happens_beside_the_main_thread(
        self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C must work while a large model loads."""
        threads: list[threading.Thread] = []

        def load(choice: Any, progress: Any = None) -> FakeEngine:
            threads.append(threading.current_thread())
            raise CheckpointError("enough")

        monkeypatch.setattr(_load, "load", load)
        assert main(["serve", "--port", "0"]) == 1
        assert threads[0] is not threading.main_thread()
        assert threads[0].daemon
