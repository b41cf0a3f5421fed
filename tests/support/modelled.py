"""Models that draft for the tiny engines: another folder's, or the target's own first layers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from octavo.assembly.drafting import Drafter
from octavo.assembly.pages import Cache
from octavo.assembly.speculation import drafts_of
from octavo.checkpoints import open_checkpoint
from octavo.config import SchedulerConfig
from octavo.kernels.ops import Backend
from octavo.models.load import load_model
from octavo.models.registry import Model
from octavo.runtime.draft_pages import loose_pages
from octavo.runtime.model_speculation import ModelSpeculation
from octavo.spec import method
from octavo.spec.policy import Fixed


@dataclass(frozen=True)
class Modelled:
    """speculative_config, as far as the tiny engines know it.

    Attributes:
        folder: of the model that drafts; None: the target's first `layers` do.
    """

    folder: Path | None = None
    layers: int = 0

    def drafter(self, backend: Backend, target: Model, kv_dtype: str, most: int, page_size: int) -> Drafter:
        model = None if self.folder is None else _model(self.folder, backend)
        find = method("self" if model is None else "draft").drafting
        assert find is not None
        specs = [] if model is None else [replace(s, window=None) for s in model.kv_specs(kv_dtype)]
        drafting = find(target, model, {"layers": self.layers})
        return Drafter(drafting, specs, most=most, loose=loose_pages(most, page_size))


def save_first_layers(folder: Path, target: Path, count: int) -> Path:
    """The first layers of a model that transformers has saved, as a model of its own."""
    from safetensors.numpy import load_file, save_file

    config = json.loads((target / "config.json").read_text())
    config["num_hidden_layers"] = count
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:count]
    gone = tuple(f"model.layers.{layer}." for layer in range(count, 64))
    tensors = load_file(target / "model.safetensors")
    folder.mkdir(exist_ok=True)
    save_file(
        {name: each for name, each in tensors.items() if not name.startswith(gone)},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@cache
def first_layer_of(target: Path) -> Path:
    return save_first_layers(target / "first-layer", target, 1)


@cache
def _model(folder: Path, backend: Backend) -> Model:
    return load_model(open_checkpoint(folder), backend, "float32")[0]


def modelled_speculation(
    drafter: Drafter, config: SchedulerConfig, model: Model, backend: Backend, cache: Cache
) -> ModelSpeculation:
    """As assembly makes it, with every draft verified whole."""
    drafts: Any = drafts_of(drafter, config, backend, cache)
    return ModelSpeculation(drafts, Fixed(), drafter.most, model.vocab_size)
