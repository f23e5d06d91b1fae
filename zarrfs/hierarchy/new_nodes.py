"""Creation of nodes: where it is possible, in which layout, and the order of their documents."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from zarrfs.arrays.concurrency import has_any
from zarrfs.dialects.base import Layout
from zarrfs.errors import (
    CaseConflict,
    ContentInvalid,
    EntryExists,
    HiddenKeys,
    KeyTooLong,
    MetadataError,
    NameInvalid,
    NoSuchEntry,
    NotADirectory,
    StaleEntry,
    StoreError,
    StoreUnsupported,
    raise_first,
)
from zarrfs.hierarchy.consolidated import ConsolidatedCopies, begins_at, folder_beside, is_implicit
from zarrfs.hierarchy.erasing import IsStored, erase_in_steps, erase_listed, never
from zarrfs.hierarchy.foreign_documents import described_by, foreign, require_own
from zarrfs.hierarchy.hidden_keys import hidden_keys
from zarrfs.hierarchy.live_array import LiveArray
from zarrfs.hierarchy.missing_groups import missing_groups, require_own_and_readable
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.probe import holds_only_chunks
from zarrfs.hierarchy.putting import documents_of, put_all
from zarrfs.hierarchy.unforeseen import require_readable
from zarrfs.keys import APART, ROOT, Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode, Node
from zarrfs.stores.base import Store

Kind = type[ArrayNode] | type[GroupNode]
Seen = Kind | ArrayNode | GroupNode
"""What a caller has found at a path before it had the lock of edits: a node, or its kind alone."""

# Maximum of nodes without documents searched for one that shows the dialect of a store.
_SEARCHED = 1000
# Maximum of nodes searched for the form of new arrays, where the form of the hierarchy is known.
_SEARCHED_AGAIN = 32


async def require_no_nodes(hierarchy: Hierarchy, store: Store, group: GroupNode) -> None:
    """Raise `ContentInvalid` if ``group`` holds nodes and cannot become an array, `StoreUnsupported` if that is unknown."""
    if await has_any(hierarchy.children(group.path)):
        raise ContentInvalid(f"{group.path} is a group that holds nodes: it cannot become an array", key=group.path)
    if group.explicit and not store.capabilities.list:
        raise StoreUnsupported(
            f"{group.path} cannot become an array: the store cannot list, and the group may hold nodes", key=group.path
        )


class NewNodes:
    """Creation of nodes in ``store``. ``new_dialect``: dialect of the first node of an empty store.

    Callers are serialized (`zarrfs.hierarchy.edits`).
    """

    def __init__(self, hierarchy: Hierarchy, store: Store, copies: ConsolidatedCopies, *, new_dialect: str) -> None:
        self._hierarchy = hierarchy
        self._store = store
        self._copies = copies
        self._new_dialect = new_dialect
        # By dialect and prefix of a hierarchy: the form of the first array found there, None without one.
        self._forms: dict[tuple[str, Prefix], str | None] = {}

    async def layout_for(self, path: NodePath) -> Layout:
        """Return the layout of a new node at ``path``.

        That of the node itself if it exists, else of the nearest group above with documents; below groups without documents, of the nodes
        beside it; in a store without nodes, of the new dialect. New arrays are written in the form of the nearest array.
        """
        layout = await self._layout_for(path)
        if layout.dialect.has_written_forms:
            node = await self._hierarchy.node(path)
            if node is None or is_implicit(node):
                form = await self._form_near(path, layout)
                return layout if form is None else layout.in_form(form)
            elif isinstance(node, ArrayNode) and node.form is not None:
                return layout.in_form(node.form)
        return layout

    async def _layout_for(self, path: NodePath) -> Layout:
        layouts = {layout.dialect.name: layout for layout in await self._hierarchy.layouts(path)}
        owner = next((layout for layout in layouts.values() if not layout.per_node), None)
        for each in (path, *reversed(tuple(path.ancestors()))):
            node = await self._hierarchy.node(each)
            if node is not None and not is_implicit(node) and node.dialect in layouts:
                return layouts[node.dialect]
        if owner is not None:
            return owner
        name = await self._dialect_beside(path, layouts)
        layout = layouts.get(name) if name is not None else self._hierarchy.roots.new(self._new_dialect)
        if layout is None:
            raise MetadataError(f"{path}: no node of {self._new_dialect} can be created in this store", key=path)
        return layout

    async def check_place(self, node: ArrayNode, over: LiveArray | None, *, again: bool) -> bool:
        """Return True if ``over``, which the new ``node`` replaces, is at its path, and False if nothing is there.

        Raises `EntryExists`, `HiddenKeys`, and `StaleEntry` if another array is there. ``again``: an earlier attempt may have moved
        ``over`` away and back, so that any array counts.
        """
        found = await self._hierarchy.node(node.path)
        if over is not None and not again and over.why_gone is None and over.path == node.path:
            # Another program may be writing its documents. If it is gone, which may not be known yet, the path is free.
            with suppress(StaleEntry):
                await over.confirmed()
            found = await self._hierarchy.node(node.path)
        if over is None or not isinstance(found, ArrayNode):
            await self.check_free(node)
            return False
        if not again and self._hierarchy.live.at(node.path) is not over:
            raise StaleEntry(f"{node.path}: another array is there than the one to be replaced", key=node.path)
        if node.path != ROOT:
            await self.require_nothing_hidden(node.path)
        return True

    async def require_group_above(self, layout: Layout, path: NodePath) -> None:
        """Raise `StaleEntry` if the array to be replaced at ``path`` has left with the group above, which must not be made anew."""
        group = path.parent
        if group == ROOT or not self._store.capabilities.list:
            return
        await self._hierarchy.reread(group)
        # An implicit group whose only member has left is no node, but its folder is there.
        is_left = await self._hierarchy.node(group) is not None or any(
            [await self._store.prefix_exists(prefix) for prefix in layout.listing_prefixes(group)]
        )
        if not is_left:
            raise StaleEntry(f"{path}: another program has moved or removed it, and the group above", key=path)

    async def require_nothing_hidden(self, path: NodePath) -> None:
        """Raise `HiddenKeys` if the store holds keys below the node at ``path`` that no view shows."""
        node, layout = await self._hierarchy.node(path), await self.layout_for(path)
        layouts = await self._hierarchy.layouts(path)
        shared = await self._hierarchy.documents(tuple({key: None for each in layouts for key in each.shared_keys(path)}))
        others = foreign(layouts, path, shared)
        own: set[str] = {key for each in layouts for key in each.consolidated_keys(path)}
        own.update(described_by(layouts, path, shared.keys() - others))
        # An array that is being created there is replaced too.
        own.update(layout.dialect.root_keys(path.prefix), self._hierarchy.live.unfinished)
        prefixes: tuple[Prefix, ...] = (*layout.listing_prefixes(path), layout.chunk_prefix(path))
        if isinstance(node, GroupNode):
            prefixes += folder_beside(layout, path)
        if begins_at(layout, path):
            prefixes = (path.prefix,)
            own.update(map(path.prefix.child, layout.own_names))
            if await self._hierarchy.documents(layout.consolidated_keys(path)):
                # Other documents may belong to its copy.
                own.update(layout.new_copy(path, {}))
        own -= others
        if node is not None and (
            found := await hidden_keys(self._store, node, dict.fromkeys(prefixes), own, layout.dialect.lock_suffix)
        ):
            raise HiddenKeys(f"{path}: not empty: the store holds {found[0]!r} there, which is not shown", key=path)

    async def node_at(self, path: NodePath, seen: Seen | None = None) -> Node:
        """Return the node at ``path``. Raises `NoSuchEntry`, `NodeInDoubt`; `StaleEntry` if it is of another kind than ``seen``."""
        node = await self._hierarchy.node(path)
        require_readable(node)
        if node is None:
            raise NoSuchEntry(f"{path}: no such node", key=path)
        if seen is not None and not isinstance(node, seen if isinstance(seen, type) else type(seen)):
            raise StaleEntry(f"{path}: another mount or program has put another node there", key=path)
        return node

    async def require_no_members(self, path: NodePath, seen: Seen | None = None) -> None:
        """Raise `HiddenKeys` if the node at ``path`` is a group that holds nodes, anything that no view shows, or attributes that the
        one ``seen`` had not; and as `node_at`."""
        node = await self.node_at(path, seen)
        if isinstance(node, GroupNode):
            if isinstance(seen, GroupNode) and node.attributes and not seen.attributes:
                raise HiddenKeys(f"{path}: not empty: the group has got attributes", key=path)
            if await has_any(self._hierarchy.children(path)):
                raise HiddenKeys(f"{path}: not empty: a node has been created in it", key=path)
            await self.require_nothing_hidden(path)

    async def _dialect_beside(self, path: NodePath, known: Collection[str]) -> str | None:
        """Return the dialect, among those ``known``, of the first node with documents under groups without, nearest to ``path`` first.

        None if there is none. Raises the store's error if a node that could not be read may be one.
        """
        unread: list[StoreError] = []
        async with aclosing(self._near(path, known, unread)) as near:
            async for node in near:
                if not is_implicit(node) and node.dialect in known:
                    return node.dialect
        raise_first([*unread])
        return None

    async def _form_near(self, path: NodePath, layout: Layout) -> str | None:
        """Return the form of the nearest array of this dialect; None if there is none.

        Only the first search in a hierarchy takes time proportional to the number of nodes; later ones that find no array among the
        nearest nodes return its result.
        """
        hierarchy = layout.dialect.name, layout.prefix
        most = _SEARCHED_AGAIN if hierarchy in self._forms else None
        count = 0
        unread: list[StoreError] = []
        async with aclosing(self._near(path, [layout.dialect.name], unread)) as near:
            async for each in near:
                if isinstance(each, ArrayNode) and each.form is not None and each.dialect == layout.dialect.name:
                    self._forms[hierarchy] = self._forms.get(hierarchy) or each.form
                    return each.form
                count += 1
                if count == most:
                    break
        # One that may not be read prevents nothing, and one that cannot be read now may be the first one later.
        return self._forms.get(hierarchy) if unread else self._forms.setdefault(hierarchy, None)

    async def _near(self, path: NodePath, known: Collection[str], unread: list[StoreError]) -> AsyncGenerator[Node]:
        """Yield nodes under groups of the dialects ``known``, nearest to ``path`` first; not all if there are many.

        ``unread``: receives the error of one that the store does not give."""
        searched: set[NodePath] = set()
        count = 0
        for above in (path, *reversed(tuple(path.ancestors()))):
            pending = [above] if await self._hierarchy.node(above) is not None else []
            while pending and count < _SEARCHED:
                here = pending.pop(0)
                if here in searched or self._hierarchy.empty_groups.is_unstored(here):
                    # New groups hold none with documents, and there may be thousands.
                    continue
                searched.add(here)
                async for _, node in self._hierarchy.children(here):
                    count += 1
                    yield node if node.dialect or unread else await self._second_look(node, unread)
                    if isinstance(node, GroupNode) and node.dialect in known:
                        pending.append(node.path)

    async def _second_look(self, node: Node, unread: list[StoreError]) -> Node:
        """Return a node that could not be read as it is read now; as it was, with the error in ``unread``, if that fails again."""
        try:
            return await self._hierarchy.node(node.path) or node
        except StoreError as error:
            unread.append(error.again())
            return node

    async def check(self, layout: Layout, path: NodePath, old_path: NodePath | None = None) -> None:
        """Raise `NotADirectory`, `NameInvalid`, `KeyTooLong` or `EntryExists` if no node can ever be created at ``path``.

        ``old_path``: the node to be renamed to it. Raises `StaleEntry` if it would be in a group that is unstored and gone,
        `NodeInDoubt` if the documents of a node above are unreadable, `MetadataError` if a document would replace another file.
        """
        group = path if self._hierarchy.empty_groups.is_unstored(path) else path.parent
        if not await is_group_left(self._hierarchy, group):
            raise StaleEntry(f"{path}: another program has removed the group in which {group} was", key=path)
        for above in path.ancestors():
            node = await self._hierarchy.node(above)
            require_readable(node)
            if node is not None and not isinstance(node, GroupNode):
                raise NotADirectory(f"{above}: not a group", key=path)
            if node is None:
                layout.check_name(above.name)
        if path != ROOT:
            layout.check_name(path.name)
        longest = self._store.capabilities.name_nbytes
        for key in layout.document_keys(path):
            if key.startswith(APART):
                raise NameInvalid(f"{path}: {APART} of the store is reserved for operations in progress", key=path)
            if longest is not None and any(len(os.fsencode(name)) > longest for name in key.split("/")):
                raise KeyTooLong(f"{path}: needs a document at {key!r}: a name has more than {longest} bytes", key=path)
        if layout.dialect.names_fold_case:
            await self._check_siblings(path, old_path)
        await require_own_and_readable(self._hierarchy, layout, path)

    async def _check_siblings(self, path: NodePath, old_path: NodePath | None) -> None:
        """Raise `CaseConflict` if ``path``, or a new node on the way to it, would differ from a sibling in case only."""
        for each in (*path.ancestors(), path):
            if each == ROOT or await self._hierarchy.node(each) is not None:
                continue
            # Only the siblings with such a name are looked up: their number does not grow with the group.
            for name in sorted(await self._hierarchy.child_names(each.parent)):
                sibling = each.parent.child(name) if name.lower() == each.name.lower() else each
                if sibling not in (each, old_path) and await self._hierarchy.node(sibling) is not None:
                    raise CaseConflict(f"{each}: differs from its sibling {name!r} in case only", key=path)

    async def check_free(self, node: GroupNode | ArrayNode) -> None:
        """Raise `EntryExists` if the store holds documents there, or an array would cover other nodes."""
        for layout in await self._hierarchy.layouts(node.path):
            if await self._hierarchy.is_described(node.path, layout):
                raise EntryExists(f"{node.path}: node exists", key=node.path)
        if await is_in_use(self._hierarchy, node.path):
            raise EntryExists(f"{node.path}: in use, its documents may reappear", key=node.path)
        if isinstance(node, ArrayNode) and await has_any(self._hierarchy.children(node.path)):
            raise EntryExists(f"{node.path}: contains other nodes", key=node.path)

    async def clear(self, layout: Layout, node: GroupNode | ArrayNode, stored: IsStored = never) -> None:
        """Erase leftover chunks at the path of a new node: of an array, those that are not ``stored`` already.

        A new array starts without chunks, and a group without documents would be hidden by them.
        """
        if not self._store.capabilities.list:
            return
        if isinstance(node, GroupNode):
            for prefix in layout.listing_prefixes(node.path) if not layout.dialect.has_groups else ():
                if await holds_only_chunks(self._store, prefix):
                    await erase_in_steps(self._store, prefix)
            return
        encoding, ndim = node.metadata.chunk_key_encoding, node.metadata.ndim
        start = len(node.chunk_prefix)

        def left() -> AsyncGenerator[Key]:
            keys = self._store.list_prefix(node.chunk_prefix)
            return (key async for key in keys if (coords := encoding.decode(key[start:], ndim)) is not None and not stored(coords))

        await erase_listed(self._store, left)

    async def make_group(self, layout: Layout, path: NodePath, attributes: Mapping[str, Any]) -> None:
        """Store the documents of a group that has none. Raises as `check`."""
        await self.check(layout, path)
        await self.make_parents(layout, path)
        await self.write(layout, GroupNode(path=path, dialect=layout.dialect.name, attributes=attributes))

    async def make_parents(self, layout: Layout, path: NodePath) -> None:
        """Create the groups above ``path`` that the dialect requires, and those that are unstored so far."""
        for above in await missing_groups(self._hierarchy, layout, path):
            await self.write(layout, GroupNode(path=above, dialect=layout.dialect.name))

    async def keep_parent(self, path: NodePath) -> None:
        """Store documents of a group above ``path`` that has none and would lose its last member (see `erase`), except the root's.

        It is implicit, or only a consolidated copy describes it, which counts while keys are below it."""
        parent = path.parent
        node = await self._hierarchy.node(parent)
        if parent == ROOT or not isinstance(node, GroupNode):
            return
        layout = await self.layout_for(path)
        if begins_at(layout, parent):
            # Its entry point keeps it.
            return
        missing: dict[Key, bytes] = {}
        around = await self.layout_for(parent) if begins_at(layout, path) else layout
        if not is_implicit(node):
            if around.copied(parent) is None:
                return
            missing = around.missing_documents(parent, await self._hierarchy.documents(around.document_keys(parent)))
            if not missing:
                return
        going: set[str] = {*layout.document_keys(path), *layout.listing_prefixes(path), layout.chunk_prefix(path)}
        if begins_at(layout, path):
            going = {path.prefix}
        for above in around.listing_prefixes(parent):
            async for name, is_prefix, _, _ in self._store.list_dir(above):
                if (above.child(name) if is_prefix else above.key(name)) not in going:
                    return
        try:
            await require_own_and_readable(self._hierarchy, around, parent)
        except MetadataError:
            return
        await self.make_parents(around, parent)
        if missing:
            await put_all(self._store, missing, on_disk=True)
        else:
            await self.write(around, GroupNode(path=parent, dialect=around.dialect.name))

    # --- documents ----------------------------------------------------------------------------------------------------------

    async def write(self, layout: Layout, node: GroupNode | ArrayNode, *, over: bool = False) -> None:
        """Store a node's documents. Other documents of the same layout there are stale.

        They are erased first, or, if they describe the node that is replaced (``over``), last. Those of a group without its own document
        (v2: ``.zattrs`` alone, as beside arrays of programs that write no ``.zgroup``) are its attributes, and stay: no program that
        writes others has been shown them.
        """
        if isinstance(node, GroupNode) and not layout.dialect.has_groups and not node.attributes:
            await self._write_folder(layout, node)
            self._hierarchy.empty_groups.stored(node.path)
            return
        there = require_own(layout, node.path, await self._hierarchy.documents(layout.document_keys(node.path)))
        written, stale = await documents_of(layout, node), []
        if isinstance(node, ArrayNode):
            stale = [key for key in there if key not in written]
        elif there:
            alone = layout.parse(node.path, there | layout.format(replace(node, attributes={})))
            if node.attributes and isinstance(alone, GroupNode):
                written = await documents_of(layout, replace(node, attributes={**alone.attributes, **node.attributes}))
        if not over:
            await self._store.erase_values(stale)
        await self.write_entry(layout)
        # Without them the document would describe an incomplete node.
        for prefix in layout.kept_prefixes(node) if self._store.capabilities.empty_prefixes else ():
            await self._store.make_prefix(prefix)
        await put_all(self._store, written, on_disk=over or await self._holds_any(layout, node))
        if over:
            await self._store.erase_values(stale)
        self._hierarchy.empty_groups.stored(node.path)
        await self._copies.follow(layout, [node.path])

    async def _holds_any(self, layout: Layout, node: GroupNode | ArrayNode) -> bool:
        """Return True for a group without documents that holds something: an empty document would hide it after a power cut."""
        if (
            isinstance(node, ArrayNode)
            or not self._store.capabilities.list
            or not is_implicit(await self._hierarchy.node(node.path))
        ):
            return False
        return any([await self._store.peek(prefix, 1) for prefix in layout.listing_prefixes(node.path)])

    async def write_entry(self, layout: Layout) -> None:
        """Store the documents of the hierarchy itself, before those of its first node."""
        entry = layout.entry_documents()
        there = await self._hierarchy.documents(entry)
        for key, value in entry.items():
            if key not in there:
                await self._store.set(key, value)

    async def _write_folder(self, layout: Layout, group: GroupNode) -> None:
        """Create a group of a dialect without groups: an empty folder of the store, or of the mount."""
        if self._store.capabilities.empty_prefixes:
            for prefix in layout.kept_prefixes(group):
                await self._store.make_prefix(prefix)
        else:
            groups = self._hierarchy.empty_groups
            groups.keep(group.path, groups.attributes(group.path))


async def is_group_left(hierarchy: Hierarchy, group: NodePath) -> bool:
    """Return False if ``group`` is unstored, and lost because another program has removed or moved the stored group above it."""
    if not hierarchy.empty_groups.is_unstored(group):
        return True
    await reread_above(hierarchy, group)
    return hierarchy.empty_groups.is_unstored(group)


async def reread_above(hierarchy: Hierarchy, group: NodePath) -> None:
    """Read the stored group above ``group`` again, if that is unstored. Its absence is reported, and ends all that is in it."""
    above = group
    while hierarchy.empty_groups.is_unstored(above):
        above = above.parent
    if above not in (group, ROOT):
        await hierarchy.reread(above)


async def is_in_use(hierarchy: Hierarchy, path: NodePath) -> bool:
    """Return True if an array at ``path`` is in use, which may have no documents at this moment."""
    if hierarchy.live.at(path) is not None:
        # When it was found to have none its folder may have been there; another program may have removed that by now.
        await hierarchy.reread(path)
    return hierarchy.live.at(path) is not None
