"""Number formats: what a file here holds as FORMATS can be read (quant/registry.py)."""
