"""KV of windows alone for layers that see no more, beside all of it for every layer."""

from __future__ import annotations

from octavo.errors import UnsupportedError
from octavo.lab.ablations import Found, Setting, Technique


def measure(setting: Setting) -> Found:
    """What start-up allocates for one sequence of the shared engine's longest, both ways."""
    length = setting.loaded.config.max_model_len
    pages = -(-length // setting.loaded.config.page_size)
    sides = {"windows": {}, "everything": {"num_sliding_pages": pages}}
    found = {}
    for name, more in sides.items():
        driver = setting.driver(max_model_len=length, max_num_seqs=1, num_pages=pages, **more)
        found[name] = driver.loaded.memory.kv_cache / 1e6
    window = setting.loaded.config.sliding_window
    return Found(
        "MB of KV",
        (("windows alone", found["windows"]), ("everything", found["everything"])),
        False,
        f"most layers see {window} tokens, and keep so many of {length}",
        {"sliding_window": {"tokens": length, **found}},
        {"windows over everything": found["everything"] / found["windows"]},
    )


def needs(setting: Setting) -> None:
    if setting.loaded.config.sliding_window is None:
        raise UnsupportedError("no layer of this model has a window beside layers that see everything")


TECHNIQUE = Technique(
    "sliding-window",
    "a layer with a window keeps its window, however long the context",
    "Gemma Team 2025, Gemma 3, section 5.2",
    measure,
    needs,
)
