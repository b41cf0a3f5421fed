"""When each request of a load is sent, in seconds from its beginning."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from octavo.bench.serving.exchange import LoadRequest
from octavo.errors import InvalidRequestError


def drawn(count: int, rate: float, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Arrivals of an open load: gaps of a gamma distribution with the mean 1 / rate.

    Args:
        rate: requests a second; infinite: all are there at once.
        burstiness: the distribution's shape. 1 is a Poisson process; below 1 requests come in bursts, above 1
            more evenly (vLLM's word for it, and its rule).

    Raises:
        InvalidRequestError: a number is not above 0.
    """
    for name, value in (("--request-rate", rate), ("--burstiness", burstiness)):
        if not value > 0:  # nor is NaN
            raise InvalidRequestError(f"{name} must be above 0, not {value}")
    if math.isinf(burstiness):
        raise InvalidRequestError("--burstiness must be a number, not inf")
    if math.isinf(rate):
        return [0.0] * count
    draw = random.Random(f"arrivals {count} {rate} {burstiness} {seed}")
    now, found = 0.0, []
    for _ in range(count):
        found.append(now)
        now += draw.gammavariate(burstiness, 1 / (rate * burstiness))
    return found


def of_trace(calls: Sequence[LoadRequest], speed: float = 1.0) -> list[float]:
    """Arrivals as a trace has them, this many times as fast.

    Raises:
        InvalidRequestError: a call is from no trace, or speed is not above 0.
    """
    if not 0 < speed < math.inf:
        raise InvalidRequestError(f"--speed must be above 0, not {speed}")
    times = [call.arrival_s for call in calls if call.arrival_s is not None]
    if len(times) != len(calls):
        raise InvalidRequestError("this data set has no times of arrival: --speed is for traces")
    return [time / speed for time in times]
