"""A file whose content cannot be stored."""

from __future__ import annotations

from zarrfs.buffers import Buffer
from zarrfs.vfs.content import Snapshot, WholeContent
from zarrfs.vfs.node import Attributes


class Lost(Snapshot, WholeContent):
    """A file that is lost, whose content and path somebody else chose."""

    def __init__(self, ident: str) -> None:
        self.ident = ident
        self.attributes = Attributes(is_directory=False, size=5)

    async def snapshot(self) -> Snapshot:
        return self

    async def read(self, offset: int, size: int) -> Buffer:
        return b"hers\n"

    async def load(self) -> Buffer:
        raise NotImplementedError

    async def publish(self, data: Buffer) -> None:
        raise NotImplementedError

    async def erase(self) -> None:
        raise NotImplementedError
