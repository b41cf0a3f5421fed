"""Clocks that jump: time of day is shown and compared with nothing, so deadlines do not hear of it."""

from __future__ import annotations

import ast
import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.asgi import post
from support.fake_engine import FakeEngine
from support.live import BODY, CHAT, run, running

SOURCE = Path(__file__).resolve().parent.parent / "src" / "octavo"
SHOWN = {
    ("server/state.py", "time.time"),  # since when models are served, to clients
    ("server/openai/answers.py", "time.time"),  # when an answer was made, to clients
    ("server/log_lines.py", "time.gmtime"),  # when a line was written
    ("server/log_lines.py", "time.strftime"),
    ("server/request_record.py", "time.time_ns"),  # when a span began; how long it took is monotonic's
    ("cli/_bench/__init__.py", "datetime.datetime.now"),  # in a report
    ("tokenizer/chat.py", "datetime.datetime.now"),  # what templates ask for by name
    ("tokenizer/confined_template.py", "datetime.datetime.now"),
}
"""Every place that reads the time of day, which is shown there."""
OF_DAY = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


def times_of_day(tree: ast.AST) -> Iterator[str]:
    """Names by which a module reads it, however it has imported them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"time.{name.name}" for name in node.names if name.name in OF_DAY["time"])
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if node.attr in OF_DAY.get(owner.rpartition(".")[2], ()):
                yield f"{owner}.{node.attr}"


def test_the_time_of_day_is_shown_and_nothing_else() -> None:
    found = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in SOURCE.rglob("*.py")
        for name in times_of_day(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == SHOWN, "deadlines and rates go by time.monotonic()"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import time\ntime.time() + 5", "time.time"),
        ("from time import time", "time.time"),
        ("from time import monotonic, time_ns as now", "time.time_ns"),
        ("import datetime\nx = datetime.datetime.utcnow()", "datetime.datetime.utcnow"),
        ("from datetime import datetime\nf(datetime.now)", "datetime.now"),
        ("from datetime import date\ndate.today()", "date.today"),
    ],
)
def test_the_judge_can_convict(code: str, name: str) -> None:
    assert list(times_of_day(ast.parse(code))) == [name]


def test_the_judge_acquits() -> None:
    assert not list(times_of_day(ast.parse("import time\ntime.monotonic()\nself.now()\ntime.perf_counter()")))


HOUR = 3600.0


@pytest.mark.parametrize("jump", [-24 * HOUR, 24 * HOUR, 40 * 365 * 24 * HOUR])
def test_a_server_whose_clock_jumps_serves_on(jump: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every time that anybody looks the clock has jumped again, forward or back."""
    real, looks = time.time, itertools.count(1)
    monkeypatch.setattr(time, "time", lambda: max(0.0, real() + jump * (next(looks) % 2)))

    async def test() -> None:
        async with running(FakeEngine(delay=0.01)) as server:
            for _ in range(3):
                answers = await asyncio.gather(*(server.client.post(CHAT, json=BODY) for _ in range(4)))
                assert [answer.status_code for answer in answers] == [200] * 4
                assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
                for path in ("/health", "/ready", "/live", "/metrics"):
                    assert (await server.client.get(path)).status_code == 200

    run(test)


def test_an_answer_says_what_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.server.app import create_app

    monkeypatch.setattr(time, "time", lambda: 12.5)
    app = create_app(FakeEngine())
    assert post(app, CHAT, {**BODY, "stream": False}).json()["created"] == 12
