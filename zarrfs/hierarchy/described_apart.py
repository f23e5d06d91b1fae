"""Arrays by the key of their document, in layouts that keep documents apart from chunks (2019, 2022).

There the folder of a document says nothing of its array: both a removed and a renamed array leave it in its place.
"""

from __future__ import annotations

from zarrfs.errors import MetadataError
from zarrfs.hierarchy.live_array import LiveArray
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import Key


async def described_apart(hierarchy: Hierarchy, key: Key) -> LiveArray | None:
    """Return the array in use from now on that the value of ``key``, in another place than its chunks, describes."""
    for layout in list(hierarchy.roots.over(key)):
        path = layout.node_of_document(key) if not layout.per_node else None
        if path is None:
            continue
        try:
            open_array = await hierarchy.array(path)
        except MetadataError:
            # It cannot be used as it is: its document is about to be mended.
            continue
        if open_array is not None and open_array.live.document == key:
            return open_array.live
    return None
