"""A file of this folder that declares a BACKEND is a backend (kernels/select.py)."""
