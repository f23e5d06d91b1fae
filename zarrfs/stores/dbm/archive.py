"""A DBM, read-only: what zarr-python 2's ``DBMStore`` writes where Python has no other kind. By its base name, or ``dbm:PATH``.

Source: Python's ``Lib/dbm/dumb.py``: the DBM ``x`` is the files ``x.dat`` (values), ``x.dir`` (index) and ``x.bak`` (the index before).
A path that names one of these files is accepted as well.

The index is read once, at opening; if a file changes later, reads fail. The kinds that C libraries write (GNU dbm, ndbm) are refused
by name: those libraries are not safe for untrusted files.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Generator, Sequence

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreError, StoreNotFound, StoreUnsupported, UsageError
from zarrfs.keys import ByteRange
from zarrfs.stores.archive import Archive, Entry, NameIndex, archive_plugin, is_key
from zarrfs.stores.archive_file import ArchiveFile
from zarrfs.stores.dbm.index import is_index, offsets
from zarrfs.stores.dbm.kind import foreign_kind
from zarrfs.stores.own_files import open_store_file
from zarrfs.stores.values import KeyStat

_SUFFIXES = (".dat", ".dir", ".bak")


class DumbDbmArchive(Archive):
    """The DBM of the files ``path.dat`` and ``path.dir``. A generation consists of the files' identities and the value's position."""

    at_hand = True

    def __init__(self, path: str) -> None:
        base = _base(path)
        self.path = os.path.abspath(base)
        self._dir, self._dat = (ArchiveFile(base + suffix, open_store_file) for suffix in (".dir", ".dat"))
        damage: list[str] = []
        found = offsets(self._dir, damage)
        self.damage = damage
        self._offset, self._size = array("Q"), array("Q")
        rows = {}
        for row, (name, (offset, size)) in enumerate(found.items()):
            rows[name] = row
            self._offset.append(offset)
            self._size.append(size)
        self._index = NameIndex(rows, self.path)

    def find(self, name: bytes) -> KeyStat | None:
        row = self._index.find(name) if is_key(name) else None
        return None if row is None else self._stat(row)

    def check(self, name: bytes) -> None:
        self._check(name.decode("utf-8", "surrogateescape"))

    def read(self, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        row = self._index.find(name) if is_key(name) else None
        if row is None:
            return None
        key = name.decode("utf-8", "surrogateescape")
        start, size = self._offset[row], self._size[row]
        parts: list[Buffer] = []
        try:
            # A value that exceeds the file is damaged, whichever part of it is requested.
            self._dat.read(start + size, start + size, key)
            parts.extend(
                self._dat.read_value(start + first, start + last, key) for first, last in (each.resolve(size) for each in ranges)
            )
        except StoreError:
            self._check(key)
            raise
        self._check(key)
        return self._stat(row), parts

    def entries(self, start: bytes) -> Generator[Entry]:
        for name, row in self._index.after(start):
            yield name, self._size[row], self._dat.mtime_ns

    def close(self) -> None:
        """Do nothing: the files are closed when the last thread releases them."""

    def _stat(self, row: int) -> KeyStat:
        generation = f"{self._dir.identity}-{self._dat.identity}-{self._offset[row]}"
        return KeyStat(self._size[row], self._dat.mtime_ns, generation)

    def _check(self, key: str) -> None:
        self._dir.check(key)
        self._dat.check(key)


def _base(path: str) -> str:
    """Return ``path`` without the suffix of one of the files."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix in _SUFFIXES and _is_dumb(stem) and not _is_dumb(path) else path


def _is_dumb(base: str) -> bool:
    return os.path.isfile(base + ".dat") and os.path.isfile(base + ".dir")


def _claims(path: str) -> bool:
    try:
        if os.path.isdir(path):
            return False
        if _is_dumb(_base(path)):
            return is_index(ArchiveFile(_base(path) + ".dir", open_store_file))
        return foreign_kind(path) is not None
    except (StoreError, UsageError, ValueError):
        return False


def _archive(path: str) -> Archive:
    if _is_dumb(_base(path)):
        return DumbDbmArchive(path)
    kind = foreign_kind(path)
    if kind is not None:
        raise StoreUnsupported(
            f"{path} is a DBM of the kind {kind}: only dbm.dumb can be opened; copy it with Python's dbm", key=path
        )
    raise StoreNotFound(f"{path}: no such DBM: {path}.dat or {path}.dir is missing", key=path)


PLUGIN = archive_plugin("dbm", _archive, _claims, priority=400, suffixes=("dbm", "db"))
