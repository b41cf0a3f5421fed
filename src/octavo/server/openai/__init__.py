"""OpenAI's API: one file an endpoint, each with its own router."""
