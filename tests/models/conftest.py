"""Tiny random models, saved by transformers and loaded by Octavo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.tiny import TINY


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny matrices gain nothing from a second thread of torch, and wait for it on a busy machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """(family, variant of its TINY) -> folder with config.json and model.safetensors."""
    made: dict[tuple[str, str], Path] = {}

    def make(name: str, variant: str) -> Path:
        if (name, variant) not in made:
            from octavo.models.registry import family

            arguments = {"model_type": family(name).hf[0], **TINY[name][variant]}
            made[name, variant] = save(arguments, tmp_path_factory.mktemp(f"{name}-{variant}"))
        return made[name, variant]

    return make


@pytest.fixture(scope="session")
def save_tiny() -> Callable[[dict[str, Any], Path], Path]:
    """(arguments of a config, folder) -> the folder, with a random model in it."""
    return save


def save(arguments: dict[str, Any], folder: Path) -> Path:
    """Random weights, all of them: a bias that is left out or a gain applied twice must show."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**arguments)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = kind.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # gains (of 1, or of 0 where 1 is added) and biases
                parameter.add_(torch.randn(parameter.shape) * 0.1)
            elif name.endswith("gate.weight"):  # routers: what is chosen must not hang on rounding
                torch.nn.init.normal_(parameter, std=1.0)
            elif name.endswith("Attention.q.weight"):  # T5 does not divide scores by the root of d_kv
                torch.nn.init.normal_(parameter, std=2.0 * (parameter.shape[-1] * config.d_kv) ** -0.5)
            elif ".encoder_attn.out" in name:  # or the same source drowns what the decoder has written
                torch.nn.init.normal_(parameter, std=0.5 * parameter.shape[-1] ** -0.5)
            elif (parameter.ndim == 2 and "embed" in name) or "wte" in name or name.endswith("shared.weight"):
                torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
            else:  # wide enough that logits differ and attention looks somewhere
                torch.nn.init.normal_(parameter, std=2.0 * parameter.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "final_logits_bias")):
                buffer.add_(torch.randn(buffer.shape) * 0.1)
    model.save_pretrained(folder)
    return folder
