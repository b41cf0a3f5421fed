"""Numbers of a model file that no model has: one line that names them, before anything is computed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.checkpoints import open_checkpoint
from octavo.errors import CapacityError, CheckpointError
from octavo.kernels.reference import ReferenceBackend
from octavo.models import loader
from octavo.models.load import load_model
from octavo.models.rotary import SCALINGS
from support.tiny_engine import save_tiny_llama

NAN, INF, HUGE = math.nan, math.inf, 10**400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


def load(folder: Path, context: int | None = None, **changes: Any) -> None:
    checkpoint = open_checkpoint(folder)
    checkpoint.config.pop("rope_parameters", None)
    checkpoint.config.update(changes)
    load_model(checkpoint, ReferenceBackend(), context=context)


@pytest.mark.parametrize(
    "changes",
    [
        *({"rms_norm_eps": value} for value in (NAN, INF, 0.0, -1.0, HUGE, "small")),
        *({"rope_theta": value} for value in (NAN, INF, 0, -1, HUGE, "large")),
        *({"rope_parameters": {"rope_theta": value}} for value in (NAN, 0, "large", None, [])),
        *({"rope_scaling": {"rope_type": "linear", "factor": value}} for value in (0, NAN, "x", None, {})),
        {"rope_scaling": {"rope_type": "dynamic", "factor": INF}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 0, "original_max_position_embeddings": 0}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 1,
                          "original_max_position_embeddings": "many"}},
        {"rope_scaling": {"rope_type": "longrope", "short_factor": ["a"] * 4, "long_factor": [0.0] * 4}},
        {"partial_rotary_factor": HUGE},
        {"num_attention_heads": 0},
        {"num_key_value_heads": 0},
        {"num_hidden_layers": 10**9},
        {"head_dim": 7},
        {"vocab_size": -1},
        {"hidden_size": True},
        {"intermediate_size": "wide"},
        {"max_position_embeddings": 0},
        {"hidden_act": ["silu"]},
        {"model_type": "mistral", "num_hidden_layers": 2**53},
        {"partial_rotary_factor": 1e308},
        {"rope_scaling": {"rope_type": ["yarn"], "factor": 2}},
        {"model_type": "mistral", "layer_types": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_number_that_no_model_has_is_refused_in_one_line(folder: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(folder, **changes)
    assert "\n" not in str(caught.value)


def test_a_head_that_no_model_has_is_refused_whatever_the_context(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="rotary embedding of 9007199254740992 elements"):
        load(folder, context=64, head_dim=2**53)


def test_a_number_that_is_right_is_taken(folder: Path) -> None:
    load(folder, rope_theta=1e6, rope_scaling={"rope_type": "linear", "factor": 2})


@pytest.mark.parametrize("length", [2**24, 2**31 - 1, 2**62])
def test_a_context_that_no_memory_holds_is_refused_before_its_tables_are_made(
    folder: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "MAX_TABLES", 2**20)
    with pytest.raises(CapacityError, match="say with max_model_len how long sequences get"):
        load(folder, max_position_embeddings=length)
    load(folder, context=64, max_position_embeddings=length)


@given(
    kind=st.sampled_from(sorted(SCALINGS)),
    theta=st.sampled_from([1e-300, 0.5, 1e4, 1e300]),
    scaling=st.dictionaries(
        st.sampled_from(
            ["factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor",
             "mscale", "mscale_all_dim", "short_factor", "long_factor", "factors"]
        ),
        st.sampled_from([0, -1, 1, 8.0, NAN, INF, "x", None])
        | st.lists(st.floats(), min_size=4, max_size=4),
    ),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_tables_are_finite_or_refused(kind: str, theta: float, scaling: dict[str, Any]) -> None:
    lengths = {"max_position_embeddings": 64, "original_max_position_embeddings": 32}
    try:
        tables = loader.checked_tables(8, theta, 16, {"rope_type": kind, **lengths, **scaling})
    except CheckpointError:
        return
    assert all(math.isfinite(float(value)) for value in tables.cos.ravel())


def test_metadata_of_a_gguf_file_are_asked_likewise() -> None:
    from octavo.models.config import ConfigReader

    for value in (NAN, INF, -INF, HUGE):
        with pytest.raises(CheckpointError, match="must be finite"):
            ConfigReader({"llama.rope.freq_base": value}, "GGUF metadata", "llama.").number("rope.freq_base")
