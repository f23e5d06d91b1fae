"""Mapped files without a name, for what memory has no room for."""

from __future__ import annotations

import mmap
import os
import tempfile


def reserve(directory: str | None, nbytes: int) -> mmap.mmap:
    """An unlinked, mapped file whose blocks are there: writing into a mapping on a full disk is a signal that ends the process.

    Raises OSError rather than take more than half of what is free: whoever declares a huge array must not fill the disk.
    """
    with tempfile.TemporaryFile(dir=directory) as file:
        status = os.fstatvfs(file.fileno())
        free = status.f_bavail * status.f_frsize
        if nbytes > free // 2:
            raise OSError(
                f"{nbytes} bytes are more than half of what is free in {directory or tempfile.gettempdir()} ({free} bytes)"
            )
        os.posix_fallocate(file.fileno(), 0, nbytes)
        return mmap.mmap(file.fileno(), nbytes)
