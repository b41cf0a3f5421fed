"""What hostile clients do to a server, one after the other. Each function is an attack; ATTACKS lists them.

An attack notes in its Record how it was answered, and what should not have been so. How long the event loop
stood still meanwhile, and what memory it took, is for whoever calls it (benchmarks/probes.py).
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hostile.bodies import COMPLETIONS, FULL, GRAMMARS, MALFORMED, ODD, WORST, Filled
from hostile.wire import NO_ANSWER, Answer, Target, at_once, close_all, closed, reset, wait_until

WAIT_S = 60.0
SMALL_S = 2.0
"""What another's small grammar may take while hostile ones are tried."""


@dataclass(frozen=True, slots=True)
class Arena:
    """Where attacks take place.

    Attributes:
        target, other: the server for the attacker, and for somebody else; keys differ where there are any.
        header_s, write_s: its --header-timeout and --write-timeout.
    """

    target: Target
    other: Target
    header_s: float
    write_s: float

    @property
    def keyed(self) -> bool:
        return self.target.key is not None

    @property
    def stranger(self) -> Target:
        """The server for somebody without a key."""
        return Target(self.target.host, self.target.port)

    def in_use(self) -> float:
        """Requests that compute, wait or hold a place, but the honest client's one."""
        found = self.other.metrics()
        names = "octavo_num_requests_running", "octavo_num_requests_waiting", "octavo_http_requests_in_flight"
        return max(found.get(name, 0.0) for name in names) - 1


@dataclass
class Record:
    """What came of an attack.

    Attributes:
        statuses: of its answers, 0: none came. refused_s: the slowest refusal. faults: what should not be so.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    refused_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def note(self, answer: Answer, what: str, allowed: tuple[int, ...] = ()) -> None:
        """An answer: a fault, unless it is a 200 or a refusal (4xx), or one of those that are allowed."""
        self.statuses[answer.status] += 1
        refused = 400 <= answer.status < 500
        if refused:
            self.refused_s = max(self.refused_s, answer.seconds)
        if answer.status in allowed if allowed else refused or answer.status == 200:
            return
        self.faults.append(f"{what}: {answer.status} {answer.body[:120].decode(errors='replace')}")

    def check(self, right: bool, what: str) -> None:
        """A fault unless it is right."""
        if not right:
            self.faults.append(what)


Attack = Callable[[Arena, Record], None]


# --- at the door ----------------------------------------------------------------------------------


def method_names(arena: Arena, record: Record) -> None:
    """2,000 methods of 15,000 letters, without a key: no name of a client's stays in the metrics."""
    before = len(arena.target.ask("GET", "/metrics").body)
    sock = arena.stranger.connect()
    for number in range(2000):
        head = b"M%08d" % number + b"A" * 15_000 + b" /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
        try:
            sock.sendall(head)
            status = _status(sock)
        except OSError:
            status = NO_ANSWER
        record.statuses[status] += 1
        if status == NO_ANSWER:
            sock.close()
            sock = arena.stranger.connect()
    sock.close()
    after = len(arena.target.ask("GET", "/metrics").body)
    record.check(after < before + 20_000, f"/metrics grew from {before} to {after} bytes")
    record.check(all(400 <= status < 500 or not status for status in record.statuses), "a method was served")


def _status(sock: socket.socket) -> int:
    """The status of the answer on a connection that is kept; its body is read and dropped."""
    text = b""
    while b"\r\n\r\n" not in text:
        part = sock.recv(1 << 16)
        if not part:
            return NO_ANSWER
        text += part
    head, _, body = text.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    left = int(lengths[0].split(b":")[1]) - len(body) if lengths else 0
    while left > 0 and (part := sock.recv(1 << 16)):
        left -= len(part)
    return int(head.split(b" ", 2)[1])


def open_paths(arena: Arena, record: Record) -> None:
    """1,024 bodies that never come, posted to /health without a key: nobody's place is taken."""
    head = arena.stranger.head("POST", "/health", 100_000)
    held = [arena.stranger.connect(head) for _ in range(1024)]
    answers = [arena.other.ask("POST", "/tokenize", {"prompt": "a"}) for _ in range(3)]
    for answer in answers:
        record.note(answer, "an honest request beside them", (200,))
    close_all(held)


def silence(arena: Arena, record: Record) -> None:
    """1,100 connections that say nothing: others find room, and all are closed in the end."""
    held = [arena.stranger.connect() for _ in range(1100)]
    record.note(arena.stranger.ask("GET", "/health", timeout_s=10), "/health beside them", (200,))
    _all_close(held, arena.header_s, record)


def half_heads(arena: Arena, record: Record) -> None:
    """200 heads that come a byte at a time."""
    held = [arena.stranger.connect(b"GET /health HTTP/1.1\r\nX: ") for _ in range(200)]
    _all_close(held, arena.header_s, record, b"a")


def half_bodies(arena: Arena, record: Record) -> None:
    """200 bodies that come a byte at a time: they hold no place; half of their clients leave by RST."""
    head = arena.target.head("POST", COMPLETIONS, 100_000)
    held = [arena.target.connect(head) for _ in range(200)]
    for _ in range(10):
        for sock in held:
            sock.sendall(b" ")
        time.sleep(0.1)
    record.note(arena.other.ask("POST", "/tokenize", {"prompt": "a"}), "an honest request beside", (200,))
    for sock in held[::2]:
        reset(sock)
    close_all(held[1::2])
    _comes_back(arena, record)


def _all_close(held: list[socket.socket], seconds: float, record: Record, drip: bytes = b"") -> None:
    """Every connection is closed by the server; while that is waited for each gets some more bytes."""

    def gone() -> bool:
        for sock in held:
            try:
                sock.setblocking(False)
                sock.sendall(drip)
            except OSError:
                pass
        open_ones = [sock for sock in held if not closed(sock)]  # each is asked, and so read
        return not open_ones

    late = 0 if wait_until(gone, 2 * seconds + 10, 0.5) else sum(not closed(sock) for sock in held)
    record.check(not late, f"{late} of {len(held)} connections are open still")
    close_all(held)


def _comes_back(arena: Arena, record: Record, seconds: float = WAIT_S) -> None:
    """Every place is given back."""
    back = wait_until(lambda: arena.in_use() <= 0, seconds, 0.5)
    record.check(back, f"{arena.in_use():.0f} requests hold places after {seconds:g} s")


def slow_readers(arena: Arena, record: Record) -> None:
    """Eight clients that read nothing of answers of megabytes give their places back."""
    asked = arena.target.request("/tokenize", {"prompt": "ab " * 60_000, "return_token_strs": True})
    held = [arena.target.connect(asked * 4, receive_buffer=4096) for _ in range(8)]
    time.sleep(1)
    record.note(arena.other.ask("POST", "/tokenize", {"prompt": "a"}), "an honest request beside", (200,))
    _comes_back(arena, record, arena.write_s + 30)
    close_all(held)


def malformed(arena: Arena, record: Record) -> None:
    """What is no HTTP, forty times each."""
    for name, data in MALFORMED.items():
        for _ in range(40):
            sock = arena.stranger.connect()
            sock.settimeout(2 * arena.header_s + 10)
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                answer = sock.recv(1 << 16)
            except OSError:  # a reset may overtake the answer
                answer = b""
            status = int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else NO_ANSWER
            record.statuses[status] += 1
            record.check(status < 500, f"{name}: {status}")
            sock.close()


def pipelines(arena: Arena, record: Record) -> None:
    """1,000 requests at once on each of four connections; then clients leave behind a request of theirs."""
    health = arena.stranger.head("GET", "/health", 0)
    held = [arena.stranger.connect(health * 1000) for _ in range(4)]
    for sock in held:
        count = 0
        while count < 1000 and (part := sock.recv(1 << 16)):
            count += part.count(b"HTTP/1.1 200")
        record.statuses[200] += count
        record.check(count >= 1000, f"{count} of 1,000 pipelined requests were answered")
    close_all(held)
    body = {"prompt": "a", "max_tokens": 4000, "ignore_eos": True}
    leaving = [arena.target.connect(arena.target.request(COMPLETIONS, body) * 2) for _ in range(4)]
    time.sleep(1)
    close_all(leaving)
    _comes_back(arena, record, 10)


def browsers(arena: Arena, record: Record) -> None:
    """Pages of other sites, names that somebody made point here, and bodies that any page can post."""
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    for headers, status in (
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ):
        record.note(arena.target.ask("POST", COMPLETIONS, body, headers), str(headers), (status,))


PATHS = (
    "/metrics", "/version", "/openapi.json", "/docs", "/redoc", "/v1/models", "/v1/models/x", "/tokenize",
    "/detokenize", "/v1/responses", "/v1/responses/x", COMPLETIONS, "/v1/chat/completions", "/v1/messages",
    "/v1/embeddings", "//health", "/health/..%2fmetrics", "/x",
)  # fmt: skip


def without_a_key(arena: Arena, record: Record) -> None:
    """Every path by every method without a key: only the open ones answer, and those only to be read."""
    if not arena.keyed:
        return
    for path in PATHS:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"):
            body = b"{}" if method in ("POST", "PUT", "PATCH") else None
            record.note(arena.stranger.ask(method, path, body), f"{method} {path}", (401,))
    for wrong in ({"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}, {"Authorization": "Basic x"}):
        record.note(arena.stranger.ask("GET", "/v1/models", headers=wrong), str(wrong), (401,))


# --- what a body costs ----------------------------------------------------------------------------


def six_at_once(path: str, body: Filled, arena: Arena, record: Record) -> None:
    """The largest body of a kind, six times at once."""
    data = body(FULL)
    for answer in at_once([partial(arena.target.ask, "POST", path, data)] * 6):
        record.note(answer, "the body")


def odd_bodies(arena: Arena, record: Record) -> None:
    """Small bodies that ask for what cannot be."""
    for name, (path, body) in ODD.items():
        record.note(arena.target.ask("POST", path, body), name)


Small = tuple[str, dict[str, Any]]
STOPS = ["".join(chr(0x3400 + (256 * i + j) % 20_000) for j in range(256)) for i in range(64)]
COSTLY: dict[str, Small] = {
    "many stop strings, n 128": (
        COMPLETIONS, {"prompt": "a", "n": 128, "max_tokens": 1, "stop": STOPS}),
    "256 prompts, n 4": (COMPLETIONS, {"prompt": ["a"] * 256, "n": 4, "max_tokens": 1}),
    "256 bad words": (
        COMPLETIONS, {"prompt": "a", "max_tokens": 1, "bad_words": [f"w{i} " for i in range(256)]}),
    "300,000 allowed ids": (
        COMPLETIONS, {"prompt": "a", "max_tokens": 1,
                      "allowed_token_ids": [i % 40_000 for i in range(300_000)]}),
    "log-probabilities of 4 prompts of 2,000, 20 each": (
        COMPLETIONS, {"prompt": [[(7 * i + j) % 40_000 + 10 for j in range(2000)] for i in range(4)],
                      "max_tokens": 1, "prompt_logprobs": 20}),
    "log-probabilities of 64 prompts of 8,000, 20 each": (
        COMPLETIONS, {"prompt": [[10] * 8000] * 64, "max_tokens": 1, "prompt_logprobs": 20}),
    "log-probabilities, n 64, 256 tokens": (
        COMPLETIONS, {"prompt": "a", "n": 64, "max_tokens": 256, "ignore_eos": True, "logprobs": 20}),
    "1,048,576 ids as text": ("/detokenize", {"tokens": [1] * 1_048_576}),
    "400,000 characters as token strings": (
        "/tokenize", {"prompt": "@#" * 200_000, "return_token_strs": True}),
    "1,000 embeddings": ("/v1/embeddings", {"input": ["lorem ipsum dolor"] * 1000}),
}  # fmt: skip
"""Small bodies that ask for much, and may: each is answered, or refused by name."""


def costly(small: Small, arena: Arena, record: Record) -> None:
    """A legitimate request that takes long."""
    record.note(arena.target.ask("POST", *small, timeout_s=600), "the request")


def hostile_grammar(name: str, arena: Arena, record: Record) -> None:
    """A small grammar that asks for hours, twice at once, while another's small one is compiled."""
    body = {"prompt": "a", "max_tokens": 4, "structured_outputs": GRAMMARS[name]}
    mine = {"prompt": "a", "max_tokens": 2, "structured_outputs": {"choice": [f"y{time.time_ns()}", "n"]}}
    found: list[Answer] = []

    def attack() -> None:
        for answer in at_once([partial(arena.target.ask, "POST", COMPLETIONS, body)] * 2):
            found.append(answer)

    thread = threading.Thread(target=attack)
    thread.start()
    time.sleep(0.3)
    others = arena.other.ask("POST", COMPLETIONS, mine)
    thread.join()
    record.check(others.status == 200, f"another's small grammar: {others.status} {others.body[:100]!r}")
    record.check(others.seconds < SMALL_S, f"another's small grammar took {others.seconds:.1f} s")
    for answer in found:
        record.statuses[answer.status] += 1  # a trial may take its seconds: they are no refusal at the door
        record.check(answer.status in (200, 400, 429), f"{answer.status} {answer.body[:100]!r}")


# --- the crowd ------------------------------------------------------------------------------------


def storm(arena: Arena, record: Record) -> None:
    """1,500 small streams within a moment: each is whole, or a 429."""
    body = arena.target.request(COMPLETIONS, {"prompt": "a", "max_tokens": 4, "stream": True})
    held = [arena.target.connect(body) for _ in range(1500)]
    for sock in held:
        sock.settimeout(300)
        text = b""
        try:
            while (part := sock.recv(1 << 16)) and b"data: [DONE]" not in text:
                text += part
                if b"HTTP/1.1 429" in text or b"data: [DONE]" in text:
                    break
        except OSError:
            text = b""
        status = int(text.split(b" ", 2)[1]) if text.startswith(b"HTTP/") else NO_ANSWER
        record.statuses[status] += 1
        record.check(status in (200, 429), f"a stream of the storm: {status}")
    close_all(held)
    _comes_back(arena, record)


def full_queue(arena: Arena, record: Record) -> None:
    """One key's requests fill the queue: another's one-token request is answered beside them."""
    body = {"prompt": "Tell me a story.", "n": 128, "max_tokens": 400, "ignore_eos": True}
    held = [arena.target.connect(arena.target.request(COMPLETIONS, body)) for _ in range(9)]
    time.sleep(1)
    if arena.keyed:
        answer = arena.other.ask("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 1}, timeout_s=120)
        record.note(answer, "another key's request", (200,))
        record.check(answer.seconds < 20, f"another key's request took {answer.seconds:.0f} s")
    close_all(held)
    _comes_back(arena, record)


def compiled_words(arena: Arena, record: Record) -> None:
    """Six clients that send 256 new bad words again and again."""
    end = time.monotonic() + 5

    def ask(client: int) -> None:
        turn = 0
        while time.monotonic() < end:
            turn += 1
            words = [f"w{client}.{turn}.{number} " for number in range(256)]
            body = {"prompt": "a", "max_tokens": 1, "bad_words": words}
            record.note(arena.target.ask("POST", COMPLETIONS, body), "a request with bad words")

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ATTACKS: dict[str, Attack] = {
    "names of methods": method_names,
    "bodies to open paths": open_paths,
    "silent connections": silence,
    "half heads": half_heads,
    "half bodies": half_bodies,
    "slow readers": slow_readers,
    "malformed HTTP": malformed,
    "pipelined requests": pipelines,
    "pages of other sites": browsers,
    "every path without a key": without_a_key,
    "odd bodies": odd_bodies,
    "bad words": compiled_words,
    "one client in the queue": full_queue,
    "1,500 streams at once": storm,
    **{f"six bodies: {name}": partial(six_at_once, *worst) for name, worst in WORST.items()},
    **{f"costly: {name}": partial(costly, small) for name, small in COSTLY.items()},
    **{f"grammar: {name}": partial(hostile_grammar, name) for name in GRAMMARS},
}


def named(words: str) -> Iterator[str]:
    """The attacks whose names hold one of the words, which commas part; all where there are none."""
    wanted = [word for word in words.split(",") if word]
    return (name for name in ATTACKS if not wanted or any(word in name for word in wanted))
