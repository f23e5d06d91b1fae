"""Changes of entries of a mount, for all parts that keep state of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedEntry:
    """A changed entry, at ``path`` in the mount; ``gone``: the name may no longer exist.

    ``known``: the change was written through this file, so only cached attributes are outdated, not cached content. ``superseded``: a
    later open of the name gets another file, and open handles keep the old value. ``of_move``: this mount has moved the value, unchanged.
    """

    path: str
    gone: bool = False
    known: bool = False
    superseded: bool = False
    of_move: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedEntry:
    """An entry that was renamed through another view: the same file or folder."""

    old: str
    new: str
    is_folder: bool
