"""Anthropic's messages API, as a thin adapter over chat."""
