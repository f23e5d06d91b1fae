"""Files whose bytes are generated on open: documents, texts, counters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from zarrfs.buffers import Buffer
from zarrfs.errors import NotPermitted
from zarrfs.vfs.extended_attributes import ExtendedAttributes
from zarrfs.vfs.node import Attributes, File, Handle, OpenFlags

Make = Callable[[], Awaitable[bytes]]


class GeneratedFile(File):
    """A read-only file. ``make`` returns its bytes, anew for each open and each query of its size.

    ``direct``: the bytes may differ between any two calls, so the kernel must neither cache them nor rely on the size.
    """

    def __init__(
        self,
        ident: str,
        make: Make,
        *,
        mtime_ns: int | None = None,
        direct: bool = False,
        extended: ExtendedAttributes | None = None,
    ) -> None:
        self.ident = ident
        self._make = make
        self._mtime_ns = mtime_ns
        self._direct = direct
        self._extended = extended

    async def attributes(self) -> Attributes:
        return Attributes(False, len(await self._make()), self._mtime_ns, writable=False)

    async def extended_attributes(self) -> ExtendedAttributes | None:
        return self._extended

    async def open(self, flags: OpenFlags) -> Handle:
        if flags.write:
            raise NotPermitted(f"{self.ident} cannot be written", key=self.ident)
        return _GeneratedHandle(await self._make(), self._mtime_ns, self._direct)


class _GeneratedHandle(Handle):
    def __init__(self, data: bytes, mtime_ns: int | None, direct: bool) -> None:
        self._data = data
        self._mtime_ns = mtime_ns
        self.direct = direct

    async def attributes(self) -> Attributes:
        return Attributes(False, len(self._data), self._mtime_ns, writable=False)

    async def read(self, offset: int, size: int) -> Buffer:
        return memoryview(self._data)[offset : offset + size]


def text(ident: str, data: bytes, *, mtime_ns: int | None = None, extended: ExtendedAttributes | None = None) -> GeneratedFile:
    """Return a file with constant bytes."""

    async def make() -> bytes:
        return data

    return GeneratedFile(ident, make, mtime_ns=mtime_ns, extended=extended)
