"""Weights as the file quantizes them, beside 32 bits each."""

from __future__ import annotations

from octavo.errors import UnsupportedError
from octavo.lab.ablations import Found, Setting, Technique
from octavo.lab.ablations.batched_decode import PROMPT, decode_rate

LEAST = 1.5
"""Times as large as the file's weights are in 32 bits, or they are hardly quantized."""


def measure(setting: Setting) -> Found:
    tokens = setting.size(48, 16)
    small = {"max_model_len": PROMPT + tokens + 1, "max_num_seqs": 1}
    stored, wide = setting.driver(**small), setting.driver(**small | {"dtype": "float32"})
    sizes = [driver.loaded.memory.weights / 1e6 for driver in (stored, wide)]
    if sizes[1] < LEAST * sizes[0]:
        raise UnsupportedError("this model's weights are not quantized")
    found = setting.medians(
        {
            "quantized": lambda seed: decode_rate(stored, 1, tokens, seed),
            "float32": lambda seed: decode_rate(wide, 1, tokens, seed),
        }
    )
    return Found(
        "tokens/s, one stream",
        (("as stored", found["quantized"]), ("float32", found["float32"])),
        True,
        f"a step reads {sizes[0]:.0f} MB of weights instead of {sizes[1]:.0f}",
        {"quantized_weights": {**found, "stored_mb": sizes[0], "float32_mb": sizes[1]}},
        {"quantized over float32": found["quantized"] / found["float32"]},
    )


def needs(setting: Setting) -> None:
    if setting.options.get("dtype") == "float32":
        raise UnsupportedError("with --dtype float32 there is nothing quantized to compare")


TECHNIQUE = Technique(
    "quantized-weights",
    "decoding is bound by the bytes of the weights: fewer bits, more tokens",
    "Dettmers et al. 2022, LLM.int8(); Frantar et al. 2023, GPTQ, section 1",
    measure,
    needs,
)
