"""Folders that a set does not make: of what is gone nothing comes back (`zarrfs.stores.base.presupposing`)."""

from __future__ import annotations

from zarrfs.errors import StaleEntry
from zarrfs.stores.base import presupposed
from zarrfs.stores.folder.names import Parts, parts_of


def demand_presupposed(parts: Parts, depth: int, error: FileNotFoundError) -> None:
    """Raise `StaleEntry` where the folder on the way to ``parts`` that was not found has to be there."""
    prefix = presupposed()
    wanted = parts_of(prefix) if prefix else ()
    if depth < len(wanted) and parts[: len(wanted)] == wanted:
        raise StaleEntry(f"the folder {prefix!r} is gone: nothing is stored in it", key=prefix) from error
