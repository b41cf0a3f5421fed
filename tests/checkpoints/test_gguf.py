"""The GGUF parser: what it reads, and that whatever is wrong is one CheckpointError."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.content import ContentHash
from octavo.checkpoints.gguf import GGML_TYPES, open_gguf
from octavo.errors import CheckpointError

Write = Callable[[bytes], Path]


def le(kind: str, *values: Any) -> bytes:
    return struct.pack("<" + kind, *values)


def string(value: bytes) -> bytes:
    return le("Q", len(value)) + value


def entry(key: bytes, kind: int, payload: bytes) -> bytes:
    return string(key) + le("I", kind) + payload


ARCHITECTURE = entry(b"general.architecture", 8, string(b"toy"))
METADATA = [
    ARCHITECTURE,
    entry(b"toy.count", 4, le("I", 7)),
    entry(b"toy.rate", 6, le("f", 0.5)),
    entry(b"toy.flag", 7, b"\1"),
    entry(b"toy.words", 9, le("IQ", 8, 3) + string(b"a") + string(b"") + string("é".encode())),
    entry(b"toy.numbers", 9, le("IQ", 4, 2) + le("2I", 1, 2)),
    entry(b"toy.flags", 9, le("IQ", 7, 2) + b"\0\1"),
]


@dataclass
class Draft:
    """A small valid file whose every field a test may spoil. Tensors: (name, dims, type, offset)."""

    metadata: list[bytes] = field(default_factory=lambda: list(METADATA))
    tensors: list[tuple[bytes, list[int], int, int]] = field(
        default_factory=lambda: [(b"norm", [8], 0, 0), (b"weight", [32, 2], 2, 32)]
    )
    data: bytes = bytes(range(32)) + bytes(36)
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    metadata_count: int | None = None

    def bytes(self) -> bytes:
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        entries = len(self.metadata) if self.metadata_count is None else self.metadata_count
        head = self.magic + le("IQQ", self.version, tensors, entries) + b"".join(self.metadata)
        for name, dims, kind, offset in self.tensors:
            head += string(name) + le(f"I{len(dims)}Q", len(dims), *dims) + le("IQ", kind, offset)
        return head + b"\0" * (-len(head) % 32) + self.data


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(data: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return put


def test_reads_metadata_and_tensors(write: Write) -> None:
    file = open_gguf(write(Draft().bytes()))
    assert file.kind == "gguf"
    assert file.architecture == "toy"
    assert file.config == {
        "general.architecture": "toy",
        "toy.count": 7,
        "toy.rate": 0.5,
        "toy.flag": True,
        "toy.words": ["a", "", "é"],
        "toy.numbers": [1, 2],
        "toy.flags": [False, True],
    }
    assert list(file.tensors) == ["norm", "weight"]
    norm, weight = file.tensors["norm"], file.tensors["weight"]
    assert (norm.shape, norm.format, norm.data.tobytes()) == ((8,), "F32", bytes(range(32)))
    assert (weight.shape, weight.format, weight.data.nbytes) == ((2, 32), "Q4_0", 36)
    assert not norm.data.flags.writeable
    with pytest.raises(KeyError):
        file.tensors["other"]


def test_version_2_is_read(write: Write) -> None:
    assert open_gguf(write(Draft(version=2).bytes())).config["toy.count"] == 7


def test_released_pages_read_the_same_again(write: Write) -> None:
    tensor = open_gguf(write(Draft().bytes())).tensors["norm"]
    tensor.release()
    assert tensor.data.tobytes() == bytes(range(32))


def test_words_are_forgotten_but_not_their_number(write: Write) -> None:
    file = open_gguf(write(Draft().bytes()))
    file.config |= {"tokenizer.ggml.tokens": ["a", "b"], "toy.words": ["c"]}
    file.forget_tokenizer()
    assert len(file.config["tokenizer.ggml.tokens"]) == 2
    assert "a" not in file.config["tokenizer.ggml.tokens"]
    assert file.config["toy.words"] == ["c"]


def test_views_outlive_close(write: Write) -> None:
    file = open_gguf(write(Draft().bytes()))
    data = file.tensors["norm"].data
    file.close()
    assert data.tobytes() == bytes(range(32))
    with pytest.raises(CheckpointError, match="closed"):
        file.tensors["norm"]


def test_content_hash(write: Write, tmp_path: Path) -> None:
    data = Draft().bytes()
    path = write(data)
    found = open_gguf(path).content_hash()
    copy = tmp_path / "elsewhere" / "copy.gguf"
    copy.parent.mkdir()
    copy.write_bytes(data)
    os.utime(copy, (1, 1))
    assert open_gguf(copy).content_hash() == found
    # One bit of the last weight; size and time are as before.
    copy.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(copy, (1, 1))
    assert open_gguf(copy).content_hash() != found
    checkpoint = open_gguf(path)
    assert ContentHash(checkpoint).result() == found
    checkpoint.close()
    with pytest.raises(CheckpointError, match="closed"):
        ContentHash(checkpoint).result()


HUGE = 1 << 60
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "foreign": ({"magic": b"PK\3\4"}, "is not a GGUF file"),
    "version 1": ({"version": 1}, "GGUF version 1; versions 2 and 3 are read"),
    "big-endian": ({"version": 3 << 24}, "big-endian"),
    "absurd tensor count": ({"tensor_count": HUGE}, f"{HUGE} tensors, more than"),
    "absurd metadata count": ({"metadata_count": HUGE}, f"{HUGE} metadata entries, more than"),
    "no architecture": ({"metadata": []}, "general.architecture is missing"),
    "one entry too many": ({"metadata_count": 8}, "0 dimensions"),
    "a key twice": ({"metadata": [ARCHITECTURE, ARCHITECTURE]}, "the key appears twice"),
    "a key that is not UTF-8": ({"metadata": [entry(b"\xff\xfe", 4, le("I", 1))]}, "not UTF-8"),
    "a value that is not UTF-8": ({"metadata": [entry(b"k", 8, string(b"\xff"))]}, "not UTF-8"),
    "an array element that is not UTF-8": (
        {"metadata": [entry(b"k", 9, le("IQ", 8, 2) + string(b"a") + string(b"\xff"))]},
        "element 1 is not UTF-8",
    ),
    "a long key": ({"metadata": [string(b"k" * 70_000)]}, "name of 70000 bytes"),
    "an unknown type": ({"metadata": [entry(b"k", 13, b"")]}, "unknown metadata type 13"),
    "an unknown array type": ({"metadata": [entry(b"k", 9, le("IQ", 77, 0))]}, "unknown array type 77"),
    "a nested array": ({"metadata": [entry(b"k", 9, le("IQ", 9, 1))]}, "array of arrays"),
    "a string past the end": ({"metadata": [entry(b"k", 8, le("Q", HUGE))]}, f"{HUGE} bytes were to follow"),
    "an absurd array": ({"metadata": [entry(b"k", 9, le("IQ", 4, HUGE))]}, f"array of {HUGE} elements"),
    "an absurd string array": (
        {"metadata": [entry(b"k", 9, le("IQ", 8, HUGE))]},
        f"array of {HUGE} elements",
    ),
    "an element past the end": (
        {"metadata": [entry(b"k", 9, le("IQ", 8, 2) + string(b"a") + le("Q", HUGE))]},
        "element 1 points past the end",
    ),
    "a boolean of 2": ({"metadata": [entry(b"k", 7, b"\2")]}, "a boolean that is 2"),
    "booleans of 2": ({"metadata": [entry(b"k", 9, le("IQ", 7, 2) + b"\0\2")]}, "neither 0 nor 1"),
    "an odd alignment": (
        {"metadata": [ARCHITECTURE, entry(b"general.alignment", 4, le("I", 24))]},
        "general.alignment 24",
    ),
    "a part of a split": ({"metadata": [ARCHITECTURE, entry(b"split.count", 2, le("H", 3))]}, "split model"),
    "no dimensions": ({"tensors": [(b"t", [], 0, 0)]}, "0 dimensions"),
    "five dimensions": ({"tensors": [(b"t", [1] * 5, 0, 0)]}, "5 dimensions"),
    "an empty tensor": ({"tensors": [(b"t", [8, 0], 0, 0)]}, "empty shape"),
    "a tensor past the end": (
        {"tensors": [(b"t", [1 << 40, 1 << 40], 0, 0)]},
        "tensor 't' ends at byte .*past",
    ),
    "an offset past the end": ({"tensors": [(b"t", [1], 0, 1 << 63)]}, "tensor 't' starts at byte .*past"),
    "a misaligned offset": ({"tensors": [(b"t", [1], 0, 4)]}, "offset 4, not a multiple of 32"),
    "half a block": ({"tensors": [(b"t", [33], 2, 0)]}, "rows of 33; Q4_0 needs a multiple of 32"),
    "a tensor twice": ({"tensors": [(b"t", [1], 0, 0), (b"t", [1], 0, 32)]}, "tensor 't' appears twice"),
    "overlapping tensors": ({"tensors": [(b"t", [16], 0, 0), (b"u", [1], 0, 32)]}, "'t' and 'u' overlap"),
    "a tensor name that is not UTF-8": ({"tensors": [(b"\xff", [1], 0, 0)]}, "not UTF-8"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_by_name(case: str, write: Write) -> None:
    changes, message = BROKEN[case]
    with pytest.raises(CheckpointError, match=message) as caught:
        open_gguf(write(Draft(**changes).bytes()))
    assert "\n" not in str(caught.value)
    assert "model.gguf" in str(caught.value)


def test_every_truncation_is_refused(write: Write) -> None:
    whole = Draft().bytes()
    for size in range(len(whole)):
        with pytest.raises(CheckpointError):
            open_gguf(write(whole[:size]))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(CheckpointError, match="cannot open"):
        open_gguf(tmp_path)


def test_pickles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="pickle, which can run code"):
        open_checkpoint(tmp_path / "model.pt")


def test_a_gguf_file_by_a_pickles_name_is_none(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(Draft().bytes())
    assert open_checkpoint(path).tensors
    path.write_bytes(b"GGU")
    with pytest.raises(CheckpointError, match="pickle, which can run code"):
        open_checkpoint(path)


def test_unknown_tensor_types_matter_only_when_asked_for(write: Write) -> None:
    file = open_gguf(write(Draft(tensors=[(b"norm", [8], 0, 0), (b"odd", [8], 999, 32)]).bytes()))
    assert "odd" in file.tensors
    assert file.tensors["norm"].format == "F32"
    with pytest.raises(CheckpointError, match="tensor 'odd' has the unknown type 999"):
        file.tensors["odd"]


def read_all(path: Path) -> None:
    file = open_gguf(path)
    for name in file.tensors:
        try:
            tensor = file.tensors[name]
        except CheckpointError:
            continue
        assert tensor.data.nbytes <= path.stat().st_size
        tensor.data.tobytes()


def outcome(path: Path) -> str:
    """Read all there is: "fine", or the error. Anything but a CheckpointError escapes."""
    try:
        read_all(path)
    except CheckpointError as error:
        return str(error)
    return "fine"


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_bytes_parse_or_are_refused(data: st.DataObject, fuzz_file: tuple[Path, bytes]) -> None:
    path, whole = fuzz_file
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))
    path.write_bytes(damaged[:cut])
    assert "\n" not in outcome(path)


@settings(max_examples=100)
@given(junk=st.binary(max_size=200))
def test_junk_after_the_magic(junk: bytes, fuzz_file: tuple[Path, bytes]) -> None:
    path, _ = fuzz_file
    path.write_bytes(b"GGUF\3\0\0\0" + junk)
    assert "\n" not in outcome(path)


@pytest.fixture(scope="module")
def fuzz_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("fuzz") / "model.gguf"
    writer = gguf.GGUFWriter(path, "toy")
    writer.add_uint32("toy.count", 7)
    writer.add_array("toy.words", ["alpha", "beta", "é"])
    writer.add_array("toy.numbers", [1.5, 2.5])
    writer.add_bool("toy.flag", True)
    writer.add_tensor("norm", np.arange(8, dtype=np.float32))
    writer.add_tensor("weight", np.zeros((2, 18), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, path.read_bytes()


def test_types_have_the_sizes_of_the_gguf_package() -> None:
    for code, (name, block, nbytes) in GGML_TYPES.items():
        kind = gguf.GGMLQuantizationType(code)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (name, (block, nbytes))


def written_by_gguf(path: Path, alignment: int) -> dict[str, Any]:
    scalars: dict[str, Any] = {
        "uint8": 200, "int8": -5, "uint16": 60_000, "int16": -30_000, "uint32": 4_000_000_000,
        "int32": -2_000_000_000, "uint64": 1 << 63, "int64": -(1 << 62), "float32": 0.25,
        "float64": 1e300, "bool": True, "string": "zwölf 字",
    }  # fmt: skip
    arrays = {"ints": [-1, 2, 3], "floats": [0.5, -2.0], "strings": ["", "x", "…"], "bools": [True, False]}
    writer = gguf.GGUFWriter(path, "toy")
    writer.add_custom_alignment(alignment)
    for key, value in scalars.items():
        getattr(writer, f"add_{key}")(key, value)
    for key, value in arrays.items():
        writer.add_array(key, value)
    rng = np.random.default_rng(0)
    writer.add_tensor("one", rng.standard_normal(5).astype(np.float32))
    writer.add_tensor("two", rng.standard_normal((3, 64)).astype(np.float16))
    writer.add_tensor("three", rng.standard_normal((2, 3, 32)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return scalars | arrays


@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_files_of_the_gguf_package_are_read_alike(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "toy.gguf"
    values = written_by_gguf(path, alignment)
    ours = open_gguf(path)
    for key, value in values.items():
        assert ours.config[key] == value, key
    same_as_the_gguf_package(path)


def test_smollm2_is_read_like_the_gguf_package_does(smollm2_path: Path) -> None:
    same_as_the_gguf_package(smollm2_path)


def same_as_the_gguf_package(path: Path) -> None:
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.config == fields
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(int(d) for d in reversed(tensor.shape))
        assert mine.format == tensor.tensor_type.name
        assert np.array_equal(mine.data, tensor.data.reshape(-1).view(np.uint8)), tensor.name
        mine.release()
