"""Keys and values kept from one token to the next, beside computing all of them again for each."""

from __future__ import annotations

from octavo.bench.workload import random_prompts
from octavo.lab.ablations import Found, Setting, Technique


def sizes(setting: Setting) -> tuple[int, int]:
    """Tokens of the prompt, and those that are drawn after it."""
    return setting.size(1024, 384), setting.size(8, 4)


def measure(setting: Setting) -> Found:
    """The same tokens after the same prompts: decoded, and each by a prompt one token longer."""
    context, new = sizes(setting)
    driver = setting.driver(max_model_len=context + new + 1, max_num_seqs=1)
    vocab = driver.vocab_size

    def kept(seed: int) -> float:
        run = driver.run(random_prompts(1, context, vocab, seed), new + 1)
        return 1e3 * run.decode_s / new

    def again(seed: int) -> float:
        ids = random_prompts(1, context + new, vocab, seed)[0]
        runs = [driver.run([ids[: context + n + 1]], 1) for n in range(new)]
        return 1e3 * sum(run.prompt_s for run in runs) / new

    found = setting.medians({"kept": kept, "computed again": again})
    return Found(
        "ms a token",
        (("kept", found["kept"]), ("computed again", found["computed again"])),
        False,
        f"after {context} tokens a new one computes itself, not {context} others",
        {"kv_cache": {"context": context, **found}},
        {"kept over computed again": found["computed again"] / found["kept"]},
    )


def needs(setting: Setting) -> None:
    setting.need(sum(sizes(setting)) + 1)


TECHNIQUE = Technique(
    "kv-cache",
    "with keys and values kept, n tokens cost n steps and not n squared",
    "Pope et al. 2023, Efficiently scaling transformer inference, section 2",
    measure,
    needs,
)
