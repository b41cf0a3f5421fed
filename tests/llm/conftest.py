"""One LLM per backend and precision, shared by the tests of a session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo import LLM
from octavo.kernels.select import native_available

BACKENDS = ["cpu", "reference"] if native_available() else ["reference"]


@pytest.fixture(scope="session")
def smollm2_llm() -> Callable[..., LLM]:
    """(options) -> LLM("smollm2", **options), made once for equal options."""
    made: dict[tuple[tuple[str, object], ...], LLM] = {}

    def get(**options: object) -> LLM:
        key = tuple(sorted(options.items()))
        if key not in made:
            made[key] = LLM("smollm2", **options)
        return made[key]

    return get


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fastest() -> str:
    """The native kernels, or what runs where they were not built. For what the reference need not repeat."""
    return BACKENDS[0]
