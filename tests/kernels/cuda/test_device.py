"""Which device, how much of it, and what is said when there is none: without a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.assembly.memory import Budget, Shape, resolve
from octavo.checkpoints.sources import default_cache_dir
from octavo.config import EngineConfig
from octavo.errors import CapacityError, InvalidRequestError
from octavo.kernels.cuda.device import Choice, Gpu, choose, find_gpu, torch_refuses, why_not
from octavo.kernels.cuda.launch import prepare
from support.cuda import interpreted

HOPPER = Gpu("NVIDIA H200", (9, 0), 141 * 10**9, (13, 0))
VOLTA = Gpu("Tesla V100", (7, 0), 16 * 10**9, (12, 4))


def test_a_gpu_that_is_too_old() -> None:
    assert why_not(HOPPER) is None
    assert "compute capability 7.0" in str(why_not(VOLTA))
    assert choose("auto", "auto", VOLTA).device == "cpu"
    with pytest.raises(InvalidRequestError, match=r"no GPU can be used: Tesla V100 .* 8.0"):
        choose("cuda", "auto", VOLTA)


def test_no_gpu_at_all() -> None:
    for reason in ("no NVIDIA driver is installed", "GPU 3 was asked for, the driver sees 1"):
        assert choose("auto", "auto", reason).device == "cpu"
        with pytest.raises(InvalidRequestError, match=reason):
            choose("cuda:3", "auto", reason)
    found = find_gpu(999)
    assert isinstance(found, str)
    assert "driver" in found


@pytest.mark.parametrize(
    ("status", "says"), [(100, "sees no GPU"), (803, "different versions"), (999, "Xid")]
)
def test_a_driver_that_cannot_start(monkeypatch: pytest.MonkeyPatch, status: int, says: str) -> None:
    """As after a GPU has failed: auto goes on with the CPU, cuda says why not."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuInit=lambda flags: status))
    assert choose("auto", "auto").device == "cpu"
    with pytest.raises(InvalidRequestError, match=rf"no GPU can be used: .*error {status}\): .*{says}"):
        choose("cuda", "auto")


def test_compiled_kernels_are_kept_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    prepare(interpret=True)
    assert os.environ["TRITON_CACHE_DIR"] == str(default_cache_dir() / "triton")


def test_a_cpu_is_a_cpu_whatever_is_there() -> None:
    for device, backend in (("cpu", "auto"), ("cpu", "reference"), ("auto", "cpu"), ("auto", "reference")):
        assert choose(device, backend, HOPPER).device == "cpu"
    with pytest.raises(InvalidRequestError, match="does not run on device"):
        choose("cuda", "reference", HOPPER)


def test_what_torch_is_told_of() -> None:
    def torch(cuda: str | None, works: bool) -> SimpleNamespace:
        return SimpleNamespace(
            __version__="2.11.0",
            version=SimpleNamespace(cuda=cuda),
            cuda=SimpleNamespace(is_available=lambda: works, get_arch_list=lambda: archs),
        )

    archs = ["sm_80", "sm_90a"]

    assert torch_refuses(HOPPER, torch("13.0", True)) is None
    assert "built without CUDA" in str(torch_refuses(HOPPER, torch(None, False)))
    assert "finds no GPU, and the NVIDIA driver does" in str(torch_refuses(HOPPER, torch("13.2", False)))
    assert "finds no GPU, and the NVIDIA driver does" in str(torch_refuses(HOPPER, torch("12.8", False)))
    assert "needs CUDA 14.0, the NVIDIA driver knows CUDA up to 13.0" in str(
        torch_refuses(HOPPER, torch("14.0", False))
    )
    for found, runs in (
        ([], True), (["sm_90"], True), (["sm_80"], False), (["sm_80", "compute_80"], True),
        (["sm_100", "compute_100"], False), (["sm_75", "sm_91"], False),
    ):  # fmt: skip
        archs = found
        why = torch_refuses(HOPPER, torch("13.0", True))
        assert why is None if runs else "NVIDIA H200 is of compute capability 9.0" in str(why)
    with pytest.raises(InvalidRequestError, match="built without CUDA"):
        choose("cuda", "auto", HOPPER)  # the torch that tests run with


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "", "cuda0"])
def test_devices_nobody_has(device: str) -> None:
    with pytest.raises(InvalidRequestError, match="device must be"):
        EngineConfig("m", device=device)
    with pytest.raises(InvalidRequestError, match="device must be"):
        choose(device, "auto", HOPPER)


def test_pages_get_what_is_left() -> None:
    from octavo.kernels.cuda.backend import budget

    gb = 10**9
    assert budget(free=100 * gb, total=140 * gb, share=0.9, reserve=2 * gb) == 84 * gb
    assert budget(free=10 * gb, total=140 * gb, share=0.5, reserve=0) == 0
    assert interpreted().page_budget(0.9, 0) is None  # its memory is the system's
    assert interpreted().kv_dtype == "f32"


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from octavo.kernels.cuda import backend
    from octavo.kernels.ops import KVSpec

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")

    monkeypatch.setattr(backend, "CudaKVCache", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2 * 10**9, 16 * 10**9))
    for ours, others in ((13 * 10**9, ""), (4 * 10**9, ", others hold 10.0")):
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _, ours=ours: ours)
        with pytest.raises(CapacityError) as info:
            interpreted().kv_cache([KVSpec(1, 8, 8, "f16")], 7, 16)
        said = str(info.value)
        assert said.startswith(
            f"7 pages do not fit on the GPU: 2.0 of 16.0 GB are free{others}; 3.00 GiB more were asked for. "
        )
        assert "\n" not in said


def test_a_step_is_as_large_as_the_backend_likes() -> None:
    user, pages = EngineConfig("m"), Budget(0, 0, 0, 100, 16, 1)
    assert resolve(user, Shape((), 100), pages).max_num_batched_tokens == 512
    assert resolve(user, Shape((), 100, step_tokens=8192), pages).max_num_batched_tokens == 8192
    small = EngineConfig("m", max_num_batched_tokens=64)
    assert resolve(small, Shape((), 100, step_tokens=8192), pages).max_num_batched_tokens == 64
    assert np.array(interpreted().step_tokens) == 8192


def working_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that drives the GPU."""
    import torch

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])


def test_auto_says_why_it_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason, in one line: with --device cuda the same words refuse."""
    gb = 10**9
    working_torch(monkeypatch)
    reasons: list[tuple[Gpu | str, str, dict[str, Any]]] = [
        ("no NVIDIA driver is installed (libcuda.so.1 was not found)", "no NVIDIA driver", {}),
        (VOLTA, r"Tesla V100 is of compute capability 7.0; 8.0 \(Ampere\) is the least", {}),
        (
            HOPPER,
            r"weights need 16.0 GB or more, NVIDIA H200 has 20.0 of 141.0 GB free, of which 5.9 may be used: "
            r"10.1 GB are missing",
            {"weights": lambda: 16 * gb, "share": 0.9, "memory": lambda index: (20 * gb, 141 * gb)},
        ),
    ]
    for gpu, says, more in reasons:
        choice = choose("auto", "auto", gpu, **more)
        assert choice.device == "cpu"
        assert re.search(says, str(choice.why))
        assert "\n" not in str(choice.why)
        with pytest.raises(InvalidRequestError, match=f"^no GPU can be used: .*{says}"):
            choose("cuda", "auto", gpu, **more)
    fits = {"weights": lambda: 16 * gb, "share": 0.9, "memory": lambda index: (40 * gb, 141 * gb)}
    assert choose("auto", "auto", HOPPER, **fits) == Choice("cuda")  # type: ignore[arg-type]
    assert choose("cuda:1", "auto", HOPPER) == Choice("cuda:1")
    assert choose("cpu", "auto", HOPPER) == Choice("cpu")
    monkeypatch.setattr(torch_module().cuda, "is_available", lambda: False)
    assert "needs CUDA 13.0, the NVIDIA driver knows CUDA up to 12.4" in str(
        choose("auto", "auto", Gpu("A10", (8, 6), 24 * gb, (12, 4))).why
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    why = choose("auto", "auto", HOPPER).why
    assert why == "torch and triton not installed: pip install '.[cuda]' in Octavo's folder"


def torch_module() -> Any:
    import torch

    return torch


def test_weights_are_weighed_before_they_are_loaded() -> None:
    """As stored, or in 16 bits; a tensor of an unknown type is left to whoever needs it.

    Of a file that ends before them, too; what no format describes is as large as what is there."""
    from octavo.assembly import least_bytes
    from octavo.errors import CheckpointError

    def tensor(shape: tuple[int, ...], nbytes: int, format: str) -> SimpleNamespace:
        return SimpleNamespace(shape=shape, data=np.zeros(nbytes, np.uint8), format=format)

    class Tensors(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            if name == "odd":
                raise CheckpointError("of a type nobody knows")
            return super().__getitem__(name)

    for wide, narrow in ((128, 144), (7, 0)):
        tensors = Tensors(
            wide=tensor((8, 4), wide, "F32"),
            narrow=tensor((8, 32), narrow, "Q4_0"),
            codes=tensor((8, 32), 200, "F8_E4M3"),
            odd=None,
        )
        checkpoint: Any = SimpleNamespace(tensors=tensors)
        assert least_bytes(checkpoint, "auto") == 64 + 144 + 200
        assert least_bytes(checkpoint, "float32") == 128 + 144 + 200


def test_env_shows_what_auto_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.cli import env
    from octavo.kernels.cuda import device

    monkeypatch.setattr(device, "find_gpu", lambda index=0: VOLTA)
    facts = env.collect()["gpu"]
    assert facts["device_auto"] == "cpu"
    assert "compute capability 7.0" in facts["why"]
    assert (facts["name"], facts["compute_capability"], facts["driver_cuda"]) == ("Tesla V100", "7.0", "12.4")
    monkeypatch.setattr(device, "find_gpu", lambda index=0: "no NVIDIA driver is installed")
    assert env.collect()["gpu"] == {"device_auto": "cpu", "why": "no NVIDIA driver is installed"}


def test_flags_reach_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """--bit-exact, --round-activations, --enforce-eager and --dtype, each as CudaBackend's option."""
    from octavo.assembly.loading import _backend
    from octavo.kernels import cuda
    from octavo.kernels.cuda import device

    asked: list[Any] = []
    made = SimpleNamespace(facts=dict)
    monkeypatch.setattr(cuda, "make", lambda place, **options: asked.append((place, options)) or made)
    monkeypatch.setattr(device, "choose", lambda wanted, *_, **__: Choice(wanted))
    checkpoint: Any = SimpleNamespace(tensors={})
    for flags, want in (
        ({}, {"dtype": "bfloat16", "exact": False, "rounds": False, "graphs": True}),
        ({"bit_exact": True, "dtype": "float16"}, {"dtype": "float16", "exact": True}),
        ({"round_activations": True, "enforce_eager": True}, {"rounds": True, "graphs": False}),
    ):
        _backend(EngineConfig("m", device="cuda:1", **flags), checkpoint)  # type: ignore[arg-type]
        place, options = asked.pop()
        assert place == "cuda:1"
        assert {name: options[name] for name in want} == want
    with pytest.raises(InvalidRequestError, match="contradict"):
        EngineConfig("m", round_activations=True, dtype="float32")
