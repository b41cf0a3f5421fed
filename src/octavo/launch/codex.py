"""Codex, OpenAI's agent for the terminal. It asks /v1/responses.

https://github.com/openai/codex/blob/main/docs/config.md: a provider of one's own, given by `-c KEY=TOML`.
"""

from __future__ import annotations

import json

from octavo.launch.base import NO_KEY, Settings, Tool
from octavo.launch.served import Served

KEY = "OCTAVO_API_KEY"


def settings(served: Served) -> Settings:
    """Nothing is written to ~/.codex: all of it stands on the command line, the key in a variable."""
    provider = {"name": "Octavo", "base_url": f"{served.url}/v1", "env_key": KEY, "wire_api": "responses"}
    values = {
        "model": served.model,
        "model_context_window": served.context,
        "model_provider": "octavo",
        **{f"model_providers.octavo.{name}": value for name, value in provider.items()},
    }
    # Texts and whole numbers are written alike in JSON and in TOML.
    pairs = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    arguments = tuple(word for pair in pairs for word in ("-c", pair))
    return Settings(arguments, {KEY: served.key or NO_KEY}, frozenset({KEY}))


TOOL = Tool("codex", "codex", "npm install -g @openai/codex", 10_000, settings)
