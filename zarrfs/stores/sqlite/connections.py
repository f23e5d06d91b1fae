"""Connections to an SQLite database, their errors, and rows of several queries."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from zarrfs import threads
from zarrfs.errors import StoreAccessDenied, StoreError, StoreTimeout
from zarrfs.stores.sqlite.state import replaced

if TYPE_CHECKING:
    import sqlite3


_TRIES = 4
# Instructions of SQLite's machine: between two looks at the limit, for each byte of a database, and for any database. A row takes at
# least eight bytes, and thirty instructions in a sorted listing.
_LOOK = 10_000
_STEPS_PER_BYTE, _LEAST_STEPS = 16, 4_000_000
# A larger file with a smaller part of its size on disk is one of holes, which has no rows there.
_MOST_COMPRESSED = 8
# Some file systems count the blocks of new files late.
_NOT_COUNTED = 16 << 20
_opening = threading.Lock()


def connect_to(file: tuple[int, int], path: str, options: str, patience: float, heap_nbytes: int) -> sqlite3.Connection:
    """Return a connection as `connect` does, without locks, to ``file`` (device and inode) and no other. Raises `StoreError`.

    Between a check of the path and SQLite's lookup, the owner of a folder can put a link to another database there. SQLite does not
    tell which file it has opened, but its descriptor does.
    """
    for _ in range(_TRIES):
        with _opening:
            before = descriptors()
            connection = connect(path, options, patience, heap_nbytes)
            # Another thread may have closed one that has the number and the file of the new one: then it is not recognised.
            if any(found == file and before.get(number) != found for number, found in descriptors().items()):
                return connection
            connection.close()
    raise replaced(path)


def descriptors() -> dict[int, tuple[int, int]]:
    """Return device and inode of each open file of this process, by its descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            stat = os.fstat(int(name))
            found[int(name)] = stat.st_dev, stat.st_ino
    return found


def connect(path: str, options: str, patience: float, heap_nbytes: int) -> sqlite3.Connection:
    """Return a connection that waits ``patience`` seconds for locks.

    ``options``: those of the URI; ``heap_nbytes``: a limit for all connections together.
    """
    import sqlite3

    url = f"file:{quote(os.fsencode(path))}?{options}"
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


def most_work(*files: str) -> int:
    """Return the most work that the rows of a database in ``files`` can cost, for `limit_work`.

    Pages that refer to one page many times have more rows than any file: 400 for each page, to the power of their depth.
    """
    nbytes = 0
    for file in files:
        with suppress(OSError):
            stat = os.stat(file)
            nbytes += min(stat.st_size, max(stat.st_blocks * 512 * _MOST_COMPRESSED, _NOT_COUNTED))
    return (nbytes * _STEPS_PER_BYTE + _LEAST_STEPS) // _LOOK


def limit_work(connection: sqlite3.Connection, left: int) -> None:
    """Let queries of ``connection`` fail, from now on, after more work than `most_work`, or if the caller of the thread was cancelled."""

    def is_over() -> bool:
        nonlocal left
        left -= 1
        # An exception ends the query as well.
        threads.go_on()
        return left < 0

    connection.set_progress_handler(is_over, _LOOK)


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
