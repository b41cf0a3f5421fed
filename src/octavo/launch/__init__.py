"""Other people's programs, started with an Octavo server behind them.

Each file of this folder that holds a TOOL is one, and nothing else lists them.
"""

from __future__ import annotations

import importlib
import pkgutil

from octavo.launch.base import Settings, Tool
from octavo.launch.served import Served, served_at


def find() -> dict[str, Tool]:
    """The TOOL of each file, by its name."""
    files = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    return {file.TOOL.name: file.TOOL for file in files if hasattr(file, "TOOL")}


TOOLS = find()

__all__ = ["TOOLS", "Served", "Settings", "Tool", "served_at"]
