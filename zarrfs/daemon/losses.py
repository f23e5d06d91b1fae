"""What was written and could not be stored: who is told, and what becomes of it."""

from __future__ import annotations

import logging

from zarrfs.arrays.queued_shard import QueuedShard
from zarrfs.daemon.rescue import Rescue
from zarrfs.errors import REFUSALS, NameInvalid, ZarrfsError
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import APART, NodePath
from zarrfs.vfs.content import Content
from zarrfs.vfs.file import was_told
from zarrfs.vfs.staging import Staged, StagingArea
from zarrfs.views.recent_errors import RecentErrors

log = logging.getLogger(__name__)


class Losses:
    """``failures``: what was accepted since the mount began and could not be stored, as (file, reason); ``refused``: what was not
    accepted, and the program told so; ``waited``: what had the name of a chunk where no array was made; ``errors``: the lines of
    ``.zarrfs/errors.jsonl``."""

    def __init__(self, rescue: Rescue) -> None:
        self.failures: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        self.waited: list[tuple[str, str]] = []
        self.errors = RecentErrors()
        self._rescue = rescue

    def add(self, name: str, error: BaseException, *, where: str = "publish") -> None:
        """Something is lost."""
        self.failures.append((name, str(error)))
        self.errors.add(where, error)

    def add_once(self, name: str, reason: str) -> None:
        """Something is lost that may have been added before."""
        if (name, reason) not in self.failures:
            self.failures.append((name, reason))

    def unpublished(self, area: StagingArea, ident: str, error: BaseException) -> None:
        """What was staged of a file is dropped."""
        (self.refused if _is_refused(area, ident, error) else self.failures).append((ident, str(error)))
        self.errors.add("release", error)

    async def at_the_end(self, area: StagingArea, staged: Staged, error: Exception) -> None:
        """The mount ends, and what is staged of a file could not be published: what was accepted is saved."""
        ident = staged.content.ident
        if _is_refused(area, ident, error) or staged.stage is None or not staged.stage.nbytes:
            self.unpublished(area, ident, error)
            return
        self.unpublished(area, ident, await self.saved(staged, error))

    async def saved(self, staged: Staged, error: Exception) -> Exception:
        """Save what is staged of a file; returns the error that says where, or the same where it cannot be saved."""
        ident = staged.content.ident
        try:
            place = await self._rescue.file(staged, error)
        except Exception as failure:  # noqa: BLE001 (a defect that one file meets must not cost the others)
            log.error("%s: what was written to it could not be saved either: %s", ident, failure)
            return error
        log.warning("%s: what was written to it is saved in %s", ident, place)
        return _saved(error, place)

    async def of_name(self, content: Content, *, waited: bool) -> None:
        """The mount ends, and a value has a name that is in this mount only: it is saved. ``waited``: it has the name of a chunk, and no
        array's document came."""
        error: Exception = NameInvalid(
            "no document of an array was written beside it" if waited else "its name is temporary, and it was never renamed",
            key=content.ident,
        )
        try:
            error = _saved(error, await self._rescue.value(content, error))
        except (OSError, ZarrfsError) as failure:
            log.error("%s: it could not be saved: %s", content.ident, failure)
        (self.waited if waited else self.failures).append((content.ident, str(error)))

    async def of_shard(self, hierarchy: Hierarchy, shard: QueuedShard, error: Exception) -> bool:
        """Chunks that wait for a shard cannot be stored where they belong. An array that another program renamed gets them where it is
        now; what was written to one that is there no more, or is another one, is saved. Whether nothing of it is lost."""
        key, node = shard.key, shard.node
        # An array that is where it was cannot be followed, and one that this mount has replaced is gone for certain.
        may_be_elsewhere = node.why_gone is not None and not node.replaced_here
        try:
            if may_be_elsewhere and await self._followed(hierarchy, shard):
                log.info("%s: what waited was stored where another program has moved the array", key)
                return True
            if may_be_elsewhere and await self._went_with_its_array(hierarchy, shard):
                log.warning("%s: chunks that waited went with their array, which another program erased", key)
                return True
        except Exception as failure:  # noqa: BLE001 (whatever keeps it from following, it can still be saved)
            log.warning("%s: where its array is could not be found out: %s", key, failure)
        try:
            place = await self._rescue.shard(shard, error)
        except Exception as failure:  # noqa: BLE001 (a defect that one shard meets must not cost the others)
            log.error("%s: %s; chunks that were written there are lost, and could not be saved: %s", key, error, failure)
            self.add(key, error)
        else:
            log.error("%s: %s; chunks that were written there are saved in %s", key, error, place)
            self.add(key, _saved(error, place))
        return False

    async def _followed(self, hierarchy: Hierarchy, shard: QueuedShard) -> bool:
        """Whether the array was renamed within the store, and what waits is stored there."""
        anchor = shard.node.anchor
        place = anchor.place() if anchor is not None else None
        if place is None or place.startswith(APART):
            return False
        try:
            path = NodePath(f"/{place[:-1]}")
        except NameInvalid:
            return False
        await hierarchy.looked_at_again(path)
        opened = await hierarchy.array(path)
        now = opened.array.node if opened is not None else None
        if opened is None or now is None:
            return False
        if now.dialect != shard.array.dialect or not now.metadata.stores_as(shard.array.metadata):
            return False
        changes = shard.changes()
        async with shard.working():
            await opened.array.chunks.modify(changes)
        await opened.array.chunks.publish(changes)
        return True

    async def _went_with_its_array(self, hierarchy: Hierarchy, shard: QueuedShard) -> bool:
        """Whether it is known that another program erased the array, and has put nothing in its place."""
        anchor = shard.node.anchor
        if anchor is None:
            return False
        place = anchor.place()
        # Another mount erases by renaming first.
        is_erased = anchor.is_erased or (place is not None and place.startswith(APART))
        return is_erased and await hierarchy.looked_at_again(shard.node.path) is None


def _is_refused(area: StagingArea, ident: str, error: BaseException) -> bool:
    return isinstance(error, REFUSALS) and was_told(area, ident)


def _saved(error: Exception, place: str) -> Exception:
    """The same error, which tells where the bytes are."""
    message = f"{error}; what was written is saved in {place}"
    return type(error)(message, key=error.key) if isinstance(error, ZarrfsError) else type(error)(message)
