"""Mistral: Llama with a sliding window (Jiang et al. 2023). GGUF files of it call themselves llama."""

from __future__ import annotations

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import ConfigReader, DecoderConfig, read_hf
from octavo.models.parts import build_llama
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    read = ConfigReader.of(checkpoint)
    return read_hf(checkpoint, windows=read.windows(read.integer("num_hidden_layers")))


FAMILY = Family(name="mistral", hf=("mistral",), config=config_of, build=build_llama)
