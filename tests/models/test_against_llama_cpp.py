"""The real models beside llama.cpp on the same files: the same greedy text."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.checkpoints import sources
from support.llama_cpp import COUNT, Run, behind_best, choose_alike, logits_of, open_llama
from support.prompts import PROMPTS

pytestmark = pytest.mark.oracle
F32_PAGES = 0  # ggml's number of that type
APART = {
    "smollm2": 1e-4,
    "gemma3-270m": 2e-3,  # llama.cpp looks GELU up in a table of f16
}
"""How far logits of unrounded activations may lie apart, as a part of the largest."""


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def name(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("llama_cpp")
    return str(request.param)


@pytest.fixture(scope="module")
def run(name: str) -> Run:
    return Run.of(sources.resolve(name))


def test_prompts_are_cut_alike(run: Run) -> None:
    llama = open_llama(run.path, vocab_only=True)
    for prompt, text in zip(PROMPTS, run.texts, strict=True):
        assert llama.tokenize(prompt.encode(), special=True) == text.ids[:-COUNT]


def test_with_f32_weights_the_text_is_the_same(name: str, run: Run, tmp_path: Path) -> None:
    """llama.cpp rounds no activation where weights are f32: its text is ours, ties within 1e-4 excepted.

    It sees our own tokens before each position, so by induction the texts are equal.
    """
    llama = open_llama(_widened(run.path, tmp_path / "f32.gguf"), type_k=F32_PAGES, type_v=F32_PAGES)
    apart = behind = 0.0
    for text in run.texts:
        theirs = logits_of(llama, text.ids)
        largest = np.abs(theirs).max()
        apart = max(apart, np.abs(text.exact - theirs).max() / largest)
        behind = max(behind, behind_best(theirs, text.ids[-COUNT:]).max() / largest)
    print(f"\n{run.path.name}, f32: logits {apart:.1e} apart, choices {behind:.1e} behind at most")
    assert apart <= APART[name]
    assert behind <= 1e-4


def test_on_the_same_file_the_text_is_the_same_but_for_near_ties(run: Run) -> None:
    choose_alike(run)


def _widened(path: Path, to: Path) -> Path:
    """The same file with every tensor dequantized to f32."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(to, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        kind, sub = field.types[0], field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=sub)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to
