"""Written data that could not be stored: its reports and its rescue."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import trio

from zarrfs.arrays.queued_shard import QueuedShard
from zarrfs.daemon.reasons import Reasons
from zarrfs.daemon.rescue import Rescue
from zarrfs.errors import NameInvalid, StaleEntry, ZarrfsError, is_refusal
from zarrfs.hierarchy.live_array import LiveArray
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import APART, NodePath, Prefix
from zarrfs.stores.anchor import Anchor
from zarrfs.stores.presupposing import presupposing_nothing
from zarrfs.vfs.content import Content
from zarrfs.vfs.file import was_reported
from zarrfs.vfs.staging import Staged, StagingArea
from zarrfs.views.recent_errors import RecentErrors

log = logging.getLogger(__name__)

# Searches for an array that other programs keep moving.
_SEARCHES = 3


class Losses:
    """Losses of a mount.

    ``errors``: the lines of ``.zarrfs/errors.jsonl``.
    """

    def __init__(self, rescue: Rescue) -> None:
        # By file: programs may try again any number of times.
        self._failures, self._refused, self._waited = Reasons(), Reasons(), Reasons()
        self.errors = RecentErrors()
        self._rescue = rescue
        self._detached: list[tuple[Content, Exception]] = []
        self._saving = trio.Lock()

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Accepted data that could not be stored: each file and the last reason."""
        return self._failures.listed()

    @property
    def refused(self) -> list[tuple[str, str]]:
        """Data that was not accepted, with an error to the program."""
        return self._refused.listed()

    @property
    def waited(self) -> list[tuple[str, str]]:
        """Files with names of chunks beside which no array was created."""
        return self._waited.listed()

    def add(self, name: str, error: BaseException, *, where: str = "publish") -> None:
        """Record a loss, and a line about it."""
        self.note(name, str(error))
        self.errors.add(where, error)

    def note(self, name: str, reason: str) -> None:
        """Record a loss."""
        self._failures.add(name, reason)

    def removed(self, name: str) -> None:
        """Record that a program removed a file, or replaced its value: what was lost of it is wanted no more."""
        self._failures.discard(name)
        self._refused.discard(name)

    def removed_below(self, prefix: str) -> None:
        """Run `removed` for all files whose names begin with ``prefix``: their folder was removed."""
        self._failures.discard_below(prefix)
        self._refused.discard_below(prefix)

    def published(self, name: str) -> None:
        """Record that data of a file is stored: programs have repeated what was refused before."""
        self._refused.discard(name)

    def unpublished(self, area: StagingArea, ident: str, error: BaseException) -> None:
        """Record that the staged data of a file is dropped."""
        (self._refused if _is_refused(area, ident, error) else self._failures).add(ident, str(error))
        self.errors.add("release", error)

    async def at_the_end(self, area: StagingArea, staged: Staged, error: Exception) -> None:
        """Handle staged data of a file that could not be published at the end of the mount: accepted data is saved."""
        ident = staged.content.ident
        if _is_refused(area, ident, error) or staged.stage is None or not staged.stage.nbytes:
            self.unpublished(area, ident, error)
            return
        self.unpublished(area, ident, await self.saved(staged, error))

    async def saved(self, staged: Staged, error: Exception) -> Exception:
        """Save the staged data of a file; return the error with its location, or unchanged if it cannot be saved."""
        ident = staged.content.ident
        try:
            path = await self._rescue.file(staged, error)
        except Exception as failure:  # noqa: BLE001 (a defect that one file meets must not cost the others)
            log.error("%s: rescue failed: %s", ident, failure)
            return error
        log.warning("%s: unstored data saved in %s", ident, path)
        return _saved(error, path)

    async def of_name(self, content: Content, *, waited: bool) -> None:
        """Save a value whose name exists in this mount only, at its end.

        ``waited``: the name is that of a chunk, and no document of an array was written.
        """
        reason = "no document of an array beside it" if waited else "temporary name, never renamed"
        why = NameInvalid(reason, key=content.ident)
        error = await self._saved_value(content, why)
        # If it is not saved, nothing is left of a file whose close has succeeded.
        (self._waited if waited and error is not why else self._failures).add(content.ident, str(error))

    def detach(self, contents: Iterable[Content], why: str) -> None:
        """Take over values whose names existed in this mount only, in the folder of a node that was replaced: see `save_detached`."""
        self._detached += [(content, StaleEntry(why, key=content.ident)) for content in contents]

    async def save_detached(self) -> None:
        """Save the values taken over by `detach`, and record their losses."""
        async with self._saving:
            while self._detached:
                content, why = self._detached.pop(0)
                error = await self._saved_value(content, why)
                log.error("%s: not stored: %s", content.ident, error)
                self.add(content.ident, error)
                await content.erase()

    async def _saved_value(self, content: Content, error: Exception) -> Exception:
        """Save the value of a file; return the error with its location, or unchanged if it cannot be saved."""
        try:
            return _saved(error, await self._rescue.value(content, error))
        except (OSError, ZarrfsError) as failure:
            log.error("%s: rescue failed: %s", content.ident, failure)
            return error

    async def of_shard(self, hierarchy: Hierarchy, shard: QueuedShard, error: Exception) -> bool:
        """Handle queued chunks that cannot be stored in their shard; return True if nothing is lost.

        If another program renamed the array, the chunks are stored in it; if it was erased or replaced, they are saved outside the store.
        """
        # The caller may be a writer of the shard, bound to the folder that is gone.
        with presupposing_nothing():
            return await self._of_shard(hierarchy, shard, error)

    async def _of_shard(self, hierarchy: Hierarchy, shard: QueuedShard, error: Exception) -> bool:
        key, node = shard.key, shard.node
        # An array that did not move needs no search.
        may_be_elsewhere = node.why_gone is not None
        try:
            if may_be_elsewhere and await self._followed(hierarchy, shard):
                log.info("%s: queued chunks follow the array, which another program has moved", key)
                return True
            if may_be_elsewhere and await self._went_with_its_array(hierarchy, shard):
                log.warning("%s: queued chunks dropped with their array, which another program erased", key)
                return True
        except Exception as failure:  # noqa: BLE001 (whatever the failure, the chunks can still be saved)
            log.warning("%s: search for its array failed: %s", key, failure)
        try:
            path = await self._rescue.shard(shard, error)
        except Exception as failure:  # noqa: BLE001 (a defect that one shard meets must not cost the others)
            log.error("%s: %s; chunks lost, rescue failed: %s", key, error, failure)
            self.add(key, error)
        else:
            log.error("%s: %s; chunks saved in %s", key, error, path)
            self.add(key, _saved(error, path))
        return False

    async def _followed(self, hierarchy: Hierarchy, shard: QueuedShard) -> bool:
        """Store the queued chunks in the array, or queue them for it, if it was renamed within the store; return True if so."""
        for _ in range(_SEARCHES):
            anchor = shard.node.anchor
            prefix = anchor.prefix() if anchor is not None else None
            if anchor is None or prefix is None or prefix.startswith(APART):
                return False
            try:
                path = NodePath(f"/{prefix[:-1]}")
            except NameInvalid:
                return False
            await hierarchy.reread(path)
            open_array = await hierarchy.array(path)
            now = open_array.array.node if open_array is not None else None
            if open_array is None or now is None:
                return False
            if shard.node is open_array.live:
                # Adopted when the array was first used at its new path.
                return True
            if now.dialect != shard.array.dialect or not now.metadata.is_resize_of(shard.array.metadata):
                return False
            async with open_array.live.holding():
                if not _is_in_folder(open_array.live, anchor):
                    # Another program moves it again.
                    continue
                changes = shard.changes()
                async with shard.working():
                    await open_array.array.chunks.modify(changes)
                await open_array.array.chunks.publish(changes)
                return True
        return False

    async def _went_with_its_array(self, hierarchy: Hierarchy, shard: QueuedShard) -> bool:
        """Return True if another program is known to have erased the array, without a replacement."""
        anchor = shard.node.anchor
        if anchor is None:
            return False
        prefix = anchor.prefix()
        is_erased = anchor.is_erased or (prefix is not None and _is_to_be_deleted(prefix))
        return is_erased and await hierarchy.reread(shard.node.path) is None


def _is_in_folder(live: LiveArray, anchor: Anchor) -> bool:
    """Return True if the folder that is held of ``live``, in which its chunks are stored, is that of ``anchor``."""
    if live.anchor is None or live.document is None or live.folder is None:
        return False
    name = live.document[len(live.folder) :]
    generation = live.anchor.generation(name)
    return generation is not None and generation == anchor.generation(name)


def _is_to_be_deleted(path: Prefix) -> bool:
    """Return True if another mount has renamed an array to ``path`` in order to erase it, and not in order to return it."""
    return path.startswith(APART) and path[len(APART) :].split("/")[1:2] == ["gone"]


def _is_refused(area: StagingArea, ident: str, error: BaseException) -> bool:
    return is_refusal(error) and was_reported(area, ident)


def _saved(error: Exception, path: str) -> Exception:
    """Return the same error with the location of the saved data."""
    message = f"{error}; data saved in {path}"
    return type(error)(message, key=error.key) if isinstance(error, ZarrfsError) else type(error)(message)
