"""A model's tokenizer and chat template, or those that the user gave in their place."""

from __future__ import annotations

from pathlib import Path

from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.base import Checkpoint
from octavo.checkpoints.sources import default_cache_dir
from octavo.checkpoints.sources import resolve as find
from octavo.config import EngineConfig
from octavo.errors import CheckpointError, InvalidRequestError
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.chat import ChatTemplate
from octavo.tokenizer.folder import from_folder
from octavo.tokenizer.gguf import from_gguf


def tokenizer_and_template(
    user: EngineConfig, checkpoint: Checkpoint, path: Path
) -> tuple[Tokenizer, ChatTemplate]:
    """The tokenizer and the chat template: the model's own, or what the user gave."""
    if user.tokenizer is not None:
        try:
            path = find(user.tokenizer, weights=False)
        except CheckpointError as error:
            text = str(error).replace("unknown model", "unknown tokenizer")
            raise InvalidRequestError(f"--tokenizer: {text}", "tokenizer") from None
        checkpoint = checkpoint if path.is_dir() else open_checkpoint(path)
    if path.is_dir():
        tokenizer = from_folder(path)
    else:
        tokenizer = from_gguf(checkpoint.config, default_cache_dir() / "merges")
    source = tokenizer.chat_template if user.chat_template is None else _template(user.chat_template)
    template = ChatTemplate(source, tokenizer.special_tokens)
    if user.chat_template is not None:
        template.compile()  # a mistake in it stops the start of the engine, not a chat
    return tokenizer, template


def _template(given: str) -> str:
    """A template's text, given as such or as a file's path. Jinja has braces, paths seldom do."""
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"chat template {given!r} cannot be read: {error}", "chat_template"
        ) from None
