"""What the views of the hierarchy share: groups as folders, and names for what is made beside real nodes."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing

import trio

from zarrfs.errors import NameInvalid, ZarrfsError
from zarrfs.hierarchy.unforeseen import unusable
from zarrfs.keys import NodePath
from zarrfs.model.metadata import Node as HierarchyNode
from zarrfs.model.metadata import UnsupportedNode
from zarrfs.printable import printable
from zarrfs.vfs import names
from zarrfs.vfs.generated import text
from zarrfs.vfs.node import Entry, Node, no_such_entry
from zarrfs.views.base import ViewContext
from zarrfs.views.extended_attributes import described

UNSUPPORTED_SUFFIX = ".unsupported.txt"

# Children that are made entries without a pause: each takes up to 200 microseconds.
_AT_ONCE = 32
# For the number of a name that had to give way.
_RESERVED_NBYTES = 6
_NUMBER = re.compile(r"~[1-9][0-9]{0,18}\Z")


def node_ident(view: str, path: NodePath, name: str) -> str:
    """`File.ident` of the entry ``name`` of the folder of a node; with an empty name, what those of all entries begin with."""
    return "/".join((view, *(names.name_of(part) for part in path[1:].split("/") if part), name))


def child_path(path: NodePath, name: str) -> NodePath:
    """The node whose folder in that of ``path`` is called ``name``. Raises `NameInvalid` where there can be none."""
    part = names.part_of(name)
    if not part or "/" in part:
        raise NameInvalid(f"{name!r} cannot name a node", key=name)
    return path.child(part)


def made_name(stem: str, suffix: str) -> str:
    """What is called ``stem`` + ``suffix``, as far as no real node and no other made name is in the way."""
    if len(os.fsencode(stem + suffix)) > names.MAX_NBYTES - _RESERVED_NBYTES:
        stem = names.digest_of(stem)
    return stem + suffix


class Child:
    """A child of a group as a view shows it: a folder or a file, made when it is looked up.

    ``suffix`` is what the view appended to the node's name to make ``name``. The other members are what a listing tells without opening
    it, as in `zarrfs.vfs.node.Entry`.
    """

    __slots__ = ("is_directory", "make", "mtime_ns", "name", "size", "suffix", "writable")

    def __init__(
        self,
        name: str,
        is_directory: bool,
        make: Callable[[], Node],
        size: int = 0,
        mtime_ns: int | None = None,
        writable: bool = False,
        suffix: str = "",
    ) -> None:
        self.name = name
        self.is_directory = is_directory
        self.make = make
        self.size = size
        self.mtime_ns = mtime_ns
        self.writable = writable
        self.suffix = suffix

    @property
    def entry(self) -> Entry:
        """The entry in a listing."""
        return self.name, self.is_directory, self.size, self.mtime_ns, self.writable


def unsupported_child(view: str, name: str, node: UnsupportedNode, mtime_ns: int | None) -> Child:
    """The entry for a node that cannot be shown: a file that tells why."""
    reason = f"{printable(node.reason)}\n".encode()
    ident = f"{view}{node.path}{UNSUPPORTED_SUFFIX}"
    return Child(
        made_name(name, UNSUPPORTED_SUFFIX),
        False,
        lambda: text(ident, reason, mtime_ns=mtime_ns, extended=described(node)),
        len(reason),
        mtime_ns,
        suffix=UNSUPPORTED_SUFFIX,
    )


class GroupChildren:
    """What is in the folder of a group: what ``show`` makes of each child."""

    view: str
    suffixes: tuple[str, ...] = (UNSUPPORTED_SUFFIX,)
    """What `show` appends to names."""

    def __init__(self, context: ViewContext, path: NodePath) -> None:
        self.context = context
        self.path = path

    async def lookup(self, name: str) -> Node:
        documents = await self.documents()
        for shown in documents:
            if shown.name == name:
                return shown.make()
        async for child, node in self._candidates(name):
            shown = await self._free(await self._show(child, node), documents)
            if shown.name == name:
                return shown.make()
        raise no_such_entry(name)

    async def entries(self) -> AsyncIterator[Entry]:
        documents = await self.documents()
        for shown in documents:
            yield shown.entry
        hierarchy = self.context.hierarchy
        async with aclosing(hierarchy.children(self.path)) as children:
            siblings: Collection[str] | None = None
            index = 0
            async for name, node in children:
                if not index % _AT_ONCE:
                    await trio.lowlevel.checkpoint()
                index += 1
                shown = await self._show(names.name_of(name), node)
                if shown.is_directory:
                    shown.mtime_ns = await self.context.folder_mtime_ns(node.path)
                elif siblings is None:
                    siblings = await hierarchy.child_names(self.path)
                yield (await self._free(shown, documents, siblings)).entry

    async def documents(self) -> Sequence[Child]:
        """Files that stand for the group itself."""
        return ()

    async def show(self, name: str, node: HierarchyNode) -> Child:
        """The entry for the child ``node``, called ``name`` where it is a folder, ``name`` and a suffix where it is a file."""
        raise NotImplementedError

    def show_unsupported(self, name: str, node: UnsupportedNode) -> Child:
        """The entry for a child that cannot be shown: a file with the reason."""
        return unsupported_child(self.view, name, node, self.context.mounted_ns)

    async def _show(self, name: str, node: HierarchyNode) -> Child:
        """`show`; a child that it fails on, for whatever reason, does not hide the others."""
        try:
            return await self.show(name, node)
        except ZarrfsError:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            return self.show_unsupported(name, unusable(node.path, node.dialect, error))

    async def _child_called(self, name: str) -> HierarchyNode | None:
        """The child whose folder is called ``name``, without listing the others; None for names that are made."""
        part = names.part_of(name)
        if not part or "/" in part or part in (".", "..") or names.name_of(part) != name:
            return None
        return await self.context.hierarchy.node(self.path.child(part))

    async def _candidates(self, name: str) -> AsyncIterator[tuple[str, HierarchyNode]]:
        """The children that may be shown as ``name``, each as its own folder would be called: few of them, however many there are."""
        stems = [name, *(name.removesuffix(suffix) for suffix in self.suffixes if name.endswith(suffix))]
        for stem in dict.fromkeys((*stems, *(_NUMBER.sub("", stem) for stem in stems))):
            if stem and (node := await self._child_called(stem)) is not None:
                yield stem, node
            elif names.is_digest(stem):
                for part in await self.context.hierarchy.child_names(self.path):
                    child = names.name_of(part)
                    if stem in (child, names.digest_of(child)) and (
                        node := await self.context.hierarchy.node(self.path.child(part))
                    ):
                        yield child, node

    async def _free(self, shown: Child, documents: Iterable[Child], siblings: Collection[str] | None = None) -> Child:
        """``shown``, with a name of its own. Documents keep theirs, then real nodes, then made names; what finds its name taken becomes
        ``stem~1`` + ``suffix``, or the first number that is free. ``siblings``: the names of all children, where they are known."""
        reserved = {each.name for each in documents}
        stem, suffix = shown.name.removesuffix(shown.suffix), shown.suffix
        for number in itertools.count(1):
            is_real = not suffix and number == 1
            taken = shown.name in reserved or (not is_real and await self._is_shown(shown.name, "", siblings))
            if not taken and suffix and number > 1:
                taken = await self._is_shown(f"{stem}~{number - 1}", suffix, siblings)
            if not taken:
                return shown
            shown.name = f"{stem}~{number}{suffix}"
        raise AssertionError

    async def _is_shown(self, name: str, suffix: str, siblings: Collection[str] | None) -> bool:
        """Whether the child whose folder would be called ``name`` is shown with ``suffix``."""
        if siblings is not None and names.part_of(name) not in siblings:
            return False
        node = await self._child_called(name)
        return node is not None and (await self._show(name, node)).suffix == suffix
