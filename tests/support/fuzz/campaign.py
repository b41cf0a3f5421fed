"""Many inputs over all targets: what is done, what came of it, and where to go on."""

from __future__ import annotations

import base64
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.cli import environment
from support.fuzz.target import Target
from support.fuzz.worker import SLOT_BYTES, Slot

CORPUS = Path(__file__).parent / "corpus"
CORPUS_BYTES = 100 << 10
"""Of one target's file."""
BATCH = 5_000
SILENT_S = 300.0
"""By the clock, without a word and without a new input: nothing moves in there any more."""
SIGPROF = -27
MOST_FAULTS, MOST_KEPT = 200, 1_000


@dataclass
class Books:
    """Of one target.

    Attributes:
        done: inputs so far; the next one has this number.
        outcomes: how often each came.
        faults: by what they are: one input of each, and how often.
        kept: outcome -> an input, base64: changed further.
    """

    done: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: dict[str, dict[str, Any]] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    slowest_s: float = 0.0
    grown_mb: float = 0.0
    cpu_s: float = 0.0

    def take(self, line: Mapping[str, Any]) -> None:
        """What a worker says."""
        self.outcomes.update(line["outcomes"])
        for outcome, data in line["new"]:
            if len(self.kept) < MOST_KEPT:
                self.kept.setdefault(outcome, data)
        for fault in line["faults"]:
            self.fault(fault["number"], fault["kind"], fault["what"], fault["data"])
        self.slowest_s = max(self.slowest_s, line["slowest_s"])
        self.grown_mb = max(self.grown_mb, line["grown_mb"])

    def fault(self, number: int, kind: str, what: str, data: str) -> None:
        key = f"{kind}: {what[:100]}"
        if len(self.faults) < MOST_FAULTS or key in self.faults:
            first = {"number": number, "kind": kind, "what": what, "data": data, "count": 0}
            self.faults.setdefault(key, first)["count"] += 1


class Campaign:
    """Inputs of several targets, to be gone on with from a folder.

    Args:
        targets: by name.
        total: inputs in all; each target gets its share.
        folder: for the state.
        corpus: a folder of inputs that reached something, by target.
        tell: hears of the progress.
    """

    def __init__(
        self, targets: Mapping[str, Target], total: int, folder: Path, seed: int = 0, corpus: Path = CORPUS,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self.targets, self._folder, self._seed, self._tell = targets, folder, seed, tell
        per = sum(target.share for target in targets.values())
        self.wanted = {name: max(1, total * target.share // per) for name, target in targets.items()}
        self.books = {name: Books(kept=read_corpus(corpus / f"{name}.jsonl")) for name in targets}
        self.commits: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._state = folder / "state.json"
        if self._state.exists():
            self._resume(json.loads(self._state.read_text()))

    def _resume(self, state: Any) -> None:
        if state["seed"] != self._seed:
            raise SystemExit(f"{self._state} is of seed {state['seed']}: give --seed, or another --state")
        self.commits = state["commits"]
        for name, said in state["books"].items():
            if name in self.books:
                kept = self.books[name].kept | said.pop("kept")
                self.books[name] = Books(**said | {"outcomes": Counter(said["outcomes"]), "kept": kept})

    def save(self) -> None:
        """Write the state down."""
        state = {"seed": self._seed, "commits": self.commits}
        state["books"] = {name: vars(books) for name, books in self.books.items()}
        draft = self._state.with_suffix(".new")
        draft.write_text(json.dumps(state))
        os.replace(draft, self._state)

    @property
    def done(self) -> int:
        return sum(books.done for books in self.books.values())

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until all is done, or `until` says so between two batches."""
        for name in self.targets:
            self._again(name)
        while not until():
            left = [name for name in self.targets if self.books[name].done < self.wanted[name]]
            if not left:
                return
            name = min(left, key=lambda each: self.books[each].done / self.wanted[each])
            books, wanted = self.books[name], self.wanted[name]
            count = min(wanted - books.done, BATCH)
            self._batch(name, {"first": books.done, "count": count})
            self.save()
            faults = sum(len(each.faults) for each in self.books.values())
            self._tell(
                f"{self.done:,} of {sum(self.wanted.values()):,}, {faults} kinds of faults; {name}: "
                f"{books.done:,}, {len(books.outcomes)} outcomes, slowest {books.slowest_s:.3f} s"
            )

    def _again(self, name: str) -> None:
        """What was a fault is tried again, and so is the corpus of what was not run yet: mended ones go."""
        books = self.books[name]
        inputs = [fault["data"] for fault in books.faults.values()]
        if books.done == 0:
            inputs += list(books.kept.values())
        books.faults.clear()
        done = books.done
        if inputs:
            self._batch(name, {"first": -len(inputs) - 1, "count": 0, "inputs": inputs})
        books.done = done

    def _batch(self, name: str, task: dict[str, Any]) -> None:
        """Run a task to its end, in as many workers as it takes."""
        books, target = self.books[name], self.targets[name]
        inputs = task.pop("inputs", [])
        first = task["first"]
        end = first + (len(inputs) or task["count"])
        while first < end:
            given = {"inputs": inputs[-(end - first) :]} if inputs else {}
            asked = {
                "name": name, "seed": self._seed, "case": target.case, "first": first, "count": end - first,
                "corpus": list(books.kept.values()), "known": [*books.kept, *books.outcomes], **given,
            }  # fmt: skip
            died = self._worker(asked, books)
            if died is None:
                books.done = first = end
                continue
            number, data, kind, what = died
            if number < first:
                raise SystemExit(f"the worker of {name} ends before its first input: {what}")
            self._judge(target, books, number, data, kind, what)
            books.done = first = number + 1

    def _judge(self, target: Target, books: Books, number: int, data: bytes, kind: str, what: str) -> None:
        """An input that has ended its worker."""
        text = base64.b64encode(data).decode()
        if target.contained:
            with tempfile.NamedTemporaryFile() as slot:
                os.truncate(slot.name, SLOT_BYTES)
                task = json.dumps({"contained": text, "function": target.contained})
                try:
                    done = subprocess.run(
                        command(slot.name), input=task + "\n", capture_output=True, text=True,
                        timeout=SILENT_S, check=True, env=environment(),
                    )  # fmt: skip
                    books.outcomes[f"contained: {json.loads(done.stdout)['outcome']}"] += 1
                    return
                except (subprocess.SubprocessError, ValueError) as error:
                    kind, what = "not contained", f"{what}; {str(error)[:200]}"
        books.fault(number, kind, what, text)

    def _worker(self, task: dict[str, Any], books: Books) -> tuple[int, bytes, str, str] | None:
        """One worker. None: it came to its end; else (number, input, kind, what) of what has ended it."""
        with tempfile.NamedTemporaryFile() as slot, tempfile.TemporaryFile("w+", errors="replace") as said:
            slot.write((-1 << 62).to_bytes(8, "little", signed=True))
            slot.flush()
            os.truncate(slot.name, SLOT_BYTES)
            process = subprocess.Popen(
                command(slot.name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
                env=environment() | {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
            assert process.stdin is not None
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            ended = self._listen(process, books, Path(slot.name))
            number, data = Slot.read(Path(slot.name))
            if ended:
                return None
            status = process.wait()
            said.seek(0)
            lines = said.read().strip().splitlines()
            kind = "hang" if status in (SIGPROF, -9) else "crash"
            return number, data, kind, f"status {status}: {(lines or ['nothing said'])[-1][:200]}"

    def _listen(self, process: subprocess.Popen[str], books: Books, slot: Path) -> bool:
        """Whether the worker came to its end. It is killed where nothing moves."""
        assert process.stdin is not None
        assert process.stdout is not None
        last, since = Slot.read(slot)[0], time.monotonic()
        before = os.times()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            ended = False
            while not ended:
                if not selector.select(5.0):
                    number = Slot.read(slot)[0]
                    if number != last:
                        last, since = number, time.monotonic()
                    elif time.monotonic() - since > SILENT_S:
                        process.kill()
                    continue
                since = time.monotonic()
                line = process.stdout.readline()
                if not line:
                    break
                said = json.loads(line)
                books.take(said)
                ended = said["end"]
        process.stdin.close()
        process.stdout.close()
        process.wait()
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        books.cpu_s += used
        return ended

    def result(self) -> dict[str, Any]:
        """For a result file."""
        targets = {}
        for name, books in self.books.items():
            contained = sum(count for what, count in books.outcomes.items() if what.startswith("contained"))
            targets[name] = {
                "inputs": books.done, "outcomes": len(books.outcomes), "contained": contained,
                "faults": len(books.faults), "slowest_s": books.slowest_s, "grown_mb": books.grown_mb,
                "cpu_s": round(books.cpu_s, 1),
            }  # fmt: skip
        return {
            "inputs": self.done, "loads": self.books["loads"].done if "loads" in self.books else 0,
            "wanted": sum(self.wanted.values()),
            "faults": sum(len(each.faults) for each in self.books.values()),
            "targets": targets, "commits": self.commits,
        }  # fmt: skip

    def keep(self, corpus: Path = CORPUS) -> None:
        """Add what was found to the corpus, the shortest first, as far as it has room."""
        corpus.mkdir(exist_ok=True)
        for name, books in self.books.items():
            lines, size = [], 0
            for outcome, data in sorted(books.kept.items(), key=lambda each: (len(each[1]), each)):
                line = json.dumps([outcome, data])
                if size + len(line) < CORPUS_BYTES:
                    lines.append(line)
                    size += len(line) + 1
            (corpus / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in sorted(lines)))


def command(slot: str) -> list[str]:
    return [sys.executable, "-m", "support.fuzz.worker", slot]


def read_corpus(path: Path) -> dict[str, str]:
    """Outcome -> input; nothing where there is no such file."""
    if not path.exists():
        return {}
    return dict(json.loads(line) for line in path.read_text().splitlines())
