"""A backend is one file of kernels/backends/: a file put beside the others is configured, shown and run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo.kernels.backends
from octavo import LLM
from octavo.cli import env
from octavo.cli._flags import ENGINE_HELP
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import WantedBackend, backend_help, make_backend, native_available, registered
from octavo.params import SamplingParams
from support.tiny_engine import save_tiny_llama, save_words

LOUD = """
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import BackendRegistration

made = []

class Loud(ReferenceBackend):
    name = "loud"

    def __init__(self, wanted):
        made.append(wanted)
        super().__init__(wanted.threads)

BACKEND = BackendRegistration("NumPy, aloud", Loud, rank=2, missing=lambda: None)
"""


@pytest.fixture
def loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a backend that any machine would take before its own."""
    (tmp_path / "backends").mkdir()
    file = tmp_path / "backends" / "loud.py"
    file.write_text(LOUD)
    folders = [*octavo.kernels.backends.__path__, str(file.parent)]
    monkeypatch.setattr(octavo.kernels.backends, "__path__", folders)
    yield file
    sys.modules.pop("octavo.kernels.backends.loud", None)


def test_those_that_there_are() -> None:
    assert list(registered()) == ["cpu", "reference"]
    assert list(registered("cuda")) == ["cuda"]
    assert backend_help() == ENGINE_HELP["backend"] == "auto, cpu (native kernels) or reference (NumPy)."
    with pytest.raises(InvalidRequestError, match="backend must be one of auto, cpu, reference, not 'loud'"):
        EngineConfig("m", backend="loud")


@pytest.mark.usefixtures("loud")
def test_a_file_is_enough_to_be_configured_and_shown() -> None:
    assert EngineConfig("m", backend="loud").backend == "loud"
    assert backend_help() == "auto, loud (NumPy, aloud), cpu (native kernels) or reference (NumPy)."
    kernels = env.collect()["kernels"]
    assert kernels["backends"][0] == "loud"
    assert kernels["backend"] == "loud"
    assert make_backend("auto", WantedBackend()).name == "loud"


@pytest.mark.usefixtures("loud")
def test_a_file_is_enough_to_run_a_model(tmp_path: Path) -> None:
    folder = str(save_words(save_tiny_llama(tmp_path / "model")))
    prompt, greedy = (
        {"prompt_token_ids": [5] * 20},
        SamplingParams(max_tokens=6, temperature=0, ignore_eos=True),
    )
    loud, own = (
        LLM(folder, backend=name, threads=1).generate(prompt, greedy)[0].outputs[0].token_ids
        for name in ("loud", "reference")
    )
    assert loud == own
    (wanted,) = sys.modules["octavo.kernels.backends.loud"].made
    assert wanted == WantedBackend(threads=1)


def test_auto_takes_what_is_there_and_says_what_is_not(loud: Path) -> None:
    loud.write_text(LOUD.replace("missing=lambda: None", 'missing=lambda: "its horn is lost"'))
    best = "native kernels" if native_available() else "NumPy"
    with pytest.warns(RuntimeWarning, match=f"its horn is lost; running on {best}"):
        assert make_backend("auto", WantedBackend()).name in ("cpu", "reference")
    with pytest.raises(InvalidRequestError, match="backend loud cannot be had: its horn is lost"):
        make_backend("loud", WantedBackend())


def test_without_the_extension_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.kernels.select.native_available", lambda: False)
    with pytest.warns(RuntimeWarning, match=r"not built \(reinstall octavo with a C\+\+ compiler\); running"):
        assert isinstance(make_backend("auto", WantedBackend()), ReferenceBackend)
    with pytest.raises(InvalidRequestError, match="backend cpu cannot be had: the native kernels are not"):
        make_backend("cpu", WantedBackend())


@pytest.mark.parametrize(("dtype", "pages"), [("auto", "int16"), ("float32", None)])
def test_pages_are_integers_where_nobody_chose(dtype: str, pages: str | None) -> None:
    for name in ["reference", *(["cpu"] if native_available() else [])]:
        assert make_backend(name, WantedBackend(dtype=dtype)).kv_dtype == pages
