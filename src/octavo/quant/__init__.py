"""Number formats of checkpoints, one file each: stored bytes in, Weights that kernels know out."""

from octavo.quant.registry import Format, get_format, names, vector, weight

__all__ = ["Format", "get_format", "names", "vector", "weight"]
