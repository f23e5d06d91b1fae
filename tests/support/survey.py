"""Survey of a tree: each file's size, and its bytes or the errno of reading them.

    python survey.py LIMIT_MIB PATH...      # without a kernel, in that much memory beyond Python's own; prints JSON

Large files are read at the beginning, in the middle and at the end.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.trees import READ_ONLY

# This file is run as a script from any directory, so the checkout is not on the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

_LARGE = 1 << 20
_PART = 4096


@dataclass(frozen=True)
class Found:
    """A file: ``size`` from stat; ``data`` that was read, or ``error``, the errno's name."""

    size: int
    data: bytes = b""
    error: str | None = None


def places(size: int) -> list[tuple[int, int]]:
    """Return offsets and lengths to read of a file."""
    if size <= _LARGE:
        return [(0, size)]
    return [(0, _PART), (size // 2, _PART), (size - _PART, _PART)]


def of_folder(folder: Path) -> dict[str, Found]:
    """Survey a folder through the kernel, without following links."""
    found: dict[str, Found] = {}
    for root, _, names in os.walk(folder, onerror=_raise):
        for name in names:
            path = os.path.join(root, name)
            size = os.lstat(path).st_size
            try:
                with open(path, "rb", buffering=0) as file:
                    data = b"".join(os.pread(file.fileno(), length, offset) for offset, length in places(size))
                    found[os.path.relpath(path, folder)] = Found(size, data)
            except OSError as error:
                found[os.path.relpath(path, folder)] = Found(size, error=errno.errorcode[error.errno or 0])
    return found


async def of_tree(tree: Any) -> dict[str, Found]:
    """Survey a `MountTree`."""
    from tests.support.trees import every_file, walk
    from zarrfs.errors import ZarrfsError
    from zarrfs.fuse.errno import errno_of
    from zarrfs.vfs.node import File

    found: dict[str, Found] = {}
    async for path in every_file(tree):
        file = await walk(tree, path)
        assert isinstance(file, File)
        size = (await file.attributes()).size
        try:
            handle = await file.open(READ_ONLY)
            try:
                data = b"".join([bytes(await handle.read(offset, length)) for offset, length in places(size)])
            finally:
                await handle.release()
            found[path] = Found(size, data)
        except ZarrfsError as error:
            found[path] = Found(size, error=errno.errorcode[errno_of(error)])
    return found


def parse(text: str) -> dict[str, dict[str, Found]]:
    """Return the script's output: the files of each store."""
    return {
        store: {path: Found(size, bytes.fromhex(data), error) for path, (size, data, error) in found.items()}
        for store, found in json.loads(text).items()
    }


def main(limit_mib: str, *stores: str) -> None:
    import trio

    from tests.support.trees import tree_of

    async def survey(store: str) -> dict[str, Found]:
        async with tree_of(store, memory_limit="64MiB") as tree:
            return await of_tree(tree)

    # Threads reserve address space for their stacks and arenas, which is not used memory.
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (int(limit_mib) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(
        json.dumps(
            {
                store: {path: (each.size, each.data.hex(), each.error) for path, each in trio.run(survey, store).items()}
                for store in stores
            }
        )
    )


def _raise(error: OSError) -> None:
    raise error


if __name__ == "__main__":
    main(*sys.argv[1:])
