"""The rows of the table ``zarr(k, v)`` as names and values."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zarrfs.buffers import Buffer
from zarrfs.memory.spill import buffer, is_large
from zarrfs.stores.archive import is_key
from zarrfs.stores.sqlite.connections import merged

if TYPE_CHECKING:
    import sqlite3

_PIECE_NBYTES = 1 << 20

# A cast reads the whole value. The length of a text comes from its handle (`Rows._size`).
_NBYTES = "CASE typeof(v) WHEN 'blob' THEN length(v) ELSE length(CAST(v AS BLOB)) END"
_NBYTES_AND_ROW = "CASE typeof(v) WHEN 'blob' THEN length(v) WHEN 'text' THEN -1 ELSE length(CAST(v AS BLOB)) END, _rowid_"
# The cast makes text of arbitrary bytes: a string parameter has to be Unicode.
_TEXT, _BLOB = "CAST(? AS TEXT)", "CAST(? AS BLOB)"


@dataclass(frozen=True, slots=True)
class Rows:
    """``have_numbers``: the rows have numbers that SQL can name. ``have_blobs``: some keys are blobs. Methods raise `sqlite3.Error`."""

    have_numbers: bool
    have_blobs: bool

    def size_of(self, connection: sqlite3.Connection, name: bytes) -> int | None:
        """Return the size of a value; None if absent."""
        row = self._row(connection, name, self._nbytes)
        return None if row is None else self._size(connection, *row)

    def part(self, connection: sqlite3.Connection, name: bytes, start: int, stop: int) -> Buffer:
        """Return the bytes ``start`` to ``stop`` of a value that exists. Without an index, this costs a pass over all rows."""
        import sqlite3

        if start == stop:
            # substr() would return NULL.
            return b""
        try:
            row = self._row(connection, name, "_rowid_") if self.have_numbers else None
            if row is not None:
                with connection.blobopen("zarr", "v", row[0], readonly=True) as blob:
                    blob.seek(start)
                    if not is_large(stop - start):
                        return blob.read(stop - start)
                    part = buffer(stop - start)
                    for done in range(0, len(part), _PIECE_NBYTES):
                        piece = blob.read(min(_PIECE_NBYTES, len(part) - done))
                        part[done : done + len(piece)] = piece
                    return part
        except sqlite3.OperationalError:
            # Rows have no numbers (WITHOUT ROWID), or this value is not a blob.
            pass
        row = self._row(connection, name, f"substr(CAST(v AS BLOB), {start + 1}, {stop - start})")
        assert row is not None
        found: object = row[0]
        assert isinstance(found, bytes)
        return found

    def from_name(self, connection: sqlite3.Connection, start: bytes) -> Generator[tuple[bytes, int]]:
        """Yield names and sizes in byte order, from the first name not less than ``start``."""
        found = [self._of_kind(connection, start, kind) for kind in self._kinds]
        try:
            for name, *row in merged(found):
                yield name, self._size(connection, *row)
        finally:
            for each in found:
                each.close()

    @property
    def _kinds(self) -> tuple[str, ...]:
        return (_TEXT, _BLOB) if self.have_blobs else (_TEXT,)

    @property
    def _nbytes(self) -> str:
        return _NBYTES_AND_ROW if self.have_numbers else _NBYTES

    def _size(self, connection: sqlite3.Connection, nbytes: int, row: int = 0) -> int:
        """Return the size of a value from its ``_nbytes``."""
        if nbytes >= 0:
            return nbytes
        with connection.blobopen("zarr", "v", row, readonly=True) as blob:
            return len(blob)

    def _row(self, connection: sqlite3.Connection, name: bytes, what: str) -> tuple[int, ...] | None:
        if not is_key(name):
            return None
        for kind in self._kinds:
            query = f"SELECT {what} FROM zarr WHERE k = {kind} COLLATE BINARY AND v IS NOT NULL"
            row: tuple[int, ...] | None = connection.execute(query, (name,)).fetchone()
            if row is not None:
                return row
        return None

    def _of_kind(self, connection: sqlite3.Connection, start: bytes, kind: str) -> sqlite3.Cursor:
        return connection.execute(
            f"SELECT CAST(k AS BLOB), {self._nbytes} FROM zarr WHERE k >= {kind} COLLATE BINARY AND v IS NOT NULL"
            f" AND typeof(k) = '{'text' if kind == _TEXT else 'blob'}' ORDER BY k COLLATE BINARY",
            (start,),
        )
