"""Sizes and durations as people read them."""

from __future__ import annotations


def size(nbytes: float) -> str:
    """Bytes in decimal units, three significant digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:,.3g} TB"


def seconds(value: float | None) -> str:
    """Seconds in the unit a person would choose."""
    if value is None:
        return "unknown"
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s"
