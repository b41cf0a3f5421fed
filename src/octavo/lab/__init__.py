"""Experiments: what a design is worth, and what would happen. No server and no measurement loads it."""
