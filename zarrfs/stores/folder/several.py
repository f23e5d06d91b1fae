"""Reads of many small values in one thread: a folder is looked up once for consecutive values in it.

Each value costs five calls, relative to the folder's descriptor (lstat, open, fstat, read, close), with the checks of
`zarrfs.stores.folder.tree`. Whatever is not simply a short file, or no file, is left to `FolderTree.read_with_stat`.
"""

from __future__ import annotations

import os
import re
import stat as st
from collections.abc import Sequence

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.errors import KeyUnusable
from zarrfs.keys import ByteRange, Key
from zarrfs.memory.spill import Buffers
from zarrfs.stores.folder.calls import VALUE
from zarrfs.stores.folder.names import parts_of
from zarrfs.stores.folder.tree import FolderTree
from zarrfs.stores.os_errors import ABSENT, translated

_SHORT_NBYTES = 64 * 1024
"""Maximum size of a value that is read in one call."""
# Names that need no further check (`parts_of`).
_PLAIN = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,254}")
# Values between two checks for cancellation.
_BETWEEN_LOOKS = 64


def read_several(tree: FolderTree, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Buffer | None]:
    """Return the result of `Store.get_partial_values`. Raises `StoreError`, as `FolderTree.read_with_stat` does."""
    found: list[Buffer | None] = []
    buffers = Buffers()
    folders = _Folders(tree)
    key = Key("?")
    try:
        for number, (key, byte_range) in enumerate(key_ranges):
            if number % _BETWEEN_LOOKS == 0:
                threads.go_on()
            prefix, _, name = key.rpartition("/")
            length = byte_range.length
            # A key with an empty part is that of no file.
            is_usable = _PLAIN.fullmatch(name) and "//" not in key and not key.startswith("/")
            if byte_range.start == 0 and length is not None and is_usable:
                folder = folders.at(prefix)
                if folder is None:
                    found.append(None)
                    continue
                is_read, value = _read(folder, name, min(length, _SHORT_NBYTES), length, buffers)
                if is_read:
                    found.append(value)
                    continue
            found.append(_read_alone(tree, key, byte_range, buffers))
    except OSError as error:
        with translated("reading", key):
            raise error
    finally:
        folders.close()
    return found


class _Folders:
    """The folder of the last value, held open."""

    def __init__(self, tree: FolderTree) -> None:
        self._tree = tree
        self._prefix: str | None = None
        self._fd: int | None = None

    def at(self, prefix: str) -> int | None:
        """Return a descriptor of the folder ``prefix``; None if absent. Raises `StoreAccessDenied` for a link on the way."""
        if prefix != self._prefix:
            self.close()
            try:
                parts = parts_of(prefix)
            except KeyUnusable:
                self._prefix = prefix
                return None
            try:
                self._fd = self._tree.open_folder(parts)
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                self._tree.require_no_link(parts)
            self._prefix = prefix
        return self._fd

    def close(self) -> None:
        """Close the folder."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._prefix = None


def _read(folder: int, name: str, most: int, length: int, buffers: Buffers) -> tuple[bool, Buffer | None]:
    """Return True and the first ``length`` bytes of a value, None if absent; False if it is no file of ``most`` bytes, or changes."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return True, None
    # Checked before it is opened: opening a device has side effects.
    size = found.st_size if found.st_size < length else length
    if not st.S_ISREG(found.st_mode) or size > most or not buffers.has_memory(size):
        return False, None
    try:
        fd = os.open(name, VALUE, dir_fd=folder)
    except OSError as error:
        if error.errno not in ABSENT:
            raise
        return False, None
    try:
        opened = os.fstat(fd)
        if not st.S_ISREG(opened.st_mode) or opened.st_size != found.st_size:
            return False, None
        value = os.read(fd, size)
    finally:
        os.close(fd)
    return len(value) == size, value


def _read_alone(tree: FolderTree, key: Key, byte_range: ByteRange, buffers: Buffers) -> Buffer | None:
    try:
        parts = parts_of(key)
    except KeyUnusable:
        return None
    found = tree.read_with_stat(parts, (byte_range,), None, buffers)
    return None if found is None else found[0][0]
