"""Which calls a test counts that states the cost of an operation."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import zarrfs
from zarrfs.stores.folder import file_systems

PACKAGE = str(Path(zarrfs.__file__).parent) + "/"
# They run once for a table, and for each mount in it; the table changes with the mounts of other tests.
_READ_MOUNTS = frozenset(("RemoteMounts._read", "_below", "_mounts", "_unescaped"))


def is_counted(code: CodeType) -> bool:
    """Return True if ``code`` is of zarrfs, and does not read the table of mounts."""
    if code.co_filename == file_systems.__file__:
        return code.co_qualname.partition(".<locals>")[0] not in _READ_MOUNTS
    return code.co_filename.startswith(PACKAGE)
