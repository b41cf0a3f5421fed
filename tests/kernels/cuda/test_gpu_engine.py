"""gpu-check's checks of an engine and of a server, on the CPU: they hold, and notice what is broken."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import math
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from support.cuda import interpreted

BENCHMARKS = str(Path(__file__).parents[3] / "benchmarks")
ENGINE = (
    "text", "streams", "structured", "prefix", "disk", "preemption", "drafts", "abort", "overload", "drain",
    "device lost", "too little memory", "crowds",
)  # fmt: skip
SERVED = (
    "conformance", "structured", "disconnects", "overload", "drain", "device lost", "traffic",
)  # fmt: skip


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    interpreted()


def gpu(name: str) -> Any:
    return importlib.import_module(f"gpu.{name}")


def wrong(checks: Any) -> list[str]:
    assert checks, "nothing was checked"
    return [what for what, error, allowed in checks if not error <= allowed]


def place(folder: Path, **forced: Any) -> Any:
    """A CPU, whose engines have these options whatever a check asks for."""

    class Forced(gpu("place").Place):  # type: ignore[misc]
        def options(self, **more: Any) -> dict[str, Any]:
            found: dict[str, Any] = super().options(**{**more, **forced})
            return found

    return Forced("cpu", "float32", folder, True)


@pytest.mark.parametrize("name", ENGINE)
def test_engine(name: str, tmp_path: Path) -> None:
    engine = gpu("engine")
    assert tuple(engine.CHECKS) == ENGINE
    assert engine.lacks(name) is None
    assert wrong(engine.run(name, place(tmp_path))) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "disk", "drafts"])
def test_engine_on_interpreted_kernels(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's own path: draws and pages on the device, steps in flight, swapped and saved pages.

    Log-probabilities to three places: the BLAS under the interpreter adds by a row's place in its tile."""
    from octavo.kernels import cuda, select
    from octavo.kernels.cuda.steps import Steps

    engine, plain, exact = gpu("engine"), select.make_backend, gpu("place").answer

    def backend(name: str, wanted: Any) -> Any:
        return plain(name, wanted) if name == "reference" else cuda.make("cpu", dtype="float32", exact=True)

    def rounded(output: Any) -> Any:
        tokens, scores, reason = exact(output)
        return tokens, [round(score, 3) for score in scores], reason

    monkeypatch.setattr(select, "make_backend", backend)
    monkeypatch.setattr(Steps, "prepare", lambda self: None)
    monkeypatch.setattr(engine, "answer", rounded)
    with np.errstate(all="ignore"):
        assert wrong(engine.run(name, place(tmp_path))) == []


@pytest.mark.parametrize(
    ("name", "forced", "noticed"),
    [
        ("prefix", {"enable_prefix_caching": False}, "prefix cache: tokens of 64 that were not found"),
        ("disk", {"prefix_cache_dir": None}, "prefix cache on disk: tokens of 64 that were not found"),
        ("preemption", {"num_pages": 96}, "computed again: preemptions that are missing"),
        ("preemption", {"swap_space": 0.0}, "swapped: pages that are missing"),
        ("overload", {"max_waiting": 64}, "overload: refusals that are missing"),
        ("drafts", {"speculative_config": None}, "drafts: none was accepted, or none rejected"),
        ("too little memory", {"num_pages": 96}, "too little memory: not refused, or without how much"),
    ],
)
def test_what_is_not_done_is_noticed(name: str, forced: Any, noticed: str, tmp_path: Path) -> None:
    assert noticed in wrong(gpu("engine").run(name, place(tmp_path, **forced)))


def test_wrong_bits_are_noticed(tmp_path: Path) -> None:
    """An engine whose answers depend on how many others there are."""
    engine, turns = gpu("engine"), iter(range(10**6))
    plain = gpu("place").answer

    def off(output: Any) -> Any:
        tokens, scores, reason = plain(output)
        return [*tokens[:-1], tokens[-1] + next(turns)], scores, reason

    with mock.patch.object(engine, "answer", off):
        for name, count in (("prefix", 1), ("abort", 1), ("preemption", 2), ("drafts", 1), ("crowds", 1)):
            found = wrong(engine.run(name, place(tmp_path)))
            assert len([what for what in found if "other bits" in what]) == count
        assert len(wrong(engine.run("text", place(tmp_path)))) == 1


def test_an_engine_that_goes_on_is_noticed(tmp_path: Path) -> None:
    """One that takes requests while it drains; one whose device is not lost."""
    from octavo.async_llm import AsyncLLM

    engine = gpu("engine")

    async def nothing(self: Any, timeout_s: float) -> None:
        pass

    with mock.patch.object(AsyncLLM, "drain", nothing):
        assert wrong(engine.run("drain", place(tmp_path))) == ["drain: a new request was taken"]
    with mock.patch.object(gpu("place"), "break_device", return_value=None):
        assert len(wrong(engine.run("device lost", place(tmp_path)))) == 2


def test_other_choices_are_counted_up_to_the_first() -> None:
    other = gpu("engine").other_choices
    assert other([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]) == 0.0
    assert other([[1, 9, 9], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]) == 1 / 5
    assert other([[9, 9, 9]], [[1, 2, 3]]) == 1.0
    assert other([], []) == 0.0


def test_structured_answers_are_read() -> None:
    fits = gpu("engine").fits
    assert fits('{"size": 3, "kind": "row"}')
    for text in (
        "", "[]", '{"size": 3}', '{"size": true, "kind": "row"}', '{"size": 100, "kind": "row"}',
        '{"size": 3, "kind": "cow"}', '{"size": 3, "kind": "row", "more": 1}', '{"size": 3, "kind": "row"',
    ):  # fmt: skip
        assert not fits(text)


SOON = ("conformance", "device lost")


@pytest.mark.parametrize(
    "name", [name if name in SOON else pytest.param(name, marks=pytest.mark.slow) for name in SERVED]
)
def test_served(name: str, tmp_path: Path) -> None:
    served = gpu("served")
    assert tuple(served.CHECKS) == SERVED
    assert served.lacks(name) is None
    assert wrong(served.run(name, place(tmp_path))) == []


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"the server ended with 2: .*no-such-flag"):
        gpu("http").Server([str(tmp_path), "--no-such-flag"], tmp_path / "log")


@pytest.mark.parametrize(
    "name", ["one stream", "conversations", pytest.param("users", marks=pytest.mark.slow)]
)
def test_rows_of_the_whole_engine(name: str) -> None:
    """On a tiny model and the CPU: figures mean nothing, that they come does."""
    speed = gpu("speed")
    (row,) = gpu("whole").made(name, "cpu", "float32", speed.SMALL, speed.Ceilings(1e9, 1e9))
    assert row.value > 0


def test_a_reader_told_late_costs_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens come in one output: seconds and steps are the engine's."""

    class Late:
        async def generate(self, *_: object) -> AsyncIterator[Any]:
            times = SimpleNamespace(first_token_time=1.0, last_token_time=3.0)
            yield SimpleNamespace(
                metrics=times, finished=True, outputs=[SimpleNamespace(token_ids=range(40))]
            )

        def shutdown(self) -> None: ...

    monkeypatch.setattr("octavo.async_llm.AsyncLLM.from_engine_args", lambda _: Late())
    made = gpu("whole").timed_answer("cpu", "float32", tmp_path, gpu("speed").SMALL, 40)
    assert asyncio.run(made) == (2.0, 39)


def events(*values: Any) -> list[str]:
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def test_streams_are_read() -> None:
    served = gpu("served")
    part = {"choices": [{"delta": {"content": "ab"}, "finish_reason": None}], "usage": None}
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"completion_tokens": 7}}
    assert served.said(events(part, part, last, usage, "[DONE]")) == ("abab", "stop", 7)
    assert served.tokens_of(events(part, last, usage, "[DONE]")) == 7
    for cut in (events(part, usage), events(part, "[DONE]"), []):
        with pytest.raises(RuntimeError, match="a stream ended with"):
            served.tokens_of(cut)


class TestParts:
    """Processes of checks: what each says is heard, and what fails is a check that fails."""

    def test_all_are_named_once(self) -> None:
        names = gpu("parts").names("cpu", "float32", True)
        assert len(names) == len(set(names)) == len(ENGINE) + len(SERVED) + 12
        assert {f"engine {name}" for name in ENGINE} | {f"served {name}" for name in SERVED} < set(names)

    def test_a_part_is_a_process(self) -> None:
        parts, name = gpu("parts"), "engine too little memory"
        made = parts.command(name, "cpu", "float32", True)
        (line,) = parts.at_once([name], lambda name: made, 1)
        assert line == {
            "what": "too little memory: not refused, or without how much", "error": 0.0, "allowed": 0.0
        }  # fmt: skip

    def test_what_goes_wrong_is_a_failed_check(self) -> None:
        parts = gpu("parts")
        code = {
            "good": 'print(\'a warning\'); print(\'{"what": "a", "error": 0, "allowed": 1}\')',
            "fails": 'print(\'{"what": "b", "error": 0, "allowed": 1}\'); raise ValueError(\'why\')',
            "silent": "pass",
            "slow": 'import time; print(\'{"what": "c"}\', flush=True); time.sleep(60)',
        }
        found = list(parts.at_once(list(code), lambda name: [sys.executable, "-c", code[name]], 4, 5.0))
        told = {line["what"]: line.get("error") for line in found}
        assert told == {
            "a": 0, "b": 0, "fails: ended with 1: ValueError: why": math.inf,
            "silent: checked nothing": math.inf, "c": None, "slow: ran past 5 s": math.inf,
        }  # fmt: skip

    def test_what_is_missing_is_left_out_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        parts, find = gpu("parts"), importlib.util.find_spec

        def without(name: str, package: str | None = None) -> Any:
            return None if name == "llguidance" else find(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", without)
        (line,) = parts.lines("engine structured", "cpu", "float32", True)
        assert line == {"left_out": "engine structured: llguidance not installed"}
        assert parts.left_out("served structured") == "llguidance not installed"
        assert parts.left_out("served drain") is None
        assert parts.left_out("routing") is None


class TestFolder:
    """Models of random weights, and hollow ones."""

    def test_hollow_files_hold_ones_and_holes(self, tmp_path: Path) -> None:
        from octavo.checkpoints import open_checkpoint

        folder, shape = gpu("folder"), gpu("models").TINY
        for hollow in (False, True):
            path = folder.save(tmp_path / str(hollow), shape, hollow)
            stored = open_checkpoint(path).tensors
            assert {name: stored[name].shape for name in stored} == folder.tensors(shape)
            for name, dims in folder.tensors(shape).items():
                values = np.asarray(stored[name].data).view("<u2" if hollow else "<f4")
                if len(dims) == 1:
                    assert (values == (0x3F80 if hollow else 1.0)).all()
                else:
                    assert values.any() != hollow
        assert folder.save(tmp_path / "True", shape) == tmp_path / "True"

    def test_weights_are_made_where_they_are_needed(self) -> None:
        from octavo.kernels.weight import Weight

        backend, folder = gpu_backend(), gpu("folder")
        zeros = [Weight.dense(np.zeros((rows, 64), np.float32)) for rows in (96, 32)]
        with folder.filled():
            packed = backend.pack(zeros)
        (part,) = packed.parts
        assert packed.shape == (128, 64)
        assert abs(float(part.values.std()) - 64**-0.5) < 0.01
        assert not backend.pack(zeros).parts[0].values.any()

    def test_every_text_is_its_bytes(self, tmp_path: Path) -> None:
        """Each byte is a token after the special ones; words that no text is cut into fill the vocabulary."""
        from octavo.assembly.tokenizer import tokenizer_and_template
        from octavo.checkpoints import open_checkpoint
        from octavo.config import EngineConfig

        folder, shape = gpu("folder"), gpu("models").TINY
        path = folder.save(tmp_path, shape)
        user = EngineConfig(model=str(path))
        tokenizer, _ = tokenizer_and_template(user, open_checkpoint(path), path)
        text = "Hé 1\n"
        assert tokenizer.encode(text) == [3 + byte for byte in text.encode()]
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.vocab_size == shape.vocab


def gpu_backend() -> Any:
    from octavo.kernels.cuda import make

    return make("cpu", dtype="float32")
