"""Successive renames of keys and prefixes, through a place apart (`zarrfs.hierarchy.intents`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zarrfs.errors import KeyConflict, PartsMissing
from zarrfs.keys import Key, Prefix
from zarrfs.stores.base import Store

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
    """Return True if the key has a value, or the prefix exists."""
    return await store.prefix_exists(target) if isinstance(target, Prefix) else await store.stat(target) is not None


async def rename(store: Store, old: Target, new: Target) -> bool:
    """Rename a key, or a prefix with all keys below it. Return False if there is none."""
    return await (store.rename_prefix(old, Prefix(new)) if isinstance(old, Prefix) else store.rename(old, Key(new)))


async def require_all(store: Store, pairs: Sequence[tuple[Target, Target]]) -> None:
    """Raise `PartsMissing` if a prefix of ``pairs``, of parts of one node, is at neither place, and another part is at the old one.

    Another program has moved or removed it: the documents would describe an array without its chunks."""
    is_gone = [isinstance(old, Prefix) and not await exists(store, old) and not await exists(store, new) for old, new in pairs]
    if any(is_gone) and any([await exists(store, old) for old, _ in pairs]):
        (_, new) = pairs[is_gone.index(True)]
        raise PartsMissing(f"{new}: was moved or removed by another program", key=new)


async def rename_rest(store: Store, pairs: Sequence[tuple[Target, Target]]) -> None:
    """Rename for each (old, new) of ``pairs`` what is still at the old place.

    Raises `KeyConflict` if a new key exists: another program has put a node there, which gets none of the content.
    """
    rest = [(old, new) for old, new in pairs if await exists(store, old)]
    for old, new in rest:
        if not isinstance(new, Prefix) and await exists(store, new):
            raise KeyConflict(f"{old}: rename failed: {new} exists", key=new)
    for old, new in rest:
        await rename(store, old, new)


def relocated(target: str, pairs: Iterable[tuple[Key | Prefix, Key | Prefix]]) -> str:
    """Return the position of a key or prefix after each of ``pairs`` was renamed."""
    for old, new in pairs:
        if target == old or (isinstance(old, Prefix) and target.startswith(old)):
            return new + target[len(old) :]
    return target
