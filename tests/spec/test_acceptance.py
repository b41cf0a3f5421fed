"""spec/acceptance.py: what is learned from drafts, verified or not."""

from __future__ import annotations

import random

import pytest

from octavo.params.drafts import Draft
from octavo.spec.acceptance import Acceptance, FollowedDraft

TREE = Draft((8, 9, 4, 5), (-1, -1, 0, 1))


@pytest.mark.parametrize(
    ("draft", "steps", "known", "hits"),
    [
        (Draft.chain([8, 4, 4]), [[8, 4, 4, 1]], True, [True, True, True]),
        (Draft.chain([8, 4, 4]), [[8], [4], [5]], True, [True, True, False]),
        (Draft.chain([8, 4, 4]), [[8], [4]], False, [True, True, False]),
        (Draft.chain([8, 4, 4]), [[1]], True, [False, False, False]),
        (TREE, [[9], [5]], True, [False, True, False, True]),
        (TREE, [[8, 4]], True, [True, False, True, False]),
        (TREE, [[9, 4]], True, [False, True, False, False]),
    ],
)
def test_a_draft_is_followed(draft: Draft, steps: list[list[int]], known: bool, hits: list[bool]) -> None:
    followed = FollowedDraft(draft)
    assert [followed.follow(tokens) for tokens in steps][-1] is known
    assert followed.hits == hits


def test_chances_follow_what_happens() -> None:
    acceptance, draw = Acceptance(), random.Random(0)
    acceptance.start(0)
    for _ in range(600):
        acceptance.offered(0, Draft.chain([1, 1, 1], 3))
        while acceptance.observe(0, [1 if draw.random() < 0.8 else 2]) is None:
            pass
    means, errors = acceptance.chances(0, 3, 3)
    assert means == pytest.approx([0.8, 0.64, 0.512], abs=0.2)
    assert means == sorted(means, reverse=True)
    assert all(0 < error < 0.2 for error in errors)
    fresh, wide = acceptance.chances(0, 5, 4)  # drafts with other support are none of these
    assert fresh == [0.5, 0.25, 0.125, 0.0625]
    assert wide[0] > 2 * errors[0]


@pytest.mark.parametrize(("steady", "mean"), [(True, (1 + 2 + 1) / (2 + 2 + 3)), (False, (1 + 2) / (2 + 2))])
def test_later_tokens_of_a_model_speak_for_its_first_one(steady: bool, mean: float) -> None:
    """Both first ones were right, and of three that came after a right one a single one was."""
    acceptance = Acceptance(steady)
    for row in (0, 1):
        acceptance.start(row)
    for text in ([1, 2], [1, 1, 2]):
        acceptance.offered(0, Draft.chain([1, 1, 1]))
        acceptance.observe(0, text)
    assert acceptance.chances(1, 0, 1)[0] == [pytest.approx(mean, abs=0.005)]


def test_the_first_token_of_many_speaks_for_itself() -> None:
    """It is wrong each other time, a later one never."""
    acceptance = Acceptance(steady=True)
    acceptance.start(0)
    for _ in range(60):
        for text in ([1, 1, 1], [2]):
            acceptance.offered(0, Draft.chain([1, 1, 1]))
            acceptance.observe(0, text)
    assert acceptance.chances(0, 0, 1)[0] == [pytest.approx(0.5, abs=0.06)]


def test_a_new_row_is_as_all_are_and_goes_its_own_way() -> None:
    acceptance = Acceptance()
    for row in (0, 1):
        acceptance.start(row)
    for _ in range(50):
        acceptance.offered(0, Draft.chain([1]))
        acceptance.observe(0, [1])
    assert acceptance.chances(1, 0, 1)[0][0] > 0.9
    for _ in range(8):
        acceptance.offered(1, Draft.chain([1]))
        acceptance.observe(1, [2])
    assert acceptance.chances(1, 0, 1)[0][0] < 0.4
    assert acceptance.chances(0, 0, 1)[0][0] > 0.9
    acceptance.remove(1)
    acceptance.start(1)
    assert acceptance.chances(1, 0, 1)[0][0] > 0.6


def test_chances_end_where_they_are_too_small() -> None:
    acceptance = Acceptance()
    acceptance.start(0)
    assert len(acceptance.chances(0, 0, 8)[0]) == 4  # halved from 0.5 on
    for _ in range(100):
        acceptance.offered(0, Draft.chain([1] * 8))
        acceptance.observe(0, [2])
    assert acceptance.chances(0, 0, 8) == ([], [])


def test_one_draft_is_followed_at_a_time() -> None:
    acceptance = Acceptance()
    acceptance.start(0)
    acceptance.offered(0, Draft.chain([1, 2]))
    assert acceptance.observe(0, [1]) is None
    acceptance.offered(0, Draft.chain([9, 9]))
    assert acceptance.observe(0, [2]) == [True, True]
    assert acceptance.observe(0, [9]) is None


def test_a_draft_in_the_midst_of_a_copy_is_learned_of_while_an_earlier_one_is_followed() -> None:
    """Most speaks for it, and the earlier one may be right for long."""
    acceptance = Acceptance()
    acceptance.start(0)
    acceptance.offered(0, Draft.chain([1] * 16, 2))
    assert acceptance.observe(0, [1]) is None
    for _ in range(6):
        acceptance.offered(0, Draft.chain([1, 1], 3))
        assert acceptance.observe(0, [1, 1]) == [True, True]
    assert acceptance.chances(0, 3, 1)[0][0] > 0.85
    assert acceptance.chances(0, 2, 1)[0][0] == 0.5  # not known yet
    acceptance.offered(0, Draft.chain([2], 2))  # passed over
    assert acceptance.observe(0, [5]) == [True] * 13 + [False] * 3
    acceptance.remove(0)
    assert acceptance.observe(0, [1]) is None
