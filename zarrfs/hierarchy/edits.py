"""Making, changing, renaming and erasing nodes.

Dialects say what the documents are; this module reads what they need, and sets and erases in an order in which whoever looks on, or
comes after a crash, is never told of something that is not so: a node appears when all that it consists of is there, disappears before
its chunks do (an array without chunks would read as fill value), and is out of the consolidated copies as long as it is not whole.

An edit reads documents and writes them again. Edits of one mount follow one another; those of several mounts too where the store has
locks that hold between processes (`Store.exclusive`, of a document of the root).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress

import trio

from zarrfs import threads
from zarrfs.arrays.concurrency import has_any
from zarrfs.dialects.base import Edit, Layout
from zarrfs.errors import (
    AcrossViews,
    ContentInvalid,
    EntryExists,
    MetadataError,
    NameInvalid,
    NoSuchEntry,
    NotADirectory,
    NotPermitted,
    StoreUnsupported,
)
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.stored_documents import weight
from zarrfs.keys import ROOT, Key, NodePath
from zarrfs.model.chunk_grid import Coords, Shape, in_grid
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.stores.base import Store

# How many nodes without documents are looked below for one that tells the dialect of a store.
_SEARCHED = 1000
_ERASED_AT_ONCE = 1000


class NodeEditor:
    """Edits of the nodes in ``store``. ``new_dialect``: that of the first node of a store that has none.

    Safe for concurrent use: one edit waits for the other.
    """

    def __init__(self, hierarchy: Hierarchy, store: Store, *, new_dialect: str) -> None:
        self._hierarchy = hierarchy
        self._store = store
        self._new_dialect = new_dialect
        self._lock = trio.Lock()

    async def layout_for(self, path: NodePath) -> Layout:
        """The layout that a new node at ``path`` belongs to: that of the node itself where there is one, else of the nearest group
        above that has documents; below groups that have none, of the nodes beside it; in a store without nodes, the new dialect's."""
        layouts = {layout.dialect.name: layout for layout in await self._hierarchy.layouts(path)}
        owner = next((layout for layout in layouts.values() if not layout.per_node), None)
        for each in (path, *reversed(tuple(path.ancestors()))):
            node = await self._hierarchy.node(each)
            if node is not None and not _is_implicit(node) and node.dialect in layouts:
                return layouts[node.dialect]
        if owner is not None:
            return owner
        name = await self._dialect_beside(path, layouts)
        layout = layouts.get(name) if name is not None else self._hierarchy.new_layout(self._new_dialect)
        if layout is None:
            raise MetadataError(f"{path}: no node of {self._new_dialect} can be made in this store", key=path)
        return layout

    async def create(self, node: GroupNode | ArrayNode) -> None:
        """Make a new node of the dialect that `layout_for` gives, with the groups above it that the dialect demands.

        An implicit group becomes a node by this; an array only where nothing lies in it. Raises `EntryExists`, `NameInvalid`,
        `NotADirectory` (a node above it is no group), `NotRepresentable`.
        """
        layout = await self.layout_for(node.path)
        async with self._editing(layout):
            await self._check_place(layout, node.path)
            if await self._is_taken(node):
                raise EntryExists(f"there is a node at {node.path} already", key=node.path)
            # Its chunks may have been stored before it, hidden.
            self._hierarchy.reveal(node.path)
            await self._make_parents(layout, node.path)
            await self._place(layout, node)

    async def turn_into_array(self, node: ArrayNode) -> None:
        """Let the group at ``node.path``, which holds no node, be this array. Its attributes are what ``node`` says.

        Raises `EntryExists` where an array is, or something lies below.
        """
        layout = await self.layout_for(node.path)
        async with self._editing(layout):
            before = await self._hierarchy.node(node.path)
            if not isinstance(before, GroupNode) or await has_any(self._hierarchy.children(node.path)):
                raise EntryExists(f"{node.path} is no empty group that could become an array", key=node.path)
            await self._make_parents(layout, node.path)
            await self._place(layout, node, over=True)
            self._hierarchy.empty_groups.lose(node.path)

    async def amend(self, path: NodePath, edit: Edit) -> None:
        """Change what ``edit`` names, in the node's documents and in every consolidated copy of them. A group without documents gets
        them. Raises `NoSuchEntry`, `MetadataError`; then nothing was changed."""
        layout = await self.layout_for(path)
        async with self._editing(layout):
            node = await self._hierarchy.node(path)
            if node is None:
                raise NoSuchEntry(f"there is no node at {path}", key=path)
            if isinstance(node, GroupNode) and not node.explicit:
                if edit.shape is not None:
                    raise MetadataError(f"{path} is a group: it has no shape", key=path)
                if edit.attributes:
                    await self._make_parents(layout, path)
                    await self._place(layout, GroupNode(path=path, dialect=layout.dialect.name, attributes=edit.attributes))
                return
            await self._amend(layout, path, edit)

    async def resize(self, path: NodePath, shape: Shape, *, erase_outside: bool) -> None:
        """Give the array at ``path`` another shape. Stored chunks that lie whole outside of it are erased, after the document says so;
        unless ``erase_outside``, `ContentInvalid` is raised where there are some, and nothing is changed.

        Elements outside of the new shape in chunks that are partly inside stay stored, as with every other Zarr library: they are seen
        again if the array grows again before the chunk is written.
        """
        layout = await self.layout_for(path)
        async with self._editing(layout):
            node = await self._hierarchy.node(path)
            if not isinstance(node, ArrayNode):
                raise NoSuchEntry(f"there is no array at {path}", key=path)
            if len(shape) != node.metadata.ndim:
                raise ContentInvalid(f"{path} has {node.metadata.ndim} dimensions, which a new shape cannot change", key=path)
            await self._hierarchy.publish(node.chunk_prefix)
            async with self._hierarchy.live.changing(*layout.document_keys(path)):
                await self._resize(layout, node, shape, erase_outside=erase_outside)

    async def _resize(self, layout: Layout, node: ArrayNode, shape: Shape, *, erase_outside: bool) -> None:
        path = node.path
        grid_shape = node.metadata.chunk_grid.grid_shape(shape)
        chunks = self._hierarchy.array_of(node).chunks
        outside: list[Coords] = []
        if any(new < old for new, old in zip(grid_shape, node.metadata.grid_shape, strict=True)):
            async for coords, _, _ in chunks.list():
                if not in_grid(coords, grid_shape):
                    outside.append(coords)
                    if not erase_outside:
                        raise ContentInvalid(
                            f"{path}: chunk {coords} is stored outside of the new shape {shape}, and resize_erases is not set",
                            key=path,
                        )
        await self._amend(layout, path, Edit(shape=shape))
        for start in range(0, len(outside), _ERASED_AT_ONCE):
            part = outside[start : start + _ERASED_AT_ONCE]
            await chunks.update(dict.fromkeys(part))
            await chunks.publish(part)

    async def erase(self, path: NodePath) -> None:
        """Remove the node at ``path``, its chunks, and whatever lies below it; of an array at the root, its documents and chunks alone.

        A group above that has no documents is there only through what lies below it. So that it does not vanish with its last member,
        which nobody asked for, it gets a document first. Raises `NoSuchEntry`; `NotPermitted` for a group at the root.
        """
        layout = await self.layout_for(path)
        async with self._editing(layout):
            node = await self._hierarchy.node(path)
            if node is None:
                raise NoSuchEntry(f"there is no node at {path}", key=path)
            if path == ROOT:
                documents = [key for each in await self._hierarchy.layouts(ROOT) for key in each.document_keys(ROOT)]
                async with self._hierarchy.live.changing(*documents):
                    await self._erase_root_array(node)
                    for key in documents:
                        self._hierarchy.live.erased(key)
                return
            await self._keep_parent(path)
            await self._out_of_copies(path)
            layouts = await self._hierarchy.layouts(path)
            # Of a hierarchy of its own, with its entry point and whatever else is in its folder.
            is_root = _begins_at(layout, path)
            places = dict.fromkeys((*layout.listing_prefixes(path), layout.chunk_prefix(path), *((path.prefix,) * is_root)))
            documents = [key for each in layouts for key in each.document_keys(path)]
            async with self._hierarchy.live.changing(path.prefix, *places, *documents):
                for each in layouts:
                    await self._erase_documents(each, path)
                for key in documents:
                    self._hierarchy.live.erased(key)
                if isinstance(node, ArrayNode) and not node.metadata.shape:
                    # The key of its chunk may lie beside its prefix.
                    await self._store.erase_values(self._hierarchy.array_of(node).chunks.keys(()))
                for prefix in places:
                    # Nobody writes chunks of an array without documents: what waits now is the last.
                    await self._hierarchy.drop(prefix)
                    await self._store.erase_prefix(prefix)
            self._hierarchy.empty_groups.lose(path)

    async def hidden_keys(self, path: NodePath) -> list[str]:
        """What the store has where the group at ``path`` and its members are, beside its own documents, if it has no members."""
        layout = await self.layout_for(path)
        own: set[str] = set(layout.document_keys(path))
        places = layout.listing_prefixes(path)
        if _begins_at(layout, path):
            places = (path.prefix,)
            own = {*layout.dialect.root_keys(path.prefix), *map(path.prefix.child, layout.own_names)}
        found: list[str] = []
        for prefix in places:
            async for name, is_prefix, _, _ in self._store.list_dir(prefix):
                if (prefix.child(name) if is_prefix else prefix.key(name)) not in own:
                    found.append(name)
        return found

    async def rename(self, path: NodePath, new_path: NodePath) -> None:
        """Move the node at ``path``, with all below it, in one step of the store; consolidated copies follow.

        The group above the old place stays (see `erase`), those above the new one are made as the dialect demands. Raises
        `AcrossViews` where the store cannot do it, or the new place is of another dialect; `EntryExists`, `NoSuchEntry`, `NameInvalid`.
        """
        if path == new_path:
            return
        layout = await self.check_rename(path, new_path)
        async with self._editing(layout):
            if await self._hierarchy.node(path) is None:
                raise NoSuchEntry(f"there is no node at {path}", key=path)
            if await self._hierarchy.node(new_path) is not None:
                raise EntryExists(f"there is a node at {new_path} already", key=new_path)
            await self._check_place(layout, new_path)
            await self._hierarchy.publish(layout.listing_prefix(path))
            await self._make_parents(layout, new_path)
            await self._keep_parent(path)
            await self._out_of_copies(path)
            old, new = layout.listing_prefix(path), layout.listing_prefix(new_path)
            try:
                async with self._hierarchy.live.changing(path.prefix, old, new_path.prefix, new):
                    await self._store.rename_prefix(old, new)
            except StoreUnsupported as error:
                await self._into_copies(layout, path)
                raise AcrossViews(f"{path}: this store cannot rename a folder in one step", key=path) from error
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._into_copies(layout, path)
                raise
            self._hierarchy.empty_groups.move(path, new_path)
            await self._into_copies(layout, new_path)

    async def check_rename(self, path: NodePath, new_path: NodePath) -> Layout:
        """The layout of the node at ``path``, if it is one in which a node can have another path in one step. Raises `AcrossViews`,
        `NameInvalid`. For who takes something else out of the way before."""
        layout = await self.layout_for(path)
        if path == ROOT or not layout.per_node:
            raise AcrossViews(f"{path} cannot be renamed in one step", key=path)
        if new_path.startswith(path + "/"):
            raise NameInvalid(f"{path} cannot be moved into itself", key=new_path)
        if (await self.layout_for(new_path.parent)).dialect.name != layout.dialect.name:
            raise AcrossViews(f"{new_path} is in a hierarchy of another dialect than {path}", key=path)
        return layout

    async def check_creatable(self, path: NodePath) -> None:
        """Raise `NameInvalid`, `NotADirectory` or `EntryExists` where nobody can make a node at ``path``, at which there is none."""
        await self._check_place(await self.layout_for(path), path)

    # --- places -------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _editing(self, layout: Layout) -> AsyncIterator[None]:
        async with self._lock, self._store.exclusive(layout.dialect.root_keys(layout.prefix)[0]):
            yield

    async def _dialect_beside(self, path: NodePath, known: Collection[str]) -> str | None:
        """The dialect, of those ``known`` there, of the first node with documents that is found under groups without: under that which
        is nearest to ``path`` where there is one, else further up; None where there is none."""
        searched: set[NodePath] = set()
        count = 0
        for above in (path, *reversed(tuple(path.ancestors()))):
            pending = [above] if await self._hierarchy.node(above) is not None else []
            while pending and count < _SEARCHED:
                here = pending.pop(0)
                if here in searched:
                    continue
                searched.add(here)
                async for _, node in self._hierarchy.children(here):
                    count += 1
                    if not _is_implicit(node) and node.dialect in known:
                        return node.dialect
                    if isinstance(node, GroupNode) and node.dialect in known:
                        pending.append(node.path)
        return None

    async def _check_place(self, layout: Layout, path: NodePath) -> None:
        for above in path.ancestors():
            node = await self._hierarchy.node(above)
            if node is not None and not isinstance(node, GroupNode):
                raise NotADirectory(f"{above} is no group: nothing can be made in it", key=path)
            if node is None:
                layout.check_name(above.name)
        if path != ROOT:
            layout.check_name(path.name)
        if layout.dialect.names_fold_case:
            await self._check_siblings(path)

    async def _check_siblings(self, path: NodePath) -> None:
        """Raise `EntryExists` where a node on the way to ``path``, or there, would differ from one beside it in case alone."""
        for each in (*path.ancestors(), path):
            if each != ROOT and await self._hierarchy.node(each) is None:
                async for name, _ in self._hierarchy.children(each.parent):
                    if name.lower() == each.name.lower():
                        raise EntryExists(f"{each} would differ from its sibling {name!r} in case alone", key=path)

    async def _is_taken(self, node: GroupNode | ArrayNode) -> bool:
        """Whether documents are there (asked of the store itself), or an array would lie over other nodes."""
        for layout in await self._hierarchy.layouts(node.path):
            if await self._hierarchy.is_described(node.path, layout):
                return True
        return isinstance(node, ArrayNode) and await has_any(self._hierarchy.children(node.path))

    async def _make_parents(self, layout: Layout, path: NodePath) -> None:
        for above in layout.required_groups(path):
            node = await self._hierarchy.node(above)
            if any(_begins_at(other, above) for other in await self._hierarchy.layouts(above) if other.dialect != layout.dialect):
                # The root of another hierarchy is a group in any case, and its entry point may be called as this group's document.
                continue
            if node is None or _is_implicit(node):
                await self._place(layout, GroupNode(path=above, dialect=layout.dialect.name))

    async def _keep_parent(self, path: NodePath) -> None:
        """See `erase`. The root is there in any case."""
        parent = path.parent
        node = await self._hierarchy.node(parent)
        if parent == ROOT or node is None or not _is_implicit(node):
            return
        layout = await self.layout_for(path)
        if _begins_at(layout, parent):
            # Its entry point keeps it.
            return
        going: set[str] = {*layout.document_keys(path), *layout.listing_prefixes(path), layout.chunk_prefix(path)}
        if _begins_at(layout, path):
            layout, going = await self.layout_for(parent), {path.prefix}
        for above in layout.listing_prefixes(parent):
            async for name, is_prefix, _, _ in self._store.list_dir(above):
                if (above.child(name) if is_prefix else above.key(name)) not in going:
                    return
        await self._make_parents(layout, parent)
        await self._place(layout, GroupNode(path=parent, dialect=layout.dialect.name))

    # --- documents ----------------------------------------------------------------------------------------------------------

    async def _place(self, layout: Layout, node: GroupNode | ArrayNode, *, over: bool = False) -> None:
        """Write a node's documents. Others of the same layout that lie there do not belong to it: they go first, or, where they are
        those of a node that is replaced (``over``), last."""
        if isinstance(node, GroupNode) and not layout.dialect.has_groups and not node.attributes:
            await self._place_folder(layout, node)
            return
        written = layout.format(node)
        stale = [key for key in await self._hierarchy.documents(layout.document_keys(node.path)) if key not in written]
        if not over:
            await self._store.erase_values(stale)
        entry = layout.entry_documents()
        there = await self._hierarchy.documents(entry)
        for key, value in ({key: value for key, value in entry.items() if key not in there} | written).items():
            await self._store.set(key, value)
        if over:
            await self._store.erase_values(stale)
        for prefix in layout.kept_prefixes(node):
            with suppress(StoreUnsupported):
                await self._store.make_prefix(prefix)
        documents = await self._hierarchy.documents(layout.consolidated_keys(node.path))
        await self._set_changed(documents, layout.copies_with, [node.path], documents | written)

    async def _place_folder(self, layout: Layout, group: GroupNode) -> None:
        """Make a group of a dialect that has none: an empty folder of the store, or of the mount."""
        try:
            for prefix in layout.kept_prefixes(group):
                await self._store.make_prefix(prefix)
        except StoreUnsupported:
            self._hierarchy.empty_groups.keep(group.path)

    async def _amend(self, layout: Layout, path: NodePath, edit: Edit) -> None:
        keys = (*layout.document_keys(path), *layout.consolidated_keys(path))
        documents = await self._hierarchy.documents(keys)
        await self._set_changed(documents, layout.amend, path, documents, edit)

    async def _set_changed(self, documents: dict[Key, bytes], change: Callable[..., dict[Key, bytes]], *arguments: object) -> None:
        """Store what ``change(*arguments)`` makes of the ``documents``."""
        changed = await threads.cpu(weight(documents), change, *arguments)
        for key, value in changed.items():
            if documents.get(key) != value:
                await self._store.set(key, value)

    async def _out_of_copies(self, path: NodePath) -> None:
        for layout in await self._hierarchy.layouts(path):
            documents = await self._hierarchy.documents(layout.consolidated_keys(path))
            await self._set_changed(documents, layout.copies_without, path, documents)

    async def _into_copies(self, layout: Layout, path: NodePath) -> None:
        """Let the consolidated copies have the node at ``path`` and all below it."""
        documents = await self._hierarchy.documents(layout.consolidated_keys(path))
        if not documents:
            return
        paths = [path async for path in self._explicit_from(path)]
        whole = dict(documents)
        for each in paths:
            whole |= await self._hierarchy.documents((*layout.document_keys(each), *layout.consolidated_keys(each)))
        await self._set_changed(whole, layout.copies_with, paths, whole)

    async def _explicit_from(self, path: NodePath) -> AsyncIterator[NodePath]:
        """The node at ``path`` and all below it, those that have documents which can be read."""
        node = await self._hierarchy.node(path)
        if node is not None and not isinstance(node, UnsupportedNode) and not _is_implicit(node):
            yield path
        if isinstance(node, GroupNode):
            async for name, _ in self._hierarchy.children(path):
                async for each in self._explicit_from(path.child(name)):
                    yield each

    async def _erase_documents(self, layout: Layout, path: NodePath) -> None:
        await self._store.erase_values(await self._hierarchy.documents(layout.document_keys(path)))

    async def _erase_root_array(self, node: Node) -> None:
        if not isinstance(node, ArrayNode):
            raise NotPermitted("the root of the store stays", key=ROOT)
        chunks = self._hierarchy.array_of(node).chunks
        while chunks.below is not None:
            # Shards that cannot be read go as well.
            chunks = chunks.below
        keys: Iterable[Key] = [key async for coords, _, _ in chunks.list() for key in chunks.keys(coords)]
        kept = (await self.layout_for(ROOT)).kept_prefixes(node)
        for layout in await self._hierarchy.layouts(ROOT):
            # Beside an array at the root lies what is none of its, maybe under the name of some dialect's document.
            if await self._hierarchy.is_described(ROOT, layout):
                await self._erase_documents(layout, ROOT)
        await self._hierarchy.drop(node.chunk_prefix)
        await self._store.erase_values(keys)
        for prefix in kept:
            await self._store.erase_prefix(prefix)


def _begins_at(layout: Layout, path: NodePath) -> bool:
    """Whether ``path`` is the root of a hierarchy that has an entry point."""
    return not layout.per_node and layout.prefix == path.prefix


def _is_implicit(node: Node) -> bool:
    return isinstance(node, GroupNode) and not node.explicit
