"""to(device): nothing is moved, so it must name where things are."""

from __future__ import annotations

import re
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.kernels.cuda.device import find_gpu, why_not


def kind_of(device: object) -> str:
    """cpu or cuda of a device: a name, torch's own, or a GPU's number.

    Raises:
        InvalidRequestError: it is none. UnsupportedError: it is a dtype, which loading chooses.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return "cuda"
    name = str(device)
    if re.fullmatch(r"(torch\.)?(float|bfloat|int)\d+", name):
        raise UnsupportedError(f"to({name}): the dtype is chosen when a model is loaded: dtype=", "dtype")
    if (found := re.fullmatch(r"(cpu|cuda)(:\d+)?", name)) is None:
        raise InvalidRequestError(f"device must be cpu, cuda or cuda:N, not {name[:60]!r}", "device")
    return found[1]


def check_ids_go(device: object) -> None:
    """Ids are taken wherever a model may be.

    Raises:
        InvalidRequestError: it is no device, or one that this machine has not.
    """
    if kind_of(device) == "cuda" and (why := why_not(find_gpu())) is not None:
        raise InvalidRequestError(f"device {str(device)!r} cannot be used: {why}", "device")


class Ids(np.ndarray[Any, np.dtype[np.int64]]):
    """An array of token ids with the calls that scripts make of a tensor."""

    def to(self, device: object, **options: Any) -> Self:
        """Itself: ids go to the engine, which is where the model is.

        Raises:
            InvalidRequestError: this machine has no such device.
        """
        check_ids_go(device)
        return self

    def cpu(self) -> Self:
        return self

    def cuda(self) -> Self:
        return self.to("cuda")

    def numpy(self) -> npt.NDArray[np.int64]:
        return self.view(np.ndarray)


def as_ids(given: object) -> Ids:
    return np.array(given, np.int64).view(Ids)
