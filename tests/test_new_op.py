"""An op is declared once: one is added to a copy of the sources, recorded and computed by every backend.

FILES are all the places: the specification, the reference, the op in C++ (a file of its own, which the
build finds) and the GPU's. An op with a loop of its own for each instruction set adds a name to
csrc/kernels.h and the loop to csrc/isa/.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from octavo.kernels.select import native_available

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("BUILD_PYTHON", ROOT / ".venv-build" / "bin" / "python"))
FILES = {
    "src/octavo/kernels/operations.py": (
        "    @abstractmethod\n    def gate_rows(",
        '''    @abstractmethod
    def clip(self, x: Tensor, limit: float) -> Tensor:
        """y = min(max(x, -limit), limit): what OLMo does to queries, keys and values."""
        return Tensor(x.rows, x.width)

''',
    ),
    "src/octavo/kernels/reference.py": (
        "    def gate_rows(",
        """    def clip(self, x: Tensor, limit: float) -> Tensor:
        return Tensor(x.rows, x.width, np.clip(x.ref, np.float32(-limit), np.float32(limit)))

""",
    ),
    "src/octavo/kernels/cuda/ops.py": (
        "    def gate_rows(",
        """    def clip(self, x: Tensor, limit: float) -> Tensor:
        return Tensor(x.rows, x.width, value(x).clamp(-limit, limit))

""",
    ),
    "csrc/clip_op.cpp": (
        "",
        """#include <algorithm>

#include "ops.h"

namespace octavo {
namespace {

class Clip : public Op {
public:
    explicit Clip(const Call& c) : x_(c.inputs.at(0)), y_(c.output), limit_(c.args.number("limit")) {}
    int64_t units(const Step& s, int) const override { return s.rows(x_.rows); }
    void run(const Step& s, int, int64_t begin, int64_t end, int) override {
        std::transform(s.row(x_, begin), s.row(x_, end), s.row(y_, begin),
                       [this](float x) { return std::clamp(x, -limit_, limit_); });
    }

private:
    Buffer x_, y_;
    float limit_;
};

const OpType kClip{"clip", [](const Call& c, Program& p) { p.add(std::make_unique<Clip>(c)); }};

} // namespace
} // namespace octavo
""",
    ),
}
"""File -> (text before which lines are put in, or nothing where the file is new; the lines)."""

SEEN = """
import json, sys
import numpy as np
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import Limits, Rows
from octavo.kernels.program import fuse, record

LIMITS, GAIN = Limits(2, 1, 2, 1), np.ones(4, np.float32)
X = np.array([[-3, -1, 0.5, 9], [2, -2, 0, 3]], np.float32)
LINE = np.arange(2, dtype=np.int32)
BATCH = ForwardBatch(LINE, LINE, LINE, np.int32([0, 2]), np.int32([2]), np.int32([[0]]), LINE)

def forward(ops, inputs):
    return ops.clip(ops.given(inputs, "x", Rows.TOKENS, 4), limit=2)

def normed(ops, inputs):
    x = ops.given(inputs, "x", Rows.TOKENS, 4)
    return ops.clip(ops.rms_norm(x, GAIN, 1e-5), 2.0)

def names(forward):
    recorder, result = record(forward, LIMITS)
    return [call.name for call in fuse(recorder.calls, result.ref)]

def backend(name):
    if name == "cuda":
        from octavo.kernels.cuda import make
        return make("cpu", dtype="float32")
    from octavo.kernels.select import WantedBackend, make_backend
    return make_backend(name, WantedBackend())

def computed(name):
    try:
        program = backend(name).capture(forward, LIMITS)
        return np.asarray(program.replay(BATCH, {"x": X})).tolist()
    except (TypeError, ValueError) as error:
        return str(error)

recorder, result = record(forward, LIMITS)
(call,) = recorder.calls
print(json.dumps({
    "call": [call.name, call.inputs, call.output, call.args, [result.rows.value, result.width]],
    "names": [names(forward), names(normed)],
    "computed": {name: computed(name) for name in sys.argv[1:]},
}))
"""
CLIPPED = [[-2, -1, 0.5, 2], [2, -2, 0, 2]]


def checkout(root: Path) -> Path:
    """A copy of what is built and imported, with the new op."""
    for part in ("src/octavo", "csrc", "tests/support/checkout"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "CMakeLists.txt", root)
    for name, (place, lines) in FILES.items():
        path = root / name
        if not place:
            path.write_text(lines, encoding="utf-8")
            continue
        text = path.read_text(encoding="utf-8")
        assert text.count(place) == 1, f"{name} does not hold this once: {place}"
        path.write_text(text.replace(place, lines + place), encoding="utf-8")
    return root


def seen(root: Path, backends: Sequence[str]) -> dict[str, Any]:
    """What the copy says of the new op."""
    environment = os.environ | {"PYTHONPATH": str(root / "tests" / "support" / "checkout")}
    command = [sys.executable, "-c", SEEN, *backends]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_few_places() -> None:
    assert len(FILES) <= 5


def test_what_follows_from_the_declaration(tmp_path: Path) -> None:
    """Recorded with its arguments; an extension that was built before does not know it, and says so."""
    backends = ["reference", *(["cpu"] if native_available() else [])]
    found = seen(checkout(tmp_path), backends)
    assert found["call"] == ["clip", [0], 1, {"limit": 2}, ["tokens", 4]]
    assert found["names"] == [["clip"], ["rms_norm", "clip"]]
    assert found["computed"]["reference"] == CLIPPED
    assert found["computed"].get("cpu") in (None, "no native op is called clip")


@pytest.mark.slow
@pytest.mark.skipif(not BUILD.exists(), reason="the environment that builds the extension is not there")
def test_built_and_computed_everywhere(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    for built in (root / "src" / "octavo" / "kernels").glob("_native*.so"):
        built.unlink()
    environment = os.environ | {"PATH": os.pathsep.join((str(BUILD.parent), os.environ["PATH"]))}
    flags = [f"-DPython_EXECUTABLE={BUILD}", "-DOCTAVO_IN_PLACE=ON", "-DCMAKE_BUILD_TYPE=Release"]
    for step in (["-S", root, "-B", root / "build", "-G", "Ninja", *flags], ["--build", root / "build"]):
        done = subprocess.run(["cmake", *step], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    gpu = ["cuda"] if find_spec("triton") else []
    assert seen(root, ["cpu", "reference", *gpu])["computed"] == dict.fromkeys(
        ["cpu", "reference", *gpu], CLIPPED
    )
