"""Consolidated copies of a store's documents, kept in agreement with the documents."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from functools import partial

from zarrfs import threads
from zarrfs.dialects.base import Layout
from zarrfs.dialects.json_text import MAX_DEPTH, MAX_MEMBERS, MAX_NBYTES, MAX_VALUES, fault_of
from zarrfs.errors import MetadataError, StoreAccessDenied
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.putting import put_all, sync_first
from zarrfs.hierarchy.revising import Change, Read, put_each, revise
from zarrfs.hierarchy.stored_documents import contents, weight
from zarrfs.keys import ROOT, ByteRange, Key, NodePath, Prefix
from zarrfs.model.metadata import GroupNode, Node, UnsupportedNode
from zarrfs.stores.base import Store
from zarrfs.stores.values import MISSING

log = logging.getLogger(__name__)

# A document with no more brackets is within the limit of nesting in every copy, which adds a few levels.
_FEW_LEVELS = MAX_DEPTH - 8


class ConsolidatedCopies:
    """The consolidated copies in ``store``. Its callers are serialized (`zarrfs.hierarchy.edits`)."""

    def __init__(self, hierarchy: Hierarchy, store: Store) -> None:
        self._hierarchy = hierarchy
        self._store = store
        self._outdated: set[Key] = set()

    async def take_out(self, path: NodePath, *, with_folder: bool = False) -> None:
        """Remove the node at ``path`` and all below it from the copies.

        ``with_folder``: a hierarchy that begins at ``path`` is moved or erased with its own copy, which then stays as it is.
        """
        for layout in await self._hierarchy.layouts(path):
            if with_folder and begins_at(layout, path):
                continue
            await self._revise(layout, layout.consolidated_keys(path), partial(layout.copies_without, path))

    async def write_out(self, layout: Layout, path: NodePath) -> None:
        """Give the node at ``path``, and all below it, the documents that only a copy has.

        To be called before `take_out`: the node then stays a node if the edit fails, and `put_in` restores the copy.
        """
        if layout.copied(path) is None:
            return
        # Another mount may have moved or erased nodes, and taken them out of the copy, since this one has read it.
        self._hierarchy.roots.expire()
        self._hierarchy.forgotten.add(path)
        layout = next((each for each in await self._hierarchy.layouts(path) if each.dialect.name == layout.dialect.name), layout)
        # The first one last: a v2 hierarchy whose root has documents has no more nodes that are in the copy alone, without any key.
        for each in reversed([each async for each, _ in self._described_from(path)]):
            missing = layout.missing_documents(each, await self._hierarchy.documents(layout.document_keys(each)))
            await put_all(self._store, missing, on_disk=True)

    async def put_in(self, layout: Layout, path: NodePath, unsupported: Sequence[NodePath] = ()) -> None:
        """Add the node at ``path`` and all below it to the copies; of those that zarrfs does not support only ``unsupported``.

        Also to those of other layouts with documents there: `take_out` has removed it from these too."""
        others = [each for each in await self._hierarchy.layouts(path) if each.dialect != layout.dialect]
        wanted = [each for each in (layout, *others) if await self._is_any_for(each, path)]
        if wanted:
            paths = [*await self._supported_from(path), *unsupported]
            for each in wanted:
                await self.follow(each, paths)

    async def is_any_above(self, layout: Layout, path: NodePath) -> bool:
        """Return True if a group above ``path`` has a copy; of another layout with documents there, if the root has."""
        above = [each for each in path.ancestors() if layout.holds(each)]
        others = [each for each in await self._hierarchy.layouts(path) if each.dialect != layout.dialect and each.holds(ROOT)]
        if above and any(each.copied(ROOT) is not None for each in others):
            return True
        for each in above:
            node = await self._hierarchy.node(each)
            if isinstance(node, GroupNode) and node.has_copy:
                return True
        keys = [key for key in map(layout.copy_key, above) if key is not None]
        return bool(keys) and await self._is_any_stored(keys)

    async def renew(self, path: NodePath) -> None:
        """Update the copies of the node at ``path``, all below it, and the groups above it, after an edit that was interrupted."""
        node = await self._hierarchy.node(path)
        layouts = await self._hierarchy.layouts(path)
        layout = next((each for each in layouts if node is not None and each.dialect.name == node.dialect), None)
        if layout is None:
            # A node that exists is absent here while an array is in creation at its path (`Hierarchy.hide`), which is then refused.
            if not any([await self._hierarchy.is_described(path, each) for each in layouts]):
                await self.take_out(path)
            # The edit may have failed after it had created these.
            layout = await self._layout_above(path)
            if layout is None:
                return
        else:
            # A node without documents of its own would be removed from the copy.
            await self.write_out(layout, path)
            await self.put_in(layout, path)
        above = [each for each in path.ancestors() if layout.holds(each)]
        groups = [each for each in above if await self._hierarchy.documents(layout.document_keys(each))]
        await self.follow(layout, groups, has_moved=False)

    async def _layout_above(self, path: NodePath) -> Layout | None:
        """Return the layout of the nearest group above ``path`` that has documents."""
        for each in reversed(tuple(path.ancestors())):
            node = await self._hierarchy.node(each)
            if node is not None and not is_implicit(node):
                return self._hierarchy.roots.layout_of(node)
        return None

    async def unsupported_in(self, layout: Layout, path: NodePath, new_path: NodePath) -> list[NodePath]:
        """Return the nodes at and below ``path`` that copies list, though zarrfs does not support them, for `put_in`.

        Other programs may: they would not find these nodes any more. A copy that does not list them stays so: zarr-python opens nothing
        of a copy with a codec that it lacks.

        To be called before the node is moved to ``new_path``. Raises `StoreAccessDenied` if `put_in` could not add a node to the copies
        there: afterwards, the move would count as failed.
        """
        if not (await self._is_any_for(layout, path) or await self._is_any_for(layout, new_path)):
            return []
        found = [each async for each, node in self._described_from(path) if isinstance(node, UnsupportedNode) and not node.bad]
        documents = contents(await self._hierarchy.stored.get(layout.consolidated_keys(path))) if found else {}
        return [each for each in found if await threads.cpu(weight(documents), layout.copies_without, each, documents)]

    async def follow(self, layout: Layout, paths: Sequence[NodePath], *, has_moved: bool = True) -> None:
        """Update the copies with the stored documents of the nodes at ``paths``.

        ``has_moved``: the first one was moved there with the others, or is new there. In a copy that this user may not write they are
        missing then, as those of any other program would be: they are stored, and the edit has succeeded.
        """
        copies = list(dict.fromkeys(key for path in paths for key in layout.consolidated_keys(path)))
        if await self._is_any_stored(copies):
            keys = (*copies, *_documents_for(layout, paths))
            # The keys that lead to all of them: chunks wait for the fsync of a program.
            moved = layout.document_keys(paths[0]) if has_moved and paths else ()
            await self._revise(layout, keys, partial(layout.copies_with, paths), moved, may_lack=True)

    async def is_in(self, group: GroupNode) -> bool:
        """Return True if the store has a copy in ``group``, readable or not."""
        if group.has_copy:
            return True
        layouts = await self._hierarchy.layouts(group.path)
        keys = [layout.copy_key(group.path) for layout in layouts if layout.dialect.name == group.dialect]
        return await self._is_any_stored([key for key in keys if key is not None])

    async def make(self, layout: Layout, path: NodePath) -> bool:
        """Create a copy in the group at ``path``, of itself and all below it; return False if its layout has none, or none so large."""
        documents = await self._hierarchy.documents((*layout.document_keys(path), *layout.consolidated_keys(path)))
        new = layout.new_copy(path, documents)
        if new:
            await self.write_out(layout, path)
        paths = await self._supported_from(path) if new else []
        documents |= await self._hierarchy.documents(_documents_for(layout, paths))
        documents |= new
        new |= await threads.cpu(weight(documents), layout.copies_with, paths, documents)
        for key, value in new.items():
            if (fault := await threads.cpu(len(value), _fault, value, [*documents.values()])) is not None:
                log.warning("%s: consolidated copy not stored, as it could not be read again: %s", key, fault)
                return False
        await put_all(self._store, new, on_disk=True)
        return bool(new)

    async def _is_any_stored(self, keys: Sequence[Key]) -> bool:
        """Return True if a key holds a value, or may not be read. No value is read: a copy may be large."""
        answers = await self._store.get_many([(key, ByteRange(0, 0)) for key in keys])
        return any(answer is not MISSING for answer in answers)

    async def _is_any_for(self, layout: Layout, path: NodePath) -> bool:
        """Return True if there is a copy that a change of the node at ``path`` must update."""
        keys = layout.consolidated_keys(path)
        if not await self._is_any_stored(keys):
            return False
        if any(layout.copy_key(group) is not None for group in (*path.ancestors(), path) if layout.holds(group)):
            return True
        # The keys are those of groups, whether or not these hold copies.
        documents = contents(await self._hierarchy.stored.get(keys))
        return bool(await threads.cpu(weight(documents), layout.copies_with, (path,), documents))

    async def _revise(
        self, layout: Layout, keys: Iterable[Key], change: Change, moved: Sequence[Key] = (), *, may_lack: bool = False
    ) -> None:
        """Run `revise`. ``moved``: documents that the copies announce, and that are synced before.

        ``may_lack``: the copies may stay as they are if this user may not write them."""

        async def put(read: Read, changed: Mapping[Key, bytes]) -> None:
            if changed and moved:
                await sync_first(self._store, moved)
            for key, value in changed.items():
                try:
                    await put_each(self._store, read, {key: value})
                except StoreAccessDenied as error:
                    if not may_lack:
                        raise
                    self._stays(key, f"not writable ({error})")

        await revise(self._hierarchy.stored, keys, self.noting(layout, change), put)

    def noting(self, layout: Layout, change: Change, own: Collection[Key] = ()) -> Change:
        """Return ``change``, which then also logs copies that are too large or unreadable, and so stay as they are: each once.

        So does one that the change would make so: a copy may be in the document of a group, which would be unreadable with it. ``own``:
        documents that are no copies: for such a one the change raises `MetadataError`.
        """

        def noted(documents: dict[Key, bytes]) -> dict[Key, bytes]:
            changed = change(documents)
            parts = [documents[key] for key in documents.keys() - changed.keys()] + [changed[key] for key in own if key in changed]
            for key, value in [*changed.items()]:
                if value == documents.get(key):
                    continue
                if key not in own and (fault := _fault(value, parts)) is not None:
                    self._stays(key, f"unreadable with this change ({fault})")
                    changed = {each: value for each, value in changed.items() if each != key}
                elif len(value) > MAX_NBYTES:
                    raise MetadataError(f"{key}: could not be read again: {fault_of(value)}", key=key)
            # A document of a node would have raised an error.
            for key in documents.keys() - changed.keys() - self._outdated:
                if len(documents[key]) > MAX_NBYTES:
                    self._stays(key, f"larger than {MAX_NBYTES} bytes")
                elif (fault := layout.copy_fault(key, documents[key], of_members=False)) is not None:
                    self._stays(key, f"unreadable ({fault})")
            return changed

        return noted

    def _stays(self, key: Key, why: str) -> None:
        if key not in self._outdated:
            self._outdated.add(key)
            log.warning("%s: consolidated copy outdated from here on, as it is %s: consolidate again", key, why)

    async def _supported_from(self, path: NodePath) -> list[NodePath]:
        return [each async for each, node in self._described_from(path) if not isinstance(node, UnsupportedNode)]

    async def _described_from(self, path: NodePath) -> AsyncIterator[tuple[NodePath, Node]]:
        """Yield the node at ``path`` and all below it that have documents, with their paths."""
        node = await self._hierarchy.node(path)
        if node is not None and not is_implicit(node):
            yield path, node
        if isinstance(node, GroupNode):
            async for name, _ in self._hierarchy.children(path):
                async for each in self._described_from(path.child(name)):
                    yield each


def _documents_for(layout: Layout, paths: Sequence[NodePath]) -> tuple[Key, ...]:
    """Return the keys of the documents that go into copies with the nodes at ``paths``: theirs, and those of the groups above."""
    nodes = dict.fromkeys(each for path in paths for each in (*filter(layout.holds, path.ancestors()), path))
    return tuple(key for each in nodes for key in layout.document_keys(each))


def is_implicit(node: Node | None) -> bool:
    """Return True for a group without documents of its own."""
    return isinstance(node, GroupNode) and not node.explicit


def begins_at(layout: Layout, path: NodePath) -> bool:
    """Return True if ``path`` is the root of a hierarchy with an entry point."""
    return not layout.per_node and layout.prefix == path.prefix


def folder_beside(layout: Layout, path: NodePath) -> tuple[Prefix, ...]:
    """Return the folder called like a group at ``path``, beside the keys of a hierarchy with an entry point, or nothing.

    The group shows it, and what is in it, like any other folder without documents.
    """
    is_own = path.prefix[len(layout.prefix) :].partition("/")[0] in layout.own_names
    return () if layout.per_node or is_own else (path.prefix,)


def _fault(copy: bytes, parts: Iterable[bytes]) -> str | None:
    """Return why a document could not be read again that was put together of a readable one and ``parts``; None if it could."""
    if (
        len(copy) <= MAX_NBYTES
        and sum(map(copy.count, (b",", b"[", b"{"))) <= MAX_VALUES
        # Its members are objects, and what one of them contains was read before.
        and copy.count(b"{") <= MAX_MEMBERS
        and all(sum(map(each.count, (b"[", b"{"))) <= _FEW_LEVELS for each in parts)
    ):
        # A measurement takes half a second for a large one.
        return None
    return fault_of(copy)
