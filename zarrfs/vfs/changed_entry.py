"""What became of entries of a mount, told to whoever keeps something of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedEntry:
    """An entry that is different now. ``path``: in the mount; ``gone``: it may have lost its name; ``known``: it was written through this
    very file, so that what is known of its content is right, and only its attributes are not; ``superseded``: its name is another file's
    from now on, and those who have it open keep the old value."""

    path: str
    gone: bool = False
    known: bool = False
    superseded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedEntry:
    """An entry that has another name now, through another view: the same file or folder."""

    old: str
    new: str
    is_folder: bool
