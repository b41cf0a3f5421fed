"""The prefix cache on disk, from the outside: a restart finds it, and the answer has the same bits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo import LLM, SamplingParams
from octavo.engine_args import EngineArgs
from octavo.errors import CapacityError, EngineDeadError, InvalidRequestError
from octavo.runtime.page_file import FILE_NAME
from support.served import KEY, start
from support.tiny_engine import save_tiny_llama, save_words

PROMPT = [{"prompt_token_ids": [1 + number % 900 for number in range(7, 207)]}]
PARAMS = SamplingParams(seed=5, temperature=0.9, max_tokens=12, logprobs=3, ignore_eos=True)


def answer(folder: Path | None, **options: Any) -> tuple[Any, Any]:
    """Ids and logprobs of one prompt, and the engine's counts; the engine is gone afterwards."""
    where = {} if folder is None else {"prefix_cache_dir": str(folder)}
    llm = LLM("smollm2", max_model_len=512, num_pages=64, **where, **options)
    try:
        completion = llm.generate(PROMPT, PARAMS)[0].outputs[0]
        bits = [[(i, one.logprob) for i, one in step.items()] for step in completion.logprobs or []]
        return (completion.token_ids, bits), llm.get_metrics()
    finally:
        llm.shutdown()


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "float16", "int8"])
def test_a_restart_gives_the_same_bits(tmp_path: Path, fastest: str, kv_cache_dtype: str) -> None:
    options = {"backend": fastest, "kv_cache_dtype": kv_cache_dtype}
    alone, _ = answer(None, **options)
    cold, counts = answer(tmp_path, **options)
    assert counts.external_prefix_hits == 0
    warm, counts = answer(tmp_path, **options)
    assert (counts.external_prefix_queries, counts.external_prefix_hits) == (200, 192)
    assert alone == cold == warm


def test_other_settings_find_nothing(tmp_path: Path, fastest: str, caplog: pytest.LogCaptureFixture) -> None:
    answer(tmp_path, backend=fastest)
    _, counts = answer(tmp_path, backend=fastest, dtype="float32")
    assert counts.external_prefix_hits == 0
    line = f"{tmp_path / FILE_NAME}: the file is of another model, or of other settings or kernels"
    assert [r.message for r in caplog.records] == [f"{line}: it is made anew"]


def test_a_copy_of_the_model_hits_and_changed_weights_miss(tmp_path: Path, fastest: str) -> None:
    """The file knows the model by its content, wherever it lies and whenever it was written."""
    model = save_words(save_tiny_llama(tmp_path))
    copy = Path(shutil.copytree(model, tmp_path / "elsewhere"))
    weights = copy / "model.safetensors"
    os.utime(weights, (1, 1))

    def hits(folder: Path) -> int:
        cache = {"prefix_cache_dir": str(tmp_path / "cache"), "backend": fastest}
        llm = LLM(str(folder), max_model_len=160, num_pages=20, **cache)
        llm.generate(
            [{"prompt_token_ids": list(range(3, 83))}], SamplingParams(max_tokens=2, ignore_eos=True)
        )
        llm.shutdown()
        return llm.get_metrics().external_prefix_hits

    assert (hits(model), hits(model), hits(copy)) == (0, 64, 64)
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # a bit of the last weight's exponent
    os.utime(weights, (1, 1))
    assert hits(copy) == 0


def test_an_llm_that_was_shut_down_says_so(tmp_path: Path, fastest: str) -> None:
    for options in ({}, {"prefix_cache_dir": str(tmp_path)}):
        llm = LLM("smollm2", max_model_len=64, num_pages=8, backend=fastest, **options)
        llm.shutdown()
        with pytest.raises(EngineDeadError, match="the engine was shut down: make another one"):
            llm.generate("Hello")
        llm.shutdown()


def test_a_wrong_folder_is_told_before_the_weights_are_read(
    tmp_path: Path, fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the weights are being loaded")

    monkeypatch.setattr("octavo.models.load.load_model", never)
    taken = tmp_path / "file"
    taken.write_text("x")
    with pytest.raises(InvalidRequestError, match=r"file is not a folder$"):
        answer(taken, backend=fastest)
    with pytest.raises(InvalidRequestError, match=r"file/below is not a folder: .*file is a file$"):
        answer(taken / "below", backend=fastest)


def test_two_engines_in_one_folder(tmp_path: Path, fastest: str, caplog: pytest.LogCaptureFixture) -> None:
    first = LLM("smollm2", max_model_len=512, num_pages=64, backend=fastest, prefix_cache_dir=str(tmp_path))
    second, counts = answer(tmp_path, backend=fastest)
    assert "another process uses it" in caplog.records[0].message
    assert counts.external_prefix_queries == 0
    assert second == answer(None, backend=fastest)[0]
    first.shutdown()
    first.shutdown()  # nothing is left to do


@pytest.mark.parametrize(
    ("options", "message", "param"),
    [
        (
            {"prefix_cache_dir": "x", "enable_prefix_caching": False},
            "prefix_cache_dir needs enable_prefix_caching",
            "prefix_cache_dir",
        ),
        ({"prefix_cache_dir": ""}, "prefix_cache_dir is empty: it must name a folder", "prefix_cache_dir"),
        (
            {"prefix_cache_disk_space": 2.0},
            "prefix_cache_disk_space needs prefix_cache_dir",
            "prefix_cache_disk_space",
        ),
        (
            {"prefix_cache_dir": "x", "prefix_cache_disk_space": 0.0},
            "prefix_cache_disk_space must be a positive number of GiB, not 0.0",
            "prefix_cache_disk_space",
        ),
        (
            {"prefix_cache_dir": "x", "prefix_cache_disk_space": float("nan")},
            "prefix_cache_disk_space must be a positive number of GiB, not nan",
            "prefix_cache_disk_space",
        ),
    ],
)
def test_nonsense_is_refused_by_name(options: dict[str, Any], message: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        EngineArgs("smollm2", **options)
    assert (str(caught.value), caught.value.param) == (message, param)


def test_a_folder_that_is_none_and_a_space_that_holds_no_page(tmp_path: Path, fastest: str) -> None:
    taken = tmp_path / "file"
    taken.write_text("x")
    with pytest.raises(InvalidRequestError, match="is not a folder"):
        answer(taken, backend=fastest)
    with pytest.raises(CapacityError, match=r"prefix_cache_disk_space of 107374 bytes holds no page"):
        answer(tmp_path, backend=fastest, prefix_cache_disk_space=1e-4)
    assert list(tmp_path.iterdir()) == [taken]


def test_a_server_that_is_started_again(tmp_path: Path, fastest: str) -> None:
    """Under the same key; another one's prompts are another's."""
    body = {"model": "smollm2", "prompt": PROMPT[0]["prompt_token_ids"], "max_tokens": 8, "temperature": 0}

    def ask(*keys: str) -> list[tuple[str, int]]:
        said = []
        flags = [flag for key in (KEY, "other") for flag in ("--api-key", key)]
        flags += ["--backend", fastest, "--prefix-cache-dir", str(tmp_path), "--num-pages", "600"]
        served = start(*flags)
        for key in keys:
            with httpx.Client(headers={"Authorization": f"Bearer {key}"}, timeout=120) as client:
                answer = client.post(f"{served.url}/v1/completions", json=body).json()
                found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                said.append((answer["choices"][0]["text"], found))
        assert served.end() == 0
        return said

    ((text, cold),) = ask(KEY)
    assert cold == 0
    assert ask(KEY, "other") == [(text, 192), (text, 0)]
