"""Folders that a store creates, with the rights of their place.

An array is built apart, in ``.zarrfs/ID/new/``, and renamed to its place as a whole. There other programs would have created its folder
with the group (set-group-ID) and the ACL of the folder above, which pass on to all that is below. So it gets those when it is created;
as the folder of an array that replaces another, it gets the rights of that one's. And ``.zarrfs/ID/`` is closed to those who may not
enter the folders on the way to the place.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain

from zarrfs.stores.folder import rights
from zarrfs.stores.folder.calls import Closing
from zarrfs.stores.folder.file_systems import RemoteMounts
from zarrfs.stores.folder.names import APART_PARTS, Parts, path_of


class NewFolders:
    """Creates the folders of one tree; ``opened`` returns a descriptor of one, ``mounts`` are the file systems in it that may hang."""

    def __init__(self, opened: Callable[[Parts], Closing], mounts: RemoteMounts) -> None:
        self._opened = opened
        self._mounts = mounts
        self._places: dict[Parts, tuple[Parts, ...]] = {}
        self._making: dict[Parts, threading.Lock] = {}

    def destine(self, parts: Parts, *places: Parts) -> None:
        """Note that the folder ``parts`` will be renamed to the place, or is that of an operation at several; none: no longer."""
        if places:
            self._places[parts] = places
        else:
            self._places.pop(parts, None)

    def make(self, above: int, parts: Parts, owner: rights.Owner | None) -> None:
        """Create the folder ``parts`` in ``above``, a descriptor. Raises `OSError`."""
        with self._making.setdefault(parts, threading.Lock()):
            try:
                self._make(above, parts, owner, self._places.get(parts, ()))
            finally:
                self._making.pop(parts, None)

    def made(self, folder: int, parts: Parts) -> int:
        """Return the descriptor ``folder`` once the folder ``parts`` has its rights.

        What was created in it before would not inherit them, and a folder that is not empty is left as it is."""
        if (making := self._making.get(parts)) is not None:
            with making:
                pass
        return folder

    def _make(self, above: int, parts: Parts, owner: rights.Owner | None, places: tuple[Parts, ...]) -> None:
        name = parts[-1]
        if not places:
            rights.make_folder(above, name, owner)
        elif parts[:-1] == APART_PARTS:
            rights.make_folder(above, name, owner)
            with suppress(OSError):
                rights.close(above, name, chain.from_iterable(map(self._on_the_way, places)))
        else:
            there, is_taken = self._nearest(places[0])
            with there as model:
                rights.make_folder(above, name, owner, rights.Model(model, is_taken))
        if parts == APART_PARTS:
            # Other users with write access to the store create their own files there.
            rights.share(above, name, owner)

    def _on_the_way(self, place: Parts) -> Iterator[int]:
        for count in range(1, len(place) + 1):
            try:
                with self._there(place[:count]) as folder:
                    yield folder
            except OSError:
                return

    def _there(self, parts: Parts) -> Closing:
        # Nothing is renamed to another file system, and one that hangs must not hold what is stored beside it.
        if self._mounts.over(parts) is not None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path_of(parts))
        return self._opened(parts)

    def _nearest(self, place: Parts) -> tuple[Closing, bool]:
        """Return a descriptor of the folder ``place``, or of the nearest one above it, and whether it is the former."""
        for count in range(len(place), 0, -1):
            with suppress(OSError):
                return self._there(place[:count]), count == len(place)
        return self._opened(()), False
