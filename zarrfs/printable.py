"""Text for a terminal, a log or a text file: without control sequences, and with readable sizes.

Names, reasons and values come from stores and from other users' processes. Printed unchanged, they could move the cursor, set the
terminal's title, type into it, reorder neighbouring text, or imitate another name. Each of them therefore goes through `printable`, which
is idempotent: text at a boundary (the log's formatter, stderr, the text of a report) may have been through it before.
"""

from __future__ import annotations

import re

# Printable by `str.isprintable` but invisible: the rest of Unicode's Default_Ignorable_Code_Point (fillers, the grapheme joiner,
# variation selectors), and the empty Braille pattern.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def printable(value: str) -> str:
    """Return ``value`` on one line, with all characters escaped that are invisible or misleading.

    Escaped, as in a Python string: control characters (C0, DEL, C1), bytes that are not text (``\\udc9b`` for 0x9b), bidirectional
    controls, line and paragraph separators, spaces other than the ASCII one, and invisible, unassigned or private characters. Letters,
    marks, digits, punctuation and symbols of every script stay. So do emoji, except for the invisible characters that join or modify
    them: names that look the same must be distinguishable. A backslash is not escaped, so that escaped text stays as it is.
    """
    if value.isprintable() and _INVISIBLE.search(value) is None:
        return value
    return "".join(c if c.isprintable() and _INVISIBLE.match(c) is None else _escaped(c) for c in value)


def printable_lines(value: str) -> str:
    """Return ``value`` with its line breaks, each line `printable`, all but the first indented, to differ from lines of zarrfs."""
    return "\n  ".join(printable(line.expandtabs()) for line in value.split("\n"))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def size(nbytes: int) -> str:
    """Return ``nbytes`` in the largest unit in which it is at least one: ``12.0 MiB``."""
    amount, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{nbytes} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 file``, ``3 files``; ``plural`` for a noun with another plural than -s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
