"""Folders that `octavo quantize` makes: what others find in them, how they resume, what they refuse."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from octavo.errors import CheckpointError, InvalidRequestError, OctavoError, UnsupportedError
from octavo.kernels.reference import ReferenceBackend
from octavo.quant.writer import Choice, settled, writer_names, writer_of
from octavo.quantize.asked import Asked
from octavo.quantize.calibration import Calibration
from octavo.quantize.job import quantize
from support.forward import load, logits
from support.unpacked_integers import READ

IDS = [int(i) for i in np.random.default_rng(8).integers(3, 300, 24)]
CHOICES = {
    "rtn": [Choice(4, 32), Choice(8, 64), Choice(3, -1, symmetric=False), Choice(2, 32)],
    "gptq": [Choice(4, 32), Choice(4, 64, symmetric=False), Choice(8, -1), Choice(3, 32, act_order=False)],
    "awq": [Choice(4, 64, symmetric=False)],
    "nf4": [Choice(4, -1), Choice(4, -1, nested=False)],
    "int8": [Choice(8, -1)],
    "fp8": [Choice(8, -1)],
}
CASES = [(method, choice) for method, choices in CHOICES.items() for choice in choices]


def asked(dense: Path, target: Path, method: str, choice: Choice, read: Path | None) -> Asked:
    text = None
    if writer_of(method).limits.calibrated:
        assert read is not None
        text = Calibration(read, samples=20, length=64)
    return Asked(dense, target, method, choice, text)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def meant(folder: Path, method: str) -> dict[str, torch.Tensor]:
    """The tensors that a quantized folder stands for, by support.unpacked_integers."""
    tensors = tensors_of(folder)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    projections = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    stems = {s for name in tensors for s in [name.rsplit(".", 1)[0]] if s.endswith(projections)}
    assert len(stems) == 14
    found = {f"{s}.weight": torch.from_numpy(READ[method](tensors, s, config).copy()) for s in stems}
    plain = {n: t for n, t in tensors.items() if not any(n.startswith(s) for s in stems)}
    return found | plain


def theirs(dense: Path, weights: dict[str, torch.Tensor]) -> Any:
    model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


@pytest.mark.parametrize(
    ("widths", "group"),
    [((256, 128), 128), ((256, 192), 64), ((576, 1536), 64), ((96, 128), 32), ((48, 96), 128)],
)
def test_where_no_group_is_named_it_is_the_largest_that_divides_all_rows(
    widths: tuple[int, ...], group: int
) -> None:
    """Where none does it stays, and is refused by the name of a matrix."""
    shapes = [(8, width) for width in widths]
    assert settled(Choice(4, 0), writer_of("gptq").limits, shapes) == Choice(4, group)
    assert settled(Choice(4, 32), writer_of("gptq").limits, shapes) == Choice(4, 32)
    assert settled(Choice(8, -1), writer_of("int8").limits, shapes) == Choice(8, -1)


def test_a_folder_whose_groups_nobody_named(dense: Path, tmp_path: Path) -> None:
    report = quantize(asked(dense, tmp_path / "out", "rtn", Choice(4, 0), None))
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["group_size"] == report.group_size == 64


def ours(folder: Path) -> Any:
    backend = ReferenceBackend()
    return logits(load(folder, backend, "float32"), backend, IDS, [len(IDS)])


def test_every_method_is_tested() -> None:
    assert sorted(CHOICES) == writer_names() == sorted(READ)


@pytest.mark.parametrize(("method", "choice"), CASES)
def test_others_find_in_it_what_octavo_finds(
    method: str, choice: Choice, dense: Path, read: Path, tmp_path: Path
) -> None:
    report = quantize(asked(dense, tmp_path / "out", method, choice, read))
    got, want = ours(tmp_path / "out"), theirs(dense, meant(tmp_path / "out", method))
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    assert report.matrices == 14
    assert not report.unmet
    assert np.abs(got - ours(dense)).max() > 0
    assert choice.bits < report.bits_per_weight < choice.bits + 1.5
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"tokenizer.json", "config.json"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("method", ["int8", "nf4"])
def test_transformers_reads_it_itself(method: str, dense: Path, tmp_path: Path) -> None:
    """bitsandbytes' CPU kernels round x or their sums, so logits differ from ours of f32 by that."""
    quantize(asked(dense, tmp_path / "out", method, CHOICES[method][0], None))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32, device_map="cpu")
    layer = model.model.layers[1].mlp.down_proj
    assert type(layer).__module__.startswith("bitsandbytes")
    with torch.no_grad():
        got = model(torch.tensor([IDS])).logits[0].numpy()
    want = ours(tmp_path / "out")
    assert np.sqrt(np.square(got - want).mean()) <= 0.05 * np.abs(want).max()


def interrupted(what: Asked, after: int) -> None:
    """Begin, and be interrupted when so many matrices are made."""

    def stop(done: int, total: int) -> None:
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(what, stop)


@pytest.mark.parametrize("method", ["rtn", "gptq", "awq"])
def test_it_goes_on_where_it_was_interrupted(method: str, dense: Path, read: Path, tmp_path: Path) -> None:
    choice = CHOICES[method][0]
    whole = quantize(asked(dense, tmp_path / "whole", method, choice, read))
    what = asked(dense, tmp_path / "out", method, choice, read)
    interrupted(what, 11)
    partial = tmp_path / "out.partial"
    assert not (tmp_path / "out").exists()
    assert not list(partial.glob("*.part"))
    told: list[int] = []
    report = quantize(what, lambda done, total: told.append(done))
    assert report.resumed >= 1
    assert (told[0], told[-1]) == (7, 14)  # the first layer's were there
    assert not partial.exists()
    first, second = tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "out")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert dataclasses.replace(report, path="", resumed=0) == dataclasses.replace(whole, path="", resumed=0)


def test_another_command_does_not_go_on_there(dense: Path, read: Path, tmp_path: Path) -> None:
    interrupted(asked(dense, tmp_path / "out", "rtn", Choice(4, 32), None), 8)
    before = sorted((tmp_path / "out.partial").iterdir())
    for other in (Choice(4, 64), Choice(8, 32)):
        with pytest.raises(InvalidRequestError, match="begun by another command, or of another model"):
            quantize(asked(dense, tmp_path / "out", "rtn", other, None))
    assert sorted((tmp_path / "out.partial").iterdir()) == before
    quantize(asked(dense, tmp_path / "out", "rtn", Choice(4, 32), None))


def test_what_is_there_stays(dense: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidRequestError, match="is there already"):
        quantize(asked(dense, tmp_path / "out", "rtn", Choice(4, 32), None))


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_numbers_that_are_not_finite_leave_nothing(
    name: str, method: str, dense: Path, read: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(dense, broken)
    tensors = load_file(dense / "model.safetensors")
    tensors[name].view(-1)[5] = torch.nan
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"tensor '{name}'.* holds numbers that are not finite"):
        quantize(asked(broken, tmp_path / "out", method, Choice(4, 32), read))
    assert [p.name for p in tmp_path.iterdir()] == ["broken"]


def refused(what: Asked, kind: type[OctavoError], message: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(kind, match=message):
        quantize(what)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("method", "choice", "message"),
    [
        ("rtn", Choice(5, 32), "rtn with 5 bits is not supported; it has 2, 3, 4, 8"),
        ("awq", Choice(8, 32, symmetric=False), "awq with 8 bits"),
        ("rtn", Choice(4, 48), "groups of 48 columns are not supported"),
        ("rtn", Choice(4, 96), r"down_proj|\[128, 128\]: groups of 96 do not divide rows of 128"),
        ("rtn", Choice(4, 128), r"down_proj.weight' \[128, 192\]: groups of 128 do not divide rows of 192"),
        ("nf4", Choice(4, -1, symmetric=False), "nf4 has no zero points: leave --asymmetric out"),
        ("awq", Choice(4, 64), "awq has zero points always"),
        ("gptq", Choice(4, 32, damp=0.0), "--damp must be between 0 and 1"),
        ("hqq", Choice(4, 32), "the method 'hqq' is not supported; awq, fp8, gptq, int8, nf4, rtn are"),
    ],
)
def test_what_a_method_lacks_is_refused(
    method: str, choice: Choice, message: str, dense: Path, read: Path, tmp_path: Path
) -> None:
    text = Calibration(read, 20, 64) if method in ("gptq", "awq") else None
    refused(Asked(dense, tmp_path / "out", method, choice, text), UnsupportedError, message, tmp_path)


def test_texts_are_checked_first(dense: Path, read: Path, tmp_path: Path) -> None:
    def with_text(text: Calibration | None, method: str = "gptq") -> Asked:
        return Asked(dense, tmp_path / "out", method, Choice(4, 32), text)

    short = tmp_path / "short"
    short.write_text("a few words")
    message = r"short has \d+ tokens, and 20 samples of 64 need 1280: give a longer text"
    refused(with_text(Calibration(short, 20, 64)), InvalidRequestError, message, tmp_path)
    pickled = tmp_path / "pickled"
    pickled.write_bytes(b"\x80\x05\x95\xff\xfe")
    refused(with_text(Calibration(pickled, 20, 64)), InvalidRequestError, "must be UTF-8", tmp_path)
    refused(with_text(None), InvalidRequestError, "gptq needs a text", tmp_path)
    refused(with_text(Calibration(read, 1, 65)), UnsupportedError, "exceeds the model's 64", tmp_path)
    refused(with_text(Calibration(read, 20, 64), "rtn"), InvalidRequestError, "looks at no text", tmp_path)


def test_models_that_cannot_be_made_of_are_refused(dense: Path, tmp_path: Path) -> None:
    once = tmp_path / "once"
    quantize(asked(dense, once, "rtn", Choice(4, 32), None))
    what = asked(once, tmp_path / "out", "rtn", Choice(4, 32), None)
    refused(what, UnsupportedError, "is quantized already", tmp_path)
    disguised = tmp_path / "disguised"
    shutil.copytree(dense, disguised)
    (disguised / "model.safetensors").write_bytes(b"\x80\x02}q\x00X\x05\x00\x00\x00modelq\x01K\x01s." * 9)
    what = asked(disguised, tmp_path / "out", "rtn", Choice(4, 32), None)
    refused(what, CheckpointError, "not a safetensors file", tmp_path)


def test_experts_that_no_token_takes_are_listed(tmp_path: Path, read: Path) -> None:
    """A router that always takes the same two of five."""
    from support.small_models import save_model

    changes = {"num_local_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 1}
    dense = save_model(tmp_path / "dense", model_type="mixtral", **changes)
    tensors = load_file(dense / "model.safetensors")
    name = next(n for n in tensors if n.endswith("gate.weight"))
    tensors[name] = torch.zeros_like(tensors[name])  # of equal ones the lower are taken
    save_file(tensors, dense / "model.safetensors")
    report = quantize(asked(dense, tmp_path / "out", "gptq", Choice(4, 32), read))
    assert len(report.unmet) == 9
    assert all(".experts." in module and not module.startswith("0") for module in report.unmet)
    assert {module.split(".experts.")[1][0] for module in report.unmet} == {"2", "3", "4"}
    assert np.isfinite(ours(tmp_path / "out")).all()
