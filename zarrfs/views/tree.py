"""What the views of the hierarchy share: groups as folders, and names for what is made beside real nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from zarrfs.keys import NodePath
from zarrfs.model.metadata import GroupNode, UnsupportedNode
from zarrfs.model.metadata import Node as HierarchyNode
from zarrfs.vfs import names
from zarrfs.vfs.generated import text
from zarrfs.vfs.node import Attributes, Directory, Entry, File, Node, no_such_entry
from zarrfs.views.base import ViewContext

UNSUPPORTED_SUFFIX = ".unsupported.txt"


def made_name(stem: str, suffix: str, taken: set[str]) -> str:
    """``stem`` + ``suffix``, or the first of ``stem~1`` + ``suffix``, ... that no real node is called."""
    name, count = stem + suffix, 0
    while name in taken:
        count += 1
        name = f"{stem}~{count}{suffix}"
    return name


def reason_file(ident: str, reason: str, mtime_ns: int | None) -> File:
    """The file that tells why a node cannot be shown."""
    return text(ident, (reason + "\n").encode("utf-8", "backslashreplace"), mtime_ns=mtime_ns)


class Shown:
    """A child of a group as a view shows it: a folder or a file, made when it is looked up.

    The other members are what a listing tells without opening it, as in `zarrfs.vfs.node.Entry`.
    """

    __slots__ = ("is_directory", "make", "mtime_ns", "name", "size", "writable")

    def __init__(
        self,
        name: str,
        is_directory: bool,
        make: Callable[[], Node],
        size: int = 0,
        mtime_ns: int | None = None,
        writable: bool = False,
    ) -> None:
        self.name = name
        self.is_directory = is_directory
        self.make = make
        self.size = size
        self.mtime_ns = mtime_ns
        self.writable = writable

    @property
    def entry(self) -> Entry:
        """The entry in a listing."""
        return self.name, self.is_directory, self.size, self.mtime_ns, self.writable


class GroupDirectory(Directory):
    """A group: a folder of what ``show`` makes of each child.

    ``show(directory, child_path, name, node, taken)`` gives the entry for one child, or None to leave it out; ``taken`` are the names
    of real folders, which made names must avoid.
    """

    view: str

    def __init__(self, context: ViewContext, path: NodePath) -> None:
        self.context = context
        self.path = path

    async def attributes(self) -> Attributes:
        return Attributes(True, mtime_ns=await self.context.store.prefix_mtime_ns(self.path.prefix), writable=False)

    async def lookup(self, name: str) -> Node:
        for shown in await self.documents():
            if shown.name == name:
                return shown.make()
        node = await self._child_called(name)
        if node is not None:
            shown = await self.show(name, node, set())
            if shown.name == name:
                return shown.make()
        for shown in await self._shown():
            if shown.name == name:
                return shown.make()
        raise no_such_entry(name)

    async def entries(self) -> AsyncIterator[Entry]:
        for shown in [*await self.documents(), *await self._shown()]:
            yield shown.entry

    async def documents(self) -> Sequence[Shown]:
        """Files that stand for the group itself."""
        return ()

    async def show(self, name: str, node: HierarchyNode, taken: set[str]) -> Shown:
        """The entry for the child ``node``, whose name in the folder is ``name`` as far as it is free."""
        raise NotImplementedError

    def show_unsupported(self, name: str, node: UnsupportedNode, taken: set[str]) -> Shown:
        """The entry for a child that cannot be shown: a file with the reason."""
        shown_name = made_name(name, UNSUPPORTED_SUFFIX, taken)
        ident = f"{self.view}{node.path}{UNSUPPORTED_SUFFIX}"
        size = len(node.reason.encode("utf-8", "backslashreplace")) + 1
        mtime_ns = self.context.mounted_ns
        return Shown(shown_name, False, lambda: reason_file(ident, node.reason, mtime_ns), size, mtime_ns)

    async def _child_called(self, name: str) -> HierarchyNode | None:
        """The child whose folder is called ``name``, without listing the others; None for names that are made."""
        part = names.part_of(name)
        if not part or "/" in part or part in (".", "..") or names.name_of(part) != name:
            return None
        return await self.context.hierarchy.node(self.path.child(part))

    async def _shown(self) -> list[Shown]:
        children = await self.context.hierarchy.children(self.path)
        taken = {names.name_of(name) for name, node in children if self.is_folder(node)}
        taken.update(shown.name for shown in await self.documents())
        every = []
        for name, node in children:
            shown = await self.show(names.name_of(name), node, taken)
            if shown.is_directory:
                shown.mtime_ns = await self.context.store.prefix_mtime_ns(node.path.prefix)
            every.append(shown)
        return every

    def is_folder(self, node: HierarchyNode) -> bool:
        """Whether the child is shown as a folder under its own name."""
        return isinstance(node, GroupNode)
