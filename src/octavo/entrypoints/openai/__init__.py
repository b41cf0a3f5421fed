"""The server of vLLM's OpenAI API."""
