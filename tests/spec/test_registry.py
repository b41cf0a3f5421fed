"""spec/: what is found in the folder, and what every proposer there keeps to."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo.spec
from octavo.errors import InvalidRequestError
from octavo.spec import Begin, Proposer, Wanted, method, methods, table_methods

TEXT = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]


def make(name: str, max_num_seqs: int = 4, trees: bool = False) -> Proposer:
    found = method(name)
    return found.make(Wanted(max_num_seqs, 512, trees, found.settings({})))


@pytest.fixture(params=sorted(table_methods()))
def proposer(request: pytest.FixtureRequest) -> Iterator[Proposer]:
    made = make(request.param)
    assert made.nbytes == 0
    yield made
    for row in range(4):
        made.remove(row)
    made.reset()
    assert made.nbytes == 0, "something outlives requests and reset()"


def test_methods_are_the_files_that_say_so() -> None:
    folder = Path(octavo.spec.__file__).parent
    said = {file.stem for file in folder.glob("*.py") if "\nPROPOSER" in file.read_text("utf-8")}
    assert set(methods()) == said
    assert said >= {"ngram", "suffix", "draft", "self"}
    assert all(found.about for found in methods().values())


@pytest.mark.parametrize("name", ["base", "policy", "", None, 3])
def test_other_names_are_refused(name: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"there are: .*ngram, self, suffix"):
        method(name)


def test_it_drafts_what_repeats_itself(proposer: Proposer) -> None:
    proposer.start(2, Begin(TEXT, len(TEXT)))
    assert proposer.propose({2: 2})[2].tokens == (5, 6)
    assert proposer.propose({}) == {}
    proposer.observe(2, [5])
    assert proposer.propose({2: 1})[2].tokens == (6,)
    proposer.observe(2, [11, 12, 13])
    assert proposer.propose({2: 4}) == {}


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("name", sorted(table_methods()))
def test_whatever_happens_drafts_are_drafts_and_bytes_bounded(name: str, trees: bool) -> None:
    draw = random.Random(1)
    found = method(name)
    given = {"suffix_decoding_use_tree_spec": True} if name == "suffix" else {}
    wanted = Wanted(3, 256, trees, found.settings(given))
    proposer, lengths = found.make(wanted), dict[int, int]()
    for _ in range(1500):
        row, salt = draw.randrange(3), draw.choice([None, "a", "b"])
        if row not in lengths:
            tokens = [draw.randrange(4) for _ in range(draw.randrange(1, 120))]
            prediction = [draw.randrange(4) for _ in range(draw.choice([0, 0, 50]))]
            proposer.start(row, Begin(tokens, draw.randrange(1, len(tokens) + 1), prediction, salt))
            lengths[row] = len(tokens)
        elif draw.random() < 0.02 or lengths[row] > 240:
            proposer.remove(row)
            del lengths[row]
        else:
            most = {each: draw.randrange(1, 9) for each in lengths}
            drafts = proposer.propose(most)
            assert set(drafts) <= set(most)
            for each, draft in drafts.items():  # (Draft itself refuses what is no tree)
                assert 1 <= len(draft.tokens) <= most[each]
                assert all(0 <= token < 4 for token in draft.tokens)
                assert trees or draft.is_chain
            emitted = [draw.randrange(4) for _ in range(draw.randrange(1, 4))]
            proposer.observe(row, emitted)
            lengths[row] += len(emitted)
        if draw.random() < 0.01:
            proposer.reset()
        assert proposer.nbytes <= found.bound(wanted)
