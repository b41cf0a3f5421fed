"""Every error that a user of Octavo is meant to read: one line, naming what to change."""

from __future__ import annotations

GRAMMAR_FAILED = "the grammar failed"
NO_TOKEN_ALLOWED = "no token is allowed"
"""How the message of a request begins that its own grammar has ended."""


class OctavoError(Exception):
    """Base of all errors with a message made for people. Commands print it and exit 1 (wrong requests: 2)."""


class InvalidRequestError(OctavoError, ValueError):
    """A value in a request is wrong; HTTP answers 400.

    Attributes:
        param: name of the offending field, or None.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedError(InvalidRequestError):
    """The value is well formed, but Octavo does not do this (yet); never ignored in silence."""


class CheckpointError(OctavoError):
    """A model file or folder is broken, foreign, or contradicts itself."""


class UnknownModelError(CheckpointError):
    """The name is none of a model: no alias, file, folder or hub id."""


class CapacityError(OctavoError):
    """The machine or the configured limits cannot hold this; the message gives the number needed."""


class OverloadedError(OctavoError):
    """A bounded queue is full; HTTP answers 429 with Retry-After."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDownError(OverloadedError):
    """No new work is taken any more: another server may; HTTP answers 503 with Retry-After."""


class EngineDeadError(OctavoError):
    """The engine thread has stopped; no further request can be served by this process."""


class EngineEndedError(EngineDeadError):
    """The same in words that clients may read: they name nothing of the machine."""


class RequestFailedError(OctavoError):
    """The engine could not finish this request, through no fault of the caller; others go on."""


class StepTooLargeError(CapacityError):
    """The device has no memory for a step; its requests can be computed in smaller ones."""


class DeviceLostError(OctavoError):
    """The device has failed for good: nothing in this process can use it any more."""
