"""Compositions of ops. A layer is a frozen value: weights and numbers, called with (ops, inputs, x)."""
