"""Whether tool calls are read as others read them: canitoolcall's fixtures of the formats that we have.

    make test-tool-calls [RESULT=1] [ARGS="--family mistral --wheel FILE --json"]

Each fixture is an answer of a model, and what is in it: reasoning, content, calls. pip fetches canitoolcall
0.1.1 once into the cache, and its own checks judge. An answer is read whole, by character, and in random
pieces; each of those must be what the whole one is. Of a call that max_tokens has cut, an answer holds the
beginning, with finish_reason "length"; canitoolcall wants none. Such calls are counted, and left out; two
fixtures in which that leaves a call whose arguments are whole are counted apart (BY_DESIGN, decision 41), if
they pass as answers that end there by themselves.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import random
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from octavo.checkpoints.sources import default_cache_dir
from octavo.server.openai.reading import AnswerReader
from octavo.server.tools import FORMATS, ToolParser
from octavo.server.tools.reasoning import FORMATS as REASONING

VERSION = "0.1.1"
SHA256 = "a8a0ea82584cfdb00e737f2853d20fb5f233002aeb961ba735f574a225eceb15"
FORMAT_OF = {
    "qwen3-hermes": "hermes",
    "qwen3-xml": "qwen3_coder",
    "mistral": "mistral",
    "llama": "llama3_json",
    "deepseek": "deepseek_v3",
}
"""Our format of each of the fixtures' families."""
PYTHONIC = "Llama-4"
THINKS_IN_TEXT = "Magistral-Small-2506"
"""Its template has <think>, where later ones of Mistral's have control tokens."""
NOT_OURS = ("DeepSeek-V3.2", "DeepSeek-V4")
"""Models of these families that write another format."""
BY_DESIGN = {
    "llama/l4-truncated-missing-close-bracket": "of a cut list the calls before the cut one are returned",
    "qwen3-hermes/vllm-invalid-json-missing-brace": "cut behind whole arguments, the call is returned",
}
PASSED = ("pass", "soft_pass")
CUTS = 6
"""Random ways of cutting an answer, beside whole and by character."""


def fetched(wheel: Path | None) -> Path:
    """The folder that the wheel is unpacked in."""
    name = f"canitoolcall-{VERSION}-py3-none-any.whl"
    folder = default_cache_dir() / "tests"
    path = wheel or folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "-d", str(folder), f"canitoolcall=={VERSION}"], check=True)
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"{path.name} is not the one whose hash is known")
    unpacked = folder / f"canitoolcall-{VERSION}"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(unpacked)
    return unpacked


class Reader:
    """Reads a fixture as the server reads an answer."""

    def __init__(self, fixture: Any, end: str) -> None:
        self._fixture, self._end = fixture, end
        name = "pythonic" if PYTHONIC in fixture.models[0] else FORMAT_OF[fixture.family]
        self._form = FORMATS[name]
        kind = {"mistral": "mistral", "llama": None}.get(fixture.family, "qwen3")
        if THINKS_IN_TEXT in fixture.models[0]:
            kind = "qwen3"
        self._reasoning = REASONING[kind] if kind is not None else None
        self.begun = 0

    def read(self, pieces: Sequence[str]) -> dict[str, Any]:
        """What a client puts together."""
        tools = {
            each["function"]["name"]: each["function"].get("parameters", {}) for each in self._fixture.tools
        }
        begun = self._fixture.generation_prompt or ""
        splitter = self._reasoning and self._reasoning.splitter(begun, self._form.marks)
        reader = AnswerReader(splitter or None, ToolParser(self._form, tools))
        found: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
        for at, piece in enumerate(pieces):
            delta = reader.feed(piece, self._end if at == len(pieces) - 1 else None)
            found["content"] += delta.content
            found["reasoning_content"] += delta.reasoning
            found["tool_calls"] += [
                {"name": call.name, "arguments_raw": call.arguments}
                for _, call in delta.calls
                if not call.cut
            ]
            self.begun += sum(call.cut for _, call in delta.calls)
        return {name: value or None if name != "tool_calls" else value for name, value in found.items()}


def cuts(text: str) -> Iterator[list[str]]:
    """By character, and at random."""
    yield list(text) or [""]
    for seed in range(CUTS):
        draw, pieces, at = random.Random(seed), [], 0
        while at < len(text):
            size = draw.randint(1, 12)
            pieces.append(text[at : at + size])
            at += size
        yield pieces or [""]


def judged(fixture: Any, end: str, checks: Any, results: Any) -> tuple[str, list[str], int]:
    """(status, what is wrong, calls that are only begun) of a fixture, with this finish_reason."""
    reader = Reader(fixture, end)
    whole = reader.read([fixture.raw_output])
    begun = reader.begun
    streams = [reader.read(pieces) for pieces in cuts(fixture.raw_output)]
    differ = [f"stream {at} is not the whole" for at, each in enumerate(streams) if each != whole]
    made = results.ParseResult(
        content=whole["content"],
        reasoning_content=whole["reasoning_content"],
        tool_calls=[results.ParsedToolCall(**call) for call in whole["tool_calls"]],
    )
    rows = checks.run_checks(fixture, None, results.Observation(nonstream=made, streams={}))
    status = results.worst_status(row.status for row in rows).value
    wrong = [f"{row.check}: {row.detail}" for row in rows if row.status.value not in PASSED]
    if reader.begun != begun * (1 + len(streams)):
        differ.append("a stream has other calls that are begun")
    return ("fail" if differ else status), differ + wrong, begun


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tool_calls", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--wheel", type=Path, help="canitoolcall's, where it lies already")
    parser.add_argument("--family", choices=sorted(FORMAT_OF), help="only this one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(fetched(options.wheel)))
    checks, results, fixtures = (
        importlib.import_module(f"canitoolcall.{name}") for name in ("checks", "results", "fixtures")
    )
    counts: Counter[str] = Counter()
    failed: dict[str, list[str]] = {}
    begun = 0
    for fixture in fixtures.load_fixtures():
        other = any(name in fixture.models[0] for name in NOT_OURS)
        if fixture.family not in FORMAT_OF or other or options.family not in (None, fixture.family):
            continue
        end = "length" if "truncated" in fixture.tags else "stop"
        status, wrong, more = judged(fixture, end, checks, results)
        if wrong and fixture.id in BY_DESIGN and all(line.startswith("expected_error") for line in wrong):
            by_itself, also_wrong, _ = judged(fixture, "stop", checks, results)
            status, wrong = ("by_design", []) if by_itself in PASSED else (status, wrong + also_wrong)
        counts[status] += 1
        begun += more
        if wrong:
            failed[fixture.id] = wrong
    passed = sum(counts[status] for status in PASSED)
    if options.json:
        found = {
            "fixtures": counts.total(),
            "passed": passed,
            "by_design": 0,
            **counts,
            "begun": begun,
            "failed": failed,
        }
        print(json.dumps(found))
    else:
        print(f"{passed} of {counts.total()} fixtures pass ({dict(counts)}); {begun} calls are only begun")
        for name, wrong in failed.items():
            print(name, *wrong, sep="\n    ")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
