"""Stage of a chunk file: it records the changed elements, so that a publish keeps concurrent changes to all others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import numpy as np

from zarrfs.arrays.failed_chunk import FailedChunk
from zarrfs.arrays.merging import of_elements
from zarrfs.buffers import Buffer, Mask, NDArray
from zarrfs.errors import StoreError, ZarrfsError, shows_stored
from zarrfs.memory import spill
from zarrfs.vfs.known_pages import SeenPages
from zarrfs.vfs.stage import StagingRoom, ValueStage


class Publish(Protocol):
    """Stores the chunk ``data``, or only its elements ``changed`` (C order); ``failed``: after a failure to store some of these."""

    async def __call__(self, data: Buffer, changed: Mask | None = None, failed: FailedChunk | None = None) -> None: ...


class ChunkStage(ValueStage):
    """The bytes of a chunk of ``nbytes`` in elements of ``itemsize``, initially ``data``.

    If ``data`` is None the stage begins empty, and the written bytes replace the chunk, as does a change of every element. A
    changed byte changes its element. The mask of changed elements is allocated at the first change. ``stored`` returns the chunk that is
    stored: after a failed publish, what others change of that is later, and stays.
    """

    def __init__(
        self,
        room: StagingRoom,
        data: Buffer | None,
        publish: Publish,
        stored: Callable[[], Awaitable[Buffer | None]],
        *,
        nbytes: int,
        itemsize: int,
    ) -> None:
        super().__init__(room, data if data is not None else b"", publish)
        self._stored = stored
        self._failed: FailedChunk | None = None
        self._publish_elements = publish
        self._nbytes = nbytes
        self._itemsize = itemsize
        self._budget = room.budget
        self._is_new = data is None
        self._changed: Mask | None = None
        self._taken = 0

    async def write(self, offset: int, data: Buffer) -> None:
        self._require_mask()
        await super().write(offset, data)
        self._mark(offset, offset + len(data))

    async def write_over(self, offset: int, data: Buffer, known: SeenPages) -> None:
        if self._is_new:
            await self.write(offset, data)
            return
        in_bytes = known.changed(offset, data)
        if in_bytes is not None and not in_bytes.any():
            return
        self._require_mask()
        first, shown = self._whole_elements(offset, data, known)
        changed = np.ones(len(shown) // self._itemsize, bool)
        if in_bytes is not None:
            changed = of_elements(in_bytes, offset - first, self._itemsize)
        indices = np.flatnonzero(changed)
        changed = changed[indices[0] : indices[-1] + 1]
        # A changed element gets all bytes that its writer sees. Unchanged elements may differ in the store by now.
        low, high = int(indices[0]) * self._itemsize, (int(indices[-1]) + 1) * self._itemsize
        piece = shown[low:high]
        if not changed.all():
            piece = np.where(np.repeat(changed, self._itemsize), piece, self._staged(first + low, high - low))
        await super().write(first + low, piece.data)
        self._mark(first + low, first + high, changed)

    def _whole_elements(self, offset: int, data: Buffer, known: SeenPages) -> tuple[int, NDArray]:
        """Return the elements that ``data`` covers, in full or in part, as its writer sees them, in bytes; and their offset."""
        end = offset + len(data)
        first, last = offset - offset % self._itemsize, end + -end % self._itemsize
        if (first, last) == (offset, end):
            return first, np.frombuffer(data, np.uint8)
        parts = [self._seen(first, offset - first, known), np.frombuffer(data, np.uint8), self._seen(end, last - end, known)]
        return first, np.concatenate(parts)

    def _seen(self, offset: int, nbytes: int, known: SeenPages) -> NDArray:
        shown = known.content(offset, nbytes)
        return np.frombuffer(shown, np.uint8) if shown is not None else self._staged(offset, nbytes)

    def _staged(self, offset: int, nbytes: int) -> NDArray:
        staged = np.frombuffer(self._bytes.read(offset, nbytes), np.uint8)
        return np.pad(staged, (0, nbytes - len(staged)))

    async def truncate(self, size: int) -> None:
        before = self.size
        self._require_mask()
        await super().truncate(size)
        self._mark(min(before, size), self._nbytes if size < before else size)

    async def publish(self) -> None:
        changed = self._changed
        is_whole = self._is_new or (changed is not None and changed.all())
        try:
            if is_whole and self._failed is None:
                await super().publish()
                return
            if changed is None:
                changed = np.full(self._nbytes // self._itemsize, self._is_new)
            try:
                await self._publish_elements(self._bytes.whole(), changed, self._failed)
            except BaseException:
                self._lent = True
                raise
        except StoreError as error:
            if shows_stored(error):
                await self._has_failed()
            raise

    async def _has_failed(self) -> None:
        """Record the stored chunk, if there is memory for it."""
        if self._failed is not None and not self._failed.is_rewritten:
            return
        with suppress(ZarrfsError):
            base = await self._stored()
            if self._failed is not None:
                self._failed.failed_again(base)
            elif self._budget.take(nbytes := len(base) if base is not None else 0):
                self._failed = FailedChunk(base, nbytes)

    async def aclose(self) -> None:
        await super().aclose()
        self._budget.give(self._taken)
        self._taken = 0
        self._changed = None
        if self._failed is not None:
            self._budget.give(self._failed.nbytes)
            self._failed = None

    def _require_mask(self) -> None:
        """Allocate the mask of changed elements, in a file if memory is short. Raises `TooLarge` if there is no room."""
        if self._is_new or self._changed is not None:
            return
        count = self._nbytes // self._itemsize
        if self._budget.take(count):
            self._taken = count
            self._changed = np.zeros(count, bool)
        else:
            self._changed = np.frombuffer(spill.mapped(max(1, count)), bool, count)

    def _mark(self, start: int, stop: int, selected: Mask | None = None) -> None:
        """Mark the elements in bytes ``start`` to ``stop`` as changed, or only the ``selected`` ones of them."""
        if stop <= start:
            return
        first, end = start // self._itemsize, -(-stop // self._itemsize)
        if self._failed is not None:
            self._failed.wrote(self._nbytes // self._itemsize, first, end, selected)
        if self._changed is not None:
            self._changed[first:end] |= True if selected is None else selected
