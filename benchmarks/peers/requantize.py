"""llama.cpp's best format on CPUs: a GGUF file requantized to Q4_0 by llama.cpp itself.

    python benchmarks/peers/requantize.py IN.gguf OUT.gguf

Needs llama_cpp. The embedding stays at the 8 bits that llama.cpp gives it.
"""

from __future__ import annotations

import argparse
import sys

import llama_cpp

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("out")
    options = parser.parse_args()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    llama_cpp.llama_backend_init()
    status = llama_cpp.llama_model_quantize(options.source.encode(), options.out.encode(), params)
    sys.exit(f"llama_model_quantize returned {status}" if status else 0)
