"""GGUF files that `octavo quantize` makes: of folders of each family, and of GGUF files."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.conftest import save
from models.tiny import TINY
from octavo.checkpoints.gguf import open_gguf
from octavo.errors import CheckpointError, OctavoError, UnsupportedError
from octavo.kernels.reference import ReferenceBackend
from octavo.models.registry import family
from octavo.quantize.asked import Asked
from octavo.quantize.job import quantize
from octavo.quantize.vocabulary import tokenizer_metadata
from octavo.tokenizer.folder import from_folder
from octavo.tokenizer.gguf import from_gguf
from support.cli import command, environment
from support.forward import load, logits
from support.small_models import save_byte_level, save_model, text

IDS = [int(i) for i in np.random.default_rng(8).integers(3, 150, 40)]
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8}
MADE = [
    ("llama", "plain"), ("llama", "llama3"), ("llama", "linear"), ("llama", "yarn"), ("qwen2", "plain"),
    ("qwen3", "plain"), ("mistral", "full"), ("gemma", "plain"), ("gemma2", "capped"), ("gpt2", "plain"),
    ("falcon", "7b"), ("bloom", "plain"), ("mixtral", "plain"),
    ("qwen2_moe", "plain"),
]  # fmt: skip
REFUSED = [
    ("llama", "tied_biased", "mlp_bias"),
    ("gpt_neox", "parallel", "family gpt_neox are not read here"),
    ("gemma2", "capped", "attention_scale"),  # which such files do not say: it is that of the heads
    ("mistral", "window", "windows"),
    ("smollm3", "plain", "unrotated"),
    ("olmo2", "plain", "family olmo2 are not read here"),
]


def asked(source: Path, target: Path, kind: str, requantize: bool = False) -> Asked:
    return Asked(source, target, kind=kind, requantize=requantize)


def run(path: Path) -> Any:
    backend = ReferenceBackend()
    return logits(load(path, backend), backend, IDS, [len(IDS)])


def tiny(name: str, variant: str, folder: Path, **changes: Any) -> Path:
    arguments = {**TINY[name][variant], "vocab_size": 320, **changes}
    save({"model_type": family(name).hf[0], **arguments}, folder)
    save_byte_level(folder)
    return folder


@pytest.mark.parametrize(("name", "variant"), MADE)
def test_it_is_the_same_model(name: str, variant: str, tmp_path: Path) -> None:
    changes = {"query_pre_attn_scalar": 32} if name == "gemma2" else {}
    folder = tiny(name, variant, tmp_path / "dense", **changes)
    quantize(asked(folder, tmp_path / "out.gguf", "F32"))
    want, got = run(folder), run(tmp_path / "out.gguf")
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dense", "out.gguf"]


@pytest.mark.parametrize(("name", "variant", "message"), REFUSED)
def test_what_gguf_cannot_say_is_refused(name: str, variant: str, message: str, tmp_path: Path) -> None:
    folder = tiny(name, variant, tmp_path / "dense")
    with pytest.raises(UnsupportedError, match=message):
        quantize(asked(folder, tmp_path / "out.gguf", "Q8_0"))
    assert [p.name for p in tmp_path.iterdir()] == ["dense"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("wide") / "model", **WIDE)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_bytes_are_those_of_the_gguf_package(kind: str, wide: Path, tmp_path: Path) -> None:
    report = quantize(asked(wide, tmp_path / "out.gguf", kind))
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    stored = load_file(wide / "model.safetensors")
    for name, source in (
        ("ffn_up", "mlp.up_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
    ):
        tensor = tensors[f"blk.1.{name}.weight"]
        assert tensor.tensor_type.name == kind
        want = gguf.quantize(stored[f"model.layers.1.{source}.weight"], gguf.GGMLQuantizationType[kind])
        np.testing.assert_array_equal(tensor.data.reshape(-1), want.reshape(-1))
    heads = {"token_embd.weight", "output.weight"} & tensors.keys()
    assert {tensors[name].tensor_type.name for name in heads} == {"Q8_0" if kind == "Q8_0" else "Q6_K"}
    assert (report.matrices, report.method) == (56, kind)
    assert report.bits_per_weight == {"Q4_0": 4.5, "Q4_1": 5.0, "Q8_0": 8.5}[kind]


def test_q4_k_m_gives_some_matrices_six_bits(wide: Path, tmp_path: Path) -> None:
    quantize(asked(wide, tmp_path / "out.gguf", "Q4_K_M"))
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    types = {t.name: t.tensor_type.name for t in reader.tensors}
    six = {
        int(n.split(".")[1]) for n, kind in types.items() if n.endswith("ffn_down.weight") and kind == "Q6_K"
    }
    assert six == {0, 3, 6, 7}
    assert {types[f"blk.{i}.attn_v.weight"] for i in six} == {"Q6_K"}
    assert {types[f"blk.{i}.ffn_up.weight"] for i in range(8)} == {"Q4_K"}
    assert reader.get_field("general.file_type").contents() == 15
    assert np.isfinite(run(tmp_path / "out.gguf")).all()


def test_rows_that_fit_no_blocks_get_larger_types(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "dense")  # 128 and 192 columns
    quantize(asked(folder, tmp_path / "out.gguf", "Q4_K_M"))
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert types["blk.0.ffn_up.weight"] == "Q5_0"
    assert types["token_embd.weight"] == "Q8_0"


def test_texts_are_cut_as_the_folder_cuts_them(wide: Path, tmp_path: Path) -> None:
    quantize(asked(wide, tmp_path / "out.gguf", "Q8_0"))
    ours, theirs = from_gguf(open_gguf(tmp_path / "out.gguf").config), from_folder(wide)
    assert ours.encode(text(3)) == theirs.encode(text(3))
    assert ours.chat_template == theirs.chat_template
    assert (ours.eos_token_id, ours.bos_token_id) == (theirs.eos_token_id, theirs.bos_token_id) == (1, 0)


def test_sentencepiece_with_bytes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    backend.train_from_iterator([text(1)], trainer)
    value = json.loads(backend.to_str())
    value["added_tokens"] = value["added_tokens"][:3]
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    found = tokenizer_metadata(tmp_path, 512)
    assert (found["tokenizer.ggml.model"], len(found["tokenizer.ggml.tokens"])) == ("llama", 512)
    assert from_gguf(found).encode(text(2)) == from_folder(tmp_path).encode(text(2))
    value["pre_tokenizer"] = {"type": "Whitespace"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    with pytest.raises(UnsupportedError, match="texts would be cut otherwise"):
        tokenizer_metadata(tmp_path, 512)


def test_of_a_gguf_file(wide: Path, tmp_path: Path) -> None:
    quantize(asked(wide, tmp_path / "f32.gguf", "F32"))
    quantize(asked(tmp_path / "f32.gguf", tmp_path / "q8.gguf", "Q8_0"))
    quantize(asked(wide, tmp_path / "direct.gguf", "Q8_0"))
    ours, direct = (
        {t.name: t for t in gguf.GGUFReader(tmp_path / p).tensors} for p in ("q8.gguf", "direct.gguf")
    )
    assert ours.keys() == direct.keys()
    assert all(np.array_equal(ours[n].data, direct[n].data) for n in ours)
    first, second = (open_gguf(tmp_path / p).config for p in ("f32.gguf", "q8.gguf"))
    assert {k for k in first if first[k] != second[k]} == {"general.file_type"}
    with pytest.raises(UnsupportedError, match="is Q8_0, quantized already: --allow-requantize"):
        quantize(asked(tmp_path / "q8.gguf", tmp_path / "q4.gguf", "Q4_0"))
    assert not (tmp_path / "q4.gguf").exists()
    quantize(asked(tmp_path / "q8.gguf", tmp_path / "q4.gguf", "Q4_0", requantize=True))


def test_numbers_that_are_not_finite_leave_nothing(wide: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in wide.glob("*.json"):
        (broken / path.name).write_bytes(path.read_bytes())
    tensors = load_file(wide / "model.safetensors")
    tensors["model.layers.7.mlp.up_proj.weight"][3, 4] = np.nan
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.7\.mlp\.up_proj.* not finite"):
        quantize(asked(broken, tmp_path / "out.gguf", "Q4_0"))
    assert [p.name for p in tmp_path.iterdir()] == ["broken"]


def test_a_full_disk_leaves_nothing(wide: Path, tmp_path: Path) -> None:
    line = command("quantize", str(wide), str(tmp_path / "out.gguf"), "--type", "Q8_0")

    def limit() -> None:  # the file would be larger
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        line, env=environment(), preexec_fn=limit, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("octavo: error: File too large")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_run_leaves_nothing(wide: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(asked(wide, tmp_path / "out.gguf", "Q8_0"), stop)
    assert not list(tmp_path.iterdir())


def test_a_pickle_by_another_name_is_refused(tmp_path: Path) -> None:
    disguised = tmp_path / "model.gguf"
    disguised.write_bytes(b"\x80\x02}q\x00X\x05\x00\x00\x00modelq\x01K\x01s." * 9)
    with pytest.raises(CheckpointError, match="is not a GGUF file"):
        quantize(asked(disguised, tmp_path / "out.gguf", "Q8_0"))
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize(("kind", "message"), [("Q3_K", "--type Q3_K is not supported; F32, F16, Q4_0")])
def test_other_types_are_refused(kind: str, message: str, wide: Path, tmp_path: Path) -> None:
    with pytest.raises(OctavoError, match=message):
        quantize(asked(wide, tmp_path / "out.gguf", kind))
