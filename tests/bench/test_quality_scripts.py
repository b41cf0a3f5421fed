"""What the scripts of benchmarks/ that measure quality decide, and the models that they open."""

from __future__ import annotations

import importlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperModel

from octavo.lab.quality import NEAR_TIE


def script(name: str) -> Any:
    """A module of benchmarks/ (conftest.py has put the folder on the path)."""
    return importlib.import_module(name)


def test_gptq_and_awq_cut_the_error_of_rounding_a_layer() -> None:
    """Inputs that hang together, a few of them large, as activations do, measured on other rows."""
    quality = script("quantize_quality")
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.standard_normal(256) * 0.8)
    x = rng.standard_normal((3000, 64)) @ rng.standard_normal((64, 256)) * 0.2 + rng.standard_normal(
        (3000, 256)
    )
    x = (x * sizes).astype(np.float32)
    w = (rng.standard_normal((64, 256)) * 0.05).astype(np.float32)
    found = quality.errors(w, x, 128)
    assert 0 < found["gptq"] < 0.7 * found["rtn"] < 0.1
    assert found["awq"] < 0.85 * found["rtn_with_zeros"]
    assert found["rtn_with_zeros"] < found["rtn"]
    cuts = quality.summary([{"name": "a", **found}])
    assert cuts["gptq"]["reached"]
    assert cuts["gptq"]["cut"] == pytest.approx(1 - found["gptq"] / found["rtn"], abs=1e-4)
    worse = {**found, "gptq": found["rtn"]}
    assert not quality.summary([{"name": "a", **worse}])["gptq"]["reached"]


def test_first_choices_are_counted_with_their_near_ties() -> None:
    plain = np.float32([[0, 1, 5], [0, 1, 1 + NEAR_TIE / 2], [9, 1, 0], [3, 1, 3.01]])
    other = np.float32([[0, 1, 5], [0, 2, 1], [1, 9, 0], [0, 1, 3]])
    assert script("kv_choices").compare(other, plain) == (2, 1)


def whisper() -> WhisperModel:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "num_mel_bins": 8, "vocab_size": 60}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 4}
    rest = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    rest |= {"max_source_positions": 120, "max_target_positions": 20}
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    model = WhisperModel(WhisperConfig(**sizes, **heads, **rest, **ids)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return model


def as_ctranslate2(model: WhisperModel) -> dict[str, np.ndarray]:
    """Its tensors as CTranslate2's converter names and fuses them."""
    state = {name: each.detach().numpy() for name, each in model.state_dict().items()}
    found: dict[str, np.ndarray] = {"decoder/embeddings/weight": state["decoder.embed_tokens.weight"]}

    def layer(to: str, *stems: str) -> None:
        found[f"{to}/weight"] = np.concatenate([state[f"{stem}.weight"] for stem in stems])
        zeros = np.zeros(len(found[f"{to}/weight"]) // len(stems), np.float32)
        found[f"{to}/bias"] = np.concatenate([state.get(f"{stem}.bias", zeros) for stem in stems])

    def norm(to: str, stem: str) -> None:
        found[f"{to}/gamma"], found[f"{to}/beta"] = state[f"{stem}.weight"], state[f"{stem}.bias"]

    for side, count in (("encoder", 2), ("decoder", 3)):
        found[f"{side}/position_encodings/encodings"] = state[f"{side}.embed_positions.weight"]
        found[f"{side}/num_heads"] = np.array(2 if side == "encoder" else 4, np.int16)
        norm(f"{side}/layer_norm", f"{side}.layer_norm")
        for i in range(count):
            to, of = f"{side}/layer_{i}", f"{side}.layers.{i}"
            norm(f"{to}/self_attention/layer_norm", f"{of}.self_attn_layer_norm")
            layer(f"{to}/self_attention/linear_0", *(f"{of}.self_attn.{part}_proj" for part in "qkv"))
            layer(f"{to}/self_attention/linear_1", f"{of}.self_attn.out_proj")
            norm(f"{to}/ffn/layer_norm", f"{of}.final_layer_norm")
            layer(f"{to}/ffn/linear_0", f"{of}.fc1")
            layer(f"{to}/ffn/linear_1", f"{of}.fc2")
        for i in range(count * (side == "decoder")):
            to, of = f"decoder/layer_{i}/attention", f"decoder.layers.{i}.encoder_attn"
            norm(f"{to}/layer_norm", f"{of}_layer_norm")
            layer(f"{to}/linear_0", f"{of}.q_proj")
            layer(f"{to}/linear_1", f"{of}.k_proj", f"{of}.v_proj")
            layer(f"{to}/linear_2", f"{of}.out_proj")
    layer("encoder/conv1", "encoder.conv1")
    layer("encoder/conv2", "encoder.conv2")
    return found


def write(path: Path, tensors: dict[str, np.ndarray], name: str = "WhisperSpec", version: int = 6) -> None:
    kinds = {np.dtype(np.float32): 0, np.dtype(np.int16): 2, np.dtype(np.float16): 4, np.dtype(np.int64): 9}

    def word(text: str) -> bytes:
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    body = struct.pack("<I", version) + word(name) + struct.pack("<II", 3, len(tensors))
    for key, array in tensors.items():
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        body += word(key) + shape + struct.pack("<BI", kinds[array.dtype], array.nbytes) + array.tobytes()
    path.write_bytes(body + struct.pack("<I", 0))


def test_whisper_of_ctranslate2_is_transformers(tmp_path: Path) -> None:
    model, layers = whisper(), script("whisper_layers")
    write(tmp_path / "model.bin", as_ctranslate2(model))
    decoder, heard = layers.decoder(tmp_path)
    ids = torch.tensor([[5, 17, 3, 44]])
    with torch.no_grad():
        states = model.encoder(torch.zeros(1, 8, 240)).last_hidden_state[:, : layers.HEARD]
        want = model.decoder(ids, encoder_hidden_states=states).last_hidden_state
        got = decoder(ids, encoder_hidden_states=heard).last_hidden_state
    torch.testing.assert_close(heard, states)
    torch.testing.assert_close(got, want)
    assert heard.shape[1] == layers.HEARD


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "TransformerSpec"}, "no Whisper of CTranslate2's format 6"),
        ({"version": 4}, "no Whisper of CTranslate2's format 6"),
        ({"tensors": {"decoder/x": np.zeros(2, np.int64)}}, "decoder/x is of type 9"),
        ({"tensors": {"decoder/x": np.zeros(2, np.float32)}}, "model.bin lacks"),
    ],
)
def test_what_is_no_whole_whisper_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path / "model.bin", **{"tensors": {}} | changes)
    with pytest.raises(SystemExit, match=message):
        script("whisper_layers").decoder(tmp_path)
    data = (tmp_path / "model.bin").read_bytes()
    (tmp_path / "model.bin").write_bytes(data[: len(data) // 2])
    with pytest.raises(SystemExit, match=r"ends too early|no Whisper"):
        script("whisper_layers").decoder(tmp_path)
