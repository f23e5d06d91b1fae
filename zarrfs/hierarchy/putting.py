"""Documents, consolidated copies and records on which older content depends: they are on the disk before they get their name.

So are those that replace others. A power cut then leaves the old one or the new one, also of those that no program has synced. A lost
chunk is one chunk; without the document of a group nothing below it is found, however long ago that was stored and synced. Documents of
new nodes wait for the fsync of a program: what they describe was not synced either. None is durable before
`zarrfs.stores.base.Store.sync`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from zarrfs import durability, threads
from zarrfs.buffers import Buffer
from zarrfs.dialects.base import Layout
from zarrfs.dialects.json_text import fault_of
from zarrfs.errors import NotRepresentable, StoreTimeout
from zarrfs.keys import Key, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.stores.base import Store
from zarrfs.stores.expecting import set_over
from zarrfs.stores.values import ABSENT, Absent, Generation


async def documents_of(layout: Layout, node: GroupNode | ArrayNode) -> dict[Key, bytes]:
    """Return `Layout.format`. Raises `NotRepresentable`, also for a document that could not be read again.

    Attributes that are a document of their own in one layout are a level deeper in another."""
    written = layout.format(node)
    for key, value in written.items():
        if (fault := await threads.cpu(len(value), fault_of, value)) is not None:
            raise NotRepresentable(f"{key}: could not be read again: {fault}", key=key)
    return written


async def put_all(store: Store, documents: Mapping[Key, bytes], *, on_disk: bool) -> None:
    """Store ``documents`` in their order; ``on_disk``: each is on the disk before it gets its name.

    It has to be if it replaces another one, perhaps erased before, or if older content depends on it."""
    with durability.demanded(on_disk or durability.is_demanded()):
        for key, value in documents.items():
            await store.set(key, value)


async def put_over(store: Store, key: Key, value: Buffer, expect: Generation | Absent, *, is_of_stored: bool) -> Generation:
    """Store a document over the one with generation ``expect``, as `set_over` does. ``is_of_stored``: the node has stored documents."""
    with durability.demanded(is_of_stored or expect is not ABSENT or durability.is_demanded()):
        return await set_over(store, key, value, expect)


async def sync_first(store: Store, moved: Iterable[Key | Prefix]) -> None:
    """Sync the names of what was moved or erased, before the next step elsewhere.

    btrfs keeps a file that was synced without the renames before it: chunks that the document announces would read as fill value.
    """
    # A disk that takes longer than the deadline is no reason to refuse the edit (`Intent.sync`).
    with suppress(StoreTimeout):
        await store.sync(moved)


async def sync_all_first(store: Store) -> None:
    """Sync all values stored so far, before the only other copy of them, or of what they replace, is removed."""
    with suppress(StoreTimeout):
        await store.sync_all()
