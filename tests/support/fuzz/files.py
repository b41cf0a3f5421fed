"""Model files: GGUF, safetensors and tokenizer.json by themselves, and whole loads of small models."""

from __future__ import annotations

import json
import random
import shutil
import struct
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.checkpoints import open_checkpoint
from octavo.tokenizer.folder import from_folder
from octavo.tokenizer.gguf import from_gguf
from support.fuzz import tiny_files
from support.fuzz.changes import pack, spoil, spoil_json, unpack
from support.fuzz.target import guarded

TEXT = "hello <|im_start|>wide </s> \x00 é字🙂 abcd w3 w4 12345"
"""Encoded by every tokenizer that can be made."""


def scratch() -> Path:
    """A folder in memory where there is one: disks would be what is measured."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    return Path(tempfile.mkdtemp(prefix="octavo-fuzz-", dir=place))


def put(folder: Path, files: dict[str, bytes]) -> None:
    """These files and no others. Names that lead out of the folder are left out."""
    for old in folder.iterdir():
        old.unlink() if old.is_file() or old.is_symlink() else shutil.rmtree(old)
    for name, data in files.items():
        if name and Path(name).name == name and "\0" not in name and len(name.encode(errors="replace")) < 200:
            (folder / name).write_bytes(data)


def read_all(path: Path) -> Any:
    """Every tensor's bytes, of those whose type is known. Returns the opened checkpoint."""
    checkpoint = open_checkpoint(path)
    for name in checkpoint.tensors:
        checkpoint.tensors[name].data.tobytes()
    return checkpoint


class GGUF:
    """Headers, metadata, tensors and the tokenizer in the metadata."""

    base_s, byte_s, memory = 0.03, 2e-6, 256 << 20

    def __init__(self) -> None:
        self._path = scratch() / "model.gguf"
        self.seeds = [
            tiny_files.small_gguf(self._path),
            tiny_files.tokenizer_gguf(self._path, spm=True),
            tiny_files.tokenizer_gguf(self._path, spm=False),
        ]

    def change(self, rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
        return spoil(rng, seed, others, near=1.5)

    def run(self, data: bytes) -> str:
        self._path.write_bytes(data)
        return guarded(self._parse)

    def _parse(self) -> str:
        checkpoint = read_all(self._path)
        found = f"read {len(checkpoint.tensors)}"
        tokenizer = from_gguf(checkpoint.config)
        return f"{found} {use(tokenizer)}"


def use(tokenizer: Any) -> str:
    """Encode and decode with a tokenizer."""
    ids = tokenizer.encode(TEXT) + tokenizer.encode(TEXT, add_special_tokens=False)
    text = tokenizer.decode(ids) + tokenizer.decode([0, 1, 2, 10**9, -1], skip_special_tokens=False)
    tokenizer.is_special(0)
    _ = tokenizer.control_pattern, tokenizer.longest_token, tokenizer.vocab_size
    return f"tokens {bool(ids)} {bool(text)} {len(tokenizer.stop_token_ids)}"


class Safetensors:
    """A folder's headers and data, and indexes of several files."""

    base_s, byte_s, memory = 0.03, 2e-6, 256 << 20

    def __init__(self) -> None:
        self._folder = scratch()
        one = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
        two = {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]}
        files = [self._file({"t": one}, 16), self._file({"t": one, "u": two, "__metadata__": {"a": "b"}}, 24)]
        config = b'{"model_type": "llama"}'
        index = json.dumps({"weight_map": {"t": "one.safetensors", "u": "two.safetensors"}}).encode()
        self.seeds = [
            *(pack({"config.json": config, "model.safetensors": file}) for file in files),
            pack({"config.json": config, "model.safetensors.index.json": index, "one.safetensors": files[0],
                  "two.safetensors": files[1]}),
        ]  # fmt: skip

    @staticmethod
    def _file(header: Any, size: int) -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + bytes(size)

    def change(self, rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
        files = unpack(seed)
        name = rng.choice(sorted(files))
        if name.endswith(".json"):
            files[name] = changed_json(
                rng, files[name], ("weight_map", "model_type", "one.safetensors", "../x")
            )
        elif rng.random() < 0.6:
            files[name] = self._other_header(rng, files[name])
        else:
            files[name] = spoil(rng, files[name], (), near=2.0)
        return pack(files)

    def _other_header(self, rng: random.Random, data: bytes) -> bytes:
        size = int.from_bytes(data[:8], "little")
        try:
            header = json.loads(data[8 : 8 + size])
        except (ValueError, RecursionError):
            return spoil(rng, data, ())
        words = ("dtype", "shape", "data_offsets", "F16", "F8_E4M3", "__metadata__", "t")
        header = spoil_json(rng, header, words)
        return self._file(header, 0) + data[8 + size :]

    def run(self, data: bytes) -> str:
        put(self._folder, unpack(data))
        return guarded(self._parse)

    def _parse(self) -> str:
        checkpoint = read_all(self._folder)
        return f"read {len(checkpoint.tensors)} {len(checkpoint.content_hash())}"


def changed_json(rng: random.Random, data: bytes, words: Sequence[str]) -> bytes:
    """A JSON text whose value is changed, or its bytes."""
    if rng.random() < 0.2:
        return spoil(rng, data, ())
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return spoil(rng, data, ())
    return json.dumps(spoil_json(rng, value, words, [value])).encode("utf-8", errors="replace")


class TokenizerFolder:
    """tokenizer.json of every kind, and the small files beside it."""

    base_s, byte_s, memory = 0.05, 2e-6, 256 << 20
    words = (
        "type", "model", "vocab", "merges", "added_tokens", "normalizer", "pre_tokenizer", "decoder",
        "pattern",
        "Regex", "String", "content", "id", "special", "normalized", "single_word", "unk_token", "unk_id",
        "byte_fallback", "post_processor", "Sequence", "BPE", "WordPiece", "Unigram", "WordLevel",
        "ByteLevel",
        "Metaspace", "Split", "NFKC", "Replace", "Fuse", "Strip", "TemplateProcessing", "truncation",
        "padding",
        "eos_token", "eos_token_id", "chat_template", "default", "▁", "<|im_end|>", "(a|b)+", "[^",
        "x{1,9999}",
    )  # fmt: skip

    def __init__(self) -> None:
        self._folder = scratch()
        self.seeds = [pack(files) for files in tiny_files.tokenizer_files().values()]

    def change(self, rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
        files = unpack(seed)
        name = "tokenizer.json" if rng.random() < 0.8 else rng.choice(sorted(files))
        if name in files:
            files[name] = changed_json(rng, files[name], self.words)
        return pack(files)

    def run(self, data: bytes) -> str:
        put(self._folder, unpack(data))
        return guarded(lambda: use(from_folder(self._folder)))


class Loads:
    """A whole model: files, tokenizer, weights, pages, program, and two tokens."""

    base_s, byte_s, memory = 1.5, 1e-5, 1 << 30
    words = (
        *tiny_files.CONFIG, "rope_scaling", "rope_parameters", "rope_type", "factor", "layer_types",
        "head_dim",
        "sliding_window", "attention_bias", "quantization_config", "quant_method", "gelu", "yarn", "mistral",
        "qwen2", "gemma2", "mixtral", "gpt2", "t5", "max_window_layers", "use_sliding_window",
    )  # fmt: skip

    def __init__(self) -> None:
        self._folder = scratch()
        path = self._folder / "model.gguf"
        kinds = (("F32", True), ("Q4_0", False), ("Q8_0", True))
        self.seeds = [tiny_files.model_gguf(path, kind, spm) for kind, spm in kinds]
        self.seeds += [pack(tiny_files.folder(changes)) for changes in tiny_files.FAMILIES]

    def change(self, rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
        if not seed.startswith(b"{"):
            return spoil(rng, seed, (), near=3.0)
        files = unpack(seed)
        name = rng.choice(("config.json", "config.json", *sorted(files)))
        if name.endswith(".json"):
            files[name] = changed_json(rng, files.get(name, b"{}"), self.words)
        else:
            files[name] = spoil(rng, files[name], (), near=2.0)
        return pack(files)

    def run(self, data: bytes) -> str:
        is_folder = data.startswith(b"{")
        put(self._folder, unpack(data) if is_folder else {"model.gguf": data})
        path = self._folder if is_folder else self._folder / "model.gguf"
        return guarded(self._load, path, zlib.crc32(data))

    def _load(self, path: Path, number: int) -> str:
        from octavo.assembly import core_of, load
        from octavo.config import EngineConfig
        from octavo.kernels.select import native_available
        from octavo.params import SamplingParams

        user = EngineConfig(
            str(path), backend="cpu" if native_available() else "reference", device="cpu", threads=1, seed=0,
            num_pages=8, max_num_seqs=2, max_model_len=32 if number & 1 else None,
            dtype="float32" if number & 6 == 6 else "auto",
        )  # fmt: skip
        core = core_of(load(user))
        try:
            core.add_request("r", [3, 4, 5], SamplingParams(max_tokens=2, temperature=0, ignore_eos=True))
            reasons = []
            while core.has_unfinished():
                reasons += [update.finish_reason for update in core.step() if update.finish_reason]
            core.check_integrity()
        finally:
            core.close()
        return f"computed {reasons}"
