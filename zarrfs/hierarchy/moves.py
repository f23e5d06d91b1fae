"""Successive renames of keys and prefixes, through a place apart (`zarrfs.hierarchy.intents`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zarrfs.errors import KeyConflict, PartsMissing
from zarrfs.hierarchy.putting import sync_first
from zarrfs.keys import Key, Prefix
from zarrfs.stores.base import Store

# Documents to compare, in bytes.
_MAX_NBYTES = 64 << 20

Target = Key | Prefix


def parse_target(text: str) -> Target:
    """Return ``text`` as a prefix or key. Raises `KeyUnusable`."""
    return Prefix(text) if text.endswith("/") else Key(text)


def apart_in(folder: Prefix, targets: Iterable[Target]) -> list[tuple[Target, Target]]:
    """Return pairs of each of ``targets`` and its intermediate position in ``folder``."""
    return [
        (target, folder.child(str(number)) if isinstance(target, Prefix) else folder.key(str(number)))
        for number, target in enumerate(targets)
    ]


async def exists(store: Store, target: Target) -> bool:
    """Return True if the key has a value, or the prefix exists. Raises `StoreAccessDenied` if a link is in its place."""
    if not isinstance(target, Prefix):
        return await store.stat(target) is not None
    if await store.prefix_exists(target):
        return True
    # To the store a folder behind a link is absent: a node moved without it would consist of missing chunks.
    await store.stat(Key(target.rstrip("/")))
    return False


async def rename(store: Store, old: Target, new: Target) -> bool:
    """Rename a key, or a prefix with all keys below it. Return False if there is none."""
    return await (store.rename_prefix(old, Prefix(new)) if isinstance(old, Prefix) else store.rename(old, Key(new)))


async def rename_in_order(store: Store, pairs: Sequence[tuple[Target, Target]]) -> None:
    """Rename each (old, new) of ``pairs``: prefixes first, whose new names are synced before a document announces what is there."""
    moved: list[Target] = []
    for old, new in pairs:
        if isinstance(old, Prefix):
            await rename(store, old, new)
            moved.append(new)
    if moved:
        await sync_first(store, moved)
    for old, new in pairs:
        if not isinstance(old, Prefix):
            await rename(store, old, new)


async def require_all(store: Store, pairs: Sequence[tuple[Target, Target]]) -> None:
    """Raise `PartsMissing` if a prefix of ``pairs``, of parts of one node, is at neither place, and another part is at the old one.

    Another program has moved or removed it: the documents would describe an array without its chunks."""
    is_gone = [isinstance(old, Prefix) and not await exists(store, old) and not await exists(store, new) for old, new in pairs]
    if any(is_gone) and any([await exists(store, old) for old, _ in pairs]):
        (_, new) = pairs[is_gone.index(True)]
        raise PartsMissing(f"{new}: was moved or removed by another program", key=new)


async def rename_rest(store: Store, pairs: Sequence[tuple[Target, Target]]) -> None:
    """Rename for each (old, new) of ``pairs`` what is still at the old place.

    Raises `KeyConflict` if a new key exists: another program has put a node there, which gets none of the content. A key that has the
    value at both places is not of another program: a power cut leaves a file under both names (btrfs).
    """
    rest = [(old, new) for old, new in pairs if await exists(store, old)]
    for old, new in rest:
        if not isinstance(new, Prefix) and await exists(store, new) and not await _is_same(store, Key(old), new):
            raise KeyConflict(f"{old}: rename failed: {new} exists", key=new)
    await rename_in_order(store, rest)


async def _is_same(store: Store, key: Key, other: Key) -> bool:
    stats = await store.stat(key), await store.stat(other)
    if any(stat is None or stat.size > _MAX_NBYTES for stat in stats):
        return False
    value, other_value = await store.get(key), await store.get(other)
    return value is not None and other_value is not None and bytes(value) == bytes(other_value)


def relocated(target: str, pairs: Iterable[tuple[Key | Prefix, Key | Prefix]]) -> str:
    """Return the position of a key or prefix after each of ``pairs`` was renamed."""
    for old, new in pairs:
        if target == old or (isinstance(old, Prefix) and target.startswith(old)):
            return new + target[len(old) :]
    return target
