"""Users over HTTP: `octavo serve` beside llama.cpp's own llama-server, under the same load, in turns.

    .venv/bin/python benchmarks/peers_serving.py --llama-server PATH [--options '{"isa": "avx2"}'] [--write]

32 users send prompts of 130 random tokens and read 64 tokens each, over loopback, 96 requests a round, from
one load generator (`octavo bench serve`) that asks both servers the same. Both run at their best: before the
rounds each of a server's settings is tried alone, the file (as shipped, or requantized to Q4_0), of
llama-server flash attention on and off, the physical batch, and a KV cache for each user or one for all; of
Octavo as much room for KV as it takes of itself, or as much as llama-server is given. What was tried is in
the result. Printed is the ratio of the medians of output tokens a second.

The room matters, since Octavo keeps prefixes in pages that it never used as long as it has such, and the
system clears memory when it is first touched: on a virtual machine, whose host does the same, that takes a
tenth of the rate until all is in use. llama-server has touched its own in the round that warms up.

llama-server is built from llama.cpp's sources, for the instruction set that Octavo runs with; the ones in
llama-cpp-python's source package are those that benchmarks/peers measures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from asked import ScriptError, at_least_one, json_object, tells
from harness import Server, put_load, python_with, report, usable_cores, write
from peers import files
from peers.entries import Q4_0, SHIPPED

from octavo.bench.workload import spread
from octavo.errors import OctavoError

LEAST = 2.8
NOISY = 1.10
PAUSE_S = 0.5  # between turns: the other server's idle threads stop spinning
READY_S = 120.0
SLACK = 16  # tokens of a slot beyond prompt and answer
OURS, THEIRS = "octavo", "llama-server"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setup:
    """One server with a file and settings.

    Attributes:
        settings: flags without their dashes; True and False stand for on and off, "default" for no flag.
    """

    server: str
    form: str
    model: Path
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What tables say."""
        return ", ".join([f"{self.server}: {self.form}", *(f"{k}={v}" for k, v in self.settings.items())])


class LlamaServer:
    """llama-server on a free port of this machine. Use it as a context manager.

    Attributes:
        url: http://host:port.

    Raises:
        ScriptError: it ended, or was not ready in time; the message is the last line that it wrote.
    """

    def __init__(self, program: str, *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in close()
        try:
            self._process = subprocess.Popen(
                [program, "--host", "127.0.0.1", "--port", str(port), *flags],
                stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said,
            )  # fmt: skip
        except OSError as error:
            self._said.close()
            raise ScriptError(f"{program} cannot be run: {error.strerror}") from None
        self._program = program
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        end = time.perf_counter() + READY_S
        while time.perf_counter() < end:
            if self._process.poll() is not None:
                self._said.seek(0)
                lines = self._said.read().strip().splitlines() or ["nothing"]
                raise ScriptError(f"{self._program} does not start: it ended, and said {lines[-1]}")
            if self._healthy():
                return
            time.sleep(0.1)
        raise ScriptError(f"llama-server was not ready within {READY_S:.0f} s")

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:  # nobody listens yet, or it is loading (503)
            return False

    def close(self) -> None:
        """End it: politely, then not."""
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def tokens_of_a_user(options: argparse.Namespace) -> int:
    """For which llama-server's KV cache has room: in 256s, to which llama.cpp pads a cache."""
    each: int = options.prompt_tokens + options.max_tokens + SLACK
    return -(-each // 256) * 256


def flags_of(setup: Setup, options: argparse.Namespace) -> list[str]:
    """The command line of a server for this load."""
    if setup.server == OURS:
        given: Mapping[str, Any] = {
            "threads": options.threads,
            "max_num_seqs": options.users,
            **{name: value for name, value in setup.settings.items() if value != DEFAULT},
            **options.options,
        }
        return [word for k, v in given.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    given = setup.settings
    return [
        "--model", str(setup.model), "--threads", str(options.threads), "--parallel", str(options.users),
        "--ctx-size", str(options.users * tokens_of_a_user(options)), "--no-webui",
        "--flash-attn", "on" if given["flash_attn"] else "off",
        "--ubatch-size", str(given["ubatch"]), "--batch-size", str(max(2048, given["ubatch"])),
        "--kv-unified" if given["kv_unified"] else "--no-kv-unified",
    ]  # fmt: skip


@contextlib.contextmanager
def serving(setup: Setup, options: argparse.Namespace) -> Any:
    """Its URL, while it runs."""
    flags = flags_of(setup, options)
    if setup.server == OURS:
        with Server(str(setup.model), *flags) as ours:
            yield ours.url
    else:
        with LlamaServer(options.llama_server, *flags) as theirs:
            yield theirs.url


def one_round(url: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What the load saw. Raises: ScriptError: a request failed."""
    names = ("users", "requests", "prompt_tokens", "max_tokens", "timeout")
    found = put_load(url, seed, **{name: getattr(options, name) for name in names})
    if found["output_tokens"] != options.requests * options.max_tokens:
        raise ScriptError(
            f"{found['output_tokens']} tokens came of {options.requests} x {options.max_tokens}"
        )
    return found


def alone(setup: Setup, options: argparse.Namespace) -> float | None:
    """Output tokens a second of the second of two rounds; None: it fails, which is said."""
    try:
        with serving(setup, options) as url:
            one_round(url, -2, options)
            return float(one_round(url, -1, options)["output_rate"])
    except RuntimeError as error:
        print(f"{setup.name} fails: {error}", file=sys.stderr)
        return None


Choices = Mapping[str, Sequence[Any]]
"""Of each setting its values, the first of which is where the search begins."""


def choices_of(server: str, options: argparse.Namespace) -> Choices:
    """Defaults first, but for llama-server's unified KV, which costs it half with many users."""
    if server == OURS:  # max_num_seqs sequences of so many tokens are what its pages have room for
        return {"max_model_len": (DEFAULT, tokens_of_a_user(options))}
    return {"flash_attn": (True, False), "ubatch": (512, 128, 2048), "kv_unified": (False, True)}


def tune(
    forms: Sequence[Setup], choices: Choices, try_it: Callable[[Setup], float | None]
) -> tuple[Setup, dict[str, float | None]]:
    """The fastest setup by coordinate descent, the file last once more; and all that were tried."""
    tried: dict[str, float | None] = {}

    def rate(setup: Setup) -> float:
        if setup.name not in tried:
            tried[setup.name] = try_it(setup)
            print(f"  tried {setup.name}: {tried[setup.name]}", file=sys.stderr)
        return tried[setup.name] or 0.0

    first = {name: values[0] for name, values in choices.items()}
    best = max((replace(form, settings=first) for form in forms), key=rate)
    for name in first:
        others = [replace(best, settings={**best.settings, name: value}) for value in choices[name]]
        best = max(others, key=rate)
    return max((replace(form, settings=best.settings) for form in forms), key=rate), tried


def measured(setups: Sequence[Setup], options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """server -> its rounds, in turns; the first warms up and is left out. One that fails has none."""
    found: dict[str, list[dict[str, Any]]] = {setup.server: [] for setup in setups}
    with contextlib.ExitStack() as stack:
        urls = {setup.server: stack.enter_context(serving(setup, options)) for setup in setups}
        for number in range(options.repeat + 1):
            for server, url in urls.items():
                time.sleep(PAUSE_S)
                seen = one_round(url, number, options)
                found[server] += [seen] if number else []
    return found


def figures(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Medians, spreads and the ratio of the output rates; no ratio without both sides."""
    rates = {server: [float(each["output_rate"]) for each in found] for server, found in rounds.items()}
    known = {server: statistics.median(found) for server, found in rates.items() if found}
    spreads = {server: round(spread(found), 3) for server, found in rates.items() if found}
    both = OURS in known and THEIRS in known
    return {
        "rates": known,
        "spreads": spreads,
        "ratio": round(known[OURS] / known[THEIRS], 3) if both else None,
        "least": LEAST,
        "noisy": spreads.get(OURS, 1.0) > NOISY,
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="peers_serving", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llama-server", required=True, metavar="PATH")
    parser.add_argument("--python", help="a Python with llama_cpp, which requantizes; else .venv-oracle's")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--users", type=at_least_one, default=32)
    parser.add_argument("--requests", type=at_least_one, default=96, help="in a round")
    parser.add_argument("--prompt-tokens", type=at_least_one, default=130)
    parser.add_argument("--max-tokens", type=at_least_one, default=64)
    parser.add_argument("--repeat", type=at_least_one, default=5)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--timeout", type=at_least_one, default=600, help="seconds that a round may take")
    parser.add_argument("--options", type=json_object, default={}, help='for Octavo: {"isa": "avx2"}')
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/peers_serving-*.json")
    return parser.parse_args(arguments)


def version(program: str) -> str:
    """What llama-server says of itself."""
    try:
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=READY_S,
        )  # fmt: skip
    except OSError as error:
        raise ScriptError(f"--llama-server: {program} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ScriptError(f"--llama-server: {program} does not end when it is asked its version") from None
    said = (done.stderr or done.stdout).strip().splitlines()
    if done.returncode or not said:
        raise ScriptError(f"--llama-server: {program} says no version: it is no llama-server that runs here")
    return said[0]


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    said = version(options.llama_server)
    models = {SHIPPED: files.shipped(options.model)}
    if python := python_with("llama_cpp", options.python):
        models[Q4_0] = files.requantized(options.model, python)
    first = {name: values[0] for name, values in choices_of(THEIRS, options).items()}
    with serving(Setup(THEIRS, SHIPPED, models[SHIPPED], first), options):
        pass  # what does not start is said before Octavo's own settings are tried, which takes minutes
    best: list[Setup] = []
    tried: dict[str, float | None] = {}
    for server in (OURS, THEIRS):
        setup, found = tune(
            [Setup(server, form, path) for form, path in models.items()],
            choices_of(server, options),
            lambda setup: alone(setup, options),
        )
        if any(found.values()):
            best.append(setup)
        tried |= found
    rounds = measured(best, options)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    body = {
        "settings": settings, "version": said, "tried": tried,
        "chosen": {setup.server: setup.name for setup in best}, **figures(rounds), "rounds": rounds,
    }  # fmt: skip
    result = report("peers_serving", sys.argv, body)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for server, rate in result["rates"].items():
            print(f"{result['chosen'][server]:<80} {rate:>9.1f} tok/s, spread {result['spreads'][server]}")
        ratio = result["ratio"]
        print(f"ratio {ratio}, at least {LEAST}" if ratio else "no ratio: a side is missing or failed")
        if result["noisy"]:
            print("NOISY: Octavo's own rounds differ by more than a tenth")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
