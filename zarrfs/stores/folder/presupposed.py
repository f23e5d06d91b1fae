"""Folders that a set does not create, so that removed folders do not reappear (`zarrfs.stores.presupposing`).

Lookups below such a folder start at its descriptor, if it is held.
"""

from __future__ import annotations

import abc

from zarrfs.errors import StaleEntry
from zarrfs.keys import Prefix
from zarrfs.stores.anchor import Anchor
from zarrfs.stores.folder.names import Parts, parts_of
from zarrfs.stores.presupposing import presupposed


class HeldFolder(Anchor):
    """A folder held by a descriptor; ``tree`` is its store."""

    tree: object

    @abc.abstractmethod
    def open_fd(self) -> int | None:
        """Return a new descriptor of the folder, which the caller closes; None if the folder was released."""

    @property
    @abc.abstractmethod
    def is_erased(self) -> bool:
        """True if the folder was removed."""


def held_on_the_way(tree: object, parts: Parts) -> tuple[int, int] | None:
    """Return a descriptor of the held folder above ``parts``, and its depth in parts; None if none is held.

    The caller closes the descriptor.
    """
    held = presupposed()
    if held is None or not isinstance(held.anchor, HeldFolder) or held.anchor.tree is not tree:
        return None
    wanted = parts_of(held.prefix)
    if parts[: len(wanted)] != wanted:
        return None
    folder = held.anchor.open_fd()
    return None if folder is None else (folder, len(wanted))


def require_presupposed(parts: Parts, depth: int, error: FileNotFoundError) -> None:
    """Raise `StaleEntry` if the folder that was not found, at ``depth`` of ``parts``, is presupposed."""
    held = presupposed()
    if held is not None:
        wanted = parts_of(held.prefix)
        if depth < len(wanted) and parts[: len(wanted)] == wanted:
            raise _gone(held.prefix) from error


def require_not_erased(parts: Parts, error: FileNotFoundError) -> None:
    """Raise `StaleEntry` if the held folder was removed, so that nothing can be created in it."""
    held = presupposed()
    if held is not None and isinstance(held.anchor, HeldFolder) and held.anchor.is_erased:
        wanted = parts_of(held.prefix)
        if parts[: len(wanted)] == wanted:
            raise _gone(held.prefix) from error


def _gone(prefix: Prefix) -> StaleEntry:
    return StaleEntry(f"the folder {prefix!r} is gone: nothing is stored in it", key=prefix)
