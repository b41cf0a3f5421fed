"""Type a newcomer's first hour: a clone, its environment, every command of the README and the how-to pages.

    first_hour.py [--page WORD] [--folder DIR] [--keep] [--list] [--json]

The clone has what is committed, and nothing else; `make env` builds its environment there (minutes), whose
commands then come first on the PATH, and a home of its own holds a copy of the models that are at hand.
Commands are those of code blocks that are indented or marked sh, in their page's order. What a page calls by
a stand-in (org/name, wiki.test.raw) is there by that name; --folder is the 16-bit model that org/name is.
A command that a page expects to go on (octavo serve) runs until the page ends, and those after it ask it.

ELSEWHERE says which commands are not typed, and why. A command that fails is named, and the status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = frozenset(
    ("octavo", "make", "curl", "git", "npm", "pip", "python", "python3", "docker", "kubectl", "lm_eval",
     "useradd", "install", "systemctl")
)  # fmt: skip
ELSEWHERE = {
    r"make (serve|test)\b": "make env comes before; octavo serve is typed, and tests are make test",
    r"npm install|octavo launch|serve MODEL": "an agent of others, and its model: make test-clients",
    r"docker|kubectl|systemctl|useradd|install -|python3 -m venv /opt|python3 -c .*keys\.toml|/opt/":
        "a machine to deploy to: tests/deploy",
    r"octavo (pull|rm) org/name": "it asks a hub of others: tests/checkpoints has one on loopback",
    r"lm_eval": "lm-eval is needed: make test-clients",
    r"ablate --only|bench (sweep|ablate) ": "it takes many minutes: make figures measures it",
}  # fmt: skip
NEEDS_FOLDER = re.compile(r"org/name|\./folder|FOLDER|name-")
TYPED = {r"octavo (chat|run) smollm2$": "Hi\n/exit\n", r"octavo rm ": "y\n"}
"""What somebody types then, by what the command is."""
ENDS_AT = {"watermark detect": (0, 1)}
"""Exit statuses that say something, where others than 0 do."""
LONGEST_S = 900
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
    "intermediate_size": 1536, "torch_dtype": "bfloat16",
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 1e5, "tie_word_embeddings": True,
}  # fmt: skip
REQUEST = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    "timestamp": 0,
    "input_length": 9,
    "output_length": 4,
}
"""Of run-batch, and of a trace."""


@dataclass(frozen=True, slots=True)
class Command:
    """As a page has it."""

    page: str
    line: int
    text: str

    @property
    def elsewhere(self) -> str:
        """Why it is not typed here; empty where it is."""
        return next((why for pattern, why in ELSEWHERE.items() if re.search(pattern, self.text)), "")

    @property
    def stays(self) -> bool:
        return self.text.startswith("octavo serve")


def commands(page: Path) -> list[Command]:
    """Of a page's code blocks, comments away, lines that go on joined."""
    found: list[Command] = []
    fence: str | None = None
    at, lines = 0, page.read_text(encoding="utf-8").splitlines()
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.startswith("```"):
            fence = line[3:].strip() if fence is None else None
            continue
        shown = line if fence == "sh" else line[4:] if fence is None and line.startswith("    ") else ""
        words = shown.split()
        if not words or words[0] not in PROGRAMS or shown[0] == " ":
            continue
        first = at
        while shown.endswith("\\") or _open(shown):
            shown = f"{shown.removesuffix(chr(92))}\n{lines[at].strip()}"
            at += 1
        text = _without_comment(shown.replace("\n", " ").strip())
        found.append(Command(page.relative_to(ROOT).as_posix(), first, text))
    return found


def _without_comment(text: str) -> str:
    """A command without what a # outside of quotations begins."""
    begins = [found.start() for found in re.finditer(r"\s+#\s", text) if not _open(text[: found.start()])]
    return text[: begins[0]] if begins else text


def _open(text: str) -> bool:
    """Whether a quotation has not ended."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


@dataclass
class Typist:
    """A shell in the clone. Attributes: folder: what org/name stands for, or None."""

    clone: Path
    home: Path
    folder: Path | None
    server: subprocess.Popen[bytes] | None = None
    port: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "SSL_CERT_FILE", "TERM") if name in os.environ}
        proxies = {
            k: v for k, v in os.environ.items() if k.lower().endswith("_proxy") or k.startswith("PIP_")
        }
        path = f"{self.clone / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**kept, **proxies, "HOME": str(self.home), "PATH": path, "COLUMNS": "120"}

    def prepare(self) -> None:
        """What pages call by name."""
        text = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
        for name in ("wiki.test.raw", "wiki.txt", "text.txt", "answer.txt"):
            (self.clone / name).write_text(text, encoding="utf-8")
        (self.clone / "requests.jsonl").write_text(json.dumps(REQUEST) + "\n", encoding="utf-8")
        (self.clone / "path" / "to").mkdir(parents=True)
        (self.clone / "path" / "to" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        with (self.clone / "README.md").open("a", encoding="utf-8") as file:
            file.write("\nOne more line.\n")  # for git diff
        if self.folder is not None:
            for name in ("folder", "FOLDER", "org/name"):
                (self.clone / name).parent.mkdir(exist_ok=True)
                (self.clone / name).symlink_to(self.folder.resolve())

    def models(self, source: Path) -> None:
        """Those at hand, as a page begins: it may remove them."""
        target = self.home / ".cache" / "octavo" / "models"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, symlinks=True)

    def type(self, command: Command) -> bool:
        """Run it as it stands; whether its status is what it should be."""
        if command.stays:
            return self.serve(command.text)
        if ":8000" in command.text and self.server is None and not self.serve("octavo serve smollm2"):
            return False
        text = re.sub(r"127\.0\.0\.1:800[01]", f"127.0.0.1:{self.port}", command.text)
        if text.startswith("curl"):
            text = text.replace("curl", "curl --fail-with-body -sS", 1)
        said = next((typed for pattern, typed in TYPED.items() if re.search(pattern, text)), "")
        terminal, typed = pty.openpty()  # octavo rm asks nobody else
        os.write(terminal, f"{said}\x04".encode())  # and Ctrl-D
        try:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", text], cwd=self.clone, env=self.environment,
                stdin=typed, capture_output=True, timeout=LONGEST_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return self._failed(command, f"did not end within {LONGEST_S} s")
        finally:
            os.close(terminal)
            os.close(typed)
        wanted = next((each for name, each in ENDS_AT.items() if name in text), (0,))
        if done.returncode in wanted:
            return True
        return self._failed(command, f"status {done.returncode}: {_last(done.stderr or done.stdout)}")

    def serve(self, text: str) -> bool:
        """A server on a free port, until the page ends; whether it got ready."""
        self.end()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        text = text.replace("/var/cache/octavo", str(self.home / "prefixes"))
        words = [*shlex.split(text), "--port", str(self.port)]
        log = (self.home / "server.log").open("wb")
        self.server = subprocess.Popen(words, cwd=self.clone, env=self.environment, stdout=log, stderr=log)
        log.close()
        for _ in range(600):
            time.sleep(0.2)
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health") as answer:
                if answer.status == 200:
                    return True
            if self.server.poll() is not None:
                break
        self.failures.append(f"{text}: {_last((self.home / 'server.log').read_bytes())}")
        self.end()
        return False

    def end(self) -> None:
        """The page is done."""
        if self.server is not None:
            self.server.terminate()
            self.server.wait(60)
            self.server = None

    def _failed(self, command: Command, why: str) -> bool:
        failure = f"{command.page}:{command.line}: {command.text}: {why}"
        print(f"FAILED {failure}", file=sys.stderr, flush=True)
        self.failures.append(failure)
        return False


def _last(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"


def clone(into: Path) -> None:
    """What is committed, and its environment.

    Raises:
        subprocess.CalledProcessError: one of these failed; it has said why.
    """
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(into)], check=True)
    subprocess.run(["make", "env"], cwd=into, check=True, stdout=sys.stderr)


def every(word: str) -> Iterator[tuple[str, list[Command]]]:
    """(page, its commands) of the pages that a word is in."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))):
        if word in page.name and (found := commands(page)):
            yield page.name, found


def type_all(typist: Typist, word: str, source: Path) -> dict[str, Any]:
    """Every command of these pages.

    Returns:
        typed, passed; elsewhere: reasons by command; failures.
    """
    said: dict[str, Any] = {"typed": 0, "passed": 0, "elsewhere": {}}
    for name, found in every(word):
        typist.models(source)
        for command in found:
            why = command.elsewhere
            if not why and typist.folder is None and NEEDS_FOLDER.search(command.text):
                why = "a 16-bit model is needed: --folder"
            if why:
                said["elsewhere"][command.text] = why
                continue
            print(f"{name}: {command.text}", file=sys.stderr, flush=True)
            said["typed"] += 1
            said["passed"] += typist.type(command)
        typist.end()
    return {**said, "failures": typist.failures}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="first_hour", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--page", default="", help="pages with this word in their name")
    parser.add_argument("--folder", type=Path, default=None, help="a folder of 16-bit weights")
    parser.add_argument("--models", type=Path, default=Path.home() / ".cache" / "octavo" / "models")
    parser.add_argument("--keep", action="store_true", help="leave the clone where it is")
    parser.add_argument("--list", action="store_true", help="say what would be typed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.list:
        for name, found in every(options.page):
            for command in found:
                print(f"{name}: {command.text}{'  # ' * bool(command.elsewhere)}{command.elsewhere}")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="first-hour-"))
    typist = Typist(folder / "octavo", folder / "home", options.folder)
    try:
        typist.home.mkdir()
        clone(typist.clone)
        typist.prepare()
        said = type_all(typist, options.page, options.models)
    finally:
        typist.end()
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(said))
    else:
        print("{passed} of {typed} commands passed".format(**said))
        print("\n".join(said["failures"]))
    return 1 if said["failures"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
