"""What a checkpoint may look like, and what is refused before anything serves."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.tiny import TINY
from octavo.errors import CheckpointError
from octavo.kernels.reference import ReferenceBackend
from octavo.models.registry import families, family
from support.forward import load, logits
from support.seq2seq import make_folder

IDS = [int(i) for i in np.random.default_rng(8).integers(3, 150, 24)]
Folders = Callable[[str, str], Path]
Tensors = dict[str, np.ndarray[Any, Any]]


def variant_of(
    source: Path,
    target: Path,
    tensors: Callable[[Tensors], Tensors] = lambda t: t,
    **config: Any,
) -> Path:
    """A copy of a folder with other tensors, or other values in config.json (None: the key is gone)."""
    shutil.copytree(source, target)
    file = target / "model.safetensors"
    save_file({k: np.ascontiguousarray(v) for k, v in tensors(load_file(file)).items()}, file)
    values = json.loads((target / "config.json").read_text()) | config
    kept = {key: value for key, value in values.items() if value is not None}
    (target / "config.json").write_text(json.dumps(kept))
    return target


def run(folder: Path, context: int | None = None) -> np.ndarray[Any, Any]:
    backend = ReferenceBackend()
    return logits(load(folder, backend, context=context), backend, IDS, [len(IDS)])


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


# --- what loads -----------------------------------------------------------------------------------


def test_shards(tiny_folder: Folders, tmp_path: Path) -> None:
    whole = tiny_folder("llama", "plain")
    folder = tmp_path / "sharded"
    shutil.copytree(whole, folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_array_equal(run(folder), run(whole))


@pytest.mark.parametrize(
    ("name", "variant"), [("gpt2", "plain"), ("bloom", "plain"), ("llama", "tied_biased")]
)
def test_a_base_model_without_its_prefix(
    name: str, variant: str, tiny_folder: Folders, tmp_path: Path
) -> None:
    whole = tiny_folder(name, variant)
    bare = variant_of(whole, tmp_path / "bare", lambda t: {k.split(".", 1)[1]: v for k, v in t.items()})
    np.testing.assert_array_equal(run(bare), run(whole))


def test_buffers_of_old_versions_are_left_aside(tiny_folder: Folders, tmp_path: Path) -> None:
    whole = tiny_folder("gpt2", "plain")
    masks = {"transformer.h.0.attn.bias": np.ones((1, 1, 8, 8), np.float32)}
    np.testing.assert_array_equal(run(variant_of(whole, tmp_path / "old", lambda t: t | masks)), run(whole))


def test_a_tied_head_may_be_stored_too(tiny_folder: Folders, tmp_path: Path) -> None:
    whole = tiny_folder("llama", "tied_biased")

    def with_head(scale: float) -> Callable[[Tensors], Tensors]:
        return lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"] * np.float32(scale)}

    np.testing.assert_array_equal(run(variant_of(whole, tmp_path / "same", with_head(1))), run(whole))
    other = variant_of(whole, tmp_path / "other", with_head(2))
    with pytest.raises(CheckpointError, match=r"tensor 'lm_head.weight' differs from the embedding"):
        run(other)


def test_the_keys_of_older_configs(tiny_folder: Folders, tmp_path: Path) -> None:
    """rope_theta and rope_scaling stood apart before transformers 5."""
    whole = tiny_folder("llama", "linear")
    scaling = {"type": "linear", "factor": 2.0}
    old = variant_of(whole, tmp_path / "old", rope_parameters=None, rope_theta=500.0, rope_scaling=scaling)
    np.testing.assert_array_equal(run(old), run(whole))
    plain = {"rope_type": "default", "rope_theta": 500.0}
    added = variant_of(whole, tmp_path / "added", rope_parameters=plain, rope_scaling=scaling)
    np.testing.assert_array_equal(run(added), run(whole))


def test_longrope_follows_the_context_that_is_served(tiny_folder: Folders) -> None:
    """Within the trained length the short factors hold, beyond it the long ones."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tiny_folder("phi3", "long")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor([IDS])).logits[0].numpy()
    assert np.abs(run(folder, context=32) - theirs).max() <= 1e-4 * np.abs(theirs).max()
    assert np.abs(run(folder) - theirs).max() > 1e-2 * np.abs(theirs).max()


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_the_way_to_convert_a_pickle_works(kind: str, tmp_path: Path) -> None:
    """Word for word; the class that it takes is the model's own, so encoder-decoders convert too."""
    import torch

    folder, converted = make_folder(kind, tmp_path / "pickled"), tmp_path / "converted"
    tensors = load_file(folder / "model.safetensors")
    torch.save({k: torch.tensor(v) for k, v in tensors.items()}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle") as refused:
        load(folder, ReferenceBackend())
    python, option, script = shlex.split(str(refused.value).partition("convert it: ")[2])
    assert (python, option) == ("python", "-c")
    exec(script.replace("FOLDER", str(converted)), {})
    load(converted, ReferenceBackend())
    kept = load_file(converted / "model.safetensors")
    assert kept.keys() <= tensors.keys()
    assert all((kept[name] == tensors[name]).all() for name in kept)


# --- what is refused ------------------------------------------------------------------------------


OPTIONAL = {"final_logits_bias"}  # of BART: a buffer of zeros, which some files leave out


def test_a_missing_tensor_is_named(tiny_folder: Folders, tmp_path: Path) -> None:
    """Any tensor, of any family."""
    for f in families():
        source = tiny_folder(f.name, next(iter(TINY[f.name])))
        stored = set(load_file(source / "model.safetensors")) - OPTIONAL
        for i, name in enumerate(sorted(stored)[::7]):
            broken = variant_of(source, tmp_path / f"{f.name}-{i}", without(name))
            with pytest.raises(CheckpointError, match=f"tensor '{name}' is missing|two_norms"):
                load(broken, ReferenceBackend())
            shutil.rmtree(broken)


def test_a_wrong_shape_is_named(tiny_folder: Folders, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    broken = variant_of(tiny_folder("llama", "plain"), tmp_path / "x", lambda t: t | {name: t[name][:, :32]})
    with pytest.raises(CheckpointError, match=rf"'{name}' has shape \[64, 32\], expected \[64, 96\]"):
        load(broken, ReferenceBackend())


@pytest.mark.parametrize(
    ("name", "variant", "config", "message"),
    [
        ("llama", "plain", {"num_hidden_layers": 2}, "'model.layers.2.* contradict each other"),
        ("llama", "plain", {"num_hidden_layers": 4}, "'model.layers.3.* is missing"),
        ("llama", "tied_biased", {"attention_bias": False}, "_proj.bias' is in the file, but"),
        ("llama", "plain", {"tie_word_embeddings": True}, "'lm_head.weight' differs from the embedding"),
        ("llama", "tied_biased", {"tie_word_embeddings": False}, r"'lm_head.weight' is missing"),
        ("llama", "plain", {"num_attention_heads": 3}, "num_heads 3 is no multiple of num_kv_heads 2"),
        ("llama", "plain", {"hidden_size": "64"}, "config.json: hidden_size must be an integer, not '64'"),
        ("llama", "plain", {"hidden_act": "mish"}, "config.json: hidden_act = 'mish' is not supported"),
        ("llama", "plain", {"rope_parameters": {"rope_type": "spiral"}}, "'spiral' is not supported"),
        ("llama", "plain", {"rope_parameters": {"rope_type": "llama3"}}, "'llama3' lacks 'factor'"),
        ("llama", "plain", {"rope_scaling": {"rope_type": "spiral"}}, "'spiral' is not supported"),
        ("mixtral", "plain", {"num_experts_per_tok": 6}, "must be 1 to the 5 experts, not 6"),
        ("mixtral", "plain", {"num_experts_per_tok": 0}, "must be 1 to the 5 experts, not 0"),
        ("gemma3_text", "plain", {"query_pre_attn_scalar": 0}, "scalar must be positive, not 0"),
        ("phi3", "long", {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0],
            "long_factor": [1.0]}}, "long_factor holds 1 numbers, expected 8"),
        ("qwen2", "tied_window", {"layer_types": ["full_attention"]}, "holds 1 entries for 3 layers"),
        ("qwen2", "tied_window", {"layer_types": ["chunked_attention"] * 3}, "holds 'chunked_attention'"),
        ("mistral", "window", {"sliding_window": -4}, "a sliding window must be positive, not -4"),
        ("qwen3_moe", "plain", {"num_local_experts": 5}, "contradict each other|has shape"),
        ("smollm3", "plain", {"no_rope_layers": [1]}, "no_rope_layers must list 4 layers"),
        ("bloom", "plain", {"apply_residual_connection_post_layernorm": True}, "is not supported"),
        ("deepseek_v3", "plain", {"scoring_func": "softmax"}, "scoring_func = 'softmax' is not supported"),
        ("deepseek_v2", "grouped", {"norm_topk_prob": True}, "norm_topk_prob = True is not supported"),
        ("deepseek_v2", "grouped", {"n_group": 3}, "n_group = 3 does not fit 8 experts"),
        ("deepseek_v3", "plain", {"topk_group": 5}, "does not fit 8 experts and topk_group"),
        ("deepseek_v3", "plain", {"num_experts_per_tok": 5}, "= 5 exceeds the experts of topk_group groups"),
        ("llama", "plain", {"model_type": "novel"}, "architecture 'novel' is not supported .supported: "),
        ("llama", "plain", {"model_type": "novel", "auto_map": {}}, "needs code from its own files"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(
    name: str, variant: str, config: dict[str, Any], message: str, tiny_folder: Folders, tmp_path: Path
) -> None:
    broken = variant_of(tiny_folder(name, variant), tmp_path / "x", **config)
    with pytest.raises(CheckpointError, match=message):
        load(broken, ReferenceBackend())


def test_a_surplus_tensor_is_refused(tiny_folder: Folders, tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)}
    broken = variant_of(tiny_folder("llama", "plain"), tmp_path / "x", lambda t: t | extra)
    with pytest.raises(CheckpointError, match=r"q_norm.weight' is in the file, but the model"):
        load(broken, ReferenceBackend())


def test_every_architecture_has_one_reader() -> None:
    """Two families that claim one model_type would be a matter of luck."""
    claimed = [t for f in families() for t in f.hf]
    assert len(claimed) == len(set(claimed))
    assert family("llama").hf == ("llama",)
