"""Servers that are ended under load: SIGTERM cuts no stream, and what SIGKILL leaves gives no wrong token.

    python benchmarks/kills.py [--model smollm2] [--times 50] [--streams 16] [--seed 0] [--write]

A server that nobody disturbs answers every prompt once: what it says is right. Then, so many times each:

- SIGTERM at a random moment of a crowd of streams. A stream that has begun must come whole and right, one
  that has not is refused (503, or no connection any more), and the server must end with status 0.
- SIGKILL at a random moment, on a folder for cached prefixes that all rounds share, with so few pages that
  they are written all the time. The next server on that folder must answer every prompt right.

Prompts share a beginning, and are token ids, so any model does. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from asked import at_least_one
from harness import report, write

END_S, STREAM_S = 120.0, 120.0
DRAIN_S = 60
SHARED, OWN, NEW = 64, 16, 24
FEW_PAGES = 48
WHOLE, CUT, REFUSED, WRONG = "whole", "cut", "refused", "wrong"


@dataclass
class Server:
    """`octavo serve` as a process."""

    process: subprocess.Popen[str]
    port: int

    @staticmethod
    def start(model: str, *flags: str) -> Server:
        """Start one on a free port; returns when it is ready."""
        command = [sys.executable, "-m", "octavo", "serve", model, "--port", "0", "--json", *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                return Server(process, int(event["url"].rsplit(":", 1)[1]))
        raise SystemExit(f"the server ended with {process.wait()} before it was ready")

    def end(self, name: signal.Signals) -> int:
        """Send a signal; returns the exit status."""
        self.process.send_signal(name)
        self.process.communicate(timeout=END_S)
        return self.process.returncode


def prompts(count: int) -> list[list[int]]:
    """Token ids that small vocabularies have, too."""
    rng = random.Random(7)
    shared = [rng.randrange(3, 90) for _ in range(SHARED)]
    return [shared + [rng.randrange(3, 90) for _ in range(OWN)] for _ in range(count)]


def stream(port: int, prompt: list[int], number: int) -> tuple[str, str]:
    """(how a stream ended, its text), as a client sees it."""
    body = {
        "prompt": prompt, "max_tokens": NEW, "ignore_eos": True, "seed": number, "temperature": 0.9,
        "stream": True,
    }  # fmt: skip
    text, begun = "", False
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STREAM_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            return (REFUSED if response.status == 503 else CUT), f"status {response.status}"
        begun = True
        for line in response:
            data = line.decode().removeprefix("data: ").strip()
            if data == "[DONE]":
                return WHOLE, text
            event = json.loads(data) if data else {}
            if "error" in event:
                return CUT, event["error"]["message"]
            text += "".join(choice["text"] for choice in event.get("choices", ()))
        return CUT, "no end"
    except (OSError, http.client.HTTPException) as error:
        return (CUT if begun else REFUSED), type(error).__name__
    finally:
        connection.close()


class Crowd:
    """Clients that ask for every prompt at once."""

    def __init__(self, port: int, asked: list[list[int]]) -> None:
        self.found: list[tuple[str, str]] = [(CUT, "never asked")] * len(asked)

        def ask(number: int) -> None:
            self.found[number] = stream(port, asked[number], number)

        self._threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(asked))]
        for thread in self._threads:
            thread.start()

    def judged(self, right: list[str]) -> Counter[str]:
        """How the streams have ended, when all have."""
        for thread in self._threads:
            thread.join()
        return Counter(
            WRONG if end == WHOLE and text != wanted else end
            for (end, text), wanted in zip(self.found, right, strict=True)
        )


def answers(port: int, asked: list[list[int]]) -> list[str]:
    """What a server says to each prompt, all at once."""
    crowd = Crowd(port, asked)
    crowd.judged([""] * len(asked))
    broken = [found for found in crowd.found if found[0] != WHOLE]
    if broken:
        raise SystemExit(f"a server that nobody disturbs gives {broken[0]}")
    return [text for _, text in crowd.found]


def terminated(model: str, asked: list[list[int]], right: list[str], wait_s: float) -> dict[str, Any]:
    """One round of SIGTERM."""
    server = Server.start(model, "--drain-timeout", str(DRAIN_S))
    crowd = Crowd(server.port, asked)
    time.sleep(wait_s)
    status = server.end(signal.SIGTERM)
    return {"status": status, **crowd.judged(right)}


def killed(
    model: str, asked: list[list[int]], right: list[str], wait_s: float, folder: str
) -> dict[str, Any]:
    """One round of SIGKILL, and the server after it."""
    flags = ("--prefix-cache-dir", folder, "--prefix-cache-disk-space", "0.25", "--num-pages", str(FEW_PAGES))
    server = Server.start(model, *flags)
    crowd = Crowd(server.port, asked)
    time.sleep(wait_s)
    server.end(signal.SIGKILL)
    before = crowd.judged(right)
    server = Server.start(model, *flags)
    after = Crowd(server.port, asked).judged(right)
    hits = disk_hits(server.port)
    return {"status": server.end(signal.SIGTERM), "wrong_before": before[WRONG], "disk_hits": hits, **after}


def disk_hits(port: int) -> int:
    """Prompt tokens that a server has found on disk."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STREAM_S)
    connection.request("GET", "/metrics")
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith("octavo_external_prefix_cache_hits_total"):
            return int(float(line.split()[-1]))
    return 0


def measure(model: str, times: int, streams: int, seed: int) -> dict[str, Any]:
    """All rounds, and what speaks against the server in them: see judged().

    Raises:
        SystemExit: a server did not start, or cut an answer although nobody disturbed it.
    """
    asked, rng = prompts(streams), random.Random(seed)
    server = Server.start(model)
    begin = time.perf_counter()
    right = answers(server.port, asked)
    busy_s = time.perf_counter() - begin  # what a crowd takes, so signals come at any moment of it
    server.end(signal.SIGTERM)
    rounds: dict[str, list[dict[str, Any]]] = {"SIGTERM": [], "SIGKILL": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(times):
            wait_s = rng.uniform(0, busy_s)
            rounds["SIGTERM"].append(terminated(model, asked, right, wait_s))
            rounds["SIGKILL"].append(killed(model, asked, right, wait_s, folder))
            said = {name: found[-1] for name, found in rounds.items()}
            print(f"round {number + 1}: {said}", file=sys.stderr, flush=True)
    return judged(rounds, times, streams)


def judged(rounds: dict[str, list[dict[str, Any]]], times: int, streams: int) -> dict[str, Any]:
    """Totals of the rounds, and what speaks against the server."""
    totals = {name: dict(sum((Counter(found) for found in all_), Counter())) for name, all_ in rounds.items()}
    ended, restarted = totals["SIGTERM"], totals["SIGKILL"]
    faults = {
        "streams cut within the drain": ended.get(CUT, 0),
        "wrong answers": ended.get(WRONG, 0) + restarted.get(WRONG, 0) + restarted.get("wrong_before", 0),
        "answers missing after a restart": times * streams
        - restarted.get(WHOLE, 0)
        - restarted.get(WRONG, 0),
        "servers that did not end with 0": sum(
            bool(found["status"]) for all_ in rounds.values() for found in all_
        ),
    }
    return {"times": times, "streams": streams, "totals": totals, "faults": faults}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--times", type=at_least_one, default=50)
    parser.add_argument("--streams", type=at_least_one, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="put the result under results/")
    arguments = parser.parse_args()
    body = measure(arguments.model, arguments.times, arguments.streams, arguments.seed)
    print(json.dumps(body))
    if arguments.write:
        command = ["python", "benchmarks/kills.py", "--times", str(arguments.times)]
        print(write(report("kills", command, {"model": arguments.model, **body})), file=sys.stderr)
    return 1 if any(body["faults"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
