"""One file a number format: quant/registry.py finds it, and imports it on use."""
