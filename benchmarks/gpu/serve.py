"""`octavo` as checks and rows need it: `python -m gpu.serve [--lose STEPS] [--hollow] serve MODEL ...`.

--lose: the device is lost after so many steps. --hollow: the weights of a hollow model are made on the device
(gpu/folder.py).
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable


def after(last: int) -> Callable[[], bool]:
    """Whether it has been asked so many times before."""
    asked = itertools.count()
    return lambda: next(asked) >= last


def main(words: list[str]) -> int:
    from gpu.folder import filled
    from gpu.place import breaking
    from octavo.cli import main as octavo

    with contextlib.ExitStack() as stack:
        while words and words[0] != "serve":
            option = words.pop(0)
            if option == "--hollow":
                stack.enter_context(filled())
            elif option == "--lose":
                last, device = int(words.pop(0)), words[words.index("--device") + 1]
                stack.enter_context(breaking(device, after(last)))
            else:
                raise SystemExit(f"{option} is neither --lose nor --hollow")
        return octavo(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
