"""Keys and values in eight bits, beside sixteen."""

from __future__ import annotations

from octavo.bench.driver import Driver
from octavo.bench.workload import random_prompts
from octavo.errors import UnsupportedError
from octavo.lab.ablations import Found, Setting, Technique

NEW = 12


def step_ms(driver: Driver, context: int, seed: int) -> float:
    """Of decoding one sequence after so many tokens."""
    run = driver.run(random_prompts(1, context, driver.vocab_size, seed), NEW)
    return 1e3 * run.decode_s / len(run.decode)


def measure(setting: Setting) -> Found:
    context = setting.size(4096, 1024)
    small = {"max_model_len": context + NEW + 1, "max_num_seqs": 1}
    drivers = {
        name: setting.driver(**small | {"kv_cache_dtype": name}) for name in ("int8", "float16", "float32")
    }
    sides = {
        name: (lambda seed, driver=driver: step_ms(driver, context, seed)) for name, driver in drivers.items()
    }
    found = setting.medians(sides)
    sizes = {f"{name}_bytes": each.loaded.memory.bytes_per_token for name, each in drivers.items()}
    return Found(
        "ms a token",
        tuple((f"{name} pages", found[name]) for name in drivers),
        False,
        f"after {context} tokens a step reads {sizes['int8_bytes']:,} bytes of KV for each of them and "
        f"not {sizes['float16_bytes']:,}, and twice as many fit",
        {"kv_formats": {"context": context, **found, **sizes}},
        {"int8 over float16": found["float16"] / found["int8"]},
    )


def needs(setting: Setting) -> None:
    setting.need(setting.size(4096, 1024) + NEW + 1)
    if setting.options.get("device", "auto") not in ("auto", "cpu"):
        raise UnsupportedError("a GPU's pages have the activations' type: it needs --device cpu")


TECHNIQUE = Technique(
    "kv-formats",
    "keys and values of eight bits double the tokens that fit, and a long context is read faster",
    "Sheng et al. 2023, FlexGen, section 4",
    measure,
    needs,
)
