"""An open file, and the state of the pages that the kernel read through it."""

from __future__ import annotations

from zarrfs.buffers import Buffer
from zarrfs.fuse.handles import OpenFile
from zarrfs.fuse.inode import Inode
from zarrfs.vfs.node import Attributes, Handle


class Paged(Handle):
    pages = "state"

    async def attributes(self) -> Attributes:
        return Attributes(False)

    async def read(self, offset: int, size: int) -> Buffer:
        return b""


def test_pages_have_the_state_of_a_handle_until_a_write() -> None:
    inode = Inode(17, None, "a.npy")
    before = OpenFile(inode, Paged())
    assert before.pages == "state"
    inode.writes += 1
    assert before.pages is None and OpenFile(inode, Paged()).pages == "state"


def test_a_handle_without_pages_has_no_state_of_them() -> None:
    assert OpenFile(Inode(17, None, "a.npy"), Paged(), direct=True).pages is None
