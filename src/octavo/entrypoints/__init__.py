"""Modules that servers are started by: under vLLM's name for it, and in the image."""
