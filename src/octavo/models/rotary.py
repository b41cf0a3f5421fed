"""Rotary tables: every scaling becomes cosines and sines at load, so kernels know none of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from octavo.errors import CheckpointError
from octavo.kernels.ops import F32, Rotary

Scaling = Mapping[str, Any]


def rotary_tables(
    dim: int,
    theta: float,
    positions: int,
    scaling: Scaling | None = None,
    interleaved: bool = False,
) -> Rotary:
    """Tables for positions 0..positions-1 of a rotation over dim elements (dim even).

    Scalings that depend on a sequence's length ("dynamic", "longrope") are fixed by positions, the
    longest sequence that will be served: a cached key cannot be rotated anew as its sequence grows.

    Args:
        scaling: config.json's rope_scaling, with original_max_position_embeddings and
            max_position_embeddings filled in; its rope_type is a key of SCALINGS. "factors" [dim / 2],
            if there, divides the frequencies (rope_freqs.weight of a GGUF file).

    Raises:
        CheckpointError: unknown rope_type, or a key of it is missing.
    """
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in SCALINGS:
        raise CheckpointError(
            f"rope_scaling of type {kind!r} is not supported (there are: {', '.join(SCALINGS)})"
        )
    try:
        inverse, factor = SCALINGS[kind](dim, theta, positions, scaling)
    except KeyError as error:
        raise CheckpointError(f"rope_scaling of type {kind!r} lacks {error.args[0]!r}") from None
    if "factors" in scaling:
        inverse = inverse / _factors(scaling, "factors", dim)
    angles = np.outer(np.arange(positions, dtype=np.float32), inverse.astype(np.float32))
    cos = np.cos(angles)
    sin = np.sin(angles, out=angles)  # long contexts make these tables tens of megabytes
    cos *= np.float32(factor)
    sin *= np.float32(factor)
    return Rotary(cos, sin, interleaved)


def _inverse(dim: int, theta: float) -> F32:
    powers = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return (1.0 / np.float32(theta) ** powers).astype(np.float32)


def _default(dim: int, theta: float, positions: int, scaling: Scaling) -> tuple[F32, float]:
    return _inverse(dim, theta), 1.0


def _linear(dim: int, theta: float, positions: int, scaling: Scaling) -> tuple[F32, float]:
    """Position interpolation (Chen et al. 2023)."""
    return _inverse(dim, theta) / np.float32(scaling["factor"]), 1.0


def _dynamic(dim: int, theta: float, positions: int, scaling: Scaling) -> tuple[F32, float]:
    """NTK-aware: the base grows with what exceeds the trained length."""
    factor, trained = float(scaling["factor"]), int(scaling["max_position_embeddings"])
    longest = max(positions, trained)
    stretch = factor * longest / trained - (factor - 1)
    return _inverse(dim, theta * stretch ** (dim / (dim - 2))), 1.0


def _llama3(dim: int, theta: float, positions: int, scaling: Scaling) -> tuple[F32, float]:
    """Llama 3.1: long wavelengths are divided by factor, short ones kept, a ramp in between."""
    inverse = _inverse(dim, theta)
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / inverse
    ramp = (original / wavelength - low) / (high - low)
    blended = (1 - ramp) * inverse / factor + ramp * inverse
    scaled = np.where(wavelength > original / low, inverse / factor, blended)
    return np.where(wavelength < original / high, inverse, scaled).astype(np.float32), 1.0


def _yarn(dim: int, theta: float, positions: int, scaling: Scaling) -> tuple[F32, float]:
    """YaRN (Peng et al. 2023): fast dimensions kept, slow ones interpolated, attention sharpened."""
    original = int(scaling["original_max_position_embeddings"])
    factor = yarn_factor(scaling)
    low, high = (
        dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1)
    )
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    kept = 1 - np.clip((np.arange(dim // 2, dtype=np.float32) - low) / width, 0, 1)
    inverse = _inverse(dim, theta)
    blended = inverse / np.float32(factor) * (1 - kept) + inverse * kept
    sharpen, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    attention = scaling.get("attention_factor")
    if attention is None and sharpen and all_dim:
        attention = yarn_mscale(factor, sharpen) / yarn_mscale(factor, all_dim)
    return blended.astype(np.float32), yarn_mscale(factor) if attention is None else float(attention)


def yarn_factor(scaling: Scaling) -> float:
    """How far the context was stretched, said or implied."""
    if scaling.get("factor") is not None:
        return float(scaling["factor"])
    return float(scaling["max_position_embeddings"]) / float(scaling["original_max_position_embeddings"])


def yarn_mscale(factor: float, weight: float = 1.0) -> float:
    """YaRN's temperature as a factor of q and k each (paper, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(dim: int, theta: float, positions: int, scaling: Scaling) -> tuple[F32, float]:
    """LongRoPE (Ding et al. 2024): searched factors a dimension, others beyond the trained length."""
    original = int(scaling["original_max_position_embeddings"])
    factors = _factors(scaling, "long_factor" if positions > original else "short_factor", dim)
    inverse = 1.0 / (
        factors * np.float32(theta) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    )
    attention = scaling.get("attention_factor")
    if attention is None:
        factor = yarn_factor(scaling)
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return inverse.astype(np.float32), float(attention)


def _factors(scaling: Scaling, key: str, dim: int) -> F32:
    factors = np.asarray(scaling[key], np.float32)
    if factors.shape != (dim // 2,):
        raise CheckpointError(f"rope_scaling: {key} holds {factors.size} numbers, expected {dim // 2}")
    return factors


SCALINGS: dict[str, Callable[[int, float, int, Scaling], tuple[F32, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # as the first Phi-3 files call it
}
"""(dim, theta, positions, scaling) -> (frequencies [dim / 2], factor of cosines and sines)."""
