"""Planning within what the system and the cgroup leave, on faked system folders."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.assembly import limits_of
from octavo.assembly.memory import Budget, FreeMemory, Pages, Shape, plan_pages, resolve, shortened
from octavo.bench.resident import resident_bytes
from octavo.config import EngineConfig, SchedulerConfig
from octavo.engine.step_builder import StepBuilder
from octavo.errors import CapacityError
from octavo.kernels.ops import KVSpec
from octavo.kernels.reference_kv import ReferenceKVCache
from octavo.runtime.free_memory import available_memory
from octavo.runtime.hardware import cgroup_cpus, usable_threads
from octavo.runtime.heaps import return_freed

SPECS = [KVSpec(3, 64, 64, "f16")] * 30
PER_TOKEN = 30 * 3 * 128 * 2


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_pages_are_what_is_wanted_or_what_fits() -> None:
    roomy = plan_pages(Pages(SPECS, 100, 4, 16), FreeMemory(10**12))
    assert roomy.num_pages == 4 * 7  # 7 pages hold 100 tokens
    tight = plan_pages(Pages(SPECS, 8192, 64, 16), FreeMemory(PER_TOKEN * 16 * 21, 0.5))
    assert tight.num_pages == 10
    assert tight.kv_cache == 10 * 16 * PER_TOKEN
    assert tight.num_tokens == 160
    assert plan_pages(Pages(SPECS, 8192, 64, 16, 33), FreeMemory(10**12)).num_pages == 33


def test_the_scheduler_and_the_programs_mean_the_same_rows_of_logits() -> None:
    """Drafts take what is left of them: a scheduler that took them for more would overfill a program."""
    user = EngineConfig("x", max_num_seqs=5, max_num_batched_tokens=64)
    config = resolve(user, Shape((), 100), Budget(0, 0, 0, 20, 16, 1))
    assert config.max_sampled_rows == limits_of(config).max_sampled == 5
    unbounded = SchedulerConfig(20, max_model_len=100, max_num_batched_tokens=64, max_num_seqs=5)
    step = StepBuilder(unbounded.max_num_batched_tokens, max_sampled=unbounded.max_sampled_rows)
    assert step.max_sampled == limits_of(unbounded).max_sampled == 64


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_pages": 1}, "16 tokens, not the model's 100: num_pages 1 holds no more"),
        ({}, "16 tokens, not the model's 100: what fits in memory holds no more"),
        ({"max_model_len": 16}, None),
    ],
)
def test_a_shortened_context_is_spoken_of(options: dict[str, int], said: str | None) -> None:
    user = EngineConfig("x", **options)  # type: ignore[arg-type]
    config = resolve(user, Shape((), 100), Budget(0, 0, 0, 1, 16, 1))
    assert shortened(user, Shape((), 100), config).get("context") == said
    roomy = resolve(user, Shape((), 100), Budget(0, 0, 0, 7, 16, 1))
    assert shortened(user, Shape((), 100), roomy) == {}


def test_less_than_a_page_is_refused_with_its_size() -> None:
    with pytest.raises(CapacityError, match=str(PER_TOKEN * 16)):
        plan_pages(Pages(SPECS, 8192, 64, 16), FreeMemory(PER_TOKEN * 16 - 1, 1.0))


def test_more_pages_than_memory_are_refused_with_what_fits() -> None:
    with pytest.raises(CapacityError, match="enough for 21 pages"):
        plan_pages(Pages(SPECS, 8192, 64, 16, 22), FreeMemory(PER_TOKEN * 16 * 21))
    assert plan_pages(Pages(SPECS, 8192, 64, 16, 21), FreeMemory(PER_TOKEN * 16 * 21)).num_pages == 21


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int8", "int16"])
def test_the_plan_is_what_gets_allocated(dtype: str) -> None:
    specs = [KVSpec(2, 8, 8, dtype)] * 3
    plan = plan_pages(Pages(specs, 64, 2, 16), FreeMemory(10**9))
    assert ReferenceKVCache(specs, plan.num_pages, plan.page_size).nbytes == plan.kv_cache


def test_memory_is_bounded_by_the_cgroup(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   64 kB\n")
    assert available_memory(tmp_path) == 64 * 1024
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "1000\n")
    assert available_memory(tmp_path) == 64 * 1024
    write(tmp_path, "sys/fs/cgroup/memory.max", "5000\n")
    assert available_memory(tmp_path) == 4000
    write(tmp_path, "sys/fs/cgroup/memory.current", "9000\n")
    assert available_memory(tmp_path) == 0


@pytest.mark.parametrize("service", ["", "sub/"])
def test_limits_of_a_service_stand_in_its_own_cgroup(tmp_path: Path, service: str) -> None:
    """systemd's MemoryMax= and CPUQuota=, of the service or of a slice above it; the root has none."""
    write(tmp_path, "proc/meminfo", "MemAvailable:   64 kB\n")
    write(tmp_path, "proc/self/cgroup", f"1:name=systemd:/x\n0::/system.slice/octavo.service/{service}\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "60000\n")
    folder = "sys/fs/cgroup/system.slice/octavo.service"
    write(tmp_path, f"{folder}/memory.max", "5000\n")
    write(tmp_path, f"{folder}/memory.current", "2000\n")
    write(tmp_path, f"{folder}/cpu.max", "150000 100000\n")
    assert available_memory(tmp_path) == 3000
    assert cgroup_cpus(tmp_path) == 1.5
    write(tmp_path, "sys/fs/cgroup/system.slice/memory.max", "9000\n")
    write(tmp_path, "sys/fs/cgroup/system.slice/memory.current", "8500\n")
    write(tmp_path, "sys/fs/cgroup/system.slice/cpu.max", "50000 100000\n")
    assert available_memory(tmp_path) == 500
    assert cgroup_cpus(tmp_path) == 0.5


@pytest.mark.parametrize("told", ["0::/\n", "0::/../other\n", "2:memory:/a\n", ""])
def test_a_container_sees_its_cgroup_as_the_root(tmp_path: Path, told: str) -> None:
    write(tmp_path, "proc/meminfo", "MemAvailable:   64 kB\n")
    write(tmp_path, "proc/self/cgroup", told)
    write(tmp_path, "sys/fs/cgroup/memory.max", "5000\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "1000\n")
    write(tmp_path, "sys/fs/other/memory.max", "1\n")
    write(tmp_path, "sys/fs/other/memory.current", "0\n")
    assert available_memory(tmp_path) == 4000


def test_memory_is_bounded_by_the_address_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "proc/meminfo", "MemAvailable:   64 kB\n")
    page = os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr("resource.getrlimit", lambda _: (12 * page, 20 * page))
    assert available_memory(tmp_path) == 64 * 1024  # how much is used is not known
    write(tmp_path, "proc/self/statm", "10 1 1 1 0 1 0\n")
    assert available_memory(tmp_path) == 2 * page
    write(tmp_path, "proc/self/statm", "14 1 1 1 0 1 0\n")
    assert available_memory(tmp_path) == 0


def test_threads_are_bounded_by_the_cgroup(tmp_path: Path) -> None:
    assert cgroup_cpus(tmp_path) is None
    assert usable_threads(tmp_path) >= 1
    write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert cgroup_cpus(tmp_path) is None
    write(tmp_path, "sys/fs/cgroup/cpu.max", "50000 100000\n")
    assert cgroup_cpus(tmp_path) == 0.5
    assert usable_threads(tmp_path) == 1


def test_threads_of_the_first_cgroup_version(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert cgroup_cpus(tmp_path) is None
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n")
    assert cgroup_cpus(tmp_path) == 1.5


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps what is freed")
def test_what_was_freed_goes_back_to_the_system() -> None:
    c = ctypes.CDLL(None)
    c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [c.malloc(65_536) for _ in range(1_000)]
    for block in blocks:
        ctypes.memset(block, 1, 65_536)
    for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
        c.free(block)
    kept = resident_bytes()
    return_freed()
    assert resident_bytes() < kept - 40_000_000
    c.free(blocks[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heaps")
@pytest.mark.parametrize("shared", [True, False])
def test_threads_that_share_a_heap_start_none(shared: bool) -> None:
    """glibc tells its heaps in malloc_info(3). Others do start some: else the test proved nothing."""
    run = [sys.executable, "-c", HEAPS, str(shared)]
    heaps = subprocess.run(run, stderr=subprocess.PIPE, text=True, check=True).stderr.count("<heap nr=")
    assert heaps == 1 if shared else heaps > 2


HEAPS = """
import ctypes, sys, threading
from octavo.runtime.heaps import share_heaps
c = ctypes.CDLL(None)
c.fopen.restype, c.malloc.restype = ctypes.c_void_p, ctypes.c_void_p
def heaps():
    file = ctypes.c_void_p(c.fopen(b"/proc/self/fd/2", b"w"))
    c.malloc_info(0, file), c.fclose(file)
if sys.argv[1] == "True":
    share_heaps()
barrier = threading.Barrier(4)
def work():
    c.malloc(5000)
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
barrier.wait()
for thread in threads: thread.join()
heaps()
"""
