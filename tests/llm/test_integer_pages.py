"""int16 pages lose less than float16 pages, on a real model's keys, values and queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.assembly.memory import page_specs
from octavo.config import EngineConfig
from octavo.errors import UnsupportedError
from octavo.kernels.ops import F32, KVSpec
from octavo.kernels.select import WantedBackend, make_backend, native_available
from octavo.lab.quality import WindowScorer

TEXT = np.random.default_rng(5).integers(1000, 40_000, 160).tolist()


def scores(model: str, dtype: str) -> F32:
    """Logits of a model that computes in fp32 from weights as stored, all but its pages."""
    config = EngineConfig(model, dtype="float32", kv_cache_dtype=dtype, backend="cpu")
    return WindowScorer(config, window=len(TEXT)).logits(TEXT)


@pytest.mark.skipif(not native_available(), reason="the native kernels are not built")
def test_they_are_nearer_to_the_truth_than_float16(smollm2_path: Path) -> None:
    truth, half, integers = (scores(str(smollm2_path), dtype) for dtype in ("float32", "float16", "int16"))
    lost = [np.sqrt(np.square(found - truth).mean()) for found in (half, integers)]
    print(f"rms of logits' differences: float16 {lost[0]:.2e}, int16 {lost[1]:.2e}")
    assert 0 < lost[1] < lost[0]
    apart = [np.abs(found - truth).max() for found in (half, integers)]
    assert apart[1] < 1.5 * apart[0]


class _Model:
    def __init__(self, latent: bool) -> None:
        self._latent = latent

    def kv_specs(self, dtype: str) -> list[KVSpec]:
        return [KVSpec(1, 8, 8, dtype, self._latent)]


@pytest.mark.parametrize(
    ("dtype", "latent", "asked", "stored"),
    [
        ("auto", False, None, "int16"),
        ("auto", True, None, "f16"),
        ("auto", True, "int16", "int16"),
        ("float32", False, None, "f32"),
        ("float16", False, None, "f16"),
        ("auto", False, "float16", "f16"),
    ],
)
def test_what_auto_means(dtype: str, latent: bool, asked: str | None, stored: str) -> None:
    backend = make_backend("reference", WantedBackend(dtype=dtype))
    user = EngineConfig("m", dtype=dtype, kv_cache_dtype=asked or "auto")
    (spec,) = page_specs(_Model(latent), backend, user)  # type: ignore[arg-type]
    assert spec.dtype == stored


def test_a_gpu_refuses_them_by_name() -> None:
    pytest.importorskip("torch")
    from octavo.kernels.cuda.kv import CudaKVCache

    with pytest.raises(UnsupportedError, match="int16"):
        CudaKVCache([KVSpec(1, 16, 16, "int16")], 1, 16, "cpu")  # type: ignore[arg-type]
