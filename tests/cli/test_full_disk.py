"""Disks that are full, for all that a command writes: one line says so, and what is served is served on."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.cli import command, environment
from support.fuzz.tiny_files import FAMILIES, folder

FULL = Path("/dev/full")
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def serving(port: int, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    """A server that answers; its lines may be lost."""
    line = command("serve", "some/model", "--port", str(port), *words, scripted=True)
    process = subprocess.Popen(line, env=environment(), stdin=subprocess.DEVNULL, **options)
    for _ in range(600):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                return process
        except httpx.TransportError:
            assert process.poll() is None, f"it ended with {process.poll()}"
        time.sleep(0.1)
    raise AssertionError("it never gets ready")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("both", [False, True], ids=["standard output", "standard error too"])
def test_a_server_that_cannot_write_its_lines_serves_on(both: bool) -> None:
    port = free_port()
    with FULL.open("wb") as full:
        process = serving(
            port, "--json", "--access-log", stdout=full, stderr=full if both else subprocess.PIPE
        )
        try:
            for _ in range(30):
                answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=BODY)
                assert answer.status_code == 200
        finally:
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    if not both:
        lines = said.decode().splitlines()
        assert [line for line in lines if "standard output" in line] == [
            "octavo: warning: standard output: No space left on device: nothing more is told there"
        ]
        assert len(lines) < 10, "a line for each request"


def limit_files(nbytes: int) -> None:
    """In a child: no file grows beyond this."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


def test_a_batch_that_fills_the_disk_goes_on_later(tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(40)]
    asked = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": BODY} for name in names
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(each) + "\n" for each in asked))
    line = command("run-batch", str(source), str(target), "--model", "some/model", "--json", scripted=True)
    limits = (4096, 8192)
    for most in limits:
        done = subprocess.run(
            line, env=environment(), capture_output=True, text=True, check=False,
            preexec_fn=lambda most=most: limit_files(most),
        )  # fmt: skip
        assert done.returncode == 1
        (said,) = (line for line in done.stderr.splitlines() if line != "engine shut")
        assert said == (
            f"octavo: error: File too large: the answers so far are in {target}; run it again for the rest"
        )
        assert 0 < target.stat().st_size <= most
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    totals = json.loads(done.stdout)
    assert totals["done"] + totals["skipped"] == len(names)
    assert totals["skipped"] > 0
    answers = [json.loads(each) for each in target.read_text().splitlines()]
    assert sorted(each["custom_id"] for each in answers) == sorted(names)
    assert all(each["response"]["status_code"] == 200 for each in answers)


GENERATE = """
import json, logging, resource, sys
from octavo import LLM, SamplingParams
logging.basicConfig(format="%(message)s")
model, cache, most = sys.argv[1:]
llm = LLM(model, seed=0, num_pages=6, page_size=16, max_num_seqs=2, threads=1, prefix_cache_dir=cache,
          prefix_cache_disk_space=1 / 1024)
if int(most):
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), hard))
params = SamplingParams(max_tokens=8, temperature=0.9, seed=1, ignore_eos=True)
prompts = [{"prompt_token_ids": [3 + (7 * n + i) % 40 for i in range(40)]} for n in (0, 1, 2, 0, 1, 2)]
said = [llm.generate([p], params, use_tqdm=False)[0].outputs[0].token_ids for p in prompts]
llm.shutdown()
print(json.dumps(said))
"""


def answers(model: Path, cache: Path, most: int) -> tuple[str, list[str]]:
    """(tokens, lines of the log) of prompts that are evicted again and again."""
    line = [*command()[:1], "-c", GENERATE, str(model), str(cache), str(most)]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr.splitlines()


def test_a_prefix_cache_that_fills_the_disk_is_done_without(tmp_path: Path) -> None:
    """By a limit of the system itself: its file is sparse, so space may end at any page."""
    model = tmp_path / "model"
    model.mkdir()
    for name, data in folder(FAMILIES[0]).items():
        (model / name).write_bytes(data)
    right, lines = answers(model, tmp_path / "quiet", 0)
    assert lines == []
    for _ in range(2):  # the second one finds what the first has left
        said, (line,) = answers(model, tmp_path / "full", 52_000)
        assert said == right
        assert line.endswith("File too large: no more pages are saved to disk")
    assert answers(model, tmp_path / "full", 0) == (right, [])
