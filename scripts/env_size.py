"""What an environment weighs, and that no torch came along.

    env_size.py [--limit-mb 200] PATH      an environment that exists
    env_size.py [--limit-mb 200] --fresh   a new one, made by `pip install .` (compiles the extension)

Exits 1 above the limit (MB = 10^6 bytes on disk, pip included), where a package named torch*, nvidia*
or triton is installed, and where a fresh one came without the compiled extension.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FORBIDDEN = ("torch", "nvidia", "triton")
SHOWN = 8


def size_of(folder: Path) -> int:
    """Bytes of all regular files below the folder; links are not followed."""
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def site_packages(environment: Path) -> Path:
    found = sorted(environment.glob("lib/python3.*/site-packages"))
    if not found:
        raise SystemExit(f"env_size: {environment} is no Python environment")
    return found[-1]


def forbidden_packages(site: Path) -> list[str]:
    """Installed distributions that a runtime environment must not hold."""
    names = sorted(p.name.split("-")[0].lower() for p in site.glob("*.dist-info"))
    return [name for name in names if name.startswith(FORBIDDEN)]


def weigh(environment: Path, limit_mb: float, as_json: bool = False) -> int:
    """Print the size and the largest packages; the exit status."""
    site = site_packages(environment)
    total_mb = size_of(environment) / 1e6
    parts = sorted(((size_of(p) / 1e6, p.name) for p in site.iterdir() if p.is_dir()), reverse=True)
    largest = ", ".join(f"{name} {megabytes:.0f}" for megabytes, name in parts[:SHOWN])
    if as_json:
        print(json.dumps({"total_mb": round(total_mb, 1), "limit_mb": limit_mb, "largest": largest}))
    else:
        print(f"{environment}: {total_mb:.0f} MB (limit {limit_mb:.0f}); largest: {largest}")
    unwanted = forbidden_packages(site)
    if unwanted:
        print(f"env_size: the runtime must not need {', '.join(unwanted)}", file=sys.stderr)
    if total_mb > limit_mb:
        print(f"env_size: {total_mb:.0f} MB is above {limit_mb:.0f} MB", file=sys.stderr)
    return int(bool(unwanted) or total_mb > limit_mb)


def weigh_fresh(limit_mb: float, as_json: bool = False) -> int:
    """Weigh what `pip install .` makes of this checkout, in a folder that is removed afterwards."""
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory(prefix="octavo-env-") as folder:
        environment = Path(folder) / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", str(root)], check=True)
        if not any((site_packages(environment) / "octavo" / "kernels").glob("*.so")):
            print("env_size: the extension was not compiled (pip install -v . says why)", file=sys.stderr)
            return 1
        return weigh(environment, limit_mb, as_json)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="env_size")
    parser.add_argument("environment", type=Path, nargs="?")
    parser.add_argument("--fresh", action="store_true", help="make one by pip install . and weigh it")
    parser.add_argument("--limit-mb", type=float, default=200.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.fresh == bool(options.environment):
        parser.error("give an environment's folder or --fresh")
    if options.fresh:
        return weigh_fresh(options.limit_mb, options.json)
    return weigh(options.environment, options.limit_mb, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
