"""The fuzzer: 20,000 inputs over all parsers without a fault, and every kind of fault that it must see."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path

import pytest

from support.fuzz import campaign as campaign_module
from support.fuzz.campaign import CORPUS, CORPUS_BYTES, SIGPROF, Campaign, read_corpus
from support.fuzz.changes import pack, unpack
from support.fuzz.planted import Planted
from support.fuzz.registry import TARGETS
from support.fuzz.target import Target

PLANTED = {"planted": Target(1, "support.fuzz.planted:Planted")}


@pytest.mark.parametrize("name", TARGETS)
def test_no_parser_crashes_hangs_or_takes_more_than_it_may(name: str, tmp_path: Path) -> None:
    """`make fuzz` runs more of them. An input that fails here goes there by: --only NAME --inputs 9000."""
    share = 20_000 * TARGETS[name].share // sum(target.share for target in TARGETS.values())
    campaign = Campaign({name: TARGETS[name]}, share, tmp_path)
    campaign.run()
    books = campaign.books[name]
    assert books.faults == {}
    assert books.done == share
    assert len(books.outcomes) > 5, "most inputs are refused in the same way: they are not near enough"


def test_every_kind_of_fault_is_seen_with_its_input(tmp_path: Path) -> None:
    """Each number stands in the corpus once, which is tried before anything else."""
    corpus = {f"number {number}": base64.b64encode(b"%d" % number).decode() for number in range(70)}
    campaign = Campaign(PLANTED, 1, tmp_path)
    campaign.books["planted"].kept = corpus
    campaign.run(lambda: True)
    books = campaign.books["planted"]
    assert books.done == 0
    found = {int(base64.b64decode(fault["data"])): fault for fault in books.faults.values()}
    assert sorted(found) == sorted(Planted.faults)
    kinds = [found[number]["kind"] for number in sorted(found)]
    assert kinds == ["crash", "slow", "memory", "raised", "raised", "wrong", "hang"]
    assert f"status {SIGPROF}" in found[67]["what"]
    assert {fault["count"] for fault in found.values()} == {1}
    assert set(books.outcomes) == {"even", "CheckpointError: 0 is odd"}


def test_it_goes_on_where_it_was_and_tries_faults_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign_module, "BATCH", 20)
    parts = Campaign(PLANTED, 60, tmp_path)
    parts.books["planted"].fault(3, "raised", "KeyError", base64.b64encode(b"8").decode())
    parts.books["planted"].fault(4, "raised", "KeyError: 37", base64.b64encode(b"37").decode())
    stops = iter([False, True])
    parts.run(lambda: next(stops))
    assert parts.done == 20
    again = Campaign(PLANTED, 60, tmp_path)
    assert again.done == 20
    before = sum(again.books["planted"].outcomes.values())
    again.run(lambda: True)
    assert again.done == 20
    assert "raised: KeyError" not in again.books["planted"].faults, "the first is mended, the second is not"
    assert any("KeyError in planted.py" in key for key in again.books["planted"].faults)
    assert sum(again.books["planted"].outcomes.values()) >= before
    with pytest.raises(SystemExit, match="is of seed 0"):
        Campaign(PLANTED, 60, tmp_path, seed=1)


def test_what_ends_a_worker_may_be_contained_elsewhere(tmp_path: Path) -> None:
    target = dataclasses.replace(PLANTED["planted"], contained="support.fuzz.planted:contained")
    campaign = Campaign({"planted": target}, 1, tmp_path)
    numbers = {"crash": b"7", "endless": b"67", "raise": b"37"}
    campaign.books["planted"].kept = {name: base64.b64encode(data).decode() for name, data in numbers.items()}
    campaign.run(lambda: True)
    books = campaign.books["planted"]
    assert books.outcomes["contained: killed on trial"] == 2
    assert [fault["kind"] for fault in books.faults.values()] == ["raised"]
    assert campaign.result()["targets"]["planted"]["contained"] == 2


def test_what_was_found_is_kept_within_bounds(tmp_path: Path) -> None:
    campaign = Campaign(PLANTED, 100, tmp_path / "state")
    campaign.books["planted"].kept = {str(n): "x" * (n % 700) for n in range(1000)}
    campaign.keep(tmp_path / "corpus")
    file = tmp_path / "corpus" / "planted.jsonl"
    assert file.stat().st_size <= CORPUS_BYTES
    kept = read_corpus(file)
    assert kept.items() <= campaign.books["planted"].kept.items()
    assert len(kept) > 100


def test_the_corpus_is_small_and_of_known_targets() -> None:
    files = list(CORPUS.iterdir())
    assert {file.stem for file in files} <= set(TARGETS)
    assert sum(file.stat().st_size for file in files) <= 1 << 20
    assert all(base64.b64decode(data) is not None for file in files for data in read_corpus(file).values())


def test_folders_are_packed_whole() -> None:
    files = {"a": bytes(range(256)), "b.json": '{"é": "字"}'.encode()}
    assert unpack(pack(files)) == files
