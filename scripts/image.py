"""The image without a container engine: the Dockerfile's steps in a clean folder, weighed and tried.

    image.py [--model FILE] [--json]

Of the Dockerfile's targets it is the one for CPUs. The build stage's COPY and RUN lines are carried out below
a new folder (apt-get apart: a compiler must be there), so what is installed is what the image holds beside
its base. Then the entry point runs with the image's variables, by a user without any capability: with flags
alone, with PORT, with a /data that cannot be written. Exits 1 where one of these does not do what
docs/how-to/deploy.md says, or where the image, with the base that it is built on, weighs more than
--limit-mb unpacked or --limit-packed-mb to pull.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from env_size import size_of

ROOT = Path(__file__).resolve().parent.parent
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
"""In front of a command that root runs: files and ports are then refused to it as to anybody."""
BASE_MB, BASE_PACKED_MB = 130.0, 47.0
"""About what python:3.11-slim-bookworm has for x86-64, unpacked and to pull: it is not weighed here."""
LIMIT_MB, LIMIT_PACKED_MB = 330.0, 130.0


def stages(dockerfile: str) -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage by its name: (word, rest). The last one has none."""
    plain = re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in plain.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            name = rest.partition(" AS ")[2].strip()
        if word:
            found.setdefault(name, []).append((word, rest.strip()))
    return found


def moved(text: str, folder: Path) -> str:
    """A command whose folders lie below another one, with this Python."""
    text = re.sub(r"(?<![\w./])/(opt/octavo|opt/build|wheels|data)\b", rf"{folder}/\1", text)
    return re.sub(r"^python |(?<=&& )python ", f"{sys.executable} ", text)


def build(folder: Path) -> None:
    """Carry out the first stage.

    Raises:
        subprocess.CalledProcessError: a step failed.
    """
    source = folder / "source"
    source.mkdir()
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for word, rest in stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))["build"]:
        if word == "COPY":
            *names, target = rest.split()
            for name in names:
                copy(ROOT / name, source / target / ("" if (ROOT / name).is_dir() else Path(name).name))
        elif word == "RUN" and not rest.startswith("apt-get"):
            print(f"image: {rest[:100]}", file=sys.stderr)
            subprocess.run(
                ["bash", "-ec", moved(rest, folder)], cwd=source, env=own, check=True, stdout=sys.stderr
            )


def copy(what: Path, target: Path) -> None:
    """What git knows of a file or folder."""
    listed = subprocess.run(
        ["git", "ls-files", str(what)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in listed:
        path = target / (ROOT / name).relative_to(what) if what.is_dir() else target
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path)


def compressed(folder: Path, file: Path) -> int:
    """Bytes of a folder as a layer is sent: tar, gzip."""
    with tarfile.open(file, "w:gz", compresslevel=6) as archive:
        archive.add(folder, "octavo")
    return file.stat().st_size


class Container:
    """The entry point in that folder."""

    def __init__(self, folder: Path) -> None:
        last = stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))["cpu"]
        pairs = [pair for word, rest in last if word == "ENV" for pair in rest.split()]
        told = {name: moved(value, folder) for name, value in (pair.split("=", 1) for pair in pairs)}
        self.variables = {**told, "PATH": told["PATH"].replace("$PATH", "/usr/bin:/bin")}
        self.entry = json.loads(dict(last)["ENTRYPOINT"])
        self.data = folder / "data"
        self.data.mkdir()

    def start(self, words: Sequence[str], more: Mapping[str, str]) -> subprocess.Popen[str]:
        python, *rest = self.entry
        before = POWERLESS if os.geteuid() == 0 else []
        command = [*before, str(Path(self.variables["PATH"].split(":")[0]) / python), *rest, *words]
        return subprocess.Popen(
            command, env={**self.variables, **more}, cwd=self.data,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, words: Sequence[str], more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """One that ends by itself."""
        process = self.start(words, more)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, out, err)


def tried(container: Container, model: str) -> Iterator[tuple[str, bool, str]]:
    """(what was tried, whether it did what it should, what it said)."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server = container.start(["--model-id", model, "--max-total-tokens", "256"], {"PORT": port})
    try:
        said = answer(port)
    finally:
        server.terminate()
        out, err = server.communicate(timeout=60)
    yield "--model-id M with PORT answers", bool(said) and server.returncode == 0, said or (out + err)[-300:]
    done = container.run(["--model-id", model], {"PORT": "http"})
    yield "a PORT that is none is one line", one_line(done, "PORT"), done.stderr.strip()
    container.data.chmod(0o555)
    done = container.run(["--model-id", "smollm2"], {"PORT": port})
    container.data.chmod(0o755)
    first, *_ = [*done.stderr.splitlines(), ""]
    held = done.returncode == 1 and "cannot be written" in first and "Traceback" not in done.stderr
    yield "a /data that cannot be written is said", held, done.stderr.strip()
    server = container.start(["--model-id", model, "--max-total-tokens", "256"], {})
    said = answer("80", seconds=20)
    server.terminate()
    out, err = server.communicate(timeout=60)
    refused = err.strip().splitlines()[-1:] if server.returncode else []
    held = bool(said) or (bool(refused) and refused[0].startswith("octavo: error: cannot listen on"))
    yield "port 80 answers, or is refused in one line", held, said or err.strip()


def one_line(done: subprocess.CompletedProcess[str], word: str) -> bool:
    return done.returncode == 2 and len(done.stderr.splitlines()) == 1 and word in done.stderr


def answer(port: str, seconds: int = 60) -> str:
    """What a server there makes of a prompt; "" where it does not come to it in that time."""
    body = json.dumps({"inputs": "The capital of France is", "parameters": {"max_new_tokens": 4}}).encode()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", body, {"content-type": "application/json"}
    )
    for _ in range(2 * seconds):
        try:
            with urllib.request.urlopen(asked, timeout=30) as reply:
                return str(json.load(reply)["generated_text"])
        except OSError:
            time.sleep(0.5)
    return ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="image")
    parser.add_argument("--model", default=None, help="a .gguf file; smollm2's, pulled, if none is named")
    parser.add_argument("--limit-mb", type=float, default=LIMIT_MB)
    parser.add_argument("--limit-packed-mb", type=float, default=LIMIT_PACKED_MB)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    model = options.model
    if model is None:
        from octavo.checkpoints.sources import resolve

        model = str(resolve("smollm2"))
    with tempfile.TemporaryDirectory(prefix="octavo-image-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        build(folder)
        installed = folder / "opt" / "octavo"
        own = shutil.copy(model, folder / "model.gguf")
        unpacked, packed = size_of(installed) / 1e6, compressed(installed, folder / "layer.tar.gz") / 1e6
        container = Container(folder)
        checks = list(tried(container, str(own)))
    found: dict[str, Any] = {
        "unpacked_mb": round(unpacked, 1), "packed_mb": round(packed, 1),
        "with_base_unpacked_mb": round(unpacked + BASE_MB, 1),
        "with_base_packed_mb": round(packed + BASE_PACKED_MB, 1),
        "checks": [{"what": what, "holds": holds, "said": said} for what, holds, said in checks],
    }  # fmt: skip
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(f"beside the base image: {unpacked:.0f} MB unpacked, {packed:.0f} MB compressed")
        whole = f"{unpacked + BASE_MB:.0f} MB unpacked, {packed + BASE_PACKED_MB:.0f} MB compressed"
        print(f"with it: {whole} (at most {options.limit_mb:g} and {options.limit_packed_mb:g})")
        print("its steps were run in a folder: no container engine was used")
        for what, holds, said in checks:
            print(f"{'holds' if holds else 'FAILS'}: {what}: {' / '.join(said.splitlines())[:300]}")
    heavy = unpacked + BASE_MB > options.limit_mb or packed + BASE_PACKED_MB > options.limit_packed_mb
    return int(heavy or not all(holds for _, holds, _ in checks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
