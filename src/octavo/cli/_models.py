"""How commands speak of model files."""

from __future__ import annotations


def megabytes(size: int) -> str:
    """Bytes as people read them: 98 MB, or 1.2 GB from a thousand megabytes on (10^6 and 10^9 bytes)."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
