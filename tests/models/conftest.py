"""Tiny random models, saved by transformers and loaded by Octavo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """model type -> folder with config.json and model.safetensors of the family's tiny_config()."""
    made: dict[str, Path] = {}

    def make(model_type: str) -> Path:
        if model_type not in made:
            import torch
            from transformers import AutoConfig, AutoModelForCausalLM

            from octavo.models.registry import families

            family = next(f for f in families() if model_type in f.hf)
            torch.manual_seed(0)
            config = AutoConfig.for_model(model_type, **family.tiny_config())
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            with torch.no_grad():  # transformers' init makes nearly uniform logits: widen them
                for parameter in model.parameters():
                    parameter.mul_(2.5 if parameter.ndim == 2 else 1.0)
            folder = tmp_path_factory.mktemp(model_type)
            model.save_pretrained(folder)
            made[model_type] = folder
        return made[model_type]

    return make
