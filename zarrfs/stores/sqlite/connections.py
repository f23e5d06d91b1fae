"""Connections to an SQLite database, their errors, and rows of several queries."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from zarrfs.errors import StoreAccessDenied, StoreError, StoreTimeout

if TYPE_CHECKING:
    import sqlite3


def connect(url: str, patience: float, heap_nbytes: int) -> sqlite3.Connection:
    """Return a connection that waits ``patience`` seconds for locks. ``heap_nbytes`` is a limit for all connections together."""
    import sqlite3

    connection = sqlite3.connect(url, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)
    try:
        # Bytes, because text of a database need not be valid UTF-8.
        connection.text_factory = bytes
        for pragma in (
            f"hard_heap_limit = {heap_nbytes}",
            "query_only = 1",
            "trusted_schema = 0",
            "cell_size_check = 1",
            "mmap_size = 0",
        ):
            connection.execute(f"PRAGMA {pragma}").close()
    except BaseException:
        connection.close()
        raise
    return connection


@cache
def kinds() -> dict[int, type[StoreError]]:
    """Return the error of each primary result code that is not a plain `StoreError`."""
    import sqlite3

    return {
        sqlite3.SQLITE_BUSY: StoreTimeout,
        sqlite3.SQLITE_LOCKED: StoreTimeout,
        sqlite3.SQLITE_PERM: StoreAccessDenied,
        sqlite3.SQLITE_AUTH: StoreAccessDenied,
    }


def code(error: BaseException | None) -> int:
    """Return SQLite's primary result code; 0 if there is none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def merged(found: Sequence[sqlite3.Cursor]) -> Generator[tuple[Any, ...]]:
    """Return rows of several queries in the order of their names, each name once: text before blobs."""
    heads = [each.fetchone() for each in found]
    while any(head is not None for head in heads):
        name = min(head[0] for head in heads if head is not None)
        first = True
        for number, head in enumerate(heads):
            if head is not None and head[0] == name:
                if first:
                    yield head
                first = False
                heads[number] = found[number].fetchone()
