"""The index of a DBM of the kind ``dbm.dumb``: its keys, and the positions of their values in the ``.dat`` file.

Source: Python's ``Lib/dbm/dumb.py``: each line of ``x.dir`` is the ``repr`` of the key (as Latin-1 text) and of the pair of offset and
size, ``'a/0.0', (512, 29)``; a later line of a key replaces an earlier one. Python evaluates the lines; this module parses them, and
skips a line of another form with a warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

from zarrfs.errors import StoreError
from zarrfs.memory.indexes import NAME_NBYTES, IndexMemory
from zarrfs.stores.archive_file import ArchiveFile

log = logging.getLogger(__name__)

_MAX_NBYTES = 1 << 30
_PIECE_NBYTES = 1 << 20
_MAX_LINE = 1 << 16
# Of an entry besides its name: the pair of numbers, too.
_ENTRY_NBYTES = NAME_NBYTES + 96
_LINE = re.compile(r"""(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"),\s?\((\d{1,19}),\s?(\d{1,19})\)""")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}

Offsets = dict[bytes, tuple[int, int]]
"""A key's bytes, mapped to the offset and size of its value."""


def offsets(file: ArchiveFile, damage: list[str] | None = None) -> Offsets:
    """Return the content of the ``.dir`` file. Lines of another form are logged, and added to ``damage``.

    Raises `StoreError` if none of it is well-formed, or if it is too large.
    """
    if file.size > _MAX_NBYTES:
        raise StoreError(f"{file.path} is an index of {file.size} bytes, which is too many", key=file.path)
    memory = IndexMemory(file.path)
    found: Offsets = {}
    bad = first_bad = 0
    for number, line in enumerate(_lines(file), 1):
        match = _LINE.fullmatch(line.rstrip())
        key = None if match is None else _unquoted(match[1] if match[1] is not None else match[2])
        if match is None or key is None:
            bad += 1
            first_bad = first_bad or number
            continue
        if key not in found:
            memory.take(_ENTRY_NBYTES + len(key))
        found[key] = int(match[3]), int(match[4])
    if bad and not found:
        raise StoreError(f"{file.path} is not the index of a DBM", key=file.path)
    if bad:
        log.warning("%s: skipping %d lines that are no entries of a DBM, the first is line %d", file.path, bad, first_bad)
        if damage is not None:
            damage.append(f"{file.path}: lines that are no entries of a DBM: {bad}, the first is line {first_bad}")
    return found


def is_index(file: ArchiveFile) -> bool:
    """Return True if the first line is an index entry, or there is none."""
    line = file.read(0, min(file.size, _MAX_LINE), file.path).decode("latin-1").split("\n")[0]
    return not file.size or _LINE.fullmatch(line.rstrip()) is not None


def _lines(file: ArchiveFile) -> Iterator[str]:
    """Return each line, empty if too long. Only line feeds end one: Latin-1 has other characters that Python treats as line ends."""
    rest, too_long = b"", False
    for start in range(0, file.size, _PIECE_NBYTES):
        *lines, rest = (rest + file.read(start, min(file.size, start + _PIECE_NBYTES), file.path)).split(b"\n")
        for line in lines:
            yield "" if too_long or len(line) > _MAX_LINE else line.decode("latin-1")
            too_long = False
        if len(rest) > _MAX_LINE:
            rest, too_long = b"", True
    if rest or too_long:
        yield "" if too_long or len(rest) > _MAX_LINE else rest.decode("latin-1")


def _unquoted(text: str) -> bytes | None:
    """Return the bytes with this ``repr`` (as Latin-1 text, without quotes); None for an escape that ``repr`` never produces."""
    if "\\" in text:
        escapes = _ESCAPE.findall(text)
        if not all(code or plain in _PLAIN for code, plain in escapes):
            return None
        text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _PLAIN[match[2]], text)
    return text.encode("latin-1")
