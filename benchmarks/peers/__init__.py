"""Octavo beside its peers: python benchmarks/peers."""
