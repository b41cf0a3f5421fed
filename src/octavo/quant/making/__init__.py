"""Formats that weights of 16 or 32 bits get while they are loaded: one file for each, with its METHOD."""
