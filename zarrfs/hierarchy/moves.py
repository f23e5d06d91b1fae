"""Keys and prefixes that are renamed one after the other, by way of a place apart (`zarrfs.hierarchy.intents`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zarrfs.errors import KeyConflict
from zarrfs.keys import Key, Prefix
from zarrfs.stores.base import Store

Place = Key | Prefix


def parse_place(text: str) -> Place:
    """The prefix or key that ``text`` is. Raises `KeyUnusable`."""
    return Prefix(text) if text.endswith("/") else Key(text)


def apart_in(folder: Prefix, places: Iterable[Place]) -> list[tuple[Place, Place]]:
    """Each of ``places``, and where in ``folder`` it lies in between."""
    return [
        (place, folder.child(str(number)) if isinstance(place, Prefix) else folder.key(str(number)))
        for number, place in enumerate(places)
    ]


async def exists(store: Store, place: Place) -> bool:
    """Whether there is such a value, or anything under such a prefix."""
    return await store.prefix_exists(place) if isinstance(place, Prefix) else await store.stat(place) is not None


async def rename(store: Store, old: Place, new: Place) -> None:
    """Give a value another key, or all that begins with a prefix another prefix."""
    if isinstance(old, Prefix):
        await store.rename_prefix(old, Prefix(new))
    else:
        await store.rename(old, Key(new))


async def rename_rest(store: Store, pairs: Sequence[tuple[Place, Place]]) -> None:
    """Rename what is still at the first of each of ``pairs`` to the second. Raises `KeyConflict` where something else is there."""
    for old, new in pairs:
        if await exists(store, old):
            if not isinstance(new, Prefix) and await exists(store, new):
                raise KeyConflict(f"{old} cannot be moved to its place, where something else is", key=new)
            await rename(store, old, new)


def relocated(place: str, pairs: Iterable[tuple[Key | Prefix, Key | Prefix]]) -> str:
    """Where a key or prefix is now, after each of ``pairs`` was renamed."""
    for old, new in pairs:
        if place == old or (isinstance(old, Prefix) and place.startswith(old)):
            return new + place[len(old) :]
    return place
