"""A GGUF file as a folder of safetensors, for engines that read nothing else.

    python benchmarks/peers/folder.py IN.gguf OUT

Needs transformers, gguf and accelerate; weights come out as float32.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import transformers

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    source = {"pretrained_model_name_or_path": options.source.parent, "gguf_file": options.source.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # Newer releases remember that the file was quantized, and refuse to save what no longer is.
    vars(model)["hf_quantizer"] = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(options.out)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(options.out)
