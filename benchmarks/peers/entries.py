"""Who is compared: an engine, a file that it reads, and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from peers import files
from peers.rows import GROUPS, OURS, OURS_F16, OURS_INT8, THEIRS, THEIRS_Q8, Row, Shape

MODULES = {
    "octavo": "octavo",
    "llama.cpp": "llama_cpp",
    "transformers": "transformers",
    "openvino-genai": "openvino_genai",
    "vllm": "vllm",
}
"""Engines, and the modules that say whether a Python has them."""
SLOW = ("transformers", "openvino-genai", "vllm")
SHIPPED, Q4_0 = "as shipped", "Q4_0"


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine with a model's file and its settings.

    Attributes:
        group: what rows call it (peers.rows.GROUPS): all of a group do the same kind of work.
        engine: the module of engines/ that drives it.
        form: which file of the model: as it is shipped, or requantized to Q4_0 by llama.cpp.
        fixed: options that make it one of its group. chosen: options that were found to suit it.
    """

    group: str
    engine: str
    model: Path
    python: str
    form: str = SHIPPED
    fixed: Mapping[str, Any] = field(default_factory=dict)
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What tables say."""
        settings = [f"{name}={value}" for name, value in self.chosen.items()]
        return f"{self.group}: {', '.join([self.form, *settings])}"

    @property
    def options(self) -> dict[str, Any]:
        """What its engine is given."""
        return {**self.fixed, **self.chosen}

    def with_settings(self, settings: Mapping[str, Any]) -> Entry:
        return replace(self, chosen=dict(settings))


def group_of(name: str) -> str:
    """The group of an entry with this name."""
    return name.partition(":")[0]


def entries(model: str, pythons: Mapping[str, str], ours: dict[str, Any]) -> list[Entry]:
    """All that could be compared on this model, each file of it apart, without settings.

    Args:
        pythons: engine -> a Python that has it. ours: options that Octavo is given.
    """
    found: list[Entry] = []
    forms = {SHIPPED: files.shipped(model)}
    if "llama.cpp" in pythons and (best := files.requantized(model, pythons["llama.cpp"])) != forms[SHIPPED]:
        forms[Q4_0] = best
    for engine, python in pythons.items():
        for form, path in forms.items():
            if engine == "octavo":
                for group, pages in (
                    (OURS, {}),
                    (OURS_INT8, {"kv_cache_dtype": "int8"}),
                    (OURS_F16, {"kv_cache_dtype": "float16"}),
                ):
                    found.append(Entry(group, engine, path, python, form, {**ours, **pages}))
            elif engine == "llama.cpp":
                found.append(Entry(THEIRS, "llama_cpp", path, python, form))
                found.append(Entry(THEIRS_Q8, "llama_cpp", path, python, form, {"kv_type": "q8_0"}))
            elif engine == "vllm":
                folder = files.folder(model, pythons.get("transformers", python))
                found += [Entry(engine, MODULES[engine], folder, python)] * (form == SHIPPED)
            elif engine == "openvino-genai" or form == SHIPPED:
                found.append(Entry(engine, MODULES[engine], path, python, form))
    assert {entry.group for entry in found} <= set(GROUPS)
    return found


def wanted(entry: Entry, shape: Shape, rows: Sequence[Row]) -> bool:
    """Whether some row of the shape speaks of its group; the slow peers only stand beside light shapes."""
    named = {group for row in rows for group in (row.ours, row.over)}
    if entry.group in named:
        return True
    return entry.group in SLOW and not shape.heavy
