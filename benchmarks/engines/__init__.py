"""Engines that benchmarks compare. One file each; what they share is base.py."""
