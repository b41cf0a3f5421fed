"""What is called only where there is a GPU, against torch's own signatures: no typo waits for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch

from support.cuda import interpreted

ROOT = Path(__file__).resolve().parents[3]


class Calls:
    """torch.cuda, as far as a capture needs it; notes what was called, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[Any] = []
        self.graphs: list[Any] = []
        self.inside = 0
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: self.said.append("device"))
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: self.said.append("pool") or (0, 7))
        monkeypatch.setattr(torch.cuda, "Stream", self.stream)
        monkeypatch.setattr(torch.cuda, "stream", self.within)
        signature = create_autospec(torch.cuda.CUDAGraph, spec_set=True)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self.graph(signature))

    def stream(self, device: torch.device) -> Any:
        self.said.append("stream")
        return SimpleNamespace(synchronize=lambda: self.said.append("wait"))

    @contextmanager
    def within(self, stream: Any) -> Iterator[None]:
        self.inside += 1
        yield
        self.inside -= 1

    def graph(self, signature: Any) -> Any:
        made = signature()
        made.capture_begin.side_effect = lambda **how: self.said.append(("begin", how))
        made.capture_end.side_effect = lambda: self.said.append("end")
        self.graphs.append(made)
        return made


def test_how_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warmed and waited for on one stream, recorded on another; begun in a mode that leaves other threads
    alone; ended whatever happens. Streams, pool and the graph that keeps the pool are made once."""
    interpreted()
    from octavo.kernels.cuda.capture import GraphRecorder

    calls = Calls(monkeypatch)
    record = GraphRecorder(torch.device("cpu"))
    result = torch.zeros(3)

    def run() -> torch.Tensor:
        assert calls.inside == 1
        calls.said.append("run")
        return result

    begin = ("begin", {"pool": (0, 7), "capture_error_mode": "thread_local"})
    graph, got = record(run, lambda: calls.said.append("warm"))
    assert got is result
    assert graph is calls.graphs[1]
    once = ["stream", "stream", "pool", begin, "end"]
    assert calls.said == ["device", *once, "warm", "wait", begin, "run", "end"]
    calls.said.clear()

    def broken() -> torch.Tensor:
        raise ValueError("not while capturing")

    with pytest.raises(ValueError, match="not while"):
        record(broken, lambda: None)
    assert calls.said == ["device", "wait", begin, "end"]


def test_times_are_taken_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from gpu.drive import seconds

    signature, ran, clock = create_autospec(torch.cuda.Event, spec_set=True), [], [0.0]

    def event(enable_timing: bool) -> Any:
        made: Any = SimpleNamespace(at=0.0)
        checked = signature(enable_timing=enable_timing)
        made.record = lambda: (checked.record(), setattr(made, "at", clock[0]))
        made.synchronize = lambda: checked.synchronize()
        made.elapsed_time = lambda other: other.at - made.at
        return made

    def run() -> None:
        ran.append(1)
        clock[0] += 250

    monkeypatch.setattr(torch.cuda, "Event", event)
    assert seconds(run, 3, torch.device("cuda")) == 0.25
    assert len(ran) == 4  # one warms up


def test_a_result_says_which_gpu_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from gpu import __main__ as gpu

    found = SimpleNamespace(name="H", major=9, minor=0, multi_processor_count=132, total_memory=141 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    facts = gpu.origin("cuda", ["--table-only", "--model", "a b.gguf"])
    assert facts["gpu"]["name"] == "H"
    assert (facts["gpu"]["capability"], facts["gpu"]["memory_gb"]) == ("9.0", 141.0)
    assert facts["command"] == "PYTHONPATH=src:benchmarks python3 -m gpu --table-only --model 'a b.gguf'"


@pytest.mark.parametrize(
    ("checkout", "told", "expected"),
    [
        ("0123456789ab+", "", {"commit": "0123456789ab+"}),
        ("0123456789ab", "ffff", {"commit": "0123456789ab"}),
        (None, "ffff", {"commit": "ffff", "commit_told": True}),
        (None, "", {"commit": "unknown"}),
    ],
)
def test_a_commit_is_looked_up_or_marked_as_told(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    checkout: str | None,
    told: str,
    expected: dict[str, object],
) -> None:
    """A GPU machine may have a copy of the tree without its history."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import harness
    from gpu import __main__ as gpu

    monkeypatch.setenv("OCTAVO_COMMIT", told)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu.shutil, "which", lambda name: name)
    if checkout is not None:
        (tmp_path / ".git").touch()
        monkeypatch.setattr(harness, "commit", lambda: checkout)
    assert gpu.commit() == expected


def test_pages_get_the_share_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """--gpu-memory-utilization: of the whole card, less what is taken and what activations need."""
    backend, gb = interpreted(dtype="float16"), 10**9
    monkeypatch.setattr(backend, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * gb, 140 * gb))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert backend.page_budget(0.5, 2 * gb) == 28 * gb
    assert backend.page_budget(None, 2 * gb) == 84 * gb  # 0.9
    assert backend.page_budget(0.25, 2 * gb) == 0
    assert backend.facts()["device"] == "cuda: NVIDIA H200 (interpreter)"
    assert "compiled ones are kept in " in backend.facts()["kernels"]


def test_what_the_device_has_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of torch's own books, which answer while a GPU hangs."""
    interpreted()
    from octavo.kernels.cuda.backend import CudaBackend

    backend = CudaBackend("cpu")
    assert backend.device_memory() == {}
    backend.device = torch.device("cuda", 1)
    answers = {"memory_reserved": 3, "max_memory_reserved": 5}
    for name, value in answers.items():
        asked = create_autospec(getattr(torch.cuda, name), return_value=value)
        monkeypatch.setattr(torch.cuda, name, asked)
    found = SimpleNamespace(total_memory=80)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    assert backend.device_memory() == {"total": 80, "used": 3, "peak": 5}
