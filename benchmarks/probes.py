"""Everything hostile that is known, against a real server, with an honest client beside it.

    python benchmarks/probes.py [--only WORDS] [--servers open,keyed,templates,tools] [--json] [--write]

Silent and half-open connections, slow heads and bodies, bodies to open paths, invented methods, what is no
HTTP; the largest body of each kind that a parser knows, six at once; what asks for much by few words:
grammars, stop strings, log-probabilities, many prompts; chat templates and tool calls that are read in more
than linear time. Against a server without keys and one with two, where the honest client has the other.

Of each: how it was answered, how long the event loop stood still (the longest that the honest client waited
for /health, which it asks every 10 ms), and memory before, at most, and 20 s later at the latest. Wanted:
no fault, never more than 100 ms, refusals within a second, at most 300 MB for all, and resident memory back
within 5 % of a server's that has answered an ordinary request of each kind, and once as many small ones as it
takes at once; what that crowd leaves is a figure of its own. Then all of it comes once more: what is larger
after the second time is lost. Beside other work on the machine milliseconds say little; everything else does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from harness import conclude, report, usable_cores
from hostile.attacks import ATTACKS, Arena, Attack, Record, named
from hostile.bodies import CHAT, COMPLETIONS, ORDINARY, SMALL, TEMPLATES
from hostile.honest import Honest
from hostile.process import Process, Sampler
from hostile.wire import Target, at_once, close_all, more_files, wait_until

HEADER_S, WRITE_S = 3.0, 5.0
FLAGS = (
    "--max-num-seqs", "32", "--num-pages", "520", "--header-timeout", f"{HEADER_S:g}",
    "--write-timeout", f"{WRITE_S:g}",
)  # fmt: skip
"""So few pages that all have been written to before anything is measured."""
KEYS = ("attacker", "somebody")
QUIET_S, BACK_S = 5.0, 20.0
MOST = {
    "faults": 0, "held_ms": 100.0, "refused_s": 1.0, "taken_mb": 300.0, "crowd_mb": 40.0, "rss_back": 1.05,
    "rss_end": 1.05, "rss_again": 1.02,
}  # fmt: skip
"""The bars, by the figures that facts_of() names."""
MOST_AT_ONCE = 1000
"""Requests that `octavo serve` takes at once by default, but a few for the honest client."""
CROWDS = ("1,500 streams at once", "one client in the queue")
"""Attacks that fill the queue: where no key tells who asks, the honest client is refused with all others."""
LOG_BYTES = 200_000


def warm(target: Target) -> None:
    """Write to every page, start every thread, and ask once for each kind of thing that people ask for.

    The first request of a kind imports what it needs, and makes tables of the vocabulary and buffers of a
    step: a server keeps them, whoever asked first. What a probe leaves is compared with what a server has
    that has answered one ordinary request of each kind.
    """
    for turn in range(14):
        prompt = [7 + (turn * 7919 + 31 * place + place * place) % 80 for place in range(1200)]
        target.ask("POST", COMPLETIONS, {"prompt": prompt, "max_tokens": 1})
    target.ask("POST", COMPLETIONS, {"prompt": "a b " * 60_000, "truncate_prompt_tokens": 5, "max_tokens": 1})
    texts = [f"{number} " + "lorem ipsum " * 2000 for number in range(8)]
    cut = {"truncate_prompt_tokens": 5, "max_tokens": 1}
    at_once([partial(target.ask, "POST", COMPLETIONS, {"prompt": text, **cut}) for text in texts])
    for path, body in ORDINARY:
        target.ask("POST", path, body)


def crowd(target: Target) -> None:
    """Fill the server with ordinary requests, as many as it takes at once, so that none is refused.

    Python's allocator keeps the room of small objects where one of them lives in each megabyte, and one
    nearly always does (see docs/status.md). So the room of as many requests as there may be at once is
    taken once, as the pages are; how much it is stands in the result beside what probes leave.
    """
    body = target.request(COMPLETIONS, {**SMALL, "stream": True}, close=True)
    held = [target.connect(body) for _ in range(MOST_AT_ONCE)]
    for sock in held:
        sock.settimeout(300)
        while sock.recv(1 << 16):
            pass
    close_all(held)


def probe(
    name: str, attack: Attack, arena: Arena, process: Process, honest: Honest, text: str
) -> dict[str, Any]:
    """One attack, and what it cost others."""
    before, log = process.rss_mb(), len(process.log())
    late = lags(arena.other.metrics())
    process.forget_peak()
    children, record = Sampler(process.children_mb), Record()
    began_children = children.most
    honest.seen()
    begin = time.perf_counter()
    attack(arena, record)
    seconds = time.perf_counter() - begin
    if process.alive:
        arena.stranger.ask("GET", "/health")  # whatever holds the loop still is over then
    time.sleep(0.2)
    seen = honest.seen()
    taken = max(0.0, process.peak_mb() - before) + max(0.0, children.end() - began_children)
    after = settled(process, MOST["rss_back"] * before)
    record.check(process.alive, "the server has ended")
    logged = process.log()[log:]
    record.check("Traceback" not in logged, "a trace in the log: " + logged[-200:])
    record.check(len(logged) < LOG_BYTES, f"{len(logged)} bytes in the log")
    crowded = name in CROWDS and not arena.keyed
    record.faults += unjust(seen, text, ("status 429",) if crowded else ())
    return {
        "name": name,
        "statuses": {str(status): count for status, count in sorted(record.statuses.items())},
        "seconds": round(seconds, 2),
        "refused_s": round(record.refused_s, 3) if name.startswith("six bodies") else 0.0,
        "held_ms": seen["health_worst_ms"],
        "late_loops": lags(arena.other.metrics()) - late if process.alive else 0,
        "before_mb": round(before, 1),
        "taken_mb": round(taken, 1),
        "after_mb": round(after, 1),
        "faults": record.faults,
    }


def settled(process: Process, most_mb: float) -> float:
    """Resident megabytes, once they are no more than this, or BACK_S later: it gives back by and by."""
    wait_until(lambda: process.rss_mb() <= most_mb, BACK_S, 0.5)
    return process.rss_mb()


def lags(metrics: Mapping[str, float]) -> int:
    """How often the server's own timer was late by more than 100 ms; it looks ten times a second."""
    name = "octavo_event_loop_lag_seconds"
    return int(metrics.get(f"{name}_count", 0) - metrics.get(name + '_bucket{le="0.1"}', 0))


def unjust(seen: Mapping[str, Any], text: str, allowed: Sequence[str] = ()) -> Iterator[str]:
    """What the honest client should not have seen."""
    for why, count in seen["unhealthy"].items():
        yield f"/health failed {count} times: {why}"
    for why, count in seen["failed"].items():
        if why not in allowed:
            yield f"{count} honest streams failed: {why}"
    wrong = sum(count for said, count in seen["texts"].items() if said != text)
    if wrong:
        yield f"{wrong} honest streams said something else than on a quiet server"


def served(model: str, keyed: bool, words: str) -> dict[str, Any]:
    """All attacks on one server."""
    mine, other = KEYS if keyed else (None, None)
    keys = [word for key in KEYS for word in ("--api-key", key)] if keyed else []
    with Process(model, *FLAGS, *keys) as process:
        arena = Arena(Target.of(process.url, mine), Target.of(process.url, other), HEADER_S, WRITE_S)
        warm(arena.other)
        with Honest(process.url, other) as honest:
            wait_until(lambda: honest.seen()["answers"] > 0, 60, 1.0)
            time.sleep(QUIET_S)
            quiet = honest.seen()
            (text,) = quiet["texts"]
            few, found = process.rss_mb(), []
            crowd(arena.other)
            wait_until(lambda: arena.in_use() <= 0, BACK_S, 0.5)
            time.sleep(QUIET_S)
            honest.seen()
            start = process.rss_mb()
            for name in named(words):
                found.append(probe(name, ATTACKS[name], arena, process, honest, text))
                print(line(found[-1]), file=sys.stderr, flush=True)
                if not process.alive:
                    break
            end = settled(process, MOST["rss_end"] * start)
            for first in found if process.alive else ():
                name = first["name"]
                first["faults"] += probe(name, ATTACKS[name], arena, process, honest, text)["faults"]
            again = settled(process, MOST["rss_again"] * end)
        status = process.end()
    return {
        "server": "keyed" if keyed else "open",
        "quiet_ms": quiet["health_worst_ms"],
        "crowd_mb": round(start - few, 1),
        "rss_end": round(end / start, 4),
        "rss_again": round(again / end, 4),
        "status": status,
        "probes": found,
    }


def line(found: Mapping[str, Any]) -> str:
    """A probe, for people."""
    statuses = " ".join(f"{status} x{count}" for status, count in found["statuses"].items())
    memory = f"{found['before_mb']:.0f} +{found['taken_mb']:.0f} -> {found['after_mb']:.0f} MB"
    faults = "".join(f"\n    FAULT {fault}" for fault in found["faults"][:5])
    return (
        f"{found['name']:<55} {found['seconds']:7.2f} s  held {found['held_ms']:6.0f} ms  {memory:<24} "
        f"{statuses}{faults}"
    )


# --- what a server is started with ----------------------------------------------------------------

SLOW_S = 10.0
BOMBS = {
    "deepseek_v3": "<｜tool▁calls▁begin｜>" + "<｜tool▁call▁begin｜>" * 40 + "<｜tool▁sep｜>" * 40,  # noqa: RUF001 - its marks
    "mistral": "[TOOL_CALLS]" + " " * 600 + "[" * 100,
    "qwen3_coder": "<tool_call>" + "<function=" * 40 + "<parameter=" * 40,
    "hermes": '<tool_call>{"a":' + "[" * 600,
    "llama3_json": '{"name":"f","parameters":' + '{"a":' * 120,
    "pythonic": "[f(a=" + "(" * 600,
}
"""By parser of tool calls: what a client may make a model say."""
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def hostile_template(model: str, name: str) -> dict[str, Any]:
    """A server whose chat template asks for hours, six chats at once."""
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    return started(model, f"template: {name}", ("--chat-template", TEMPLATES[name]), [chat] * 6, (400,))


def hostile_calls(model: str, parser: str) -> dict[str, Any]:
    """A model that is made to say what a parser of tool calls may take long to read."""
    wish = {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL], "max_tokens": 2000}
    said = {**wish, "structured_outputs": {"choice": [BOMBS[parser]]}}
    asked = [said, {**said, "stream": True}]
    return started(model, f"tool calls: {parser}", ("--tool-call-parser", parser), asked, (200,))


def started(
    model: str, name: str, flags: Sequence[str], asked: Sequence[Mapping[str, Any]], allowed: tuple[int, ...]
) -> dict[str, Any]:
    """Chats with a server of its own."""
    with Process(model, *FLAGS, *flags) as process:
        arena = Arena(Target.of(process.url), Target.of(process.url), HEADER_S, WRITE_S)
        warm(arena.other)

        def attack(arena: Arena, record: Record) -> None:
            calls = [lambda chat=chat: arena.target.ask("POST", CHAT, chat) for chat in asked]
            for answer in at_once(calls):
                record.note(answer, "a chat", allowed)
                record.check(answer.seconds < 60, f"a chat took {answer.seconds:.0f} s")

        with Honest(process.url, None) as honest:
            wait_until(lambda: bool(honest.seen()["answers"]), 60, 1.0)
            time.sleep(QUIET_S)
            (text,) = honest.seen()["texts"]
            found = probe(name, attack, arena, process, honest, text)
        begin = time.perf_counter()
        status = process.end()
        if status or time.perf_counter() - begin > SLOW_S:
            found["faults"].append(f"after SIGTERM: {status} in {time.perf_counter() - begin:.0f} s")
    print(line(found), file=sys.stderr, flush=True)
    return found


# --- all of it ------------------------------------------------------------------------------------


def facts_of(servers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The worst of all probes, by the bars' names."""
    probes = [found for server in servers for found in server["probes"]]
    statuses = sum(server["status"] != 0 for server in servers)

    def worst(name: str) -> float:
        return max((float(found[name]) for found in probes), default=0.0)

    return {
        "probes": len(probes),
        "faults": sum(len(found["faults"]) for found in probes) + statuses,
        "held_ms": worst("held_ms"),
        "quiet_ms": max((server["quiet_ms"] for server in servers), default=0.0),
        "late_loops": sum(found["late_loops"] for found in probes),
        "refused_s": worst("refused_s"),
        "taken_mb": worst("taken_mb"),
        "crowd_mb": max((server["crowd_mb"] for server in servers), default=0.0),
        "rss_back": round(max((f["after_mb"] / max(f["before_mb"], 1) for f in probes), default=1.0), 4),
        "rss_end": max((server["rss_end"] for server in servers), default=1.0),
        "rss_again": max((server["rss_again"] for server in servers), default=1.0),
    }


def missed(facts: Mapping[str, Any]) -> list[str]:
    """The bars that were not reached."""
    return [f"{name} {facts[name]:g}, at most {most:g}" for name, most in MOST.items() if facts[name] > most]


def measure(model: str, servers: Sequence[str], words: str) -> list[dict[str, Any]]:
    """Every probe that was asked for, by the server that it was sent to."""
    found = [
        served(model, keyed, words) for name, keyed in (("open", False), ("keyed", True)) if name in servers
    ]
    apart = {"quiet_ms": 0.0, "crowd_mb": 0.0, "rss_end": 1.0, "rss_again": 1.0, "status": 0}
    if "templates" in servers:
        probes = [hostile_template(model, name) for name in TEMPLATES]
        found.append({"server": "templates", **apart, "probes": probes})
    if "tools" in servers:
        probes = [hostile_calls(model, parser) for parser in BOMBS]
        found.append({"server": "tools", **apart, "probes": probes})
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="probes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--only", default="", help="attacks whose names hold one of these words; commas part them"
    )
    parser.add_argument("--servers", default="open,keyed,templates,tools", help="which of the four")
    parser.add_argument("--list", action="store_true", help="print the attacks' names")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="put a file under results/")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(named(options.only)))
        return 0
    more_files()
    busy = os.getloadavg()[0] > 0.3 * usable_cores()
    servers = measure(options.model, options.servers.split(","), options.only)
    facts = facts_of(servers)
    settings = {
        "model": options.model,
        "only": options.only,
        "servers": options.servers,
        "flags": list(FLAGS),
    }
    body = {"settings": settings, "noisy": busy, **facts, "servers": servers}
    result = report("probes", ["benchmarks/probes.py", *arguments], body)
    lines = [
        *(f"{name:<12} {value:g}" for name, value in facts.items()),
        *([f"MISSED: {what}" for what in missed(facts)] or ["every bar is reached"]),
    ]
    return conclude(result, lines, bool(missed(facts)), options.json, options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
