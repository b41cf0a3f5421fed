"""What `octavo serve` asks of its own process, for the sake of all requests."""

from __future__ import annotations

import gc
import json
import subprocess

import pytest

from octavo.cli.serve import TURN_S, _young_alone
from support.cli import command, environment

TOLD = "sys.getswitchinterval(), gc.isenabled(), gc.get_freeze_count(), len(gc.get_objects())"


def test_threads_take_short_turns_and_the_collector_leaves_out_what_was_loaded() -> None:
    words = command("serve", "my-model", "--port", "0", "--json", scripted=True)
    script = words[2].replace('print("engine shut"', f"import gc, json; print(json.dumps([{TOLD}])")
    process = subprocess.Popen(
        [*words[:2], script, *words[3:]],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "ready":
            break
    process.terminate()
    _, err = process.communicate(timeout=60)
    turn, collects, left_out, looked_at = json.loads(err)
    assert turn == TURN_S < 0.005
    assert collects
    assert looked_at < left_out / 10


def test_until_a_server_ends_the_collector_passes_over_young_objects_alone() -> None:
    before = gc.get_threshold()
    with _young_alone():
        passes = [each["collections"] for each in gc.get_stats()]
        kept = [[] for _ in range(500_000)]
        now = [each["collections"] for each in gc.get_stats()]
        young, _, old = (after - count for after, count in zip(now, passes, strict=True))
    assert young > 100
    assert old == 0, "a hundred of 5,000 lists each would do"
    assert len(kept) == 500_000
    assert gc.get_threshold() == before


def test_a_server_that_does_not_start_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="no model"), _young_alone():
        raise ValueError("no model")
    assert gc.get_threshold() == before
