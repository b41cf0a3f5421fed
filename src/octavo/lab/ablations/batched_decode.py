"""Many sequences a step, beside one."""

from __future__ import annotations

from octavo.bench.driver import Driver
from octavo.bench.workload import random_prompts
from octavo.errors import UnsupportedError
from octavo.lab.ablations import Found, Setting, Technique

ROWS = 16
PROMPT = 16


def decode_rate(driver: Driver, rows: int, new_tokens: int, seed: int) -> float:
    """Tokens a second of steps in which all decode."""
    run = driver.run(random_prompts(rows, PROMPT, driver.vocab_size, seed), new_tokens)
    full = [step.seconds for step in run.decode if step.tokens == rows]
    return rows * len(full) / sum(full)


def measure(setting: Setting) -> Found:
    tokens = setting.size(64, 24)
    driver = setting.driver(max_model_len=PROMPT + tokens + 1, max_num_seqs=ROWS)
    sides = {rows: (lambda seed, rows=rows: decode_rate(driver, rows, tokens, seed)) for rows in (ROWS, 1)}
    found = setting.medians({str(rows): side for rows, side in sides.items()})
    return Found(
        "tokens/s",
        ((f"{ROWS} at once", found[str(ROWS)]), ("one", found["1"])),
        True,
        "each step reads all weights once, for however many sequences",
        {"batched_decode": found},
        {f"{ROWS} at once over one": found[str(ROWS)] / found["1"]},
    )


def needs(setting: Setting) -> None:
    if int(setting.options.get("max_num_seqs", ROWS)) < ROWS:
        raise UnsupportedError(f"it needs --max-num-seqs of {ROWS}")


TECHNIQUE = Technique(
    "batched-decode",
    "decoding waits for weights from memory, so a larger batch costs little more than one sequence",
    "Williams et al. 2009, the roofline; Pope et al. 2023, section 2",
    measure,
    needs,
)
