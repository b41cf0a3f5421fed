"""A scripted engine behind the real app."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from octavo.server.app import create_app
from support.fake_engine import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def app(engine: FakeEngine) -> FastAPI:
    return create_app(engine)
