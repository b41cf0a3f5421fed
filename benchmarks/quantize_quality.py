"""What rounding to 4 bits costs a layer's output: to nearest, by GPTQ and by AWQ, on real layers and a text.

    .venv-test/bin/python benchmarks/quantize_quality.py MODEL --text FILE [--group-size 128] [--json]

MODEL is what Octavo loads (an alias, a folder, a GGUF file), or with --transformers a folder of an encoder
(BERT, MPNet) or of Whisper in CTranslate2's format (whisper_layers.py), which transformers runs
(.venv-test). Half of the text's pieces calibrate, the other half measures: the error is
|x w' - x w|^2 over |x w|^2, of each projection by itself, all of them meeting what the unrounded model
gives. GPTQ is held against rounding to its own symmetric grid, AWQ against rounding to its grid with zero
points. A cut is 1 - error / error of rounding to nearest; that of all layers is of their errors' sums.
GPTQ is to reach 30 %, AWQ 15 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import whisper_layers
from asked import at_least_one, from_zero

from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.sources import resolve
from octavo.errors import OctavoError
from octavo.kernels.ops import F32
from octavo.models.layers import Use
from octavo.quant.grid import nearest
from octavo.quant.writer import Choice, Folding, Met, read_back, writer_of
from octavo.quant.writer import as_stored as stored_as
from octavo.quantize.calibration import Calibration, run, tokenizer_of
from octavo.quantize.stored import StoredWeight, load_stored, numbers

NO_TEXT = ("pooler", "encoder_attn.k_proj", "encoder_attn.v_proj")
"""Layers that meet one token of a text, or sound."""
LEAST = {"gptq": 0.30, "awq": 0.15}
METHODS = ("rtn", "gptq", "rtn_with_zeros", "awq")
Layer = tuple[str, F32, F32]
"""A projection's name, its matrix [N, K], and what it is multiplied with [T, K]."""


def errors(w: F32, x: F32, group: int) -> dict[str, float]:
    """Of each method, on the second half of x's rows, by the first."""
    half = len(x) // 2
    met, rest = Met(np.ascontiguousarray(x[:half])), x[half:]
    plain, zeros = Choice(4, group), Choice(4, group, symmetric=False)
    exact = rest @ w.T
    whole = np.square(exact).sum(dtype=np.float64)

    def error(rounded: F32) -> float:
        return float(np.square(rest @ rounded.T - exact).sum(dtype=np.float64) / whole)

    awq = writer_of("awq")
    assert isinstance(awq, Folding)
    scale = awq.scales([w], met, zeros, np.arange(w.shape[1]))
    found = {
        "rtn": nearest("X", w, plain).dequantize(),
        "gptq": written("gptq", w, plain, met),
        "rtn_with_zeros": nearest("X", w, zeros).dequantize(),
        "awq": written("awq", w * scale, zeros, Met(met.x / scale)) / scale,
    }
    return {name: error(rounded) for name, rounded in found.items()}


def written(method: str, w: F32, choice: Choice, met: Met) -> F32:
    """What a checkpoint of that method holds of w."""
    writer = writer_of(method)
    tensors = {k: stored_as(k, v) for k, v in writer.write("X", w, choice, met).items()}
    return read_back("X.weight", w.shape, writer.settings(choice, []), tensors)


def summary(layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Cuts of all layers together, and of the middle one."""
    found: dict[str, Any] = {}
    for method, base in (("gptq", "rtn"), ("awq", "rtn_with_zeros")):
        cuts = sorted(1 - layer[method] / layer[base] for layer in layers)
        total = 1 - sum(layer[method] for layer in layers) / sum(layer[base] for layer in layers)
        found[method] = {
            "cut": round(total, 4), "median": round(cuts[len(cuts) // 2], 4), "least": LEAST[method],
            "reached": total >= LEAST[method],
        }  # fmt: skip
    return found


def loaded_layers(path: Path, options: argparse.Namespace, take: Callable[[Layer], None]) -> None:
    """The layers of a model that Octavo runs."""
    checkpoint = open_checkpoint(path)
    model = load_stored(checkpoint, lambda name: numbers(checkpoint, name), options.length)
    text = Calibration(options.text, options.samples, options.length)
    ids = text.ids(tokenizer_of(path, checkpoint.config))

    def meet(weight: StoredWeight, x: F32) -> None:
        for named in weight.named():
            shape, use = model.matrices[named.name]
            if named.shape == shape and use is Use.PROJECTION:
                take((named.name.removesuffix(".weight"), named.dequantize(), x))

    run(model, ids, meet)


def transformers_layers(path: Path, options: argparse.Namespace, take: Callable[[Layer], None]) -> None:
    """The layers of an encoder, or of Whisper's decoder, that transformers runs."""
    import torch

    text = options.text.read_text(encoding="utf-8")
    found, model, more = opened(path, text)
    if len(found) < options.samples * options.length:
        raise SystemExit(f"quantize_quality: {options.text} has {len(found)} tokens, too few")
    ids = torch.tensor(found[: options.samples * options.length]).reshape(options.samples, options.length)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not any(word in name for word in NO_TEXT):

            def hook(layer: Any, inputs: Any, output: Any, name: str = name) -> None:
                x = inputs[0].reshape(-1, layer.in_features).float().numpy()
                take((name, layer.weight.detach().float().numpy(), x))

            module.register_forward_hook(hook)
    with torch.no_grad():
        model(ids, **{name: each.expand(len(ids), -1, -1) for name, each in more.items()})


def opened(path: Path, text: str) -> tuple[Sequence[int], Any, dict[str, Any]]:
    """The text's tokens, the model, and what it is given beside them."""
    if (path / "model.bin").is_file():
        model, heard = whisper_layers.decoder(path)
        return whisper_layers.ids_of(path, text), model, {"encoder_hidden_states": heard}
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    return tokenizer(text, add_special_tokens=False)["input_ids"], AutoModel.from_pretrained(path).eval(), {}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    path = resolve(options.model)
    layers: list[dict[str, Any]] = []
    left: list[str] = []

    def take(layer: Layer) -> None:
        name, w, x = layer
        if len(layers) == options.layers:
            return
        if w.shape[1] % options.group_size:
            left.append(name)
            return
        layers.append({"name": name, "shape": list(w.shape), **errors(w, x, options.group_size)})
        print(f"\r{len(layers)} layers", end="", file=sys.stderr)

    (transformers_layers if options.transformers else loaded_layers)(path, options, take)
    print(file=sys.stderr)
    if not layers:
        raise SystemExit("quantize_quality: no layer has rows of whole groups")
    said = ("group_size", "samples", "length")
    settings = {name: getattr(options, name) for name in said}
    settings |= {"model": Path(options.model).name, "text": options.text.name}
    return {"settings": settings, "layers": layers, "left_out": left, "cuts": summary(layers)}


def table(result: dict[str, Any]) -> Iterator[str]:
    yield f"{'layer':<48}" + "".join(f"{method:>16}" for method in METHODS)
    for layer in result["layers"]:
        yield f"{layer['name']:<48}" + "".join(f"{layer[method]:>16.3e}" for method in METHODS)
    for method, each in result["cuts"].items():
        reached = "reached" if each["reached"] else "not reached"
        yield (
            f"{method}: {each['cut']:.1%} of the error cut, {each['median']:.1%} in the middle layer; "
            f"{each['least']:.0%} are wanted: {reached}"
        )
    if result["left_out"]:
        yield f"{len(result['left_out'])} layers have no whole groups"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="quantize_quality")
    parser.add_argument("model", help="an alias, a folder or a GGUF file, of 8 bits or more")
    parser.add_argument("--text", type=Path, required=True, help="a UTF-8 file, such as WikiText-2's")
    parser.add_argument("--group-size", type=at_least_one, default=128)
    parser.add_argument(
        "--samples", type=at_least_one, default=32, help="pieces of the text; half of them measure"
    )
    parser.add_argument("--length", type=at_least_one, default=256, help="tokens of a piece")
    parser.add_argument("--layers", type=from_zero, default=0, help="so many, from the first; 0: all")
    parser.add_argument("--transformers", action="store_true", help="MODEL is such a folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    options.layers = options.layers or -1
    try:
        result = measure(options)
    except OctavoError as error:
        print(f"quantize_quality: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2) if options.json else "\n".join(table(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
