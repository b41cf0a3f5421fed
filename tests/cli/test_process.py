"""What `octavo serve` asks of its own process, for the sake of all requests."""

from __future__ import annotations

import json
import subprocess

from octavo.cli.serve import TURN_S
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
