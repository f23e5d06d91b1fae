"""Read, change and store of documents, repeated if another program has stored one meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from zarrfs import threads
from zarrfs.errors import GenerationMismatch
from zarrfs.hierarchy.probe import Document
from zarrfs.hierarchy.putting import put_over
from zarrfs.hierarchy.stored_documents import StoredDocuments, contents, weight
from zarrfs.keys import Key
from zarrfs.stores.base import Store
from zarrfs.stores.values import ABSENT, Absent, Generation

Change = Callable[[dict[Key, bytes]], dict[Key, bytes]]
Read = Mapping[Key, Document]

_TRIES = 16


async def revise(
    stored: StoredDocuments, keys: Iterable[Key], change: Change, put: Callable[[Read, dict[Key, bytes]], Awaitable[None]]
) -> None:
    """Read the documents under ``keys``, and ``put`` those that ``change`` alters, with what was read.

    Starts again when ``put`` raises `GenerationMismatch`, which is raised after `_TRIES` tries.
    """
    wanted = tuple(dict.fromkeys(keys))
    for left in reversed(range(_TRIES)):
        found = await stored.get(wanted)
        documents = contents(found)
        changed = await threads.cpu(weight(documents), change, documents)
        try:
            read = {key: each for key, each in found.items() if isinstance(each, Document)}
            await put(read, {key: value for key, value in changed.items() if documents.get(key) != value})
        except GenerationMismatch:
            if not left:
                raise
        else:
            return


async def put_each(store: Store, read: Read, changed: Mapping[Key, bytes]) -> None:
    """Store documents over those that were read, and beside them. Raises `GenerationMismatch`."""
    for key, value in changed.items():
        await put_over(store, key, value, expected(read, key), is_of_stored=bool(read))


def expected(read: Read, key: Key) -> Generation | Absent:
    """Return the generation that was read, or `ABSENT`."""
    return read[key].stat.generation if key in read else ABSENT
