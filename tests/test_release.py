"""Locks by hash, bill of materials, audit: what `make release-check` looks at before a release."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS, RUNTIME = ROOT / "scripts", ROOT / "constraints" / "runtime.txt"
HASH = "--hash=sha256:" + "a" * 64


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def script(name: str) -> Any:
    return importlib.import_module(name)


def test_locks_hold_what_is_asked_for_and_all_that_leads_to() -> None:
    command = [sys.executable, str(SCRIPTS / "lock.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_locks_are_the_tested_versions() -> None:
    lines = (ROOT / "constraints" / "test.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if line and line[0] != "#")
    tested = {canonicalize_name(name): version for name, version in tested.items()}
    locked = {each.name: each.version for each in script("distributions").read_lock(RUNTIME)}
    assert len(locked) > 20
    assert locked == {name: tested[name] for name in locked}


@pytest.mark.parametrize("name", ["runtime.txt", "wheel.txt"])
def test_every_line_has_hashes_and_no_line_an_index(name: str) -> None:
    text = (ROOT / "constraints" / name).read_text(encoding="utf-8")
    assert all(each.hashes for each in script("distributions").read_lock(ROOT / "constraints" / name))
    lines = [line for line in text.splitlines() if line[:1] != "#"]
    assert all(
        re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line)
        for line in lines
    )
    assert not re.search(r"://|\.(org|com|io|net)\b|--(extra-)?index-url|--find-links", text)


def test_a_compiled_package_has_wheels_of_every_python_and_machine() -> None:
    (numpy,) = (each for each in script("distributions").read_lock(RUNTIME) if each.name == "numpy")
    assert len(numpy.hashes) == len(script("lock").PYTHONS) * len(script("lock").MACHINES)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("numpy==2.0\n", "no version or no hash"),
        (f"numpy>=2.0 {HASH}\n", "no version or no hash"),
        (f"numpy==2.0 {HASH}b\n", "no version or no hash"),
        (f"numpy==2.0 {HASH} --index-url=x\n", "no version or no hash"),
        (f"numpy==2.0 {HASH}\nNumPy==2.0 {HASH}\n", "twice"),
        (f"numpy==1.0 {HASH}\n", "numpy>=1.26 is asked for, 1.0 is locked"),
        (f"jinja2==3.1 {HASH}\n", "numpy>=1.26 is asked for, nothing is locked"),
        (f"numpy==2.0 {HASH}\njinja2==3.1 {HASH}\n", "jinja2 is locked and not needed"),
        (f"numpy==2.0 {HASH}\n", ""),
    ],
)
def test_a_lock_that_is_wrong_is_told(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text, encoding="utf-8")
    found = script("lock").problems(path, [Requirement("numpy>=1.26")], True)
    assert bool(found) is bool(why)
    assert why in "".join(found)


def test_what_is_needed_by_what_is_needed_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(f"jinja2==3.1.6 {HASH}\n", encoding="utf-8")
    found = script("lock").problems(path, [Requirement("jinja2>=3.1")], True)
    assert found == ["x.txt: markupsafe is needed and not locked"]


def test_the_bill_names_each_locked_package_and_who_needs_it() -> None:
    bill = script("sbom").bill()
    locked = {each.name: each for each in script("distributions").read_lock(RUNTIME)}
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    components = {each["name"]: each for each in bill["components"]}
    assert set(components) == {*locked, "nanobind"}, "what is linked is shipped too"
    for name, lock in locked.items():
        each = components[name]
        assert each["purl"] == f"pkg:pypi/{name}@{lock.version}" == each["bom-ref"]
        assert [p["value"] for p in each["properties"]] == list(lock.hashes)
        assert all(("expression" in told) != ("license" in told) for told in each.get("licenses", ()))
    assert sum("licenses" in each for each in components.values()) >= len(locked) - 2
    refs = {each["bom-ref"] for each in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert set(needs) == refs
    assert all(set(below) <= refs for below in needs.values())
    own = set(needs[bill["metadata"]["component"]["bom-ref"]])
    asked = script("distributions").runtime_requirements()
    assert own == {
        components[name]["bom-ref"] for name in [*(canonicalize_name(r.name) for r in asked), "nanobind"]
    }
    assert components["markupsafe"]["bom-ref"] in needs[components["jinja2"]["bom-ref"]]


def test_equal_locks_give_equal_bytes(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b" / "b.json"]
    for file in files:
        assert script("sbom").main(["--output", str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "timestamp" not in files[0].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "why"),
    [("numpy==1.0", "installed, 1.0 locked"), ("no-such-package==1.0", "is not installed here")],
)
def test_a_bill_of_what_is_not_installed_is_refused(line: str, why: str) -> None:
    name, version = line.split("==")
    with pytest.raises(ValueError, match=why):
        script("sbom").component(script("distributions").Locked(name, version, ()), True)


LOCK = f"numpy==2.0 {HASH}\njinja2==3.1 {HASH}\n"
CLEAN = [{"name": "numpy", "version": "2.0", "vulns": []}, {"name": "jinja2", "version": "3.1", "vulns": []}]
WEAK = [CLEAN[0], {**CLEAN[1], "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.2"], "aliases": []}]}]
SKIPPED = [CLEAN[0], {"name": "jinja2", "skip_reason": "not found"}]


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (json.dumps({"dependencies": CLEAN}), 0, "nothing is known against 2 packages"),
        (json.dumps({"dependencies": WEAK}), 1, "jinja2 3.1: PYSEC-1, fixed in 3.2"),
        (json.dumps({"dependencies": SKIPPED}), 69, "nothing was said of jinja2"),
        (json.dumps({"dependencies": CLEAN[:1]}), 69, "nothing was said of jinja2"),
        (json.dumps({"dependencies": []}), 69, "nothing was said of jinja2, numpy"),
        ("", 69, "NOT AUDITED, the advisory service could not be asked: ConnectionError: nobody there"),
        ("[]", 69, "NOT AUDITED"),
        (None, 69, "No module named pip_audit"),
    ],
)
def test_an_audit_that_was_not_answered_is_no_pass(
    tmp_path: Path, answer: str | None, status: int, said: str
) -> None:
    """pip-audit is a script here that says this, whatever its own status."""
    if answer is not None:
        (tmp_path / "pip_audit").mkdir()
        code = f"import sys; print({answer!r}); sys.exit('traceback\\nConnectionError: nobody there')"
        (tmp_path / "pip_audit" / "__main__.py").write_text(code, encoding="utf-8")
    lock = tmp_path / "lock.txt"
    lock.write_text(LOCK, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "audit.py"), str(lock)],
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status
    assert said in done.stdout + done.stderr
    assert ("NOT AUDITED" in done.stderr) is (status == 69)


def test_many_that_were_not_answered_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = subprocess.CompletedProcess([], 0, json.dumps({"dependencies": []}), "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    audit = script("audit")
    with pytest.raises(audit.UnansweredError, match=r"of annotated-doc, \S+, anyio and \d+ more$"):
        audit.ask(RUNTIME)


def test_the_target_asks_all_three() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^release-check:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    assert recipe is not None
    assert all(part in recipe[1] for part in ("lock.py --check", "sbom.py", "audit.py", "exit $$failed"))
