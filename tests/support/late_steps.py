"""Arrays, options and steps of tests in which a step of an edit takes effect after its deadline, or fails."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.trees import opened
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.vfs.node import OpenFlags

OPTIONS: dict[str, Any] = {"new_chunks": "8", "new_shards": "4", "shard_delay": "600", "timeout": "10"}
"""Of a mount whose arrays have chunks of 8 elements in shards, which wait until they are complete."""
OLD = np.full(32, 7, "<i4")
CHANGED = np.r_[OLD[:8], np.full(8, 99, "<i4"), OLD[16:]]
"""`OLD` after `queue_a_chunk`."""
NEW = np.arange(5, dtype="<f8")


async def write_chunk(tree: MountTree, path: str, elements: np.ndarray[Any, Any]) -> None:
    """Write a chunk file in place, and close it."""
    handle = await opened(tree, path, OpenFlags(write=True))
    await handle.write(0, elements.tobytes())
    await handle.flush()
    await handle.release()


async def queue_a_chunk(tree: MountTree, data_type: str = "<i4") -> None:
    """Write the second chunk of ``a``, which then waits for its shard."""
    await write_chunk(tree, "chunks/a/1", np.full(8, 99, data_type))
    assert tree.stats()["pending_shards"] == 1
