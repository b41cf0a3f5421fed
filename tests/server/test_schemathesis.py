"""The OpenAPI document against the app: what it describes is taken, and nothing ends in a 500."""

from __future__ import annotations

import warnings

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

from octavo.server.app import create_app
from support.fake_engine import FakeEngine

APP = create_app(FakeEngine(max_model_len=100_000))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, about what it imports
    schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_nothing_ends_in_a_server_error(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=[not_a_server_error])
