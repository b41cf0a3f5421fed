"""From an EngineConfig to a loaded model: the one place where all rooms meet."""

from octavo.assembly.engine import core_of, limits_of, reset_prefix_cache, restart, states_of
from octavo.assembly.loading import Loaded, Progress, least_bytes, load

__all__ = [
    "Loaded",
    "Progress",
    "core_of",
    "least_bytes",
    "limits_of",
    "load",
    "reset_prefix_cache",
    "restart",
    "states_of",
]
