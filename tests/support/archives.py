"""Archives of given values, written by the standard library and by the LMDB library."""

from __future__ import annotations

import dbm.dumb
import sqlite3
import zipfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

Make = Callable[[Path, Mapping[str, bytes]], Path]
"""``make(folder, values)`` returns the path of a new archive in ``folder``."""


def zip_stored(folder: Path, values: Mapping[str, bytes]) -> Path:
    return _zip(folder / "stored.zip", values, zipfile.ZIP_STORED)


def zip_deflated(folder: Path, values: Mapping[str, bytes]) -> Path:
    return _zip(folder / "deflated.zip", values, zipfile.ZIP_DEFLATED)


def zip_bzip2(folder: Path, values: Mapping[str, bytes]) -> Path:
    return _zip(folder / "bzip2.zip", values, zipfile.ZIP_BZIP2)


def zip_lzma(folder: Path, values: Mapping[str, bytes]) -> Path:
    return _zip(folder / "lzma.zip", values, zipfile.ZIP_LZMA)


def sqlite(folder: Path, values: Mapping[str, bytes]) -> Path:
    """Write a database as ``SQLiteStore`` of zarr 2.18."""
    path = folder / "store.sqldb"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE zarr(k TEXT PRIMARY KEY, v BLOB)")
        connection.executemany("INSERT INTO zarr VALUES (?, ?)", values.items())
    return path


def lmdb(folder: Path, values: Mapping[str, bytes]) -> Path:
    """Write an environment as ``LMDBStore`` of zarr 2.18: a folder."""
    return _lmdb(folder / "store.lmdb", values, subdir=True)


def lmdb_file(folder: Path, values: Mapping[str, bytes]) -> Path:
    return _lmdb(folder / "single.lmdb", values, subdir=False)


def dumb(folder: Path, values: Mapping[str, bytes]) -> Path:
    """Write a DBM as ``DBMStore`` of zarr 2.18 without any other DBM in Python; the path is the base name."""
    path = folder / "store.dbm"
    with dbm.dumb.open(str(path), "n") as archive:
        for key, value in values.items():
            archive[key.encode()] = value
    return path


MAKERS: dict[str, Make] = {
    "zip": zip_stored,
    "zip-deflated": zip_deflated,
    "zip-bzip2": zip_bzip2,
    "zip-lzma": zip_lzma,
    "sqlite": sqlite,
    "lmdb": lmdb,
    "lmdb-file": lmdb_file,
    "dbm": dumb,
}
"""Keyed by plug-in name; the part after the hyphen names the variant."""


def _zip(path: Path, values: Mapping[str, bytes], method: int) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for key, value in values.items():
            archive.writestr(key, value)
    return path


def _lmdb(path: Path, values: Mapping[str, bytes], *, subdir: bool) -> Path:
    library = pytest.importorskip("lmdb")
    with library.open(str(path), subdir=subdir, map_size=1 << 30) as environment, environment.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key.encode(), value)
    return path
