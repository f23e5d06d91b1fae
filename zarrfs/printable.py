"""What may reach a terminal, a log or a text file: words without control sequences, and sizes that people read.

Names, reasons and values come from stores and from other users' processes. Child as they are, they could move the cursor, set the
terminal's title, type into it, reorder what stands beside them, or look like another name. So each of them goes through `printable`,
which is idempotent: what reaches a seam (the log's formatter, stderr, the text that a report prints) may have been through it before.
"""

from __future__ import annotations

import re

# Printable to `str.isprintable` and invisible all the same: the rest of Unicode's Default_Ignorable_Code_Point (fillers, the grapheme
# joiner, variation selectors), and the empty Braille pattern.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def printable(value: str) -> str:
    """``value`` on one line, with everything escaped that is not seen as what it is.

    Escaped, as in a Python string: control characters (C0, DEL, C1), bytes that are no text (``\\udc9b`` for 0x9b), bidirectional
    controls, line and paragraph separators, spaces other than the ASCII one, and what is invisible, unassigned or private. Letters,
    marks, digits, punctuation and symbols of every script stay. So do emoji, but for the invisible characters that join or modify them:
    names that look the same have to be told apart. A backslash stays one, as in `repr` of what was escaped before.
    """
    if value.isprintable() and _INVISIBLE.search(value) is None:
        return value
    return "".join(c if c.isprintable() and _INVISIBLE.match(c) is None else _escaped(c) for c in value)


def printable_lines(value: str) -> str:
    """``value`` with its line breaks, each line `printable`, all but the first indented: none of them can pass for a line of ours."""
    return "\n  ".join(printable(line.expandtabs()) for line in value.split("\n"))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


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
