"""For the processes that tests start: they too import this checkout, see tests/conftest.py.

Python imports it at its start, because conftest puts this folder on PYTHONPATH.
"""

import sys
from pathlib import Path

SOURCE = str(Path(__file__).resolve().parents[3] / "src")
sys.meta_path[:] = [f for f in sys.meta_path if getattr(f, "search_paths", [SOURCE]) == [SOURCE]]
sys.path.insert(0, SOURCE)
