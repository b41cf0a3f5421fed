"""One file a family: models/registry.py finds it, and imports only the one that is needed."""
