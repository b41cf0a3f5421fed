"""What an answer must look like: grammars, schemas and bad words become the sampler's constraints."""

from octavo.structured.compile_pool import GrammarStats, is_compiling
from octavo.structured.compiler import ConstraintCompiler, compiled
from octavo.structured.no_repeat_ngram import NoRepeatNgram

__all__ = ["ConstraintCompiler", "GrammarStats", "NoRepeatNgram", "compiled", "is_compiling"]
