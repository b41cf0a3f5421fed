"""A Tokenizer from a Hugging Face folder: tokenizer.json and the small JSON files beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import CheckpointError
from octavo.tokenizer.tokenizer import Tokenizer, is_foreign, one_line

if TYPE_CHECKING:
    import tokenizers

_MAX_BYTES = 256 << 20
_SENTENCEPIECE = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")


def from_folder(path: str | Path) -> Tokenizer:
    """A Tokenizer from a folder with tokenizer.json (and tokenizer_config.json and the like).

    Raises:
        CheckpointError: tokenizer.json is missing, broken, or of a kind that is not supported.
    """
    path = Path(path)
    file = path / "tokenizer.json"
    if not file.exists():
        old = next((name for name in _SENTENCEPIECE if (path / name).exists()), None)
        raise CheckpointError(
            f"{path} has no tokenizer.json; a fast tokenizer is needed"
            + (f" (made of {old} by transformers: AutoTokenizer, then save_pretrained)" if old else "")
        )
    source = _read(file)
    backend = _parse_backend(source, str(file))
    if _reads_lookalikes(backend):
        backend = _parse_backend(_as_written(source, file), str(file))
    # A checkpoint may fix a training length here; the engine has its own limit, with a clear error.
    backend.no_truncation()
    backend.no_padding()
    config = _json(path / "tokenizer_config.json")
    generation = _json(path / "generation_config.json") or _json(path / "config.json")
    special = {k: text for k in config if k.endswith("_token") and (text := _token(config[k])) is not None}
    ids = {name: backend.token_to_id(text) for name, text in special.items()}
    stated = generation.get("eos_token_id")
    ends = _end_ids(stated)
    eos = ids.get("eos_token")
    return Tokenizer(
        backend,
        bos_token_id=ids.get("bos_token"),
        eos_token_id=eos if eos is not None or not ends else ends[0],
        stop_token_ids=ends,
        special_tokens=special,
        chat_template=_template(path, config),
    )


def _reads_lookalikes(backend: tokenizers.Tokenizer) -> bool:
    """Whether a token that is matched in normalized text is found where others stand: wide letters, capitals,
    a soft hyphen inside. A user who types those would write a control token, and nobody would see it."""
    normalizer = backend.normalizer
    if normalizer is None:
        return False
    for token in backend.get_added_tokens_decoder().values():
        content = token.content
        if token.normalized and len(content) > 1:
            wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in content)
            others = {wide, content.upper(), content.lower(), content[0] + "\u00ad" + content[1:]} - {content}
            meant = normalizer.normalize_str(content)
            if any(normalizer.normalize_str(other) == meant for other in others):
                return True
    return False


def _as_written(text: str, file: Path) -> str:
    """The tokenizer's JSON with added tokens found only where they stand as they are written."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # the library's own parser takes some that is none
        raise CheckpointError(f"{file} is not valid JSON") from None
    for token in value["added_tokens"]:
        token["normalized"] = False
    return json.dumps(value)


def _end_ids(stated: object) -> list[int]:
    ids: list[Any] = stated if isinstance(stated, list) else [stated]
    for wrong in (i for i in ids if i is not None and type(i) is not int):
        raise CheckpointError(f"generation_config.json: eos_token_id must be token ids, not {wrong!r:.80}")
    return [i for i in ids if i is not None]


def _token(value: Any) -> str | None:
    """A token is written as text, or as {"content": text, ...}."""
    if isinstance(value, dict):
        value = value.get("content")
    if isinstance(value, str) and not _is_text(value):
        raise CheckpointError("tokenizer_config.json: a special token holds half of a surrogate pair")
    return value if isinstance(value, str) else None


def _is_text(value: str) -> bool:
    """Whether it can be written down: JSON may spell half of a character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _template(path: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja wins over tokenizer_config.json, whose list of named ones has a default."""
    file = path / "chat_template.jinja"
    if file.exists():
        return _read(file)
    value = config.get("chat_template") or _json(path / "chat_template.json").get("chat_template")
    if isinstance(value, list):
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise CheckpointError(f"{file} is larger than {_MAX_BYTES >> 20} MB")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"cannot open {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{file} is not UTF-8") from None


def _json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, {} where there is none."""
    if not file.exists():
        return {}
    try:
        value = json.loads(_read(file))
    except (ValueError, RecursionError):
        raise CheckpointError(f"{file} is not valid JSON") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} does not hold a JSON object")
    return value


def _parse_backend(text: str, where: str) -> tokenizers.Tokenizer:
    """A tokenizers.Tokenizer from its JSON, or CheckpointError."""
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(text)
    except BaseException as error:
        if not is_foreign(error):
            raise
        raise CheckpointError(f"{where} is not a tokenizer: {one_line(error)}") from None
