"""Architectures: families/ has a file for each, and the rest is what they share."""
