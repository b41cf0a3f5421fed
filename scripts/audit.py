"""Is a weakness known of what the locks name? pip-audit asks its advisory service.

    audit.py [--json] [LOCK...]     constraints/runtime.txt and constraints/wheel.txt where none is named

Exit status: 0, none is known of any of them; 1, some are, each with a line; 69 (EX_UNAVAILABLE), nobody could
be asked, or not about all of them: that is no pass.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributions import RUNTIME, WHEEL, read_lock

UNAVAILABLE = 69
WAIT_S = 600
SHOWN = 3


class UnansweredError(Exception):
    """Nobody could be asked about all of a lock."""


def ask(lock: Path) -> list[dict[str, Any]]:
    """What is known of each package of a lock: name, version, vulns.

    Raises:
        UnansweredError: says why.
        ValueError: the file is no lock.
    """
    wanted = {(each.name, each.version) for each in read_lock(lock)}
    # --disable-pip: a lock names all of it, so nothing is resolved and nothing installed.
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--requirement",
        str(lock),
        "--require-hashes",
        "--disable-pip",
    ]
    command += ["--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        raise UnansweredError(f"no answer within {WAIT_S} s") from None
    try:
        told: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines() or [f"pip-audit ended with status {done.returncode}"]
        raise UnansweredError(lines[-1]) from None
    heard = {(each["name"], each["version"]) for each in told if "vulns" in each}
    # pip-audit itself calls it a pass where the service knows none of the packages, as a mirror may not.
    if missing := sorted(name for name, _ in wanted - heard):
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise UnansweredError(f"nothing was said of {', '.join(missing[:SHOWN])}{more}")
    return told


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="audit")
    parser.add_argument("locks", type=Path, nargs="*", metavar="LOCK")
    parser.add_argument("--json", action="store_true", help="print what is known as one JSON object")
    options = parser.parse_args(arguments)
    told: list[dict[str, Any]] = []
    try:
        for path in options.locks or (RUNTIME, WHEEL):
            told += ask(path)
    except UnansweredError as error:
        print(f"audit: NOT AUDITED, the advisory service could not be asked: {error}", file=sys.stderr)
        return UNAVAILABLE
    except (OSError, ValueError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return UNAVAILABLE
    known = [(each, weak) for each in told for weak in each["vulns"]]
    if options.json:
        print(
            json.dumps(
                {"packages": len(told), "known": [{**weak, "package": each["name"]} for each, weak in known]}
            )
        )
    for each, weak in known:
        fixed = ", ".join(weak.get("fix_versions", ())) or "no version"
        print(f"audit: {each['name']} {each['version']}: {weak['id']}, fixed in {fixed}", file=sys.stderr)
    if not known and not options.json:
        print(f"audit: nothing is known against {len(told)} packages")
    return int(bool(known))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
