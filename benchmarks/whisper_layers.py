"""Whisper's decoder in transformers, of a folder of CTranslate2's (model.bin of floats, tokenizer.json).

As a decoder of text it is a language model that also looks at sound. Here it hears two seconds of silence.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
VERSION = 6
TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
"""CTranslate2's numbers of types (include/ctranslate2/types.h) that such a file has."""
HEARD = 100
"""Positions of sound, 50 a second."""


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path, self._data, self._at = path, path.read_bytes(), 0

    def bytes(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise SystemExit(f"{self._path.name} ends too early")
        self._at += count
        return found

    def number(self, kind: str) -> int:
        return int(struct.unpack(f"<{kind}", self.bytes(struct.calcsize(kind)))[0])

    def word(self) -> str:
        return self.bytes(self.number("H")).rstrip(b"\0").decode()


def tensors(path: Path) -> dict[str, Array]:
    """What model.bin holds, by its names.

    Raises:
        SystemExit: it is no such file.
    """
    read = _Reader(path)
    if read.number("I") != VERSION or read.word() != "WhisperSpec":
        raise SystemExit(f"{path.name} is no Whisper of CTranslate2's format {VERSION}")
    read.number("I")  # the specification's revision
    found: dict[str, Array] = {}
    for _ in range(read.number("I")):
        name = read.word()
        shape = [read.number("I") for _ in range(read.number("B"))]
        kind = read.number("B")
        if kind not in TYPES:
            raise SystemExit(f"{path.name}: {name} is of type {kind}, which is not read")
        found[name] = np.frombuffer(read.bytes(read.number("I")), TYPES[kind]).reshape(shape)
    return found


def named(found: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """The tensors of both sides by transformers' names; fused projections are cut apart."""

    def pair(theirs: str, ours: str) -> Iterator[tuple[str, Array]]:
        for a, b in (("weight", "weight"), ("bias", "bias"), ("gamma", "weight"), ("beta", "bias")):
            if f"{theirs}/{a}" in found:
                yield f"{ours}.{b}", found[f"{theirs}/{a}"]

    def cut(theirs: str, ours: str, parts: str) -> Iterator[tuple[str, Array]]:
        for name, array in pair(theirs, ours):
            for part, rows in zip(parts, np.split(array, len(parts)), strict=True):
                if (part, name[-4:]) != ("k", "bias"):  # there is none, and here it is zeros
                    yield name.replace(ours, f"{ours}.{part}_proj"), rows

    for side in ("encoder", "decoder"):
        yield f"{side}.embed_positions.weight", found[f"{side}/position_encodings/encodings"]
        yield from pair(f"{side}/layer_norm", f"{side}.layer_norm")
        for i in range(layers_of(found, side)):
            theirs, ours = f"{side}/layer_{i}", f"{side}.layers.{i}"
            yield from pair(f"{theirs}/self_attention/layer_norm", f"{ours}.self_attn_layer_norm")
            yield from cut(f"{theirs}/self_attention/linear_0", f"{ours}.self_attn", "qkv")
            yield from pair(f"{theirs}/self_attention/linear_1", f"{ours}.self_attn.out_proj")
            yield from pair(f"{theirs}/ffn/layer_norm", f"{ours}.final_layer_norm")
            yield from pair(f"{theirs}/ffn/linear_0", f"{ours}.fc1")
            yield from pair(f"{theirs}/ffn/linear_1", f"{ours}.fc2")
            if side == "decoder":
                yield from pair(f"{theirs}/attention/layer_norm", f"{ours}.encoder_attn_layer_norm")
                yield from cut(f"{theirs}/attention/linear_0", f"{ours}.encoder_attn", "q")
                yield from cut(f"{theirs}/attention/linear_1", f"{ours}.encoder_attn", "kv")
                yield from pair(f"{theirs}/attention/linear_2", f"{ours}.encoder_attn.out_proj")
    for name in ("conv1", "conv2"):
        yield from pair(f"encoder/{name}", f"encoder.{name}")
    yield "decoder.embed_tokens.weight", found["decoder/embeddings/weight"]


def layers_of(found: dict[str, Array], side: str) -> int:
    return sum(name.startswith(f"{side}/layer_") and name.endswith("/ffn/linear_0/weight") for name in found)


def decoder(folder: Path) -> tuple[Any, Any]:
    """(transformers' WhisperDecoder, its encoder's states [1, HEARD, width] of silence).

    Raises:
        SystemExit: the folder holds no whole Whisper.
    """
    import torch
    from transformers import WhisperConfig, WhisperModel

    found = tensors(folder / "model.bin")
    try:
        state = {name: torch.from_numpy(np.array(array, np.float32)) for name, array in named(found)}
        width, mels, _ = found["encoder/conv1/weight"].shape
        heads = [int(found[f"{side}/num_heads"]) for side in ("encoder", "decoder")]
    except KeyError as error:
        raise SystemExit(f"{folder.name}/model.bin lacks {error}") from None
    inner = len(state["decoder.layers.0.fc1.weight"])
    config = WhisperConfig(
        vocab_size=len(state["decoder.embed_tokens.weight"]), num_mel_bins=mels, d_model=width,
        encoder_layers=layers_of(found, "encoder"), decoder_layers=layers_of(found, "decoder"),
        encoder_attention_heads=heads[0], decoder_attention_heads=heads[1], encoder_ffn_dim=inner,
        decoder_ffn_dim=inner, max_source_positions=len(state["encoder.embed_positions.weight"]),
        max_target_positions=len(state["decoder.embed_positions.weight"]),
        pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    model = WhisperModel(config)
    model.train(mode=False)
    model.load_state_dict(state)
    with torch.no_grad():
        sound = torch.zeros(1, mels, 2 * config.max_source_positions)
        return model.decoder, model.encoder(sound).last_hidden_state[:, :HEARD]


def ids_of(folder: Path, text: str) -> list[int]:
    """The text's tokens, without those that say what is spoken."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return list(tokenizer.encode(text, add_special_tokens=False).ids)
