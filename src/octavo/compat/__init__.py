"""Loaders of transformers, AutoGPTQ and AutoAWQ by their names, thin over LLM: change the import alone.

    from octavo.compat import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
    from octavo.compat import AutoAWQForCausalLM, AutoGPTQForCausalLM

There is no torch below: ids are NumPy arrays, whatever return_tensors says, and models are not called.
"""

from octavo.compat.models import (
    AutoAWQForCausalLM,
    AutoGPTQForCausalLM,
    AutoModelForCausalLM,
    CausalLM,
)
from octavo.compat.quantization import BitsAndBytesConfig
from octavo.compat.tokenizers import AutoTokenizer, Encoding, PlainTokenizer

__all__ = [
    "AutoAWQForCausalLM",
    "AutoGPTQForCausalLM",
    "AutoModelForCausalLM",
    "AutoTokenizer",
    "BitsAndBytesConfig",
    "CausalLM",
    "Encoding",
    "PlainTokenizer",
]
