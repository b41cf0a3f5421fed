"""The software bill of materials of the runtime: CycloneDX 1.6, as JSON.

    sbom.py [--output FILE]

Packages, versions and hashes are those of constraints/runtime.txt, licences and who needs whom those of the
packages as they are installed in the Python that runs this (make env). nanobind is in it because the
extension is linked with it. Equal locks give equal bytes: there is no time and no random number in it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import sys
import uuid
from collections.abc import Sequence
from email.message import Message
from pathlib import Path
from typing import Any, cast

from distributions import ROOT, RUNTIME, WHEEL, Locked, closure, project, read_lock, runtime_requirements

LINKED = "nanobind"
MOST_LETTERS = 64
"""Of a licence's name: what is longer is its text."""


def purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def licences(metadata: Message) -> list[dict[str, Any]]:
    """As CycloneDX has them: an SPDX expression, or a name as the package tells it; or nothing."""
    if expression := metadata.get("License-Expression"):
        return [{"expression": expression}]
    told = (metadata.get("License") or "").strip()
    if told and len(told) <= MOST_LETTERS and "\n" not in told:
        return [{"license": {"name": told}}]
    marks = [line for line in metadata.get_all("Classifier", []) if line.startswith("License ::")]
    return [{"license": {"name": mark.rsplit(" :: ", 1)[1]}} for mark in marks]


def component(locked: Locked, installed: bool) -> dict[str, Any]:
    """One package.

    Raises:
        ValueError: it is installed in another version than the locked one, or not at all.
    """
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(locked.name, locked.version),
        "name": locked.name,
        "version": locked.version,
        "scope": "required",
        "purl": purl(locked.name, locked.version),
    }
    if installed:
        try:
            metadata = importlib.metadata.metadata(locked.name)
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(f"{locked.name} is not installed here: make env") from None
        if metadata["Version"] != locked.version:
            raise ValueError(
                f"{locked.name} {metadata['Version']} is installed, {locked.version} locked: make env"
            )
        if told := licences(cast(Message, metadata)):  # which it is: its type is a protocol of less
            found["licenses"] = told
    # Of each wheel that may be installed: CycloneDX's own field is for the hash of one file.
    found["properties"] = [{"name": "octavo:lock:sha256", "value": digest} for digest in locked.hashes]
    return found


def bill(root: Path = ROOT) -> dict[str, Any]:
    """The document.

    Raises:
        ValueError: a lock is wrong, or is not what is installed.
    """
    table = project(root)["project"]
    text = (root / "src" / "octavo" / "__init__.py").read_text(encoding="utf-8")
    told = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if told is None:
        raise ValueError("src/octavo/__init__.py tells no version")
    locked = {each.name: each for each in read_lock(RUNTIME)}
    linked = next(each for each in read_lock(WHEEL) if each.name == LINKED)
    components = [component(each, True) for each in locked.values()] + [component(linked, False)]
    own = purl("octavo", told[1])
    asked = closure(runtime_requirements(root))
    refs = {each.name: purl(each.name, each.version) for each in (*locked.values(), linked)}
    direct = {
        name
        for name in refs
        if name in {r.name.lower().replace("_", "-") for r in runtime_requirements(root)}
    }
    dependencies = [{"ref": own, "dependsOn": sorted(refs[name] for name in direct | {LINKED})}]
    dependencies += [
        {
            "ref": refs[name],
            "dependsOn": sorted(refs[below] for below in asked.get(name, ()) if below in refs),
        }
        for name in sorted(refs)
    ]
    names = "\n".join(sorted(refs.values()))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + names)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "octavo",
                "version": told[1],
                "description": table["description"],
                "licenses": [{"expression": table["license"]}],
                "purl": own,
            }
        },
        "components": sorted(components, key=lambda each: str(each["bom-ref"])),
        "dependencies": dependencies,
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="sbom")
    parser.add_argument("--output", type=Path, help="where to write it; else to standard output")
    options = parser.parse_args(arguments)
    try:
        document = bill()
    except (OSError, ValueError) as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 1
    text = json.dumps(document, indent=2) + "\n"
    if options.output is None:
        print(text, end="")
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text, encoding="utf-8")
        print(f"sbom: {len(document['components'])} components in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
