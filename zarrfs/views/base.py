"""What a view is: a tree of files over a store or its hierarchy, and the names that a change in the store concerns.

One file or folder a view. Its constant ``PLUGIN`` is a `ViewPlugin` (or several).
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from zarrfs.arrays.reader import StartSoon
from zarrfs.errors import NameInvalid, ZarrfsError
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.hierarchy.node_changes import NodeChange
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.roots import read_only_dialects
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.metadata import Node as HierarchyNode
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
    """What a view is made of. ``store_name``: the last part of the store's path, for files named after a root array.

    ``fill``: chunks that are not stored read as fill value in views that else hide them. ``made_prefixes``: empty folders, where the
    store has no such thing. ``mounted_ns``: the time that stands in for times that are not known. ``resize_erases``: a smaller shape
    erases the chunks outside of it. ``new_arrays``: what new arrays are stored as. ``start_soon``: begins a task of the mount.
    ``temporaries``: files that exist in this mount only. ``temporary_names``: their names, in views that cannot hold every name.
    ``times``: those that the store does not keep. ``node_attributes``: the extended attributes of nodes. ``told()``: whether every change
    of the store is told now.
    """

    store: Store
    hierarchy: Hierarchy
    editor: NodeEditor
    new_arrays: NewArrays
    start_soon: StartSoon
    staging: StagingArea
    store_name: str
    fill: bool = False
    resize_erases: bool = False
    mounted_ns: int = 0
    told: Callable[[], bool] = lambda: False
    made_prefixes: set[Prefix] = field(default_factory=set)
    times: KeptTimes = field(default_factory=KeptTimes)
    node_attributes: NodeAttributes = field(default_factory=NodeAttributes)
    temporary_names: TemporaryNames = field(default_factory=TemporaryNames)
    temporaries: Temporaries = field(init=False)

    def __post_init__(self) -> None:
        self.temporaries = Temporaries(self.staging)

    def follow_names(self, old: str, new: str) -> None:
        """What is in this mount only and has an ident that begins with ``old`` has one that begins with ``new`` now."""

        def followed(content: Content) -> Content:
            # The very same: what is staged is published through it.
            if isinstance(content, TemporaryContent):
                content.ident = new + content.ident[len(old) :]
            return content

        self.staging.rekey_below(old, followed)
        self.temporaries.move_below(old, new)
        self.times.move(old, new)

    def lose_names(self, prefix: str) -> None:
        """The folder whose idents begin so is gone: nothing that is staged in it is published any more."""
        self.staging.lost_below(prefix)
        self.temporaries.remove_below(prefix)
        self.times.forget_below(prefix)

    def may_write(self, node: HierarchyNode) -> bool:
        """Whether anything can be written to ``node``."""
        return self.store.capabilities.write and node.dialect not in read_only_dialects()

    async def folder_mtime_ns(self, path: NodePath) -> int | None:
        """When names in the folder of the node at ``path`` last changed, as the store has it."""
        return await self.store.prefix_mtime_ns(self.hierarchy.folder_of(path))

    async def sync_node(self, path: NodePath) -> None:
        """fsync(2) of the folder of a node: what was written to chunks in it waits no longer, wherever their keys lie."""
        await self.hierarchy.queued.publish(path)
        await self.store.sync([self.hierarchy.folder_of(path)])

    async def flush_queued(self, place: Key | Prefix) -> None:
        """Store what was written to chunks and waits for this key, or for those below this prefix, for who looks at them there. Where it
        cannot be stored (a shard may be broken, and about to be replaced) it goes on waiting."""
        if not self.hierarchy.queued:
            return
        try:
            await self.hierarchy.queued.publish(place)
        except ZarrfsError as error:
            log.warning("%r is shown without the chunks that wait for it: %s", place, error)

    @property
    def writable(self) -> bool:
        """Whether anything can be written."""
        return self.store.capabilities.write


NamedEntry = tuple[tuple[str, ...], bool]
"""Names from a view's root down, and whether it is a folder."""


def path_of(place: Prefix) -> NodePath | None:
    """The node whose folder this is where each lies in one of its name; None where none can."""
    try:
        return NodePath(f"/{place[:-1]}")
    except NameInvalid:
        return None


@dataclass(frozen=True, slots=True)
class Affected:
    """An entry of a view that a change concerns: ``names`` from the view's root down. ``gone``: it may have lost its name;
    ``content``: what it holds may be another."""

    names: tuple[str, ...]
    gone: bool = False
    content: bool = True


class View(abc.ABC):
    """One view of one mount."""

    @abc.abstractmethod
    def root(self) -> Directory:
        """The view's top folder."""

    @abc.abstractmethod
    def affected(self, change: Change, nodes: Iterable[NodeChange]) -> Iterable[Affected]:
        """Entries that ``change`` concerns, where ``nodes`` is what it means for the hierarchy. Called between two awaits."""

    def follow(self, old: Prefix, new: Prefix) -> None:
        """Everything below ``old`` lies below ``new`` now, by whatever view: what the view keeps by name has other names. Called between
        two awaits, before `affected`."""

    def lost(self, place: Prefix) -> Iterable[NamedEntry]:
        """The node whose folder is ``place`` is gone, and all below it, by whatever view: so is what the view keeps by name there. The
        entries that it had. Called between two awaits."""
        return ()

    def names_of(self, place: Prefix) -> Iterable[NamedEntry]:
        """The entries that stand for what lies there, as far as any do."""
        return ()

    def left(self) -> Iterable[tuple[str, bool]]:
        """Files that somebody wrote and that are in this mount only, gone when it ends: their idents, and whether they waited for a
        document that did not come."""
        return ()


@dataclass(frozen=True, slots=True)
class ViewPlugin:
    """A kind of view: ``name`` is its folder, ``about`` one line for README.txt. ``by_default``: shown unless asked otherwise.

    ``order``: folders are listed, and told of, in the order of these numbers, then of names. ``example``: a command to try in README.txt,
    and what it shows. ``notes``: further lines of README.txt.
    """

    name: str
    about: str
    make: Callable[[ViewContext], View]
    by_default: bool = True
    order: int = 100
    example: tuple[str, str] | None = None
    notes: tuple[str, ...] = ()


def check_plugin(offered: object) -> None:
    """Raise TypeError for what is no plug-in of this package, or none that can be used: another distribution may offer anything."""
    if not isinstance(offered, ViewPlugin):
        raise TypeError(f"a {type(offered).__name__} is no ViewPlugin")
    if not isinstance(offered.name, str) or offered.name in ("", ".", "..") or "/" in offered.name:
        raise TypeError("its name has to be a file name")
    if not isinstance(offered.about, str) or not callable(offered.make):
        raise TypeError("it has to say what it is about, in a string, and to be callable")
    lines = (*(offered.example or ("", "")), *offered.notes)
    if (
        not isinstance(offered.order, int)
        or len(lines) != 2 + len(offered.notes)
        or not all(isinstance(each, str) for each in lines)
    ):
        raise TypeError("its order has to be an integer, its example two strings, and its notes strings")
