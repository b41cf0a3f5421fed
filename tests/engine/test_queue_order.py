"""Who enters next: arrival, longest cached prefix, and the share of the oldest."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.config import SchedulerConfig
from octavo.engine.admission import PREFIX_WINDOW
from octavo.engine.page_group import AdmitStatus
from octavo.engine.request import Request
from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams
from support.engine_harness import Harness

ONE = SamplingParams(max_tokens=1, ignore_eos=True, temperature=0.0)


def harness(**options: object) -> Harness:
    """One request at a time."""
    settings = {"num_pages": 60, "max_num_seqs": 1, "max_num_batched_tokens": 64, "max_waiting": 999}
    return Harness(**settings | options)  # type: ignore[arg-type]


def book(number: int, length: int = 12) -> list[int]:
    """Books share no first page."""
    return [100 * number + place for place in range(length)]


def entered(h: Harness) -> list[str]:
    return [new.request_id for plan in h.executor.plans for new in plan.new_rows]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "lpm"])
def test_the_longest_cached_prefix_goes_first_if_so_asked(policy: str) -> None:
    h = harness(scheduling_policy=policy)
    h.add(book(1), ONE)
    h.run()
    unknown = h.add(book(2), ONE)
    short, long = h.add([*book(1, 5), 7], ONE), h.add([*book(1), 8], ONE)
    h.drain_and_check()
    arrived = [unknown, short, long]
    assert entered(h)[1:] == ([long, short, unknown] if policy == "lpm" else arrived)


def test_without_a_cache_there_is_nothing_to_compare() -> None:
    h = harness(scheduling_policy="lpm", enable_prefix_caching=False)
    names = [h.add(book(number), ONE) for number in (1, 2, 1)]
    h.drain_and_check()
    assert entered(h) == names


def test_priority_comes_before_prefix() -> None:
    h = harness(scheduling_policy="lpm")
    h.add(book(1), ONE)
    h.run()
    cached, urgent = h.add([*book(1), 8], ONE, priority=1), h.add(book(2), ONE, priority=0)
    h.drain_and_check()
    assert entered(h)[1:] == [urgent, cached]


@pytest.mark.parametrize("fair_share", [1, 3, 8])
def test_prefixes_do_not_starve_the_oldest(fair_share: int) -> None:
    h = harness(scheduling_policy="lpm", fair_share=fair_share, num_pages=200)
    h.add(book(1), ONE)
    h.run()
    stranger = h.add(book(2), ONE)
    for number in range(20):  # there is always somebody with a cached prefix
        h.add([*book(1), 50 + number], ONE)
    h.drain_and_check()
    assert entered(h).index(stranger) == 1 + fair_share - 1


@pytest.mark.parametrize("fair_share", [2, 5])
def test_a_flood_of_urgent_ones_leaves_the_others_a_share(fair_share: int) -> None:
    h = harness(fair_share=fair_share)
    patient = [h.add(book(number, 3), ONE, priority=9) for number in range(3)]
    for number in range(40):
        h.add(book(10 + number, 3), ONE)
        h.step()
    places = [entered(h).index(name) for name in patient]
    assert places == [fair_share - 1, 2 * fair_share - 1, 3 * fair_share - 1]
    h.drain_and_check()


def test_who_has_waited_long_is_not_preempted_for_the_urgent() -> None:
    """A request of low priority that has entered by its share ends, though the pool is too small."""
    long = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.0)
    h = Harness(num_pages=10, max_num_seqs=4, max_num_batched_tokens=32, max_waiting=99, fair_share=2)
    patient = h.add(book(0, 4), long, priority=9)
    for number in range(60):
        h.add(book(10 + number, 4), long)
        h.step()
        if (patient, 0) in h.reasons:
            break
    assert h.scheduler.num_preemptions > 0
    assert (patient, 0) in h.reasons
    assert number < 30
    h.drain_and_check()


def test_preempted_ones_resume_before_longer_prefixes_enter() -> None:
    h = harness(scheduling_policy="lpm", max_num_seqs=2, num_pages=10, max_model_len=40)
    h.scheduler.growth_pages = 0
    old = h.add(book(1, 20), ONE.replace(max_tokens=16))
    young = h.add(book(2, 8), ONE.replace(max_tokens=16))
    while not h.scheduler.num_preemptions:
        h.step()
    newcomer = h.add([*book(1, 20), 7], ONE)  # shares what the old one holds, so it would fit
    h.drain_and_check()
    assert entered(h) == [old, young, young, newcomer]


def test_only_the_first_are_compared() -> None:
    h = harness(scheduling_policy="lpm", num_pages=400)
    h.add(book(1), ONE)
    h.run()
    names = [h.add(book(2 + number, 3), ONE) for number in range(PREFIX_WINDOW)]
    cached = h.add([*book(1), 8], ONE)
    h.step()
    h.step()
    assert entered(h)[1:] == [names[0], cached]
    h.drain_and_check()


def test_the_oldest_is_passed_over_while_its_prefix_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    h = harness(fair_share=2)
    patient = h.add(book(0, 3), ONE, priority=9)
    reading, status_of = [patient], h.kv.admit_status

    def slow(request: Request, *others: Any) -> AdmitStatus:
        return AdmitStatus.LATER if request.request_id in reading else status_of(request, *others)

    monkeypatch.setattr(h.kv, "admit_status", slow)
    for number in range(4):
        h.add(book(10 + number, 3), ONE)
    for _ in range(3):
        h.step()
    assert patient not in entered(h)
    reading.clear()
    h.step()
    assert entered(h)[3] == patient
    h.drain_and_check()


@pytest.mark.parametrize("wrong", [{"scheduling_policy": "random"}, {"fair_share": 0}])
def test_what_is_no_policy_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        SchedulerConfig(num_pages=600, **wrong)  # type: ignore[arg-type]


def test_owners_take_turns() -> None:
    """One owner's flood, and another's few: who has the fewest rows is next, of one owner the oldest."""
    long = ONE.replace(max_tokens=12)
    h = harness(max_num_seqs=4, max_num_batched_tokens=256, num_pages=200)
    flood = [h.add(book(number, 4), long, owner="a") for number in range(12)]
    others = [h.add(book(50 + number, 4), long, owner="b") for number in range(3)]
    h.drain_and_check()
    order = entered(h)
    assert sorted(order[:4]) == sorted([flood[0], others[0], flood[1], others[1]])
    assert [name for name in order if name in flood] == flood
    assert [name for name in order if name in others] == others


def test_without_owners_the_oldest_goes_first() -> None:
    h = harness(max_num_seqs=2, num_pages=200)
    names = [h.add(book(number, 4), ONE) for number in range(6)]
    h.drain_and_check()
    assert entered(h) == names


def test_a_newcomer_finds_a_row_beside_long_answers() -> None:
    """No owner takes the last eighth of the rows, though nobody else is there yet."""
    long = ONE.replace(max_tokens=30)
    h = harness(max_num_seqs=8, max_num_batched_tokens=256, num_pages=400, max_model_len=40)
    for number in range(20):
        h.add(book(number, 4), long, owner="a")
    h.step()
    h.step()
    assert len(h.scheduler.running) == 7
    late = h.add(book(91, 4), ONE, owner="b")
    h.step()
    h.step()
    assert late in entered(h)
    h.drain_and_check()


def test_where_nobody_is_named_all_rows_are_taken() -> None:
    h = harness(max_num_seqs=8, max_num_batched_tokens=256, num_pages=400, max_model_len=40)
    for number in range(20):
        h.add(book(number, 4), ONE.replace(max_tokens=30))
    h.step()
    h.step()
    assert len(h.scheduler.running) == 8
    h.drain_and_check()


def test_urgent_ones_come_before_turns() -> None:
    h = harness(num_pages=200)
    patient, urgent = h.add(book(1), ONE, owner="a", priority=1), h.add(book(2), ONE, owner="b")
    again = h.add(book(3), ONE, owner="b")
    h.drain_and_check()
    assert entered(h) == [urgent, again, patient]


def test_turns_starve_nobody() -> None:
    """Rule 3 holds for owners, too: of 16 that enter one is the oldest, whoever has rows."""
    h = harness(max_num_seqs=8, num_pages=400, fair_share=3, max_num_batched_tokens=256)
    old = [h.add(book(number, 4), ONE.replace(max_tokens=20), owner="a") for number in range(9)]
    for number in range(30):
        h.add(book(20 + number, 4), ONE, owner=f"o{number}")
    h.drain_and_check()
    places = [entered(h).index(name) for name in old]
    assert max(places) <= 3 * len(old)
