"""A sampling field is declared once: one is added to a copy of the sources, and all that follows is there.

EDITS are the places in Python that draw on the CPU. Who adds a field in earnest also writes its kernels:
kernels/cuda/{sample,draw}.py, csrc/sample.h and csrc/sample_row.cpp.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
EDITS = {
    "params/sampling.py": [
        (
            "    seed: int | None =",
            '    epsilon_cutoff: float = real(0.0, 0, 1, "Keep tokens so likely.", "draw")\n',
        )
    ],
    "kernels/draws.py": [
        ('        ("repetition_penalty", ', '        ("epsilon_cutoff", np.float32),  # 0: all\n'),
        ("    found: npt.NDArray[np.bool_] = plain", '    plain &= rows["epsilon_cutoff"] == 0\n'),
    ],
    "sampling/logits.py": [
        (
            "    if 0 < top_k <",
            '    if numbers["epsilon_cutoff"] > 0:\n'
            '        likely = np.flatnonzero(values >= numbers["epsilon_cutoff"] * values.sum())\n'
            "        ids, values = _narrow(ids, values, likely)\n",
        )
    ],
}
"""File -> (text before which lines are put in, the lines)."""

SEEN = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, reference_pages
from octavo.cli._flags import sampling_flags
from octavo.errors import InvalidRequestError
from octavo.kernels.draws import drawn_free
from octavo.params import BeamSearchParams, SamplingParams
from octavo.pipelines.text_generation import sampling_params
from octavo.sampling import Sampler, SamplingRows
from octavo.server.openai.body import parse
from octavo.server.openai.chat import ChatRequest
from octavo.server.openai.completions import CompletionRequest

def error(**given):
    try:
        SamplingParams(**given)
    except InvalidRequestError as refused:
        return str(refused), refused.param

def asked(model, **given):
    body = json.dumps({"epsilon_cutoff": 0.25, **given}).encode()
    return parse(model, body).sampling_params().epsilon_cutoff

@sampling_flags()
def command(sampling): ...

def row(**given):
    rows = SamplingRows(1, 4)
    rows.add(0, SamplingParams(**given), 7, 0, [1], 1)
    return rows

def drawn(**given):
    logits, rows = np.log(np.array([[0.15, 0.3, 0.35, 0.2]] * 50, np.float32)), row(**given)
    return sorted({each.token_id for each in Sampler().sample(logits, rows.batch([0] * 50, range(50)))})

schema = ChatRequest.model_json_schema()["properties"]
names = list(schema)
flags = command.__signature__.parameters
print(json.dumps({
    "errors": [error(epsilon_cutoff=2), error(epsilon_cutoff=0.5, beam_search=BeamSearchParams(2, 5))],
    "requests": [asked(ChatRequest, messages=[{"role": "user", "content": "a"}]),
                 asked(CompletionRequest, prompt="a")],
    "openapi": [schema["epsilon_cutoff"], names.index("epsilon_cutoff") - names.index("typical_p")],
    "flags": [*flags["epsilon_cutoff"].default.param_decls, flags["epsilon_cutoff"].default.help],
    "pipelines": sampling_params({"epsilon_cutoff": 0.3}).epsilon_cutoff,
    "page": [line for line in reference_pages.sampling_page().splitlines() if "epsilon" in line],
    "drawn": [drawn(), drawn(epsilon_cutoff=0.25), drawn(epsilon_cutoff=0.33)],
    "before its mask": [bool(drawn_free(row(epsilon_cutoff=least).records[0])) for least in (0, 0.25)],
}))
"""

TEXT = "Keep tokens so likely."
EXPECTED: dict[str, Any] = {
    "errors": [
        ["epsilon_cutoff must be at least 0 and at most 1, not 2", "epsilon_cutoff"],
        ["epsilon_cutoff 0.5 cannot be had with a beam search", "epsilon_cutoff"],
    ],
    "requests": [0.25, 0.25],
    "openapi": [{"default": 0.0, "title": "Epsilon Cutoff", "type": "number"}, 1],
    "flags": ["--epsilon-cutoff", f"{TEXT}  [default: 0.0]"],
    "pipelines": 0.3,
    "page": [f"| `epsilon_cutoff` | number, 0 to 1 | `0.0` | `--epsilon-cutoff` | {TEXT} |"],
    "drawn": [[0, 1, 2, 3], [1, 2], [2]],
    "before its mask": [True, False],
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the copy says of the new field."""
    root = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__")
    for part in (Path("src", "octavo"), Path("tests", "support", "checkout")):
        shutil.copytree(ROOT / part, root / part, ignore=ignored)
    for name, edits in EDITS.items():
        path = root / "src" / "octavo" / name
        text = path.read_text(encoding="utf-8")
        for place, lines in edits:
            assert text.count(place) == 1, f"{name} does not hold this once: {place}"
            text = text.replace(place, lines + place)
        path.write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(root / "tests" / "support" / "checkout")}
    command = [sys.executable, "-c", SEEN, str(ROOT / "scripts")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("what", EXPECTED)
def test_what_follows_from_the_declaration(seen: dict[str, Any], what: str) -> None:
    assert seen[what] == EXPECTED[what]
