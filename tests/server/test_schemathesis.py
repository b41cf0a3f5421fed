"""The OpenAPI document against the app: what it describes is taken, and nothing ends in a 500."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

from octavo.server.app import create_app
from support.fake_engine import FakeEngine

APP = create_app(FakeEngine(max_model_len=100_000))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, about what it imports
    schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


calls = Counter[str]()


def few(examples: int) -> settings:
    """So many examples of each operation (fewer of one that has no such choice)."""
    return settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@schema.parametrize()
@few(25)
def test_nothing_ends_in_a_server_error(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=[not_a_server_error])


@pytest.mark.slow
@schema.parametrize()
@few(600)
def test_nothing_in_thousands_of_calls(case: schemathesis.Case) -> None:
    calls[case.operation.label] += 1
    case.call_and_validate(checks=[not_a_server_error])


@pytest.mark.slow
def test_there_were_thousands_of_calls(record_testsuite_property: Callable[[str, object], None]) -> None:
    """Counts the test above, which runs before it."""
    record_testsuite_property("calls", calls.total())
    record_testsuite_property("operations", len(calls))
    print(f"{calls.total()} calls of {len(calls)} operations, none a server error")
    assert calls.total() >= 5000
