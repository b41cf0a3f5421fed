"""Work that strangers can make endless, in processes that can be killed: grammars, and models' templates."""

from octavo.confined.process import Confined, JobKilledError, UnavailableError

__all__ = ["Confined", "JobKilledError", "UnavailableError"]
