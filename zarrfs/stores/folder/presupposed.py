"""Folders that a set does not make: of what is gone nothing comes back (`zarrfs.stores.presupposing`). Where such a folder is held, what
lies in it is looked up from there."""

from __future__ import annotations

import abc

from zarrfs.errors import StaleEntry
from zarrfs.keys import Prefix
from zarrfs.stores.anchor import Anchor
from zarrfs.stores.folder.names import Parts, parts_of
from zarrfs.stores.presupposing import presupposed


class HeldFolder(Anchor):
    """A folder that is held by a descriptor. ``tree``: the store that it is of."""

    tree: object

    @abc.abstractmethod
    def opened(self) -> int | None:
        """Another descriptor of it, for the caller to close; None where it was given up."""

    @property
    @abc.abstractmethod
    def is_erased(self) -> bool:
        """Whether it has no name any more."""


def held_on_the_way(tree: object, parts: Parts) -> tuple[int, int] | None:
    """A descriptor, for the caller to close, of the folder on the way to ``parts`` that is held, and how many of them lead to it; None
    where there is no such."""
    held = presupposed()
    if held is None or not isinstance(held.anchor, HeldFolder) or held.anchor.tree is not tree:
        return None
    wanted = parts_of(held.prefix)
    if parts[: len(wanted)] != wanted:
        return None
    folder = held.anchor.opened()
    return None if folder is None else (folder, len(wanted))


def demand_presupposed(parts: Parts, depth: int, error: FileNotFoundError) -> None:
    """Raise `StaleEntry` where the folder on the way to ``parts`` that was not found has to be there."""
    held = presupposed()
    if held is not None:
        wanted = parts_of(held.prefix)
        if depth < len(wanted) and parts[: len(wanted)] == wanted:
            raise _gone(held.prefix) from error


def demand_not_erased(parts: Parts, error: FileNotFoundError) -> None:
    """Raise `StaleEntry` where nothing can be made in the folder that is held, because it was removed."""
    held = presupposed()
    if held is not None and isinstance(held.anchor, HeldFolder) and held.anchor.is_erased:
        wanted = parts_of(held.prefix)
        if parts[: len(wanted)] == wanted:
            raise _gone(held.prefix) from error


def _gone(prefix: Prefix) -> StaleEntry:
    return StaleEntry(f"the folder {prefix!r} is gone: nothing is stored in it", key=prefix)
