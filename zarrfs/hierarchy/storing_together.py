"""Several documents stored as one operation (`zarrfs.hierarchy.intents`)."""

from __future__ import annotations

from collections.abc import Mapping

from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.records import Record
from zarrfs.hierarchy.revising import Read, put_each
from zarrfs.keys import ROOT, Key, NodePath


async def store_together(intents: Intents, path: NodePath, read: Read, after: Mapping[Key, bytes]) -> None:
    """Store the documents ``after`` that describe the node at ``path``, all or none; ``read``: the existing ones among them.

    Raises `GenerationMismatch` if another program stored one of them since; its value then stays.
    """
    if len(after) < 2:
        await put_each(intents.store, read, after)
        return
    before = {key: read[key].content for key in after if key in read}
    async with intents.around(Record("amend", path, ROOT.prefix, erased=(), before=before, after=after)) as intent:
        await put_each(intents.store, read, after)
        await intent.forget()
