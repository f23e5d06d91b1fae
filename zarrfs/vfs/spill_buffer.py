"""Buffer for staged bytes: growing in memory, and above a limit in an unlinked temporary file."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from contextlib import suppress

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.errors import FileTooLarge, StoreError, StoreFull, ZarrfsError
from zarrfs.memory import disposal
from zarrfs.memory.budget import MemoryBudget
from zarrfs.memory.spill import FileMapping, data_extents, refusal_of, refuse_lost, unnamed_file
from zarrfs.memory.written_out import WrittenOut

SPILL_NBYTES = 64 * 1024 * 1024

HOLE_NBYTES = 1024 * 1024
"""Size of a gap that is kept as a hole, for which the bytes move to a file earlier. Smaller ones are zeros in memory."""

_PIECE_NBYTES = 1024 * 1024
_PART = 4
"""Fraction (one in 4) of the descriptors of this process that such files may have. Without any left, nobody could read."""

_files: set[int] = set()
"""The descriptors of all of them. Threads change it too, in single steps."""


class SpillBuffer:
    """A buffer that can be written at any offset, truncated and read, for one writer at a time. The gap that a write leaves is zeros.

    Above ``limit`` bytes, or when ``budget`` is exhausted, the bytes move to a file in ``directory`` (the system's default if None),
    which has no name and disappears with the process. Raises `StoreFull` if that folder has no space (for this user), or there are as
    many such files as there may be, `FileTooLarge` if no file can be so large, `StoreError` if the folder fails; the bytes that the
    failing write did not reach are unchanged.
    """

    def __init__(
        self,
        data: Buffer = b"",
        *,
        limit: int = SPILL_NBYTES,
        directory: str | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self._memory: bytearray | None = bytearray()
        self._fd = -1
        self._written_out = WrittenOut(-1)
        self._size = 0
        self._limit = limit
        self._directory = directory
        self._budget = budget
        self._taken = 0
        if data:
            try:
                self.write(0, data)
            except BaseException:
                self.close()
                raise

    def __len__(self) -> int:
        return self._size

    @property
    def allocated(self) -> int:
        """Number of bytes of memory or storage that the buffer takes: holes take none."""
        return self._size if self._fd < 0 else os.fstat(self._fd).st_blocks * 512

    def read(self, offset: int, size: int) -> Buffer:
        """Return a copy of at most ``size`` bytes from ``offset``. Raises `StoreError` if they may be lost."""
        # A thread may be moving the bytes to the file.
        if (memory := self._memory) is not None:
            return bytes(memoryview(memory)[offset : offset + size])
        found = os.pread(self._fd, max(0, min(size, self._size - offset)), offset)
        refuse_lost(self._written_out)
        return found

    async def put(self, offset: int, data: Buffer) -> None:
        """Run `write`; in a thread for a file, since the kernel makes writers wait for the disk. A large gap is a hole, if possible."""
        await self._keep_hole(offset)
        if self._stays_in_memory(offset + len(data)):
            self.write(offset, data)
            return
        try:
            await self._to_file(self._write_to_file, offset, data)
        except StoreError:
            if not self._returns_to_memory(offset + len(data)):
                raise
            self.write(offset, data)

    async def resize(self, size: int) -> None:
        """Run `truncate`, in a thread like `put`. A large gap is a hole, if possible."""
        if not size and self._memory is None:
            self._begin_anew()
            return
        await self._keep_hole(size)
        if self._stays_in_memory(size):
            self.truncate(size)
        else:
            await self._to_file(self._truncate_file, size)

    def empty(self) -> SpillBuffer:
        """Return an empty buffer with the same limits."""
        return SpillBuffer(limit=self._limit, directory=self._directory, budget=self._budget)

    async def copy(self) -> SpillBuffer:
        """Return a copy of the buffer, with the same holes."""
        copy = self.empty()
        try:
            if self._memory is not None:
                await copy.put(0, bytes(self._memory))
            elif self._size:
                content = memoryview(FileMapping.of(self._fd, self._size, self._written_out))
                await threads.io(copy._fill, content)
                refuse_lost(content)
        except BaseException:
            copy.close()
            raise
        return copy

    def write(self, offset: int, data: Buffer) -> None:
        """Write ``data`` at ``offset``."""
        end = offset + len(data)
        if self._memory is not None and not self._fits(end):
            self._spill()
            self._give(self._taken)
        if self._memory is not None:
            try:
                if offset > len(self._memory):
                    self._memory.extend(bytes(offset - len(self._memory)))
                self._memory[offset:end] = data
            except MemoryError:
                # The gap before it is no part of the value.
                del self._memory[self._size :]
                raise
        else:
            try:
                _pwrite(self._fd, offset, data)
            except ZarrfsError:
                # What it has stored beyond the end is no part of a later gap.
                with suppress(OSError):
                    os.ftruncate(self._fd, self._size)
                raise
        self._size = max(self._size, end)

    def truncate(self, size: int) -> None:
        """Truncate to ``size`` bytes, or extend to it with zeros."""
        if self._memory is not None and not self._fits(size):
            self._spill()
            self._give(self._taken)
        if self._memory is not None:
            if size <= len(self._memory):
                del self._memory[size:]
                self._give(self._taken - size)
            else:
                self._memory.extend(bytes(size - len(self._memory)))
        else:
            try:
                os.ftruncate(self._fd, size)
            except OSError as error:
                raise _refused(error) from error
        self._size = size

    def whole(self) -> Buffer:
        """Return all bytes as one buffer. No writes are allowed while the result is in use. Raises `FileTooLarge`, and `StoreError` if
        some may be lost; they can be lost later, too (`spill.refuse_lost`)."""
        if self._memory is not None:
            return memoryview(self._memory)
        if not self._size:
            return b""
        refuse_lost(self._written_out)
        try:
            return memoryview(FileMapping.of(self._fd, self._size, self._written_out))
        except (OSError, OverflowError) as error:
            raise FileTooLarge(f"{self._size} bytes are more than can be handed to a store: {error}") from error

    def close(self) -> None:
        """Release memory and file."""
        self._memory = bytearray() if self._memory is not None else None
        self._give(self._taken)
        self._size = 0
        if self._fd >= 0:
            _close(self._fd)
            self._fd = -1

    def _spill(self) -> None:
        assert self._memory is not None
        _require_descriptor()
        try:
            with unnamed_file(self._directory) as file:
                fd = os.dup(file.fileno())
        except OSError as error:
            raise _failure(error, f"stage more than {self._limit} bytes") from error
        _files.add(fd)
        try:
            _pwrite(fd, 0, self._memory)
        except ZarrfsError:
            _close(fd)
            raise
        # Not earlier: readers may run concurrently. The caller returns the budget: this may be a thread.
        self._fd, self._written_out = fd, WrittenOut(fd)
        self._memory = None

    def _begin_anew(self) -> None:
        """Drop all bytes and their file, which may count as lost."""
        _close(self._fd)
        self._fd, self._size, self._memory = -1, 0, bytearray()

    def _returns_to_memory(self, size: int) -> bool:
        """Move the bytes back into memory if as many as ``size`` may be there: they went to the file for a hole."""
        size = max(size, self._size)
        if self._memory is not None or not self._fits(size):
            return False
        memory = bytearray(os.pread(self._fd, self._size, 0))
        refuse_lost(self._written_out)
        self._give(self._taken - size)
        _close(self._fd)
        self._fd, self._memory = -1, memory
        return True

    def _stays_in_memory(self, size: int) -> bool:
        if self._memory is None or size > self._limit:
            return False
        return self._budget is None or size <= self._taken or self._budget.has(size - self._taken)

    async def _keep_hole(self, stop: int) -> None:
        # In memory it would take space, and be stored as zeros.
        if self._memory is not None and stop - len(self._memory) >= HOLE_NBYTES:
            with suppress(StoreError):
                await self._to_file(self._spill)

    async def _to_file(self, act: Callable[..., None], *arguments: object) -> None:
        try:
            await threads.io(act, *arguments)
        finally:
            if self._memory is None:
                self._give(self._taken)

    def _write_to_file(self, offset: int, data: Buffer) -> None:
        if self._memory is not None:
            self._spill()
        self.write(offset, data)

    def _truncate_file(self, size: int) -> None:
        if self._memory is not None:
            self._spill()
        self.truncate(size)

    def _fill(self, content: memoryview) -> None:
        self._truncate_file(len(content))
        for start, stop in data_extents(content) or ((0, len(content)),):
            for offset in range(start, stop, _PIECE_NBYTES):
                _pwrite(self._fd, offset, content[offset : min(stop, offset + _PIECE_NBYTES)])

    def _fits(self, size: int) -> bool:
        """Return True if ``size`` bytes may be in memory; those beyond the present ones are then taken from the budget."""
        if size > self._limit:
            return False
        more = size - self._taken
        if self._budget is not None and more > 0:
            if not self._budget.take(more):
                return False
            self._taken = size
        return True

    def _give(self, nbytes: int) -> None:
        if self._budget is not None and nbytes > 0:
            self._budget.give(nbytes)
            self._taken -= nbytes


def _require_descriptor() -> None:
    """Raise `StoreFull` if there are as many files as there may be."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _PART
    if len(_files) >= most:
        raise StoreFull(f"no room to stage more than what is staged in {most} files, one in {_PART} that the daemon may open")


def _close(fd: int) -> None:
    _files.discard(fd)
    disposal.close(fd)


def _pwrite(fd: int, offset: int, data: Buffer) -> None:
    done = 0
    # Released here: the traceback of a failure would hold them, and a bytearray with views cannot be resized.
    with memoryview(data) as view:
        try:
            while done < len(view):
                with view[done:] as rest:
                    done += os.pwrite(fd, rest, offset + done)
        except OSError as error:
            raise _refused(error) from error


def _refused(error: OSError) -> ZarrfsError:
    if error.errno in (errno.EFBIG, errno.EINVAL, errno.EOVERFLOW):
        return FileTooLarge(f"no file that is staged can be so large: {error}")
    return _failure(error, "stage what was written")


def _failure(error: OSError, what: str) -> StoreError:
    kind = refusal_of(error)
    return kind(f"no room to {what}: {error}" if issubclass(kind, StoreFull) else f"the cache folder cannot {what}: {error}")
