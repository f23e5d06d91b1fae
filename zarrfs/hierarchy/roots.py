"""Hierarchies of a store: their dialects and their roots.

Hierarchies of dialects whose nodes have their own documents (v0, v1, v2, final v3) have no bounds: their nodes are searched everywhere.
Those of other dialects (2019, 2022) have an entry point, at the root of the store or in any folder that is not a node of another
hierarchy, and folders of their own below it, in which no other nodes are searched.

Layouts are tried in the order of their dialects' ``priority``, whatever was found before: which of several arrays at one path is valid
does not depend on the order of requests (docs/design/010-layouts.md).

A root's document may be large because of its consolidated copy, and then changes with every edit of a node. It is read once for all
dialects, not parsed again while it is unchanged, and only changes that concern nodes invalidate them (design/025).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import trio

from zarrfs import registry, threads
from zarrfs.arrays.flight import Flight
from zarrfs.dialects.base import Dialect, Layout
from zarrfs.dialects.rooted import RootedLayout
from zarrfs.errors import StoreAccessDenied, UsageError
from zarrfs.hierarchy.bound_paths import paths_of
from zarrfs.hierarchy.probe import Document, GetDocuments, Probe
from zarrfs.hierarchy.stored_documents import LargeDocument, StoredDocuments, contents, weight
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model.metadata import Node

log = logging.getLogger(__name__)

_MAX_COPIED = 8 << 20
"""Limit, in bytes, of the documents of all hierarchies below the root together: read, a consolidated copy takes ten times as much."""


@cache
def read_only_dialects() -> frozenset[str]:
    """Return the names of dialects whose nodes are read-only (`Dialect.writable`)."""
    return frozenset(each.name for each in registry.plugins("zarrfs.dialects") if not each.writable)


@dataclass(frozen=True, slots=True)
class _OpenRoot:
    """Result of a dialect for root documents.

    ``root``: digest of the documents under its root keys, from which the keys of ``further`` ones follow; ``all``: digest of all
    documents, of ``nbytes`` together, from which the ``layout`` follows.
    """

    root: bytes
    further: tuple[Key, ...]
    all: bytes = b""
    layout: Layout | None = None
    nbytes: int = 0


class Roots:
    """The layouts of a store with the documents ``stored``. What was learnt is valid for ``ttl`` seconds, or until `expire`.

    ``on_others`` is called with a path at and below which the layouts to search have changed. ``copies_read`` counts the changes of
    consolidated copies.
    """

    def __init__(
        self,
        dialects: Sequence[Dialect],
        stored: StoredDocuments,
        *,
        ttl: float,
        on_others: Callable[[NodePath], None],
    ) -> None:
        self._dialects = dialects
        self._stored = stored
        self._ttl = ttl
        # `trio.current_time`, without two of its three calls.
        self._now = trio.lowlevel.current_clock().current_time
        self._on_others = on_others
        self.in_doubt = False
        self.copies_read = 0
        self._copies: tuple[Layout, ...] = ()
        self._earlier: dict[tuple[str, Prefix], _OpenRoot] = {}
        self._expires = float("-inf")
        self._epoch = 0
        self._underway: Flight | None = None
        self._layouts: tuple[Layout, ...] = ()
        self._open_layouts: tuple[Layout, ...] = ()
        self._owned: frozenset[str] = frozenset()
        """`Layout.own_names` of the hierarchies at the root."""
        self._below: dict[NodePath, RootedLayout] = {}
        self._keys: frozenset[Key] = frozenset()
        self._entries = {key for dialect in dialects if not dialect.per_node for key in dialect.root_keys(Prefix(""))}

    @property
    def known(self) -> tuple[Layout, ...]:
        """The layouts as last learnt, deeper roots first."""
        return (*self._below.values(), *self._layouts)

    def expire_for(self, key: Key) -> None:
        """Run `expire` if a change of ``key`` may change the set of layouts."""
        if key in self._keys or self.owner_of(key) is not None:
            self.expire()

    def owner_of(self, key: Key) -> NodePath | None:
        """Return the root of the hierarchy that a change of ``key`` may create, change or end."""
        if key in self._entries:
            return ROOT
        return next((layout.at for layout in self._below_over(key) if key in layout.dialect.root_keys(layout.prefix)), None)

    def expire(self) -> None:
        """Learn the layouts again at the next request. Until then the validity of known nodes is open: ``in_doubt``."""
        self._epoch += 1
        self._expires = float("-inf")
        self.in_doubt = True

    async def layouts(self) -> tuple[Layout, ...]:
        """Return the layouts that nodes of the store may have, in the order in which they are tried."""
        while self._expires <= self._now():
            if self._underway is None:
                await self._learn()
                break
            await self._underway.landed()
        return self.known

    async def layouts_at(self, path: NodePath) -> list[Layout]:
        """Return the layouts that may have a node at ``path``: only one below a hierarchy that owns its folder."""
        layouts = list(await self.layouts())
        if self._below:
            layouts = [layout for layout in layouts if layout.holds(path)]
            if layouts and isinstance(layouts[0], RootedLayout):
                return layouts[:1]
        owned = bool(self._owned) and path[1:].partition("/")[0] in self._owned
        return [layout for layout in layouts if not layout.per_node] if owned else layouts

    def open_layout_at(self, path: NodePath) -> Layout | None:
        """Return the layout of the hierarchy found with its root at ``path``; of several the one with an entry point."""
        if path != ROOT:
            return self._below.get(path)
        return min(self._open_layouts, key=lambda layout: layout.per_node, default=None)

    def dialect_at(self, path: NodePath) -> str | None:
        """Return the name of the dialect of `open_layout_at`."""
        return layout.dialect.name if (layout := self.open_layout_at(path)) is not None else None

    def begins_at(self, layout: Layout, path: NodePath) -> bool:
        """Return True if ``path`` is the root of this hierarchy, which has an entry point."""
        return not layout.per_node and path == _top(layout)

    def over(self, target: Key | Prefix) -> Iterator[Layout]:
        """Yield the layouts, as last learnt, that may use this key or prefix, deeper roots first."""
        yield from self._below_over(target)
        yield from self._layouts

    def is_inside(self, prefix: Prefix) -> bool:
        """Return True if ``prefix`` is in a folder where a hierarchy keeps documents or chunks: no node has its path there."""
        layouts = [layout for layout in self.over(prefix) if not layout.per_node and prefix.startswith(layout.prefix)]
        return any(prefix[len(each.prefix) :].partition("/")[0] in each.own_names for each in layouts)

    def paths_of(self, *prefixes: Prefix) -> list[NodePath] | None:
        """Return the paths of the nodes whose folders these prefixes are; None if one of them is no node's folder."""
        return None if any(map(self.is_inside, prefixes)) else paths_of(*prefixes)

    def groups_at(self, prefix: Prefix) -> set[NodePath]:
        """Return the groups whose members lie at ``prefix``, in any layout."""
        found = {layout.node_of_prefix(prefix) for layout in self.over(prefix) if not layout.per_node}
        found.update(self.paths_of(prefix) or ())
        return {path for path in found if path is not None}

    def tops_at(self, prefix: Prefix) -> list[NodePath]:
        """Return the paths at and below which all nodes with keys below ``prefix`` lie; none of them is below another."""
        found = self.groups_at(prefix)
        for layout in self._layouts:
            if not layout.per_node and any(each.startswith(prefix) for each in layout.listing_prefixes(ROOT)):
                found.add(ROOT)
        return [path for path in sorted(found) if found.isdisjoint(path.ancestors())]

    def layout_of(self, node: Node) -> Layout | None:
        """Return the layout of this node, if known."""
        return next((each for each in self.known if each.dialect.name == node.dialect and each.holds(node.path)), None)

    def new(self, name: str) -> Layout | None:
        """Return a layout of a dialect, for a store without nodes. ``name``: of the dialect, or dialect:form; None if unknown."""
        name, _, form = name.partition(":")
        found = next((dialect for dialect in self._dialects if dialect.name == name), None)
        return None if found is None else found.create_in(form, Prefix("")) if form else found.create(Prefix(""))

    async def hidden_at(self, probe: Probe, own: Collection[Key | None]) -> list[str]:
        """Return the dialects of hierarchies with an entry point in the folder of ``probe`` that are invalid, as it is a node's.

        ``own``: the keys of the documents that describe this node; they are no entry points.
        """
        path = probe.path
        if path == ROOT or path in self._below:
            return []
        dialects = [each for each in self._dialects if not each.per_node and not set(own).issuperset(each.root_keys(path.prefix))]
        if not dialects:
            return []
        # Several dialects have the same key: each document is requested once.
        keys = tuple(dict.fromkeys(key for each in dialects for key in each.root_keys(path.prefix)))
        possible = await probe.possible(keys)
        if not possible:
            return []
        read: dict[Key, Document | StoreAccessDenied | None] = {}
        with suppress(LargeDocument):
            documents = await self._stored.get_small(tuple(possible))
            read = {key: documents.get(key) for key in keys}
        return [each.name for each in dialects if (await self._open(each, path.prefix, read))[0]]

    async def look_at(self, path: NodePath, read: Mapping[Key, Document | StoreAccessDenied | None]) -> bool:
        """Return True if the folder at ``path``, not known as a node, is the root of a hierarchy of its own.

        ``read``: documents already read there, None for absent ones.
        """
        if path == ROOT or path in self._below:
            return False
        for dialect in self._dialects:
            if not dialect.per_node:
                layout, _ = await self._open(dialect, path.prefix, read)
                if layout is not None:
                    self._below[path] = RootedLayout(layout, path)
                    return True
        return False

    def forget(self, path: NodePath) -> bool:
        """Check the folder at ``path`` again, as another layout may have a node there; return True if it was a root."""
        return self._below.pop(path, None) is not None

    def forget_below(self, prefix: Prefix) -> None:
        """Run `forget` for all folders at ``prefix`` and below it."""
        for at in [at for at in self._below if at.startswith(prefix, 1) or at[1:] == prefix[:-1]]:
            del self._below[at]

    def _below_over(self, target: Key | Prefix) -> Iterator[RootedLayout]:
        if self._below:
            cut = len(target)
            while (cut := target.rfind("/", 0, cut)) > 0:
                layout = self._below.get(f"/{target[:cut]}")  # type: ignore[call-overload]
                if layout is not None:
                    yield layout

    async def _learn(self) -> None:
        epoch = self._epoch
        flight = self._underway = Flight()
        with flight.under_way():
            try:
                await self._read()
            finally:
                self._underway = None
        # Documents read during a change are valid for their caller only, and not cached.
        self._expires = self._now() + self._ttl if epoch == self._epoch else float("-inf")
        self.in_doubt = epoch != self._epoch

    async def _read(self) -> None:
        try:
            await self._read_with(_each_once(self._stored.get_small))
        except LargeDocument:
            async with self._stored.turn:
                await self._read_with(_each_once(self._stored.get))

    async def _read_with(self, get: GetDocuments) -> None:
        prefix = Prefix("")
        open_layouts: list[Layout] = []
        created: list[Layout] = []
        keys: set[Key] = set()
        # In one batch; each dialect then requests its own again.
        await get(tuple(dict.fromkeys(key for dialect in self._dialects for key in dialect.root_keys(prefix))))
        for dialect in self._dialects:
            layout, looked_at = await self._open_with(dialect, prefix, {}, get)
            keys |= looked_at
            if layout is not None:
                open_layouts.append(layout)
            elif dialect.per_node:
                created.append(dialect.create(prefix))
        # With other hierarchies at the root, the status of folders below changes.
        below = dict(self._below) if _apart(open_layouts) == _apart(self._open_layouts) else {}
        again = {at: (await self._open_with(layout.dialect, at.prefix, {}, get))[0] for at, layout in below.items()}
        self._keys = frozenset(keys)
        # Nodes of dialects not found at the root may lie anywhere.
        self._learnt(tuple(sorted((*open_layouts, *created), key=_priority)), tuple(open_layouts), again)

    def _learnt(
        self, layouts: tuple[Layout, ...], open_layouts: tuple[Layout, ...], again: Mapping[NodePath, Layout | None]
    ) -> None:
        before, below = self._layouts, self._below
        self._layouts, self._open_layouts = layouts, open_layouts
        self._owned = frozenset(name for layout in layouts for name in layout.own_names)
        # A folder found to be a root meanwhile stays one.
        self._below = {at: layout for at, layout in below.items() if at not in again and _apart(open_layouts) == _apart(before)}
        self._below |= {at: RootedLayout(layout, at) for at, layout in again.items() if layout is not None}
        if before and [each.without_copy() for each in before] != [each.without_copy() for each in layouts]:
            self._on_others(ROOT)
        for at, layout in below.items():
            if at not in self._below or self._below[at].without_copy() != layout.without_copy():
                self._on_others(at)
        self._earlier = {
            key: earlier for key, earlier in self._earlier.items() if not key[1] or NodePath(f"/{key[1][:-1]}") in self._below
        }
        copies = tuple(each for each in self.known if each.copied(_top(each)) is not None)
        if list(map(_identity, copies)) != list(map(_identity, self._copies)):
            self.copies_read += 1
        self._copies = copies

    def copied(self, path: NodePath) -> bytes:
        """Return a digest of the consolidated copies' entries for ``path``; empty without copies."""
        copied = [layout.copied(path) for layout in self._copies if layout.holds(path)]
        return hashlib.blake2b(repr(copied).encode("utf-8", "backslashreplace"), digest_size=16).digest() if copied else b""

    async def _open(
        self, dialect: Dialect, prefix: Prefix, read: Mapping[Key, Document | StoreAccessDenied | None] = MappingProxyType({})
    ) -> tuple[Layout | None, set[Key]]:
        """Return the hierarchy of ``dialect`` with its root at ``prefix``, if there is one, and the deciding keys.

        ``read``: values already read, None for absent ones.
        """
        try:
            return await self._open_with(dialect, prefix, read, self._stored.get_small)
        except LargeDocument:
            async with self._stored.turn:
                return await self._open_with(dialect, prefix, read, self._stored.get)

    async def _open_with(
        self, dialect: Dialect, prefix: Prefix, read: Mapping[Key, Document | StoreAccessDenied | None], get: GetDocuments
    ) -> tuple[Layout | None, set[Key]]:
        keys = dialect.root_keys(prefix)
        found = {key: read.get(key) for key in keys}
        if unread := tuple(key for key in keys if key not in read):
            found |= await get(unread)
        documents = _readable(dialect, prefix, found)
        root = every = await threads.cpu(weight(documents), _digest, documents)
        earlier = self._earlier.get((dialect.name, prefix))
        if earlier is not None and earlier.root == root:
            further = earlier.further
        else:
            further = await threads.cpu(weight(documents), _further, dialect, prefix, documents)
        if further:
            documents |= contents(await get(further))
            every = await threads.cpu(weight(documents), _digest, documents)
        if earlier is not None and earlier.all == every:
            return earlier.layout, {*keys, *further}
        try:
            layout = await threads.cpu(weight(documents), dialect.open, prefix, documents)
        except Exception as error:  # noqa: BLE001 - other dialects may recognize it
            reason_of(f"{prefix or '/'}: {dialect.name}", error)
            layout = None
        if not prefix or layout is not None:
            nbytes = weight(documents)
            if prefix and layout is not None and (plain := layout.without_copy()) is not layout:
                kept = sum(each.nbytes for (_, at), each in self._earlier.items() if at not in ("", prefix))
                if kept + nbytes > _MAX_COPIED:
                    log.warning("%s: consolidated copy not read: %d bytes with those of other hierarchies", prefix, kept + nbytes)
                    layout, nbytes = plain, 0
            self._earlier[dialect.name, prefix] = _OpenRoot(root, further, every, layout, nbytes)
        return layout, {*keys, *further}


def _readable(dialect: Dialect, prefix: Prefix, found: Mapping[Key, Document | StoreAccessDenied | None]) -> dict[Key, bytes]:
    """Return the contents of the documents ``found``, empty for those of the root's node without read permission.

    The search for that node reports these, and no other node depends on them. Raises `StoreAccessDenied` for one that decides on
    others: an entry point, a consolidated copy.
    """
    denied = {key for key, each in found.items() if isinstance(each, StoreAccessDenied)}
    if not denied or not dialect.per_node:
        return contents(found)
    denied.intersection_update(dialect.create(prefix).document_keys(ROOT))
    return contents({key: each for key, each in found.items() if key not in denied}) | dict.fromkeys(denied, b"")


def _further(dialect: Dialect, prefix: Prefix, documents: dict[Key, bytes]) -> tuple[Key, ...]:
    try:
        return dialect.further_keys(prefix, documents)
    except Exception as error:  # noqa: BLE001 - other dialects may recognize it
        reason_of(f"{prefix or '/'}: {dialect.name}", error)
        return ()


def _each_once(get: GetDocuments) -> GetDocuments:
    """Return ``get`` with a cache, for several dialects that request the same documents."""
    found: dict[Key, Document | StoreAccessDenied | None] = {}

    async def get_once(keys: tuple[Key, ...]) -> dict[Key, Document | StoreAccessDenied]:
        wanted = tuple(key for key in keys if key not in found)
        if wanted:
            read = await get(wanted)
            found.update((key, read.get(key)) for key in wanted)
        return {key: value for key in keys if (value := found[key]) is not None}

    return get_once


def _digest(documents: Mapping[Key, bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for key, value in documents.items():
        digest.update(f"{len(value)} {key}\0".encode("utf-8", "backslashreplace"))
        digest.update(value)
    return digest.digest()


def _top(layout: Layout) -> NodePath:
    return layout.at if isinstance(layout, RootedLayout) else ROOT


def _identity(layout: Layout) -> int:
    return id(layout.inner if isinstance(layout, RootedLayout) else layout)


def _apart(layouts: Iterable[Layout]) -> set[str]:
    return {layout.dialect.name for layout in layouts if not layout.per_node}


def _priority(layout: Layout) -> tuple[int, str]:
    return layout.dialect.priority, layout.dialect.name


def dialects(choices: Iterable[str] = ()) -> list[Dialect]:
    """Return all dialects, in the order in which they are tried. ``choices``: as ``v1.order=text``. Raises `UsageError`."""
    known = {dialect.name: dialect for dialect in registry.plugins("zarrfs.dialects")}
    chosen: dict[str, dict[str, str]] = {}
    for choice in choices:
        option_name, _, value = choice.partition("=")
        name, _, option = option_name.partition(".")
        values = known[name].choices.get(option) if name in known else None
        if values is None:
            every = [f"{each.name}.{option}" for each in known.values() for option in each.choices]
            raise UsageError(
                f"dialect_choices: unknown choice {option_name!r}, expected one of: {', '.join(sorted(every)) or 'none'}"
            )
        if value not in values:
            raise UsageError(f"dialect_choices: {option_name}: expected one of {', '.join(values)}, not {value!r}")
        chosen.setdefault(name, {})[option] = value
    every_dialect = [dialect.choosing(chosen[name]) if name in chosen else dialect for name, dialect in known.items()]
    return sorted(every_dialect, key=lambda dialect: (dialect.priority, dialect.name))
