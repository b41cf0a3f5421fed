"""docs/speculation.md: its table is what the proposers take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.config.speculation import DEFAULT_TOKENS
from octavo.params.speculative import MOST_DRAFTED
from octavo.spec import methods

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "speculation.md").read_text("utf-8")
ROWS = {
    name: (default, about)
    for name, default, about in re.findall(r"^\| `(\w+)` \| `?([\w.]*)`? \| (.+) \|$", PAGE, re.MULTILINE)
}
OWN = ("method", "model", "num_speculative_tokens", "policy", "rejection_sample_method")
OPTIONS = [
    (method, name, option) for method, found in methods().items() for name, option in found.options.items()
]


@pytest.mark.parametrize(("method", "name", "option"), OPTIONS, ids=[name for _, name, _ in OPTIONS])
def test_an_option_stands_there_as_it_is(method: str, name: str, option: object) -> None:
    assert ROWS[name] == (str(option.default), f"`{method}`: {option.about}")  # type: ignore[attr-defined]


def test_nothing_else_stands_there() -> None:
    assert set(ROWS) == {*OWN, *(name for _, name, _ in OPTIONS)}
    assert ROWS["num_speculative_tokens"][0] == str(DEFAULT_TOKENS)
    assert f"up to {MOST_DRAFTED}" in ROWS["num_speculative_tokens"][1]
    assert all(f"`{method}`" in ROWS["method"][1] for method in methods())
