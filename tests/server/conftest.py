"""A scripted engine behind the real app."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from octavo.server.app import create_app
from octavo.server.log_limit import RateFilter
from support.fake_engine import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def app(engine: FakeEngine) -> FastAPI:
    return create_app(engine)


@pytest.fixture(autouse=True)
def whole_logs() -> Iterator[None]:
    """A server that a test ran has bounded the lines of loggers that all tests of the process share."""
    yield
    for name in ("octavo.server", "octavo.access", "uvicorn.error"):
        logger = logging.getLogger(name)
        for each in [one for one in logger.filters if isinstance(one, RateFilter)]:
            logger.removeFilter(each)
