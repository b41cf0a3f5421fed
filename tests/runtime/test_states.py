"""RequestStates: a row's page table is the engine's, whatever steps and rejected drafts came before."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pytest

from octavo.engine.page_group import NO_PAGE
from octavo.engine.step_plan import NewRow, RowStep, StepPlan, StepResult
from octavo.params import SamplingParams
from octavo.runtime.states import RequestStates, RowWindow
from support.random_driver import drive
from support.toy_executor import ToyExecutor


def test_pages_of_rejected_drafts_make_room_for_those_that_come_next() -> None:
    states = RequestStates(2, 40, 4, window=RowWindow(9, sliding=True))
    states.start(NewRow(1, "a", (1,) * 7, 7, SamplingParams(), 0, 0))
    states.grow(RowStep(1, 0, 7, (10, 11), True, sliding_pages=(0, 1)))
    states.append(1, 5)
    states.grow(RowStep(1, 7, 4, (12,), True, (6, 7, 8), sliding_pages=(2,)))  # all of them are rejected
    states.append(1, 5)
    states.grow(RowStep(1, 8, 1, (20,), True, sliding_pages=(3,)))
    assert states.sliding_pages is not None
    assert states.pages[1, :3].tolist() == [10, 11, 20]
    assert states.sliding_pages[1, :3].tolist() == [0, 1, 3]


@pytest.mark.parametrize("windows", [{}, {"windowed": True}, {"mixed": True}], ids=repr)
def test_tables_are_the_engines(windows: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the toy executor, which checks its own table of each row against every plan."""
    states: WeakKeyDictionary[ToyExecutor, RequestStates] = WeakKeyDictionary()
    execute, after_drafts, compared = ToyExecutor.execute, 0, 0

    def both(self: ToyExecutor, plan: StepPlan) -> StepResult:
        nonlocal after_drafts, compared
        drafted = {row for row, known in self.rows.items() if known.drafted}
        result = execute(self, plan)
        window = RowWindow(sliding=self.sliding is not None)
        mine = states.setdefault(self, RequestStates(6, 48, self.page_size, window=window))
        for new in plan.new_rows:
            mine.start(new)
        for step in plan.steps:
            mine.grow(step)
            if step.row not in self.rows:
                continue  # it failed
            tables = [(mine.pages, self.rows[step.row].pages)]
            if self.sliding is not None and mine.sliding_pages is not None:
                tables.append((mine.sliding_pages, self.sliding.tables[step.row]))
            for found, wanted in tables:
                held = [(place, page) for place, page in enumerate(wanted) if page != NO_PAGE]
                assert [(place, int(found[step.row, place])) for place, _ in held] == held
            compared += 1
            after_drafts += step.row in drafted and bool(step.pages)
        return result

    monkeypatch.setattr(ToyExecutor, "execute", both)
    for seed in range(12):
        drive(seed, 100, **windows)
    assert compared > 1000
    assert after_drafts > 20
