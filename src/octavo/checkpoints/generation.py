"""generation_config.json: how a model's authors want it to be used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.checkpoints.safetensors import read_json
from octavo.errors import CheckpointError


def read_generation(path: Path) -> dict[str, Any]:
    """What generation_config.json says, else config.json, of a folder; {} for a file. null is nothing.

    Raises:
        CheckpointError: one of them is no JSON object.
    """
    found: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        file = path / name
        if file.exists():
            found |= {key: value for key, value in read_json(file).items() if value is not None}
    return found


def decoder_prompt(generation: Mapping[str, Any]) -> tuple[int, ...]:
    """What the decoder of an encoder-decoder model begins with: its start token, and the token that must
    come first where forced_bos_token_id names one.

    Raises:
        CheckpointError: there is no start token, or something else than a token id.
    """
    start = generation.get("decoder_start_token_id", generation.get("bos_token_id"))
    if start is None:
        raise CheckpointError(
            "generation_config.json names no decoder_start_token_id, with which the decoder begins"
        )
    ids = [start, generation.get("forced_bos_token_id")]
    for name, value in zip(("decoder_start_token_id", "forced_bos_token_id"), ids, strict=True):
        if value is not None and (type(value) is not int or value < 0):
            raise CheckpointError(f"generation_config.json: {name} must be a token id, not {value!r}")
    return tuple([value for value in ids if value is not None])
