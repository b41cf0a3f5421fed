"""Hugging Face folders: read like the safetensors package reads them, refused by name when broken."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from octavo import quant
from octavo.checkpoints import open_checkpoint
from octavo.errors import CheckpointError

ONE = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 4}')
    return tmp_path


def put(path: Path, header: Any, data: bytes = bytes(16), length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "a": rng.standard_normal((3, 4)).astype(np.float32),
        "b": rng.standard_normal((2, 5)).astype(np.float16),
        "c": rng.standard_normal((2, 3)).astype(ml_dtypes.bfloat16),
        "d": rng.standard_normal(7).astype(np.float32),
    }


def test_reads_what_the_safetensors_package_wrote(folder: Path) -> None:
    written = arrays()
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    opened = open_checkpoint(folder)
    assert (opened.kind, opened.architecture, opened.path) == ("hf", "llama", folder)
    assert opened.config["hidden_size"] == 4
    assert set(opened.tensors) == set(written)
    for name, array in written.items():
        tensor = opened.tensors[name]
        assert tensor.shape == array.shape
        assert tensor.data.tobytes() == array.tobytes()
        assert not tensor.data.flags.writeable
        tensor.release()
    for name in "abc":
        found = quant.weight(opened.tensors[name]).dequantize()
        assert np.array_equal(found, written[name].astype(np.float32))
    assert np.array_equal(quant.vector(opened.tensors["d"]), written["d"])
    opened.close()
    assert not opened.tensors


def test_reads_shards(folder: Path) -> None:
    written = arrays()
    save_file({k: written[k] for k in "ab"}, folder / "one.safetensors")
    save_file({k: written[k] for k in "cd"}, folder / "two.safetensors")
    where = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors", "d": "two.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    opened = open_checkpoint(folder)
    assert {n: opened.tensors[n].data.tobytes() for n in opened.tensors} == {
        n: a.tobytes() for n, a in written.items()
    }


def test_a_single_file_may_have_any_name(folder: Path) -> None:
    put(folder / "weights.safetensors", {"t": ONE})
    assert list(open_checkpoint(folder).tensors) == ["t"]


def test_an_empty_tensor_and_odd_addresses(folder: Path) -> None:
    lines = {
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "odd": {"dtype": "F32", "shape": [1, 1], "data_offsets": [1, 5]},
        "none": {"dtype": "F32", "shape": [0], "data_offsets": [5, 5]},
    }
    put(folder / "model.safetensors", lines, b"\7" + struct.pack("<f", 1.5))
    tensors = open_checkpoint(folder).tensors
    assert quant.weight(tensors["odd"]).dequantize().tolist() == [[1.5]]
    assert tensors["none"].data.nbytes == 0
    tensors["none"].release()


def test_content_hash(folder: Path, tmp_path: Path) -> None:
    put(folder / "model.safetensors", {"t": ONE})
    found = open_checkpoint(folder).content_hash()
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    os.utime(copy / "model.safetensors", (1, 1))
    assert open_checkpoint(copy).content_hash() == found
    weights = copy / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(weights, (1, 1))
    assert open_checkpoint(copy).content_hash() != found
    (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": 8}')
    assert open_checkpoint(folder).content_hash() != found


def line(**changes: Any) -> dict[str, Any]:
    return {"t": ONE | changes}


BROKEN: dict[str, tuple[Any, str]] = {
    "not JSON": (b"{", "its header is not JSON"),
    "a list": (b"[]", "not a JSON object"),
    "deep": (b"[" * 100_000, "its header is not JSON"),
    "no dtype": ({"t": {"shape": [2, 2], "data_offsets": [0, 16]}}, "tensor 't' lacks its dtype"),
    "a tensor that is no object": ({"t": 3}, "tensor 't' lacks its dtype"),
    "a negative shape": (line(shape=[-2, -2]), "lacks its dtype, shape"),
    "a fractional shape": (line(shape=[2.0, 2]), "lacks its dtype, shape"),
    "three offsets": (line(data_offsets=[0, 8, 16]), "data_offsets"),
    "past the end": (line(data_offsets=[0, 1 << 60]), "lies at bytes"),
    "backwards": (line(data_offsets=[16, 0]), "lies at bytes"),
    "another size": (line(shape=[2, 3]), "does not fill its 16 bytes"),
    "overlap": ({"t": ONE, "u": ONE | {"shape": [1], "data_offsets": [8, 12]}}, "'t' and 'u' overlap"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_headers_are_refused_by_name(case: str, folder: Path) -> None:
    header, message = BROKEN[case]
    put(folder / "model.safetensors", header)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_unknown_dtypes_matter_only_when_asked_for(folder: Path) -> None:
    put(folder / "model.safetensors", line(dtype="F6_E2M3"))
    tensors = open_checkpoint(folder).tensors
    with pytest.raises(CheckpointError, match="tensor 't' has the unknown dtype 'F6_E2M3'"):
        tensors["t"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"1234", "it has 4 bytes"),
        (struct.pack("<Q", 1 << 60) + b"{}", "its header claims"),
    ],
)
def test_foreign_files(data: bytes, message: str, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_every_truncation_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    put(path, {"t": ONE})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            open_checkpoint(folder)


@settings(max_examples=100)
@given(data=st.data())
def test_damaged_bytes_parse_or_are_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzz-safetensors"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    path = folder / "model.safetensors"
    put(path, {"t": ONE, "u": {"dtype": "F16", "shape": [4], "data_offsets": [16, 24]}}, bytes(24))
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    assert "\n" not in outcome(folder)


def outcome(folder: Path) -> str:
    """Read all there is: "fine", or the error. Anything but a CheckpointError escapes."""
    try:
        tensors = open_checkpoint(folder).tensors
        for name in tensors:
            tensors[name].data.tobytes()
    except CheckpointError as error:
        return str(error)
    return "fine"


def index(folder: Path, content: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "does not hold a JSON object"),
        ({}, "has no weight_map"),
        ({"weight_map": {"t": "../one.safetensors"}}, "not a safetensors file beside it"),
        ({"weight_map": {"t": "one.bin"}}, "not a safetensors file beside it"),
        ({"weight_map": {"t": "\n.safetensors"}}, "not a safetensors file beside it"),
        ({"weight_map": {"t": "a" * 2000 + ".safetensors"}}, "not a safetensors file beside it"),
        ({"weight_map": {"t": 1}}, "not a safetensors file beside it"),
        ({"weight_map": {"t": "two.safetensors"}}, "No such file"),
        ({"weight_map": {"u": "one.safetensors"}}, "puts tensor 'u' in one.safetensors, which lacks it"),
    ],
)
def test_broken_indexes(content: Any, message: str, folder: Path) -> None:
    put(folder / "one.safetensors", {"t": ONE})
    index(folder, content)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_folders_without_what_is_needed(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no safetensors file"):
        open_checkpoint(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin is a pickle, which can run code"):
        open_checkpoint(folder)
    put(folder / "one.safetensors", {"t": ONE})
    put(folder / "two.safetensors", {"t": ONE})
    with pytest.raises(CheckpointError, match="2 safetensors files but no model"):
        open_checkpoint(folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no model_type"):
        open_checkpoint(folder)
    (folder / "config.json").write_text("nonsense")
    with pytest.raises(CheckpointError, match="is not valid JSON"):
        open_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        open_checkpoint(folder)
