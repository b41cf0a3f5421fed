"""A GGUF file requantized by llama.cpp itself: to Q4_0, its best format on CPUs, or to another of its types.

    python benchmarks/peers/requantize.py IN.gguf OUT.gguf [--type Q4_0|Q2_K|Q3_K_M|Q4_K_M|Q5_K_M|Q6_K|...]

Needs llama_cpp. The embedding stays at the 8 bits that llama.cpp gives it beside Q4_0.
"""

from __future__ import annotations

import argparse
import sys

import llama_cpp

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--type", default="Q4_0", help="as llama.cpp's LLAMA_FTYPE_MOSTLY_... spell it")
    options = parser.parse_args()
    kind = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{options.type}", None)
    if kind is None:
        sys.exit(f"llama.cpp has no type {options.type}")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = kind
    params.allow_requantize = True
    llama_cpp.llama_backend_init()
    status = llama_cpp.llama_model_quantize(options.source.encode(), options.out.encode(), params)
    sys.exit(f"llama_model_quantize returned {status}" if status else 0)
