"""The configuration: EngineConfig is what the user asked for, SchedulerConfig the engine's numbers."""

from octavo.config.scheduler import MAX_IN_FLIGHT, POLICIES, SchedulerConfig, pages_at_a_time
from octavo.config.user import DISK_SPACE, KV_DTYPES, MAX_THREADS, EngineConfig

__all__ = [
    "DISK_SPACE",
    "KV_DTYPES",
    "MAX_IN_FLIGHT",
    "MAX_THREADS",
    "POLICIES",
    "EngineConfig",
    "SchedulerConfig",
    "pages_at_a_time",
]
