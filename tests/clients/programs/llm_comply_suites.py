"""llm-comply, unmodified: are answers what the schemas of three services ask for?

Each suite may fail in what is not offered here (images) and in what is served by choice (a request that names
no model), and skips what asks for a model of the service's own. Whatever else fails is Octavo's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

from _features import run

BY_CHOICE = {
    "openai-chat": {"chat-image-input", "chat-error-handling"},
    "open-responses": {"image-input", "error-handling"},
    "anthropic": {"anth-image-input"},
}
"""What may fail, by suite; llm-comply's names."""
LEAST = 6
"""Tests of each suite that are to pass, so that none passes by skipping."""


def suite(name: str, url: str, key: str, model: str) -> None:
    command = [str(Path(sys.executable).with_name("llm-comply")), "--json", "--format", name]
    words = ["-u", f"{url}/v1", "-k", key, "-m", model]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=200, check=False)
    found = {each["id"]: each for each in json.loads(done.stdout)["results"]}
    failed = {each: found[each]["errors"] for each in found if found[each]["status"] == "failed"}
    assert set(failed) <= BY_CHOICE[name], failed
    assert sum(each["status"] == "passed" for each in found.values()) >= LEAST, found


if __name__ == "__main__":
    run("llm-comply", {name: partial(suite, name) for name in BY_CHOICE})
