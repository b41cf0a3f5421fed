"""In which format weights are: EngineConfig.quantization, by vLLM's, TGI's and transformers' names."""

from __future__ import annotations

from octavo.errors import UnsupportedError

STORED = (
    "gguf",
    "gptq",
    "gptq_marlin",
    "awq",
    "awq_marlin",
    "bitsandbytes",
    "bitsandbytes-nf4",
    "bitsandbytes-fp4",
    "compressed-tensors",
    "fp8",
)
"""What files may be; one may be named beside a file of that kind, and no other."""
ON_LOAD = ("int8", "eetq", "int4", "nf4", "bitsandbytes-nf4", "fp8")
"""What floats become while they are loaded (quant/making)."""
METHODS = tuple(dict.fromkeys((*STORED, *ON_LOAD)))


def check_quantization(method: str | None) -> None:
    """Whether a file is of that kind, or can be made so, shows when it is opened (quant/on_load.py).

    Raises:
        UnsupportedError: there is no such method.
    """
    if method is not None and method not in METHODS:
        raise UnsupportedError(
            f"quantization {method!r} is not supported; {', '.join(METHODS)} are", "quantization"
        )
