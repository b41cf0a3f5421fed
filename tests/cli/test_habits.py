"""What fingers type that know Ollama, llama.cpp, vLLM or TGI, and what they get here."""

from __future__ import annotations

import io
import itertools
import json
import shlex
import sys
from typing import Any

import pytest

from octavo.cli import _app, main
from support.fake_engine import FakeEngine

ANSWERED = [
    # Ollama
    ("run m 'Hi there'", "user:Hi there\nassistant:", {}),
    ("run m --verbose Hi", "user:Hi\nassistant:", {}),
    ("run m Hi --system Briefly.", "system:Briefly.\nuser:Hi\nassistant:", {"temperature": 0.8, "top_k": 40}),
    ("run m Hi --seed 3 --temp 0", "user:Hi\nassistant:", {"seed": 3, "temperature": 0}),
    # llama.cpp
    ("generate -m m.gguf -p Once -n 9 --temp 0.5 -t 2 -c 64", "Once", {"max_tokens": 9, "temperature": 0.5}),
    ("generate --model m.gguf --prompt Once --n-predict 9 --top-k 5 --seed 3 --ctx-size 64", "Once",
     {"max_tokens": 9, "top_k": 5, "seed": 3}),
    ("generate -m m.gguf -p Once --repeat-penalty 1.1 --min-p 0.05 --top-p 0.9 --threads 2", "Once",
     {"repetition_penalty": 1.1, "min_p": 0.05, "top_p": 0.9}),
    ("run -m m.gguf -p Hi -n 9 --ignore-eos", "user:Hi\nassistant:", {"max_tokens": 9, "ignore_eos": True}),
    # vLLM
    ("generate m Once --dtype half --max-model-len 64 --gpu-memory-utilization 0.5", "Once", {}),
    ("generate m Once --block-size 16 --max-num-seqs 2", "Once", {}),
    ("generate m Once --tensor-parallel-size 1 --kv-cache-dtype auto --enable-prefix-caching", "Once", {}),
    ("generate --model m -p Once --max-tokens 7 --frequency-penalty 0.5 --stop x --stop y", "Once",
     {"max_tokens": 7, "frequency_penalty": 0.5, "stop": ("x", "y")}),
    ("generate m Once --dtype float --enforce-eager --trust-remote-code --swap-space 0", "Once", {}),
    # TGI
    ("generate --model-id m -p Once --max-total-tokens 64 --num-shard 1", "Once", {}),
]  # fmt: skip
REFUSED = [
    ("ps", 2, "there is no command 'ps': octavo list says what is kept"),
    ("show m", 2, "octavo plan MODEL says what it takes"),
    ("stop m", 2, "Ctrl-C, or SIGTERM, ends a server"),
    ("ls", 2, "octavo list"),
    ("create m -f Modelfile", 2, "takes a file or a folder as it is"),
    ("complete --url x", 2, "octavo generate MODEL PROMPT"),
    ("collect-env", 2, "octavo env"),
    ("cp m mine", 2, "--served-model-name gives a model names"),
    ("push m", 2, "models are not published from here"),
    ("download m", 2, "octavo pull MODEL"),
    ("server -m m.gguf", 2, "octavo serve MODEL"),
    ("perplexity -m m.gguf -f wiki.txt", 2, "octavo eval perplexity"),
    ("completion bash", 2, "octavo --show-completion"),
    ("run m Hi --keepalive 5m", 2, "no such option: --keepalive"),
    ("run m Hi --format json", 2, "no such option: --format"),
    ("generate m Once --mirostat 2", 2, "no such option: --mirostat"),
    ("run -m m Hi", 2, "MODEL 'Hi' and --model 'm' differ: give one of them"),
    ("generate m Once --temp hot", 2, "--temp': Input should be a valid number"),
    ("generate m Once --top-p 2", 2, "top_p"),
    ("generate m Once -n 0", 2, "max_tokens"),
    ("serve m --dtype int3", 2, "int3"),
    ("serve m --pipeline-parallel-size 2", 2, "pipeline"),
    ("serve m --enable-lora", 2, "lora"),
    ("serve m --lora x.gguf", 2, "models are served as they are"),
    ("serve m --mmproj x.gguf", 2, "models are served as they are"),
    ("serve m --cache-type-k q4_0", 2, "q4_0"),
    ("serve m --speculative-model d", 2, "no such option: --speculative-model"),
    ("serve m --rope-scaling linear", 2, "rope"),
    ("version", 2, "octavo --version"),
    ("help", 2, "octavo --help"),
    ("sevre m", 2, "no such command 'sevre'"),
    ("serve m --quantization exl2", 2, "exl2"),
    ("serve m --quantize marlin", 2, "marlin"),
    ("serve m --tensor-parallel-size 2", 2, "tensor_parallel_size"),
    ("serve m --num-shard 2", 2, "tensor_parallel_size"),
    ("serve m --no-such-flag", 2, "no such option: --no-such-flag"),
    ("generate m", 2, "octavo generate MODEL PROMPT"),
    ("run-batch - -", 2, "run-batch reads a file and writes a file"),
]


@pytest.mark.parametrize(("typed", "prompt", "params"), ANSWERED, ids=[typed for typed, _, _ in ANSWERED])
def test_it_is_answered(engine: FakeEngine, typed: str, prompt: str, params: dict[str, Any]) -> None:
    assert main(shlex.split(typed)) == 0
    (call,) = engine.calls
    assert bytes(call.prompt).decode() == prompt
    assert {name: getattr(call.params, name) for name in params} == params


@pytest.mark.parametrize(("typed", "status", "text"), REFUSED, ids=[typed for typed, _, _ in REFUSED])
def test_a_line_says_what_there_is(
    engine: FakeEngine, typed: str, status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(typed)) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert text in err
    assert not engine.calls


@pytest.mark.parametrize("word", ["/bye", "/exit", "/quit"])
def test_words_that_end_a_chat(
    engine: FakeEngine, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"one\n{word}\ntwo\n"))
    assert main(["run", "m", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["content"] == "Hello"


def test_what_there_is_instead_exists() -> None:
    for text in _app.INSTEAD.values():
        words = text.split()
        for here, after in itertools.pairwise(words):
            if here == "octavo" and not after.startswith("-"):
                assert after.strip(",:") in _app.command_names()
    assert not set(_app.INSTEAD) & {name.replace("_", "-") for name in _app.command_names()}
