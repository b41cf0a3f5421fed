"""What families with an encoder add: inputs of any length, encoded together or alone; T5's buckets."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.tiny import TINY
from octavo.errors import CheckpointError
from octavo.kernels.ops import Backend, Sight
from octavo.kernels.reference import ReferenceBackend
from octavo.models.families import t5
from octavo.models.parts_cross import EncoderDecoderModel
from octavo.models.registry import EncoderDecoder, families, family
from support.forward import BACKENDS, Sequences, backend_called, load

CASES = [(f.name, variant) for f in families() if f.encoder_decoder for variant in TINY[f.name]]
LENGTHS = (1, 15, 16, 17, 150)
SOURCES = [[int(i) for i in np.random.default_rng(n).integers(3, 150, n)] for n in LENGTHS]
IDS = [int(i) for i in np.random.default_rng(3).integers(3, 150, 20)]
Folders = Callable[[str, str], Path]

every_variant = pytest.mark.parametrize(
    ("name", "variant", "backend"),
    [(*case, b) for case in CASES for b in BACKENDS],
    ids=lambda value: str(value),
)


@cache
def loaded(folder: Path, backend: str) -> EncoderDecoderModel:
    model = load(folder, backend_called(backend))
    assert isinstance(model, EncoderDecoderModel)
    return model


@cache
def transformers_model(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForSeq2SeqLM

    kind = {"dtype": torch.float32, "attn_implementation": "eager"}
    return AutoModelForSeq2SeqLM.from_pretrained(folder, **kind)


@every_variant
def test_every_length_of_input_equals_transformers(
    name: str, variant: str, backend: str, tiny_folder: Folders
) -> None:
    """The encoder's output, and the logits of a decoder that reads it; far distances included."""
    import torch

    folder = tiny_folder(name, variant)
    model, computer = loaded(folder, backend), backend_called(backend)
    run = Sequences(model, computer, [len(IDS)] * len(SOURCES), sources=SOURCES)
    got = run.logits(dict.fromkeys(range(len(SOURCES)), IDS))
    for s, source in enumerate(SOURCES):
        with torch.no_grad():
            want = transformers_model(folder)(
                input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([IDS])
            )
        encoded, logits = want.encoder_last_hidden_state[0].numpy(), want.logits[0].numpy()
        assert np.abs(run.encoded[s] - encoded).max() <= 1e-4 * np.abs(encoded).max()
        assert np.abs(got[s] - logits).max() <= 1e-4 * np.abs(logits).max()


@every_variant
def test_inputs_encoded_together_equal_alone(
    name: str, variant: str, backend: str, tiny_folder: Folders
) -> None:
    model, computer = loaded(tiny_folder(name, variant), backend), backend_called(backend)
    lengths = [len(IDS)] * len(SOURCES)
    together, alone = (
        Sequences(model, computer, lengths, sources=SOURCES, together=t) for t in (True, False)
    )
    every = dict.fromkeys(range(len(SOURCES)), IDS)
    first = together.logits(every)
    for s in range(len(SOURCES)):
        same(together.encoded[s], alone.encoded[s], backend)
        same(first[s], alone.logits({s: IDS})[s], backend)


def same(ours: np.ndarray, theirs: np.ndarray, backend: str) -> None:
    if backend == "cpu":
        np.testing.assert_array_equal(ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max(), rtol=0)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("count", "longest"), [(32, 128), (32, 100), (8, 20), (64, 500), (4, 3)])
def test_buckets_equal_transformers_at_every_distance(bidirectional: bool, count: int, longest: int) -> None:
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = np.arange(-2 * longest, 2 * longest + 1)
    want = T5Attention._relative_position_bucket(torch.from_numpy(distances), bidirectional, count, longest)
    np.testing.assert_array_equal(t5.buckets(distances, bidirectional, count, longest), want.numpy())


def test_beyond_the_largest_distance_nothing_changes() -> None:
    """Why a table of 2 D + 1 columns is enough."""
    for bidirectional in (False, True):
        far = t5.buckets(np.array([-1000, -129, -128, 128, 129, 1000]), bidirectional, 32, 128)
        assert len(set(far[:3])) == len(set(far[3:])) == 1


def test_the_mutants_show(tiny_folder: Folders) -> None:
    """A decoder that reads another input, a bias of the other half, a causal encoder: other logits."""
    model, computer = loaded(tiny_folder("t5", "plain"), "reference"), backend_called("reference")
    want = logits_of(model, computer, SOURCES[3])
    other = [*SOURCES[3][:-1], SOURCES[3][-1] + 1]
    assert np.abs(logits_of(model, computer, other) - want).max() > 1e-3 * np.abs(want).max()
    behind = model.stack.layers[0].attention.spec.relative_bias
    for change in ({"relative_bias": behind}, {"sight": Sight.CAUSAL}):
        encoder = [
            replace(layer, attention=replace(layer.attention, spec=replace(layer.attention.spec, **change)))
            for layer in model.stack.encoder
        ]
        mutant = replace(model, stack=replace(model.stack, encoder=encoder))
        assert np.abs(logits_of(mutant, computer, SOURCES[3]) - want).max() > 1e-3 * np.abs(want).max()


def logits_of(model: EncoderDecoderModel, computer: Backend, source: list[int]) -> np.ndarray:
    return Sequences(model, computer, [len(IDS)], sources=[source]).logits({0: IDS})[0]


def test_the_registry_knows_who_has_an_encoder(tiny_folder: Folders) -> None:
    for declared in (family("t5"), family("bart"), family("llama")):
        model = load(tiny_folder(declared.name, next(iter(TINY[declared.name]))), ReferenceBackend())
        assert isinstance(model, EncoderDecoder) is declared.encoder_decoder


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("t5", {"feed_forward_proj": "gated-foo"}, "feed_forward_proj = 'gated-foo' is not supported"),
        ("t5", {"num_heads": 0}, "num_heads must be positive, not 0"),
        ("t5", {"num_heads": 5}, r"relative_attention_bias.weight.* expected \[32, 5\]"),
        ("t5", {"num_decoder_layers": 3}, "'decoder.block.2.* is missing"),
        ("t5", {"num_layers": 1, "num_decoder_layers": 2}, "encoder.block.1.* contradict each other"),
        ("t5", {"relative_attention_num_buckets": 2}, "relative_attention_num_buckets = 2"),
        ("bart", {"normalize_before": True}, "normalize_before = True is not supported"),
        ("bart", {"normalize_embedding": False}, "normalize_embedding = False is not supported"),
        ("bart", {"decoder_attention_heads": 7}, "decoder_attention_heads = 7 does not divide d_model 64"),
        ("bart", {"max_position_embeddings": 100}, r"expected \[102, 64\]"),
        ("bart", {"activation_function": "mish"}, "activation_function = 'mish' is not supported"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(
    name: str, change: dict[str, Any], message: str, tiny_folder: Folders, tmp_path: Path
) -> None:
    folder = tiny_folder(name, "plain")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path, ReferenceBackend())
