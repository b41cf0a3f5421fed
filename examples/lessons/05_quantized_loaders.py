"""Lesson on inference optimization, 5.2, lines 429-475: load_4bit_model, load_gptq_model, load_awq_model.

What differs: the three loaders come from octavo.compat. A dtype is its name, as nothing here needs torch;
torch.bfloat16 is taken, too. What is not loaded is named in one line: by default all three are given a GGUF
file, whose four bits are there already, so the first is told that it makes none of them. Give --gptq and
--awq checkpoints of those kinds, and --model a float one.
"""

import argparse
from typing import Any

from octavo.compat import AutoAWQForCausalLM, AutoGPTQForCausalLM, AutoModelForCausalLM, BitsAndBytesConfig
from octavo.errors import OctavoError


def load_4bit_model(model_name: str) -> Any:
    bnb_config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype="bfloat16",
        bnb_4bit_use_double_quant=True,
    )
    return AutoModelForCausalLM.from_pretrained(model_name, quantization_config=bnb_config, device_map="auto")


def load_gptq_model(model_name: str) -> Any:
    return AutoGPTQForCausalLM.from_quantized(model_name, device_map="auto", use_safetensors=True)


def load_awq_model(model_name: str) -> Any:
    return AutoAWQForCausalLM.from_quantized(model_name, fuse_layers=True, device_map="auto")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--gptq", help="the model by default")
    parser.add_argument("--awq", help="the model by default")
    parser.add_argument("--max-tokens", type=int, default=4)
    options = parser.parse_args()

    loaders = {
        load_4bit_model: options.model,
        load_gptq_model: options.gptq or options.model,
        load_awq_model: options.awq or options.model,
    }
    for load, name in loaders.items():
        try:
            model = load(name)
        except OctavoError as error:
            print(f"{load.__name__}: {error}")
            continue
        tokens = model.generate([[1, 2, 3]], max_new_tokens=options.max_tokens)
        print(f"{load.__name__}: {tokens.shape[1]} tokens")
        model.llm.shutdown()


if __name__ == "__main__":
    main()
