"""Detects the kind of DBM at a path, as Python's `dbm.whichdb`, without the libraries of those kinds.

``whichdb`` opens any file with the right name, even a pipe or a device, and passes ``x.db`` to the library of ndbm, which is not
safe for untrusted files.

Source: Python's ``Lib/dbm/__init__.py``; GNU dbm ``gdbmconst.h``; Berkeley DB ``db_page.h`` (and 1.85 ``hash.h``): magic numbers in the
byte order of the machine that wrote the file.
"""

from __future__ import annotations

import os
import struct

from zarrfs.stores.archive_file import begins_with

_GNU = (0x13579ACD, 0x13579ACE, 0x13579ACF)
_BERKELEY_HASH = 0x00061561


def foreign_kind(path: str) -> str | None:
    """Return ``"dbm.gnu"`` or ``"dbm.ndbm"``; None if neither."""
    if all(os.path.isfile(path + suffix) for suffix in (".pag", ".dir")):
        return "dbm.ndbm"
    if any(_has(path + ".db", _BERKELEY_HASH, offset) for offset in (0, 12)):
        return "dbm.ndbm"
    if any(_has(path, magic, 0) for magic in _GNU):
        return "dbm.gnu"
    return None


def _has(path: str, magic: int, offset: int) -> bool:
    return any(begins_with(path, struct.pack(order + "I", magic), offset) for order in "<>")
