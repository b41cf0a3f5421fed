"""What the prefix cache on disk is worth after a restart: the time to the first token of a shared prompt.

    python benchmarks/restart.py [--model smollm2] [--shared 1500] [--rounds 5] [--write]

Each round starts three processes one after the other: one that computes the prompt and leaves it in an empty
folder, one that finds it there, and one without a folder. Each answers a short prompt first, so that
nothing else is cold, and then the shared prompt with 12 tokens of its own; the second asks once more, with
the prompt in memory by then. Ids and the logprob must be equal in all. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from asked import at_least_one, tells
from harness import report, write

from octavo.errors import OctavoError

OWN = 12


def ask(llm: Any, ids: list[int]) -> dict[str, Any]:
    """Milliseconds to the first token of a prompt, the token, and the tokens found on disk so far."""
    from octavo import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0, logprobs=0)
    start = time.perf_counter()
    (output,) = llm.generate([{"prompt_token_ids": ids}], params)
    elapsed = 1e3 * (time.perf_counter() - start)
    completion = output.outputs[0]
    logprob = completion.logprobs[0][completion.token_ids[0]].logprob
    hits = llm.get_metrics().external_prefix_hits
    return {"ms": elapsed, "token": completion.token_ids[0], "logprob": logprob, "disk_hits": hits}


def child(model: str, folder: str, shared: int) -> None:
    """Load, answer, and print what it took."""
    from octavo import LLM

    where: dict[str, Any] = {"prefix_cache_dir": folder} if folder else {}
    start = time.perf_counter()
    llm = LLM(model, seed=0, **where)
    loaded = time.perf_counter() - start
    head = [1000 + number * 7919 % 20000 for number in range(shared)]
    ask(llm, [number + 5 for number in range(40)])
    answers = [ask(llm, [*head, *(tail + number for number in range(OWN))]) for tail in (30000, 31000)]
    start = time.perf_counter()
    llm.shutdown()
    took = {"load_s": loaded, "close_s": time.perf_counter() - start, "answers": answers}
    print(json.dumps(took))


def run(model: str, folder: str, shared: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--model", model, "--shared", str(shared), "--child", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(model: str, shared: int, rounds: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {"computed": [], "from disk": [], "from memory": [], "closing": []}
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            left, found, alone = (run(model, where, shared) for where in (folder, folder, ""))
        for one, other in zip(found["answers"], alone["answers"], strict=True):
            if (one["token"], one["logprob"]) != (other["token"], other["logprob"]):
                raise SystemExit("the answer from disk is another")
        if not found["answers"][0]["disk_hits"] or left["answers"][0]["disk_hits"]:
            raise SystemExit("the disk was not what made the difference")
        times["computed"].append(alone["answers"][0]["ms"])
        times["from disk"].append(found["answers"][0]["ms"])
        times["from memory"].append(found["answers"][1]["ms"])
        times["closing"].append(1e3 * left["close_s"])
        line = ", ".join(f"{name} {values[-1]:.1f} ms" for name, values in times.items())
        print(f"round {number + 1}: {line}", file=sys.stderr, flush=True)
    return {"shared_tokens": shared, "rounds": rounds, **summary(times), "all": times}


def summary(times: dict[str, list[float]]) -> dict[str, Any]:
    """Medians of milliseconds, and how many times sooner the disk gives the first token."""
    medians = {name: round(statistics.median(values), 1) for name, values in times.items()}
    ratio = round(medians["computed"] / medians["from disk"], 1)
    return {"milliseconds": medians, "ratio": ratio}


@tells(OctavoError)
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--shared", type=at_least_one, default=1500)
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--write", action="store_true", help="put the result under results/")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.model, arguments.child, arguments.shared)
        return
    body = measure(arguments.model, arguments.shared, arguments.rounds)
    medians = body["milliseconds"]
    print(
        f"first token of {body['shared_tokens']} shared tokens: {medians['from disk']} ms from disk after a "
        f"restart, {medians['from memory']} ms from memory, {medians['computed']} ms computed: "
        f"{body['ratio']} x"
    )
    if arguments.write:
        command = ["python", "benchmarks/restart.py", "--rounds", str(arguments.rounds)]
        print(write(report("restart", command, {"model": arguments.model, **body})))


if __name__ == "__main__":
    main()
