"""Groups created by mkdir(2), stored later: docs/design/006-node-edits.md.

Programs create a folder, list it, and write documents only if it was empty (``w-`` of zarr-python and xarray). So a new group has no
document, in no view and in no store, until one of these:

* a node is created in it (`zarrfs.hierarchy.new_nodes`), or its document or attributes are written;
* fsync(2) of its folder, or of one above it;
* `QUIET_S` without an operation in it, at most `LATEST_S` after it was created;
* the end of the mount.

A kill loses it. Renamed and removed, it leaves no trace in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace

import trio

from zarrfs.arrays.reader_pool import StartSoon
from zarrfs.errors import EntryExists, StoreTimeout, ZarrfsError
from zarrfs.hierarchy.consolidated import is_implicit
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.empty_groups import Unstored
from zarrfs.hierarchy.new_nodes import is_group_left, is_in_use
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import ROOT, NodePath
from zarrfs.model.metadata import GroupNode
from zarrfs.stores.base import Store

QUIET_S = 5.0
"""Seconds without an operation in a group until it is stored."""
LATEST_S = 60.0
"""Seconds after its creation until a group is stored, whatever happens in it."""


class UnstoredGroups:
    """The unstored groups of one mount (`EmptyGroups.is_unstored`).

    ``on_created`` is called with the path of each; ``on_failure`` with an error of a group that could not be stored when it was quiet:
    it stays unstored.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        editor: NodeEditor,
        store: Store,
        *,
        start_soon: StartSoon,
        on_created: Callable[[NodePath], None],
        on_failure: Callable[[ZarrfsError], None],
    ) -> None:
        self._hierarchy = hierarchy
        self._groups = hierarchy.empty_groups
        self._editor = editor
        self._kept_in = store
        self._start_soon = start_soon
        self._on_created = on_created
        self._on_failure = on_failure
        # Each group once, with a number that keeps them comparable; the time may be earlier than that of its storage.
        self._due: list[tuple[float, int, Unstored]] = []
        self._count = 0
        self._is_waiting = False

    def __contains__(self, path: NodePath) -> bool:
        return self._groups.is_unstored(path)

    async def create(self, path: NodePath) -> None:
        """Create a group at ``path``. Raises as `NodeEditor.create`."""
        async with self._editor.several():
            (await self._editor.layout_for(path)).require_writable()
            await self._editor.check_creatable(path)
            if await self._hierarchy.node(path) is not None or await is_in_use(self._hierarchy, path):
                raise EntryExists(f"{path}: node exists", key=path)
            now = trio.current_time()
            group = Unstored(path, now, now + LATEST_S)
            self._groups.keep(path, unstored=group)
        self._wait_for(group)
        self._on_created(path)

    def touch(self, path: NodePath) -> None:
        """Record an operation in the group at ``path``, if it is unstored."""
        if (group := self._groups.unstored_at(path)) is not None:
            group.used = trio.current_time()

    async def is_alone(self, path: NodePath) -> bool:
        """Return True if the group at ``path`` is unstored, and the store holds nothing there or below it, shown or not.

        It remains so while the caller keeps other edits out (`NodeEditor.several`).
        """
        if path not in self:
            return False
        node = await self._hierarchy.node(path)
        if node is None or not is_implicit(node):
            return False
        layouts = await self._hierarchy.layouts(path)
        for prefix in dict.fromkeys(prefix for layout in layouts for prefix in layout.listing_prefixes(path)):
            # Renamed or removed, the group would leave a folder of its name there.
            if await self._kept_in.prefix_exists(prefix):
                return False
        return not await self.holds_nodes(path)

    async def holds_nodes(self, path: NodePath) -> bool:
        """Return True if the group at ``path`` holds anything but groups that are `is_alone`."""
        # What the store has no name of is in this mount alone.
        for name in await self._hierarchy.stored.child_names(path, await self._hierarchy.layouts(path)):
            try:
                node = await self._hierarchy.node(path.child(name))
            except StoreTimeout:
                raise
            except ZarrfsError:
                # It is there, and cannot be read.
                return True
            if node is not None and not await self.is_alone(path.child(name)):
                return True
        return self._groups.any_kept_below(path)

    async def rename(self, path: NodePath, new_path: NodePath) -> None:
        """Rename a group that `is_alone`, with all below it, for a caller that keeps other edits out.

        Raises as `NodeEditor.check_creatable`, and `EntryExists`.
        """
        await self._editor.check_creatable(new_path, path)
        if await self._hierarchy.node(new_path) is not None:
            raise EntryExists(f"{new_path}: node exists", key=new_path)
        async with self._hierarchy.live.lock.changing(path.prefix, new_path.prefix):
            self._groups.move(path, new_path)
            self._hierarchy.live.renamed(path, new_path, ())

    async def erase(self, path: NodePath) -> None:
        """Remove a group that `is_alone`, with all below it, for a caller that keeps other edits out."""
        async with self._hierarchy.live.lock.changing(path.prefix):
            self._groups.lose(path)
            self._hierarchy.live.removed(path)

    async def store(self, path: NodePath) -> None:
        """Store the groups at ``path`` and below it, and those above them. Raises `ZarrfsError`."""
        for each in self._groups.unstored_below(path):
            await self._store(each)

    async def store_all(self) -> list[tuple[NodePath, ZarrfsError]]:
        """Store all groups, at the end of the mount; return those that could not be stored, with the errors."""
        failed = []
        for each in self._groups.unstored_below(ROOT):
            try:
                await self._store(each)
            except ZarrfsError as error:
                failed.append((each, error))
        return failed

    async def _store(self, path: NodePath) -> None:
        async with self._editor.several():
            if path not in self or not await is_group_left(self._hierarchy, path):
                return
            if await self._hierarchy.node(path.parent) is None:
                # Another program has erased the group that it was in, and must not find that again.
                self._groups.lose_unstored(path)
                if path not in self:
                    return
            layout, attributes = await self._editor.layout_for(path), self._groups.attributes(path)
            has_groups = layout.dialect.has_groups
            group = GroupNode(path=path, dialect=layout.dialect.name, attributes=attributes if has_groups else {})
            try:
                await self._editor.create(group)
            except EntryExists:
                # Another program has created a node there.
                self._groups.stored(path)

    def _wait_for(self, group: Unstored) -> None:
        self._count += 1
        heappush(self._due, (_due(group), self._count, group))
        if not self._is_waiting:
            self._is_waiting = True
            self._start_soon(self._when_quiet)

    async def _when_quiet(self) -> None:
        """Store each group when it has been quiet, until there is none."""
        try:
            while self._due:
                due, number, group = self._due[0]
                if self._groups.unstored_at(group.path) is not group:
                    heappop(self._due)
                elif (later := _due(group)) > due:
                    heapreplace(self._due, (later, number, group))
                elif due > trio.current_time():
                    await trio.sleep_until(due)
                else:
                    heappop(self._due)
                    try:
                        await self._store(group.path)
                    except ZarrfsError as error:
                        self._on_failure(error)
        finally:
            self._is_waiting = False


def _due(group: Unstored) -> float:
    return min(group.used + QUIET_S, group.latest)
