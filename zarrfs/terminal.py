"""What may reach a terminal: text without control sequences, and sizes that people read."""

from __future__ import annotations


def printable(value: str) -> str:
    """``value`` on one line, its control characters escaped: names and reasons come from stores, which mean no good."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in value)


def size(nbytes: int) -> str:
    """``nbytes`` in the largest unit of which there is one: ``12.0 MiB``."""
    amount, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{nbytes} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 file``, ``3 files``; ``plural`` where that is no matter of an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
