"""Text to token ids and back: Tokenizer, chat template, incremental detokenizer, stop strings."""

from octavo.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
