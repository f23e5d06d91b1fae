"""What a file stands for: a published value, which can be read, loaded whole and replaced whole.

Views implement `Content` for store values and decoded chunks; `zarrfs.vfs.staging` puts the file semantics on top, once for all.
"""

from __future__ import annotations

import abc

from zarrfs.vfs.node import Attributes, Buffer


class Snapshot(abc.ABC):
    """One published value, fixed when it was taken: a reader sees this value or an error, never a mix with a later one."""

    attributes: Attributes

    @abc.abstractmethod
    async def read(self, offset: int, size: int) -> Buffer:
        """At most ``size`` bytes from ``offset``. Raises `StaleEntry` when the value was replaced and is no longer to be had."""

    async def aclose(self) -> None:
        """Let go of what the snapshot holds."""


class Content(abc.ABC):
    """The value behind a file, published or not.

    ``ident``: see `File.ident`. ``fixed_size``: the only size in bytes that can be published, None where any can. ``verbatim``: what
    was published is read back byte for byte (it is not where a codec rounds, or where padding is replaced).
    """

    ident: str
    fixed_size: int | None = None
    verbatim: bool = True

    @abc.abstractmethod
    async def snapshot(self) -> Snapshot | None:
        """The value as it is now; None when nothing is published."""

    @abc.abstractmethod
    async def load(self) -> Buffer | None:
        """The whole value as it is now, to be changed; None when nothing is published."""

    @abc.abstractmethod
    async def publish(self, data: Buffer) -> None:
        """Replace the whole value. On any error what was published before is still there.

        Raises `ContentInvalid` and `ChunkSizeMismatch` before the store is touched when ``data`` is not a value of this kind.
        """

    @abc.abstractmethod
    async def erase(self) -> None:
        """Remove the value."""

    async def sync(self) -> None:
        """Make what was published durable."""

    async def set_mtime(self, mtime_ns: int) -> None:
        """Keep a modification time with the value, where that is possible."""
