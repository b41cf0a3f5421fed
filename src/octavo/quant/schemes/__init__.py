"""How quantized checkpoints spread a matrix over several tensors: one file for each `quant_method`.

config.json's quantization_config names the method; `schemes/<method>.py` holds its `open_scheme`.
"""

from octavo.quant.scheme import Scheme, names, scheme_of

__all__ = ["Scheme", "names", "scheme_of"]
