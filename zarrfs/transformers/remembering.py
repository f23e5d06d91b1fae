"""A store that remembers what was last read of it, for code that only reads, and returns to the same folders and documents soon."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Generic, TypeVar

from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.values import Answer, DirEntry, Got
from zarrfs.transformers.forwarding import TransparentStore

K = TypeVar("K")
V = TypeVar("V")

_LARGEST_LISTING = 256
_LARGEST_VALUE_NBYTES = 16 * 1024


class RememberingStore(TransparentStore):
    """Answers a listing or a `get_many` from memory if it was one of the last ``most``, and small, and `peek` in any folder.

    Changes meanwhile are not seen.
    """

    def __init__(self, inner: Store, most: int = 1024) -> None:
        super().__init__(inner)
        self._listings: _Recent[Prefix, Sequence[DirEntry]] = _Recent(most)
        self._firsts: _Recent[tuple[Prefix, int], Sequence[DirEntry]] = _Recent(most // 16)
        self._answers: _Recent[tuple[Key, int | None, int | None], Answer] = _Recent(most)

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        known = self._listings.get(prefix)
        if known is None:
            begin: list[DirEntry] = []
            async for entry in super().list_dir(prefix):
                if len(begin) <= _LARGEST_LISTING:
                    begin.append(entry)
                yield entry
            self._listed(prefix, begin)
        else:
            for entry in known:
                yield entry

    def list_dir_now(self, prefix: Prefix) -> Sequence[DirEntry]:
        known = self._listings.get(prefix)
        return known if known is not None else self._listed(prefix, super().list_dir_now(prefix))

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        # An empty listing does not tell whether the prefix exists.
        if known := self._listings.get(prefix):
            return known[:most]
        first = self._firsts.get((prefix, most))
        if first is None and (first := await super().peek(prefix, most)) is not None:
            if len(first) < most:
                return self._listed(prefix, first)
            self._firsts.put((prefix, most), first)
        return first

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        known = [self._answers.get((key, part.start, part.length)) for key, part in key_ranges]
        wanted = [each for each, answer in zip(key_ranges, known, strict=True) if answer is None]
        if not wanted:
            return [answer for answer in known if answer is not None]
        read = await super().get_many(wanted)
        for (key, part), answer in zip(wanted, read, strict=True):
            if not isinstance(answer, Got) or len(answer.value) <= _LARGEST_VALUE_NBYTES:
                self._answers.put((key, part.start, part.length), answer)
        rest = iter(read)
        return [answer if answer is not None else next(rest) for answer in known]

    def _listed(self, prefix: Prefix, entries: Sequence[DirEntry]) -> Sequence[DirEntry]:
        if len(entries) <= _LARGEST_LISTING:
            self._listings.put(prefix, entries)
        return entries


class _Recent(Generic[K, V]):
    """The last ``most`` values that were put, by key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        self._values[key] = value
        if len(self._values) > self._most:
            del self._values[next(iter(self._values))]
