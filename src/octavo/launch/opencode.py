"""opencode, an agent for the terminal. It asks /v1/chat/completions.

https://opencode.ai/docs/config: a configuration in a variable goes over the files, and leaves them alone.
"""

from __future__ import annotations

import json

from octavo.launch.base import NO_KEY, Settings, Tool
from octavo.launch.served import Served

KEY = "OCTAVO_API_KEY"
CONFIG = "OPENCODE_CONFIG_CONTENT"


def settings(served: Served) -> Settings:
    """One provider, of the kind that opencode brings along. The key is read from a variable."""
    limit = {"context": served.context, "output": max(256, served.context // 4)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Octavo",
        "options": {"baseURL": f"{served.url}/v1", "apiKey": f"{{env:{KEY}}}"},
        "models": {served.model: {"name": served.model, "limit": limit}},
    }
    name = f"octavo/{served.model}"
    config = {"provider": {"octavo": provider}, "model": name, "small_model": name}
    return Settings((), {CONFIG: json.dumps(config), KEY: served.key or NO_KEY}, frozenset({KEY}))


TOOL = Tool("opencode", "opencode", "npm install -g opencode-ai", 8_000, settings)
