"""Mistakes in the proposers and in the policy, each of which a check must notice."""

from __future__ import annotations

import importlib
import math
import random
from typing import Any

import pytest

from octavo.params.drafts import Draft
from octavo.spec import Begin, Wanted, method
from octavo.spec.costs import CostTable, Load
from octavo.spec.text_index import TextIndex, most_bytes
from support.source_mutants import Cases, checked, mistaken, must_die


def index_finds_what_a_search_finds(module: Any) -> None:
    draw = random.Random(0)
    index, text = module.TextIndex((2,), 128), list[int]()
    for _ in range(600):
        text.append(draw.choice([1, 2, 3, 4, 5, 6, module.SEPARATOR]))
        index.extend((text[-1],))
        tail = index.tail(6)
        for place, length in index.matches(index.keys, tail):
            assert place > len(text) - 128
            assert module.SEPARATOR not in (*text[place - length : place], text[place])
            assert text[place - length : place] == tail[len(tail) - length :]


def many_are_appended_as_one_by_one(module: Any) -> None:
    draw = random.Random(1)
    text = [draw.randrange(4) for _ in range(4000)]
    for count in (17, 31, 64):  # (which run is a chain's first is chance)
        one, many = (module.TextIndex((2, 5), 2048) for _ in range(2))
        for start in range(0, len(text), count):
            many.extend(text[start : start + count])
            for token in text[start : start + count]:
                one.extend((token,))
            tail = one.tail(9)
            assert list(one.matches(one.keys, tail)) == list(many.matches(many.keys, tail))


def texts_repeat_themselves(module: Any) -> None:
    index = module.TextIndex((2,), 128)
    index.extend([9, 1, 2, 3, 1, 2])
    assert index.following(3, 7) == [3, 1, 2, 3, 1, 2, 3]
    text = module.with_prediction([1, 2], 2, [3])
    assert text == [1, 2, module.SEPARATOR, 1, 2, 3, module.SEPARATOR, 1, 2]


def suffix_of(module: Any, **given: object) -> Any:
    options = method("suffix").settings({f"suffix_decoding_{name}": value for name, value in given.items()})
    return module.Suffix(Wanted(4, 512, False, options))


def answers_are_kept_apart_and_forgotten(module: Any) -> None:
    proposer = suffix_of(module, max_cached_requests=1)
    for salt, answer in ((None, [3, 4]), ("a", [3, 5]), ("a", [6, 7])):
        proposer.start(0, Begin([1, 2], 2, salt=salt))
        proposer.observe(0, answer)
        proposer.remove(0)
    for salt, prompt, expected in (
        (None, [2, 3], {(4,)}),
        ("a", [2, 3], set()),  # only the last answer is kept
        ("a", [2, 6], {(7,)}),
        ("b", [2, 6], set()),
    ):
        proposer.start(0, Begin(prompt, 2, salt=salt))
        assert {draft.tokens for draft in proposer.propose({0: 1}).values()} == expected
        proposer.remove(0)
    proposer.start(0, Begin([1, 2], 2))
    proposer.observe(0, [3, 8])
    proposer.reset()
    proposer.remove(0)
    proposer.start(0, Begin([2, 3], 2))
    assert proposer.propose({0: 1}) == {}


def a_chance_leaves_room_for_something_new(module: Any) -> None:
    proposer = suffix_of(module, min_token_prob=0.5, max_spec_factor=9.0)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    proposer.start(0, Begin(text, len(text)))
    assert proposer.propose({0: 5})[0].tokens == (3,)  # two votes of three, then less than a half


def drafts_follow_the_votes(module: Any) -> None:
    """Three for 7 9 5, two for 8 9 6, and one for something new at each token."""
    text = [1, 2, 7, 9, 5, 20, 1, 2, 8, 9, 6]
    index = TextIndex(module.LEVELS, 64)
    index.extend(text)
    votes = [module._Vote(index, 8, 2), module._Vote(index, 2, 3)]
    for chance, tokens in ((0.1, [7, 9, 5]), (0.38, [7]), (0.55, [])):
        assert module.likeliest_chain(votes, 3, chance) == tokens
    assert module.likeliest_chain(votes[:1], 8, 0.1) == [8, 9, 6], "the text ends"
    assert module.likeliest(votes, 3, 0.34) == ((7, 9), (-1, 0))
    assert module.likeliest(votes, 3, 0.3) == ((7, 9, 8), (-1, 0, -1))
    assert module.likeliest(votes, 1, 0.55) == ((), ())


def answers_stay_in_their_bytes(module: Any) -> None:
    answers = module.Answers(1024, 100)
    for salt in "abcdef":
        answers.add(salt, list(range(300)))
        assert answers.nbytes <= most_bytes(1024, len(module.LEVELS))


def chances_are_learned(module: Any) -> None:
    acceptance = module.Acceptance()
    acceptance.start(0)
    acceptance.offered(0, Draft.chain([1, 2]))
    assert acceptance.observe(0, [1]) is None
    acceptance.offered(0, Draft.chain([8, 9]))
    assert acceptance.observe(0, [2]) == [True, True]
    acceptance.offered(0, Draft.chain([1, 2]))
    assert acceptance.observe(0, [3]) == [False, False]
    tree = Draft((5, 6, 7), (-1, -1, 1), 3)
    for tokens, hits in (
        ([5], [True, False, False]),
        ([6, 7], [False, True, True]),
        ([6, 7], [False, True, True]),
    ) * 4:
        acceptance.offered(0, tree)
        assert acceptance.observe(0, tokens) == hits
    acceptance.offered(0, tree)
    assert acceptance.observe(0, [6]) is None
    assert acceptance.observe(0, [7]) == [False, True, True]
    acceptance.offered(0, Draft.chain([1, 2]))
    assert acceptance.observe(0, [1, 3]) == [True, False]
    means, _ = acceptance.chances(0, 3, 3)
    assert means == sorted(means, reverse=True)
    assert acceptance.chances(0, 4, 1)[0] == [0.5]


def learned(module: Any, hits: int, misses: int, cost: float) -> Any:
    auto = module.Auto(CostTable({1: 1.0, 2: cost, 256: 300.0}))
    auto.start(0, 8)
    for token in [1] * hits + [2] * misses:
        auto.wanted([0])
        auto.choose({0: Draft.chain([1])}, {0: 10}, Load(1, 1, 10))
        auto.observe(0, [token])
    return auto


def what_pays_is_verified(module: Any) -> None:
    for hits, misses, cost, verified in (
        (30, 0, 1.1, True),
        (0, 30, 1.1, False),
        (30, 0, 1.96, False),  # a gain of less than 2 %
        (10, 10, 1.3, False),  # and one that is not sure
    ):
        auto = learned(module, hits, misses, cost)
        auto._to_lose = 0.0
        assert bool(auto.choose({0: Draft.chain([1])}, {0: 10}, Load(1, 1, 10))) is verified


def what_does_not_pay_is_tried_now_and_then(module: Any) -> None:
    auto = learned(module, 30, 0, 4.0)
    tried = 0
    for _ in range(4000):
        auto.wanted([0])
        tried += bool(auto.choose({0: Draft.chain([1])}, {0: 10}, Load(1, 1, 10)))
        auto.observe(0, [1])
        auto.took(Load(1, 1, 10), 1.0)
    assert 4 <= tried <= 11  # of 4000 seconds one in 200 may be lost, two each time


def asking_takes_a_small_share_of_the_time(module: Any) -> None:
    """Of steps of two seconds, where it gains nothing; the first ones are on credit."""
    auto, load, asking_s = module.Auto(CostTable({1: 1.0, 256: 256.0})), Load(2, 2, 20), 0.08
    for row in (0, 1):
        auto.start(row, 8)
    rested = sum(auto.rest(load, asking_s) for _ in range(60))
    share = (60 - module.CREDIT) * asking_s / (2.0 * (60 + rested))
    assert share == pytest.approx(module.ASKED, rel=0.03)
    assert auto.rest(load, 1000.0) == module.RESTS
    assert auto.rest(load, 0.0) == 0, "what a bad moment took is forgiven"


def what_drafts_gain_pays_for_asking(module: Any) -> None:
    auto = learned(module, 30, 0, 1.1)
    auto._to_ask = 0.0
    auto.choose({0: Draft.chain([1])}, {0: 10}, Load(1, 1, 10))
    assert auto.rest(Load(1, 1, 10), 0.3) == 0, "two tokens in 1.1 seconds saved more"
    assert auto.rest(Load(1, 1, 10), 1.0) > 0


def who_enters_is_asked_for(module: Any) -> None:
    """A few times, though nothing was gained: of two rows half as often."""
    auto = module.Auto(CostTable({1: 1.0, 256: 256.0}))
    auto.start(0, 8)
    auto.rest(Load(1, 1, 10), 0.08)
    auto._to_ask = 0.0
    auto.start(1, 8)
    rests = [auto.rest(Load(2, 2, 20), 0.08) for _ in range(3)]
    assert rests[:2] == [0, 0]
    assert rests[2] > 0


def rows_whose_turn_comes_later_rest(module: Any) -> None:
    auto = module.Auto(CostTable({1: 1.0, 256: 256.0}))
    for row, skip in ((0, 5), (1, 3)):
        auto.start(row, 8)
        auto._rows[row].skip = skip
    auto.start(2, 0)  # asks for none
    assert auto.rest(Load(3, 3, 20), 0.0) == 3
    assert [auto._rows[row].skip for row in (0, 1)] == [2, 0]


def rows_that_are_ahead_are_worth_less(module: Any) -> None:
    """A row adds a quarter to a step of two, where each has a half of it."""
    auto = module.Auto(CostTable({1: 3.0, 2: 4.0, 256: 258.0}))
    for row in (0, 1):
        auto.start(row, 8)
    load = Load(2, 2, 0)
    assert auto._worth([0, 1], load) == {0: 1.0, 1: 1.0}
    auto.observe(0, [1] * 17)
    worth = auto._worth([0, 1], load)
    assert worth[1] == 1.0
    assert worth[0] == pytest.approx(0.5 + 0.5 * math.exp(-8 / module.AHEAD)), "8 more than the average"
    assert auto._worth([0], Load(1, 1, 0)) == {0: 1.0}, "alone it waits for nobody"
    auto.observe(0, [1] * 32, 32)
    assert auto._rows[0].ahead == 8, "a rest brings nobody ahead, and half of a lead is forgotten"
    auto.observe(0, [1] * 100, 100)
    assert auto._rows[0].ahead == 0
    auto.observe(0, [1] * 17)
    auto.remove(1)
    auto.start(2, 8)
    assert auto._worth([0, 2], load) == {0: 1.0, 2: 1.0}, "who comes is not behind"


def beginning(module: Any, prompt: int, steps: int, **options: Any) -> list[bool]:
    """Which of so many steps draft, at half a step each, if no draft is right; answers have 100 tokens."""
    policy = module.Ahead(CostTable({1: 1.0, 256: 1.5}), CostTable({1: 0.5, 256: 0.6}), **options)
    policy.start(0, 4)
    drafted, known, lacks = list[bool](), {0: 300}, prompt
    for step in range(steps):
        if step % 100 == 0:
            lacks = prompt
        policy.foresee(known, {0: lacks}, Load(1, 1, 300))
        asked = policy.wanted([0])
        drafts = {row: Draft.chain([1] * count) for row, count in asked.items()}
        policy.choose(drafts, known, Load(1, 1, 300))
        policy.observe(0, [0])
        count = sum(asked.values())
        policy.took(Load(1 + count, 1 + count, 300 + 300 * count), 1.0 + count / 510)
        lacks = 1 if asked else lacks + 1
        drafted.append(bool(asked))
    return drafted


def an_engine_begins_with_one_trial(module: Any) -> None:
    drafted = beginning(module, 1, 2000)
    assert 1 < sum(drafted[:60]) < 20
    assert sum(drafted[60:]) < 24


def what_is_lacking_is_paid_for(module: Any) -> None:
    assert sum(beginning(module, 200, 60, lack_s=0.1)) > 1, "a trial pays for a prompt"
    drafted = beginning(module, 40, 6000, lack_s=0.1)
    assert 3 < sum(drafted[60:]) < 16, "later ones are paid for by what gathers in many answers"
    assert not any(beginning(module, 1000, 100, lack_s=0.1)), "not for one of a hundred steps"
    pieces = module.Ahead(CostTable({1: 1.0}), CostTable({1: 0.5}), 0.1, at_once=100)
    pieces.start(0, 4)
    for lacks in (400, 300, 200, 100, 1):
        pieces.foresee({0: 500}, {0: lacks}, Load(1, 1, 500))
        assert pieces.wanted([0])


def what_gathers_is_spent(module: Any) -> None:
    """One in 200 of 5,000 seconds, on a row that lacks much; little of what is left is for later drafts."""
    for lacks, at_once, left in ((201, 1000, 4.5), (151, 1000, 8.0), (201, 100, 25 - 20 * 100 / 201)):
        policy = module.Ahead(CostTable({1: 1.0, 256: 1.5}), CostTable({1: 0.5}), 0.1, at_once)
        policy.start(0, 4)
        policy._trial = 0
        for _ in range(5000):
            policy.took(Load(1, 1, 300), 1.0)
        policy.foresee({0: 300}, {0: lacks}, Load(1, 1, 300))
        assert policy.wanted([0]) == {0: 1}
        assert policy._to_lose == pytest.approx(left, abs=0.5 if at_once > lacks else 0.01)
    policy.foresee({0: 300}, {0: 200}, Load(1, 1, 300))
    policy._to_lose = 19.9
    assert policy.wanted([0]) == {}, "what it lacks, and what the draft loses"


def a_trial_ends(module: Any) -> None:
    """Where every other token is right it may pay, as far as is known, and does not."""
    policy = module.Ahead(CostTable({1: 1.0, 256: 1.5}), CostTable({1: 0.52, 256: 0.6}))
    policy.start(0, 1)
    drafted = 0
    for _ in range(400):
        policy.foresee({0: 300}, {0: 1}, Load(1, 1, 300))
        asked = policy.wanted([0])
        policy.choose({row: Draft.chain([1]) for row in asked}, {0: 300}, Load(1, 1, 300))
        drafted += len(asked)
        policy.observe(0, [1 if asked and drafted % 2 else 0])
    assert 10 < drafted <= module.TRIAL


def catching_up_is_followed(module: Any) -> None:
    policy = module.Ahead(CostTable({1: 1.0}), CostTable({1: 0.5, 2: 0.5}))
    policy.caught_up(1, 1, 9.0)
    assert policy.lack_s == 0
    policy.caught_up(101, 1, 10.5)
    assert policy.lack_s == pytest.approx(0.1)
    policy.caught_up(102, 2, 90.5)
    assert policy.lack_s == pytest.approx(0.1 + 0.8 / module.FOLLOWED)
    policy.caught_up(1000, 0, 0.0)
    assert policy.lack_s == pytest.approx(0.2 * 7 / 8)


def later_tokens_count_as_first_ones(module: Any) -> None:
    acceptance = module.Acceptance(steady=True)
    for row in (0, 1):
        acceptance.start(row)
    for text in ([1, 2], [1, 1, 2]):
        acceptance.offered(0, Draft.chain([1, 1, 1]))
        acceptance.observe(0, text)
    assert acceptance.chances(1, 0, 1)[0][0] == pytest.approx(4 / 7, abs=0.005)
    for _ in range(60):
        for text in ([1, 1, 1], [2]):
            acceptance.offered(0, Draft.chain([1, 1, 1]))
            acceptance.observe(0, text)
    assert acceptance.chances(0, 0, 1)[0][0] == pytest.approx(0.5, abs=0.06)


CASES: Cases = {
    "octavo.spec.ahead": (
        [
            an_engine_begins_with_one_trial,
            what_is_lacking_is_paid_for,
            what_gathers_is_spent,
            a_trial_ends,
            catching_up_is_followed,
        ],
        [
            ("            self._trial -= len({row for _, _, row in taken})\n", ""),
            ("if not taken and self._trial > 0:", "if False:"),
            ("min(mean - HOPED * error, 1.0)", "mean"),
            ("min(mean - HOPED * error, 1.0)", "mean - error"),
            ("if lost + catching_up > self._to_lose:", "if lost > self._to_lose:"),
            ("min(self._to_lose - lost - catching_up, rest)", "min(self._to_lose - lost, rest)"),
            ("min(self._to_lose - lost - catching_up, rest)", "min(self._to_lose - catching_up, rest)"),
            ("min(self._to_lose - lost - catching_up, rest)", "self._to_lose - lost - catching_up"),
            ("self._to_lose -= catching_up * self._at_once / lacking", "self._to_lose -= catching_up"),
            ("    GATHERED = HORIZON\n", ""),
            ("max(seconds - drawing, 0.0) / (tokens - rows)", "max(seconds, 0.0) / (tokens - rows)"),
            ("max(seconds - drawing, 0.0) / (tokens - rows)", "max(seconds - drawing, 0.0) / tokens"),
            ("(found - self.lack_s) / (FOLLOWED if self.lack_s else 1)", "found - self.lack_s"),
        ],
    ),
    "octavo.spec.text_index": (
        [index_finds_what_a_search_finds, texts_repeat_themselves, many_are_appended_as_one_by_one],
        [
            ("np.where(same, places[:-1], latest[ordered[1:]])", "np.where(same, places[:-1], 0)"),
            ("earlier[(places[0] - 1) & self._mask] = latest[ordered[0]]", "pass"),
            ("self._chain_all(level, run[begin:], ", "self._chain_all(level, run[begin + 1 :], 1 + "),
            ("== tail[-1 - length] != SEPARATOR:", "== tail[-1 - length]:"),
            ("if length >= least and self.token(place) != SEPARATOR:", "if length >= least:"),
            ("        self.first = max(self.first, place - self._size)\n", ""),
            ("found[index - period]", "found[-1]"),
            ("sums[end - length] * power", "sums[end - length]"),
            ("power * _PRIME & _BITS, length + 1", "power, length + 1"),
            ("*prompt, SEPARATOR, *end, *prediction,", "*prompt, *prediction,"),
        ],
    ),
    "octavo.spec.suffix": (
        [
            answers_are_kept_apart_and_forgotten,
            a_chance_leaves_room_for_something_new,
            drafts_follow_the_votes,
            answers_stay_in_their_bytes,
        ],
        [
            ("self._answers.of(state.salt)", "self._answers.of(None)"),
            ("self._answers.add(state.salt,", "self._answers.add(None,"),
            ("        self._answers.clear()\n", ""),
            ("state.begin, state.generated = state.read().count, False", "pass"),
            ("            text = state.read()\n", "            text = state.text\n"),
            ("text.forget_before(begins[0])", "pass"),
            ("    total = 1\n", "    total = 0\n"),
            ("first, total = len(tokens), runs[0][0], 1", "first, total = len(tokens), runs[0][0], 0"),
            ("alike = alike and run == first", "pass"),
            ("reached * (total - 1) / total", "reached * total / total"),
            ("(-said[each], each)", "(said[each], each)"),
            ("said[token] / total", "total / total"),
            ("depth < len(run) and run[depth] == token]", "depth < len(run)]"),
            ("while self.nbytes > self._most_bytes and len(self._texts) > 1:", "while False:"),
        ],
    ),
    "octavo.spec.acceptance": (
        [chances_are_learned, later_tokens_count_as_first_ones],
        [
            ("                    if before:\n", "                    if True:\n"),
            ("if place == 0 and self._later.seen:", "if False:"),
            ("min(self._later.seen[0], LATER)", "self._later.seen[0]"),
            ("more * self._later.right[0] / self._later.seen[0]", "self._later.right[0]"),
            ("if support not in followed:", "if True:"),
            ("most = min(mean, most)", "most = mean"),
            ("self._children.get((self._node, token))", "self._children.get((-1, token))"),
            ("return all(parent != self._node for parent in self.draft.parents)", "return True"),
            ("return child == count", "return True"),
            ("        self._node = child - 1\n", ""),
            ("drafted[child] != token", "drafted[0] != token"),
        ],
    ),
    "octavo.spec.policy": (
        [
            what_pays_is_verified,
            what_does_not_pay_is_tried_now_and_then,
            rows_that_are_ahead_are_worth_less,
            asking_takes_a_small_share_of_the_time,
            what_drafts_gain_pays_for_asking,
            who_enters_is_asked_for,
            rows_whose_turn_comes_later_rest,
        ],
        [
            ("if count < 2:", "if count < 1:"),
            ("least + (1 - least) *", "least + 0 *"),
            ("count * (whole - one_less) / whole", "count * whole / whole"),
            ("_Asked(most, ahead=self._usual())", "_Asked(most)"),
            (".ahead - usual, 0.0)", ".ahead, 0.0)"),
            ("len(tokens) - steps -", "len(tokens) -"),
            ("len(tokens) - steps -", "len(tokens) - 1 -"),
            ("state.ahead * min(steps / FORGOTTEN, 1.0)", "state.ahead * steps / FORGOTTEN"),
            ("CREDIT * self._asking_s) - asking_s", "CREDIT * self._asking_s)"),
            ("min(self._to_ask, CREDIT * self._asking_s)", "self._to_ask"),
            ("        self._to_ask += PAID * gained\n", ""),
            ("/ earned), RESTS)", "/ earned), 9999)"),
            ("max(self._to_ask + earned * (steps + 1), 0.0)", "self._to_ask + earned * (steps + 1)"),
            ("        self._to_ask += FIRST * self._asking_s / len(self._rows)\n", ""),
            ("self._asking_s / len(self._rows)", "self._asking_s"),
            ("min(skips, default=0)", "max(skips, default=0)"),
            ("            state.skip = max(state.skip - steps, 0)\n", "            pass\n"),
            ("if state.most > 0]", "]"),
            ("            self.acceptance.offered(row, draft)\n", ""),
            ("max(best_rate, rate * (1 + GAIN + doubt + plain_error))", "best_rate"),
            ("sure = tokens - math.sqrt(variance)", "sure = tokens"),
            ("if best == 0 and 0 < lost <= self._to_lose:", "if False:"),
            ("            self._to_lose -= lost\n", ""),
        ],
    ),
}


@checked(CASES)
def test_the_code_passes(name: str, check: Any) -> None:
    check(importlib.import_module(name))


@mistaken(CASES)
def test_a_mistake_is_noticed(name: str, right: str, wrong: str) -> None:
    must_die(importlib.import_module(name), right, wrong, CASES[name][0])
