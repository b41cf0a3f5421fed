"""Every family that GGUF names: the same model from a GGUF file and from its folder, same logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from models.tiny import TINY
from octavo.checkpoints.gguf import open_gguf
from octavo.errors import CheckpointError
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import native_available
from octavo.models.load import load_model, outline_model
from octavo.models.parts import DecoderModel
from octavo.models.registry import families, family, family_of
from support.forward import Sequences, load, logits
from support.gguf_files import gguf_name, write_gguf

IDS = [int(i) for i in np.random.default_rng(6).integers(3, 150, 40)]

# What a GGUF file cannot say is as llama.cpp takes it to be.
SAYABLE: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3_text": {"query_pre_attn_scalar": 32, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }},
    "mixtral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"use_sliding_window": False, "norm_topk_prob": False, "decoder_sparse_step": 1},
    "qwen3_moe": {"use_sliding_window": False, "norm_topk_prob": True, "mlp_only_layers": [],
                  "attention_bias": False},
    "qwen3": {"attention_bias": False, "use_sliding_window": False},
    "llama": {"attention_bias": False, "mlp_bias": False},
    "gpt2": {"scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
    "starcoder2": {"sliding_window": None, "use_bias": True},
    "falcon": {"activation": "gelu"},
}  # fmt: skip
UNSAYABLE = {("llama", "dynamic"), ("falcon", "rw")}
CASES = [
    (f.name, variant, arch)
    for f in families()
    for arch in f.gguf
    for variant in TINY[f.name]
    if (f.name, variant) not in UNSAYABLE
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, save_tiny: Callable[..., Path]) -> Callable[..., Any]:
    """(family, variant, arch, kinds) -> the folder and the GGUF file written from it."""

    def make(name: str, variant: str, arch: str, kinds: dict[str, str] | None = None) -> tuple[Path, Path]:
        at = tmp_path_factory.mktemp(f"{name}-{variant}")
        changes = {"model_type": family(name).hf[0], **SAYABLE.get(name, {})}
        folder = save_tiny({**TINY[name][variant], **changes}, at)
        return folder, write_gguf(folder, at / "model.gguf", arch, kinds)

    return make


@pytest.mark.parametrize(("name", "variant", "arch"), CASES, ids=["-".join(c) for c in CASES])
def test_gguf_equals_the_folder(name: str, variant: str, arch: str, pair: Callable[..., Any]) -> None:
    folder, file = pair(name, variant, arch)
    backend = ReferenceBackend()
    assert family_of(open_gguf(file)).name == name
    ours = logits(load(file, backend), backend, IDS, [len(IDS)])
    theirs = logits(load(folder, backend), backend, IDS, [len(IDS)])
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("name", [f.name for f in families() if f.gguf])
def test_names_are_those_of_the_gguf_package(name: str) -> None:
    """Every entry of a family's table, against the package's own."""
    declared = family(name)
    number = next(n for n, arch in gguf.MODEL_ARCH_NAMES.items() if arch == declared.gguf[0])
    table = gguf.get_tensor_name_map(number, 4)
    for ours, theirs in declared.names.items():
        full = ours.replace("{i}", "3").replace(".{e}", "")
        found = gguf_name(table, full)
        if found is None:  # in a table that families share, but not in this architecture
            assert ours not in REQUIRED, ours
            continue
        assert found == theirs.replace("{i}", "3"), ours


REQUIRED = {"model.embed_tokens", "model.norm", "transformer.wte", "transformer.word_embeddings"}


@pytest.mark.parametrize("arch", ["llama", "gemma2"])
def test_unknown_rope_scaling_is_refused(arch: str, pair: Callable[..., Any]) -> None:
    name = "llama" if arch == "llama" else "gemma2"
    _, file = pair(name, next(iter(TINY[name])), arch)
    checkpoint = open_gguf(file)
    checkpoint.config[f"{arch}.rope.scaling.type"] = "spiral"
    with pytest.raises(CheckpointError, match="rope_scaling of type 'spiral' is not supported"):
        load_model(checkpoint, ReferenceBackend())


@pytest.mark.parametrize(("name", "arch"), [("mixtral", "llama"), ("qwen3_moe", "qwen3moe")])
def test_experts_of_four_bits(name: str, arch: str, pair: Callable[..., Any]) -> None:
    """All experts of a layer are one quantized tensor; each is its slice, to the bit."""
    _, file = pair(name, "plain", arch, {"_exps": "Q4_0"})
    checkpoint, backend = open_gguf(file), ReferenceBackend()
    model, nbytes = load_model(checkpoint, backend)
    assert isinstance(model, DecoderModel)
    moe: Any = model.stack.layers[1].mlp
    for stored, packed in (("ffn_gate_exps", moe.gate_up), ("ffn_down_exps", moe.down)):
        tensor = checkpoint.tensors[f"blk.1.{stored}.weight"]
        assert tensor.format == "Q4_0"
        kind = gguf.GGMLQuantizationType.Q4_0
        whole = gguf.dequantize(tensor.data.reshape(*tensor.shape[:2], -1), kind)
        for e, weight in enumerate(linear.weight for linear in packed):
            np.testing.assert_array_equal(weight.matrix[: whole.shape[1]], whole[e])
            assert all(part[2] for part in weight.parts)
    whole_run = logits(model, backend, IDS, [len(IDS)])
    chunked = logits(model, backend, IDS, [1, 20, 19])
    np.testing.assert_allclose(chunked, whole_run, atol=1e-5 * np.abs(whole_run).max(), rtol=0)
    assert nbytes > 0


@pytest.mark.skipif(not native_available(), reason="bits are promised of the native kernels")
@pytest.mark.parametrize(("name", "arch"), [("mixtral", "llama"), ("qwen3_moe", "qwen3moe")])
def test_experts_of_four_bits_do_not_know_the_batch(name: str, arch: str, pair: Callable[..., Any]) -> None:
    """Whole, in chunks and beside others: equal bits, with experts streamed as they are stored."""
    from octavo.kernels.cpu import CpuBackend

    _, file = pair(name, "plain", arch, {"_exps": "Q4_0"})
    backend = CpuBackend(threads=2)
    model, _ = load_model(open_gguf(file), backend)
    whole = logits(model, backend, IDS, [len(IDS)])
    np.testing.assert_array_equal(logits(model, backend, IDS, [1, 20, 19]), whole)
    together = Sequences(model, backend, [len(IDS), 9, 30])
    found = together.logits({0: IDS, 1: IDS[5:14], 2: IDS[:30]})
    np.testing.assert_array_equal(found[0], whole)
    np.testing.assert_array_equal(found[2], whole[:30])


@pytest.mark.skipif(not native_available(), reason="weights are planned for the native kernels")
@pytest.mark.parametrize(("name", "arch"), [("mixtral", "llama"), ("qwen3_moe", "qwen3moe")])
def test_experts_of_a_cut_file_weigh_what_the_whole_file_does(
    name: str, arch: str, pair: Callable[..., Any], tmp_path: Path
) -> None:
    """Wherever among its data the file ends: before a tensor, within one expert's bytes, in an odd place."""
    from octavo.kernels.cpu import CpuBackend

    _, file = pair(name, "plain", arch, {"_exps": "Q4_0"})
    whole = file.read_bytes()
    tensor = gguf.GGUFReader(file)
    experts = next(t for t in tensor.tensors if t.name == "blk.1.ffn_down_exps.weight")
    begin, size = int(experts.data_offset), int(experts.n_bytes)
    weighed = {}
    for end in (begin, begin + 1, begin + size // 3, begin + size - 1, len(whole) - 7, len(whole)):
        cut = tmp_path / f"{end}.gguf"
        cut.write_bytes(whole[:end])
        _, weighed[end] = outline_model(open_gguf(cut, headers=True), CpuBackend(planned=True))
    assert set(weighed.values()) == {load_model(open_gguf(file), CpuBackend())[1]}
