"""The pages of an LMDB file: its newest state, and the keys and values of one state. Read, not mapped, and not trusted.

Source: LMDB 0.9 ``mdb.c``: ``MDB_page``, ``MDB_node``, ``MDB_db``, ``MDB_meta``. Numbers have the byte order of the machine.

The LMDB library maps the file: a wrong page number ends the process, and so does a file that was truncated; its Python binding touches
every page of a value to get the size. Here a page is read and checked, and only the requested part of a value is read.

A state is a tree whose pages never change as long as its transaction counts as in use (`zarrfs.stores.lmdb`).
"""

from __future__ import annotations

import operator
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreError, StoreUnsupported
from zarrfs.memory.spill import buffer, is_large
from zarrfs.stores.archive_file import ArchiveFile

# Behind the header of the pages 0 and 1: magic, version, size of pages; root of the free pages; of the database without a name: flags,
# depth, root; last page, number of the transaction.
_META = struct.Struct("=16x2I16xI36xQ4xHH32x2QQ")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
# Number, flags, end of the node pointers, beginning of the nodes; or, in the place of the last two, the count of overflow pages.
_PAGE = struct.Struct("=Q2xHHH")
_OVERFLOW = struct.Struct("=Q2xHI")
_NODE = struct.Struct("=4H")
_NUMBER = struct.Struct("=Q")

_IS_BRANCH, _IS_LEAF, _IS_OVERFLOW = 1, 2, 4
# Of pages in memory.
_PASSING = 0xC010
_BIG = 1
_EMPTY = 2**64 - 1
# Keys in reverse, several values of a key, keys that are numbers.
_OTHER_ORDERS = 2 | 4 | 8
_MAX_DEPTH = 32
_MIN_PAGE_NBYTES, _MAX_PAGE_NBYTES = 4096, 1 << 16
_TRIES = 100
_KNOWN_NBYTES = 1 << 20
_PIECE_NBYTES = 1 << 20


HEAD_NBYTES = _MIN_PAGE_NBYTES + _META.size
"""The least that a file has."""


class Tree(NamedTuple):
    """One state of the database without a name: ``number`` of its transaction, ``root`` (None: empty), ``depth`` of the leaves.

    ``pages`` of ``page_nbytes`` each belong to the file. ``is_pinned``: no writer reuses them as long as it is read. ``known``: pages
    that were read, by number; one dictionary serves all reads of a state. ``free`` is the root of the table of free pages.
    """

    number: int
    root: int | None
    depth: int
    pages: int
    page_nbytes: int
    is_pinned: bool = False
    known: dict[int, _Page] | None = None
    free: int | None = None


class Value(NamedTuple):
    """A value: its size, and its bytes, or the number of its first overflow page."""

    size: int
    content: bytes | int


def newest(file: ArchiveFile) -> Tree:
    """Return the newest state. Raises `StoreError`."""
    return max(_trees(file), key=lambda tree: tree.number)


def tree_of(file: ArchiveFile, number: int) -> Tree | None:
    """Return the state of a transaction; None if it is neither the newest nor the one before. Raises `StoreError`."""
    return next((tree._replace(is_pinned=True) for tree in _trees(file) if tree.number == number), None)


def is_whole(file: ArchiveFile, tree: Tree, nbytes: int) -> bool:
    """Return True if a file of ``nbytes`` has all pages that the state uses. Raises `StoreError`.

    A page at the end that is free may be missing: the library does not write what was allocated and given back in one transaction.
    """
    there = nbytes // tree.page_nbytes
    missing = tree.pages - there
    # A table that names all of them takes eight bytes for each.
    return missing <= 0 or (missing * _NUMBER.size <= nbytes and _free_beyond(file, tree, there) == missing)


def find(file: ArchiveFile, tree: Tree, name: bytes) -> Value | None:
    """Return the value of ``name``; None if absent. Raises `StoreError`."""
    at = None if tree.root is None else _Place(tree.root, 0, b"", None)
    while at is not None:
        page = _page(file, tree, at)
        if page.is_leaf:
            index = bisect_left(page.names, name)
            return page.value(index) if index < len(page.names) and page.names[index] == name else None
        at = page.place(page.child(name), at)
    return None


def part(file: ArchiveFile, tree: Tree, name: bytes, value: Value, start: int, stop: int) -> Buffer:
    """Return the bytes ``start`` to ``stop`` of a value. Raises `StoreError`."""
    if isinstance(value.content, bytes):
        return _kept(value.content[start:stop])
    key = name.decode("utf-8", "surrogateescape")
    at = value.content * tree.page_nbytes
    number, flags, count = _OVERFLOW.unpack(file.read_now(at, at + _OVERFLOW.size, key))
    if number != value.content or flags & ~_PASSING != _IS_OVERFLOW or count * tree.page_nbytes < _OVERFLOW.size + value.size:
        raise _damaged(file, value.content)
    return file.read_now(at + _OVERFLOW.size + start, at + _OVERFLOW.size + stop, key)


def leaves(file: ArchiveFile, tree: Tree, start: bytes) -> Iterator[list[tuple[bytes, int]]]:
    """Return names and sizes in order, from the first name not less than ``start``: a list for each leaf. Raises `StoreError`."""
    left = tree.pages
    places = [] if tree.root is None else [_Place(tree.root, 0, b"", None)]
    while places:
        place = places.pop()
        page = _page(file, tree, place)
        left -= 1
        if left < 0:
            raise _damaged(file, place.number)
        if page.is_leaf:
            first = bisect_left(page.names, start)
            yield [(name, page.value(index).size) for index, name in enumerate(page.names[first:], first)]
        else:
            places.extend(page.place(index, place) for index in reversed(range(page.child(start), len(page.names))))


def _free_beyond(file: ArchiveFile, tree: Tree, there: int) -> int:
    """Return the number of free pages behind the first ``there``, by the table of free pages: lists of numbers, each after its length."""
    pending, pages, nbytes, found = [] if tree.free is None else [tree.free], 0, 0, 0
    while pending:
        number = pending.pop()
        pages += 1
        if not 2 <= number < there or pages > there:
            raise _damaged(file, number)
        at = number * tree.page_nbytes
        page = _Page(file, tree, number, bytes(file.read_now(at, at + tree.page_nbytes, file.path)), in_order=False)
        if not page.is_leaf:
            pending.extend(page.place(index, _Place(number, 0, b"", None)).number for index in range(len(page.names)))
            continue
        for value in map(page.value, range(len(page.names))):
            threads.go_on()
            nbytes += value.size
            if not value.size or value.size % _NUMBER.size or nbytes > there * tree.page_nbytes:
                raise _damaged(file, number)
            for start in range(_NUMBER.size, value.size, _PIECE_NBYTES):
                stop = min(value.size, start + _PIECE_NBYTES)
                numbers = np.frombuffer(part(file, tree, b"", value, start, stop), np.uint64)
                found += int(np.count_nonzero((numbers >= there) & (numbers < tree.pages)))
    return found


class _Place(NamedTuple):
    """The place of a page in a tree: the root has ``level`` 0. Its names are not less than ``low``, and less than ``high``."""

    number: int
    level: int
    low: bytes
    high: bytes | None


def _kept(content: bytes) -> Buffer:
    if not is_large(len(content)):
        return content
    copy = buffer(len(content))
    copy[:] = content
    return copy


class _Page:
    """A branch or a leaf. ``names`` of a branch: those from which on its children are, the first of which is of no importance."""

    __slots__ = ("_at", "_content", "_file", "_tree", "is_leaf", "names", "number")

    def __init__(self, file: ArchiveFile, tree: Tree, number: int, content: bytes, *, in_order: bool = True) -> None:
        self._file, self._tree, self._content = file, tree, content
        self.number = number
        found, flags, lower, upper = _PAGE.unpack_from(content)
        flags &= ~_PASSING
        self.is_leaf = flags == _IS_LEAF
        if found != number or flags not in (_IS_LEAF, _IS_BRANCH) or not _PAGE.size <= lower <= upper <= len(content) or lower & 1:
            raise _damaged(file, number)
        self._at = struct.unpack_from(f"={(lower - _PAGE.size) // 2}H", content, _PAGE.size)
        if self._at and (min(self._at) < upper or max(self._at) > len(content) - _NODE.size or any(at & 1 for at in self._at)):
            raise _damaged(file, number)
        # The last number of each node is the length of its name.
        halves = memoryview(content).cast("H")
        ends = [at + _NODE.size + halves[at + 6 >> 1] for at in self._at]
        if ends and max(ends) > len(content):
            raise _damaged(file, number)
        self.names = [content[at + _NODE.size : end] for at, end in zip(self._at, ends, strict=True)]
        if not self.is_leaf:
            if not self.names:
                raise _damaged(file, number)
            self.names[0] = b""
        if in_order and any(map(operator.ge, self.names, self.names[1:])):
            raise _misplaced(file, next(name for before, name in pairwise(self.names) if before >= name))

    def child(self, name: bytes) -> int:
        """Return the index of the child of a branch that ``name`` belongs to."""
        return max(0, bisect_right(self.names, name) - 1)

    def place(self, index: int, of: _Place) -> _Place:
        """Return the place of a child of a branch, which is at the place ``of``."""
        low, high, highest, _ = _NODE.unpack_from(self._content, self._at[index])
        return _Place(
            low | high << 16 | highest << 32,
            of.level + 1,
            self.names[index] if index else of.low,
            self.names[index + 1] if index + 1 < len(self.names) else of.high,
        )

    def value(self, index: int) -> Value:
        """Return a value of a leaf."""
        at = self._at[index]
        low, high, flags, length = _NODE.unpack_from(self._content, at)
        size = low | high << 16
        start = at + _NODE.size + length
        if not flags & _BIG:
            if start + size > len(self._content):
                raise _damaged(self._file, self.number)
            return Value(size, self._content[start : start + size])
        if start + _NUMBER.size > len(self._content):
            raise _damaged(self._file, self.number)
        (number,) = _NUMBER.unpack_from(self._content, start)
        tree = self._tree
        if not 2 <= number < tree.pages or _OVERFLOW.size + size > (tree.pages - number) * tree.page_nbytes:
            raise _damaged(self._file, self.number)
        return Value(size, number)


def _page(file: ArchiveFile, tree: Tree, place: _Place) -> _Page:
    if not 2 <= place.number < tree.pages:
        raise _damaged(file, place.number)
    page = None if tree.known is None else tree.known.get(place.number)
    if page is None:
        at = place.number * tree.page_nbytes
        page = _Page(file, tree, place.number, bytes(file.read_now(at, at + tree.page_nbytes, file.path)))
        if tree.known is not None:
            if len(tree.known) >= max(8, _KNOWN_NBYTES // tree.page_nbytes):
                tree.known.clear()
            tree.known[place.number] = page
    if page.is_leaf != (place.level == tree.depth - 1):
        raise _damaged(file, place.number)
    # A page in the place of another one would hide the names of that one.
    names = page.names
    first = 0 if page.is_leaf else 1
    if first < len(names) and (names[first] < place.low or (place.high is not None and names[-1] >= place.high)):
        raise _misplaced(file, names[first])
    return page


def _trees(file: ArchiveFile) -> list[Tree]:
    """Return the two states that the file names: the newest, and the one before."""
    for _ in range(_TRIES):
        heads = _heads(file)
        # A commit replaces one of them, which another process may see half done.
        if heads == _heads(file):
            return [_tree(file, head) for head in heads]
    raise StoreError(f"{file.path} changed during each attempt to read it", key=file.path)


def _heads(file: ArchiveFile) -> list[bytes]:
    content = file.read_now(0, _MIN_PAGE_NBYTES + _META.size, file.path)
    page_nbytes = _META.unpack_from(content)[2]
    # A power of two, as the pages of every machine.
    if not _MIN_PAGE_NBYTES <= page_nbytes <= _MAX_PAGE_NBYTES or page_nbytes & (page_nbytes - 1):
        raise _damaged(file, 0)
    second = content[_MIN_PAGE_NBYTES:]
    if page_nbytes != _MIN_PAGE_NBYTES:
        second = file.read_now(page_nbytes, page_nbytes + _META.size, file.path)
    return [bytes(content[: _META.size]), bytes(second)]


def _tree(file: ArchiveFile, head: bytes) -> Tree:
    magic, version, page_nbytes, free, flags, depth, root, last, number = _META.unpack(head)
    if (magic, version) != (_MAGIC, _VERSION):
        raise StoreUnsupported(f"{file.path} is no LMDB of the format {_VERSION}", key=file.path)
    if flags & _OTHER_ORDERS:
        raise StoreUnsupported(f"{file.path} is an LMDB whose keys have another order, or several values", key=file.path)
    if depth > _MAX_DEPTH or (root == _EMPTY) != (not depth):
        raise _damaged(file, 0)
    used, free_root = None if root == _EMPTY else root, None if free == _EMPTY else free
    return Tree(number, used, depth, last + 1, page_nbytes, free=free_root)


def _damaged(file: ArchiveFile, page: int) -> StoreError:
    return StoreError(f"the LMDB {file.path} is damaged: page {page} is not what it should be", key=file.path)


def _misplaced(file: ArchiveFile, name: bytes) -> StoreError:
    found = name.decode("utf-8", "surrogateescape")
    return StoreError(f"the LMDB {file.path}: {found!r} is not where it belongs: the archive is damaged", key=file.path)
