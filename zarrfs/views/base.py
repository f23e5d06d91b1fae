"""Interface of a view: a tree of files over a store or its hierarchy, and the entries that a change in the store affects.

Each view has a file or folder of its own. Its constant ``PLUGIN`` is a `ViewPlugin` (or several).
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from zarrfs import durability
from zarrfs.arrays.reader_pool import StartSoon
from zarrfs.dialects.base import Layout
from zarrfs.errors import NameInvalid, StoreAccessDenied, ZarrfsError, raise_first
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.listed_times import ListedTimes
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.hierarchy.node_changes import NodeChange
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.roots import read_only_dialects
from zarrfs.hierarchy.unfinished import UnfinishedOperations
from zarrfs.hierarchy.unstored_groups import UnstoredGroups
from zarrfs.keys import IfUnsynced, Key, NodePath, Prefix
from zarrfs.model.metadata import Node
from zarrfs.stores.base import Store
from zarrfs.stores.change import Change
from zarrfs.vfs.content import Content
from zarrfs.vfs.node import Directory
from zarrfs.vfs.staging import StagingArea
from zarrfs.vfs.temporary import Temporaries, TemporaryContent
from zarrfs.vfs.temporary_names import TemporaryNames
from zarrfs.vfs.times import KeptTimes
from zarrfs.views.extended_attributes import NodeAttributes

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ViewContext:
    """Components of a mount that a view uses.

    ``store_name``: the last part of the store's path, for files named after a root array. ``fill``: missing chunks read as fill
    value in views that otherwise hide them. ``empty_prefixes``: empty folders, if the store cannot represent them. ``mounted_ns``:
    replaces unknown times. ``unstored``: groups created by mkdir(2), not stored yet. ``unfinished``: operations that lack a part in
    the store. ``resize_erases``: a smaller shape erases the chunks outside it. ``new_arrays``: the format of new arrays.
    ``start_soon``: starts a task of the mount. ``temporaries``: files that exist in this mount only. ``temporary_names``: their
    names, in views with restricted names. ``times``: times that the store does not keep. ``node_attributes``: the extended
    attributes of nodes. ``is_watched()``: True if the store currently reports every change.
    """

    store: Store
    hierarchy: Hierarchy
    editor: NodeEditor
    unstored: UnstoredGroups
    unfinished: UnfinishedOperations
    new_arrays: NewArrays
    start_soon: StartSoon
    staging: StagingArea
    store_name: str
    fill: bool = False
    resize_erases: bool = False
    mounted_ns: int = 0
    is_watched: Callable[[], bool] = lambda: False
    empty_prefixes: set[Prefix] = field(default_factory=set)
    times: KeptTimes = field(default_factory=KeptTimes)
    node_attributes: NodeAttributes = field(default_factory=NodeAttributes)
    temporary_names: TemporaryNames = field(default_factory=TemporaryNames)
    temporaries: Temporaries = field(init=False)
    on_array_written: list[Callable[[NodePath], Awaitable[None]]] = field(default_factory=list)
    """Called with the path of an array whose document was written through a view: what waits for it, in any, becomes its chunks."""

    def __post_init__(self) -> None:
        self.temporaries = Temporaries(self.staging)

    def follow_names(self, old: str, new: str) -> None:
        """Move the idents with the prefix ``old``, of everything that exists in this mount only, to the prefix ``new``."""

        def followed(content: Content) -> Content:
            # Keep the object: staged bytes are published through it.
            if isinstance(content, TemporaryContent):
                content.ident = new + content.ident[len(old) :]
            return content

        self.staging.rekey_below(old, followed)
        self.temporaries.move_below(old, new)
        self.times.move(old, new)

    def lose_names(self, prefix: str) -> None:
        """Mark the folder with this prefix of idents as gone: files staged in it are no longer published."""
        self.staging.lost_below(prefix)
        self.temporaries.remove_below(prefix)
        self.times.forget_below(prefix)

    def may_write(self, node: Node) -> bool:
        """Return True if anything can be written to ``node``."""
        return self.store.capabilities.write and node.dialect not in read_only_dialects()

    async def folder_mtime_ns(self, path: NodePath, listed: ListedTimes | None = None) -> int | None:
        """Return the time at which names in the folder of the node at ``path`` last changed, according to the store or a listing."""
        folder = self.hierarchy.folder_of(path)
        known = listed.get(folder) if listed is not None else None
        return known if known is not None else await self.store.prefix_mtime_ns(folder)

    async def sync_node(self, path: NodePath) -> None:
        """Run fsync(2) of the folder of a node: publish the queued chunks in it, wherever their keys are, and sync the store.

        Raises what prevents operations on nodes there from being ended, after all else is done.
        """
        with durability.demanded():
            await self.unstored.store(path)
            failed = await self.unfinished.attempt(path)
            shards = await self.hierarchy.queued.publish(path)
            # Layouts that keep documents and chunks apart have more than one folder for a node.
            layouts = await self.hierarchy.layouts(path)
            apart = [layout.prefix for layout in layouts if not layout.per_node]
            documents = [key for key in _documents_of(path, layouts) if await self._may_be_stored(key)]
            await self.store.sync([self.hierarchy.folder_of(path), *apart, *shards, *documents])
            raise_first(failed)

    async def _may_be_stored(self, key: Key) -> bool:
        with suppress(StoreAccessDenied):
            return await self.store.stat(key) is not None
        return True

    async def unsynced_documents(self, path: NodePath) -> list[IfUnsynced]:
        """Return, for `Store.sync`, the documents without which the node at ``path`` is not found, as far as this mount has set them."""
        return [IfUnsynced(key) for key in _documents_of(path, await self.hierarchy.layouts(path))]

    async def flush_queued(self, target: Key | Prefix) -> None:
        """Publish the chunks queued for this key, or below this prefix, for a reader of the stored values.

        If they cannot be stored (a shard may be broken, and about to be replaced) they stay queued.
        """
        if not self.hierarchy.queued:
            return
        try:
            await self.hierarchy.queued.publish(target)
        except ZarrfsError as error:
            log.warning("%r: queued chunks not stored, shown without them: %s", target, error)

    async def flush_described(self, *keys: Key) -> None:
        """Publish the chunks queued for the arrays that these documents describe, before a change that may replace the arrays.

        Failures: as of `flush_queued`.
        """
        try:
            await self.hierarchy.queued.publish_described_by(keys)
        except ZarrfsError as error:
            log.warning("%s: queued chunks not stored before the change: %s", ", ".join(map(repr, keys)), error)

    @property
    def writable(self) -> bool:
        """True if anything can be written."""
        return self.store.capabilities.write


NamedEntry = tuple[tuple[str, ...], bool]
"""Names from a view's root down, and True for a folder."""


def path_of(prefix: Prefix) -> NodePath | None:
    """Return the node whose folder is ``prefix`` in layouts with one folder per node; None if no node can have this folder."""
    try:
        return NodePath(f"/{prefix[:-1]}")
    except NameInvalid:
        return None


@dataclass(frozen=True, slots=True)
class Affected:
    """An entry of a view that a change affects.

    ``names``: from the view's root down. ``gone``: it may have lost its name. ``content``: its content may have changed.
    ``superseded``: as in `ChangedEntry`, whether or not it is staged.
    """

    names: tuple[str, ...]
    gone: bool = False
    content: bool = True
    superseded: bool = False


class View(abc.ABC):
    """A view of a mount. ``shows_keys``: its folders are prefixes of the store, else nodes."""

    shows_keys = False

    @abc.abstractmethod
    def root(self) -> Directory:
        """Return the view's top folder."""

    @abc.abstractmethod
    def affected(self, change: Change, nodes: Iterable[NodeChange]) -> Iterable[Affected]:
        """Return the entries that ``change``, with its effects ``nodes`` on the hierarchy, affects. Called between two awaits."""

    def follow(self, old: Prefix, new: Prefix) -> None:
        """Update everything that the view indexes by name after a move of ``old`` to ``new`` through any view.

        Called between two awaits, before `affected`.
        """

    def lost(self, prefix: Prefix) -> Iterable[NamedEntry]:
        """Discard everything that the view indexes by name below ``prefix``, the folder of a node that is gone through any view.

        Returns the entries that it had. Called between two awaits.
        """
        return ()

    def names_of(self, prefix: Prefix) -> Iterable[NamedEntry]:
        """Return the entries that represent ``prefix``, if any."""
        return ()

    def left(self) -> Iterable[tuple[str, bool]]:
        """Return the idents of written files that exist in this mount only, and are lost when it ends.

        Each comes with True if it waited for a document that was never written.
        """
        return ()


def _documents_of(path: NodePath, layouts: Sequence[Layout]) -> Mapping[Key, None]:
    """Return the documents without which the node at ``path`` is not found, and the consolidated copies that list nodes in it.

    They were stored by edits, without fsync: their names would survive a power cut, and their content might not.
    """
    keys: dict[Key, None] = {}
    for layout in layouts:
        nodes = [each for each in (*path.ancestors(), path) if layout.holds(each)]
        copies = [key for key in map(layout.copy_key, nodes) if key is not None]
        documents = (key for each in nodes for key in layout.document_keys(each))
        keys |= dict.fromkeys((*layout.entry_documents(), *copies, *documents))
    return keys


@dataclass(frozen=True, slots=True)
class ViewPlugin:
    """A kind of view.

    ``name`` is its folder; ``about`` one line for README.txt. ``by_default``: mounted without an option. ``order``: sort key of
    folders in listings and in README.txt, before the name. ``example``: a command to try, for README.txt, and a description of its
    output. ``notes``: further lines of README.txt. ``documents``: file names that hold metadata of nodes; in every view they are
    refused where they mean nothing, even if they look like names of temporary files.
    """

    name: str
    about: str
    make: Callable[[ViewContext], View]
    by_default: bool = True
    order: int = 100
    example: tuple[str, str] | None = None
    notes: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()


def check_plugin(offered: object) -> None:
    """Raise TypeError unless ``offered``, which any distribution may provide, is a usable plug-in of this package."""
    if not isinstance(offered, ViewPlugin):
        raise TypeError(f"a {type(offered).__name__} is no ViewPlugin")
    if not isinstance(offered.name, str) or offered.name in ("", ".", "..") or "/" in offered.name:
        raise TypeError("its name must be a file name")
    if not isinstance(offered.about, str) or not callable(offered.make):
        raise TypeError("its about must be a string, and its make callable")
    example = offered.example or ("", "")
    if not isinstance(offered.order, int) or len(example) != 2:
        raise TypeError("its order must be an integer, and its example two strings")
    if not all(isinstance(each, str) for each in (*example, *offered.notes, *offered.documents)):
        raise TypeError("its example, notes and documents must be strings")
