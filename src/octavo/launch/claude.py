"""Claude Code, Anthropic's agent for the terminal. It asks /v1/messages.

https://docs.claude.com/en/docs/claude-code/settings: environment variables.
"""

from __future__ import annotations

from octavo.launch.base import NO_KEY, Settings, Tool
from octavo.launch.served import Served

MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
)
"""It uses several models at once; here they are all one."""
KEY = "ANTHROPIC_AUTH_TOKEN"


def settings(served: Served) -> Settings:
    """Nothing is written to ~/.claude. An answer gets a quarter of the context at most."""
    environment = {
        "ANTHROPIC_BASE_URL": served.url,
        KEY: served.key or NO_KEY,
        **dict.fromkeys(MODELS, served.model),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(max(256, served.context // 4)),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return Settings((), environment, frozenset({KEY}))


TOOL = Tool("claude", "claude", "npm install -g @anthropic-ai/claude-code", 21_000, settings)
