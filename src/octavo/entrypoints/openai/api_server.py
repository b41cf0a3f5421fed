"""`python -m octavo.entrypoints.openai.api_server` is `octavo serve`, as vLLM's module is `vllm serve`."""

from __future__ import annotations

import sys

from octavo.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["serve", *sys.argv[1:]]))
