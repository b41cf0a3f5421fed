"""The dashboard and the alert rules: what they name is what a server says, and others can read the files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo.server.app import create_app
from octavo.server.metric_names import METRICS, PROCESS, Described, exposed
from support.asgi import get
from support.fake_engine import FakeEngine

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES, DASHBOARD = DEPLOY / "prometheus" / "octavo.rules.yml", DEPLOY / "grafana" / "octavo.json"
OF_PROMETHEUS = {"up"}
"""Metrics that it makes itself."""
OF_SCRAPES = {"instance", "job"}
"""Labels that a scrape adds."""
FUNCTIONS = {
    "and", "by", "changes", "deriv", "histogram_quantile", "label_values", "max", "min", "rate", "sum", "time"
}  # fmt: skip
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}


def scraped() -> dict[str, Described]:
    """What the table knows of each name that the scrape of a scripted server has."""
    lines = get(create_app(FakeEngine()), "/metrics").body.decode().splitlines()
    declared = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
    every = {exposed(name): known for name, known in {**METRICS, **PROCESS}.items()}
    return {
        name + end: every[name]
        for name in declared & set(every)
        for end in SUFFIXES.get(every[name].kind, ("",))
    }


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    assert set(group) == {"name", "rules"}
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """(where, the query) of both files."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']}, {target['refId']}", target["expr"]
    for variable in json.loads(DASHBOARD.read_text("utf-8"))["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def bare(query: str) -> str:
    """Without texts, selectors, ranges and what is grouped by, where words are no names of metrics."""
    for pattern in (r"\{[^}]*\}", r"\[[^\]]*\]", r"by \([^)]*\)", r", (instance|model_name)\)$"):
        query = re.sub(pattern, " ", query)
    return query


def names_in(query: str) -> set[str]:
    return set(re.findall(r"[a-zA-Z_:][\w:]*", re.sub(r"\b[\d.]+(e\d+)?\b", " ", bare(query)))) - FUNCTIONS


def labels_in(query: str) -> set[str]:
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    grouped = [label.strip() for found in re.findall(r"by \(([^)]*)\)", query) for label in found.split(",")]
    return {*selected, *grouped}


@pytest.mark.parametrize(("where", "query"), list(queries()), ids=lambda value: value[:40])
def test_each_query_names_what_a_server_says(where: str, query: str) -> None:
    known = scraped()
    names = names_in(query)
    assert names, where
    assert names <= set(known) | OF_PROMETHEUS, where
    labels = set().union(*(known[name].labels for name in names if name in known), OF_SCRAPES)
    assert labels_in(query) <= labels | ({"le"} if "_bucket" in query else set()), where
    for opening, closing in ("()", "[]", "{}"):
        assert query.count(opening) == query.count(closing), where
    for name in names:
        if name.endswith(("_total", "_bucket")):
            assert re.search(rf"rate\({name}[{{\[]", query), (
                f"{where}: a counter says nothing without its rate"
            )


@pytest.mark.parametrize(
    ("query", "names", "labels"),
    [
        ('sum by (a, le) (rate(x_total{b=~"$c"}[5m])) > 0.5', {"x_total"}, {"a", "le", "b"}),
        ('up{job="octavo"} == 0 and y > 20e6 / 3600', {"up", "y"}, {"job"}),
        ("label_values(z, instance)", {"z"}, set()),
        ("histogram_quantile(0.95, w) > time()", {"w"}, set()),
    ],
)
def test_the_judge_of_queries_sees(query: str, names: set[str], labels: set[str]) -> None:
    assert names_in(query) == names
    assert labels_in(query) == labels


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_rules_have_prometheus_fields(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
    assert rule["alert"].startswith("Octavo")
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    assert all(isinstance(text, str) for text in (rule["expr"], *rule["annotations"].values()))


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) > 8


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(board)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]
