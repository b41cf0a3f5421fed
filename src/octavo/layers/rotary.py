"""Rotary tables: every scaling becomes cosines and sines at load, so kernels know none of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.errors import CheckpointError
from octavo.kernels.ops import F32, Rotary


def rotary_tables(
    dim: int,
    theta: float,
    max_position: int,
    scaling: Mapping[str, Any] | None = None,
    interleaved: bool = False,
) -> Rotary:
    """Tables for positions 0..max_position-1 of a rotation over dim elements (dim even).

    scaling: config.json's rope_scaling; its rope_type is "default", "linear" or "llama3".

    Raises:
        CheckpointError: unknown rope_type, or a key of it is missing.
    """
    inverse = (1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))).astype(np.float32)
    if scaling:
        inverse = _scaled(inverse, scaling)
    angles = np.outer(np.arange(max_position, dtype=np.float32), inverse).astype(np.float32)
    return Rotary(np.cos(angles), np.sin(angles), interleaved)


def _scaled(inverse: F32, scaling: Mapping[str, Any]) -> F32:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    try:
        if kind == "default":
            return inverse
        if kind == "linear":
            return (inverse / float(scaling["factor"])).astype(np.float32)
        if kind == "llama3":
            return _llama3(inverse, scaling)
    except KeyError as error:
        raise CheckpointError(f"rope_scaling of type {kind!r} lacks {error.args[0]!r}") from None
    raise CheckpointError(f"rope_scaling of type {kind!r} is not supported (default, linear, llama3 are)")


def _llama3(inverse: F32, scaling: Mapping[str, Any]) -> F32:
    """Llama 3.1: long wavelengths are divided by factor, short ones kept, a ramp in between."""
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / inverse
    ramp = (original / wavelength - low) / (high - low)
    blended = (1 - ramp) * inverse / factor + ramp * inverse
    scaled = np.where(wavelength > original / low, inverse / factor, blended)
    return np.where(wavelength < original / high, inverse, scaled).astype(np.float32)
