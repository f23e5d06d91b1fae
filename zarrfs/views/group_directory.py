"""Shared parts of the hierarchy's views: groups as folders, and names of generated entries beside real nodes."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from functools import lru_cache

import trio

from zarrfs.errors import NameInvalid, StoreError, StoreTimeout, ZarrfsError
from zarrfs.hierarchy.listed_times import ListedTimes
from zarrfs.hierarchy.unforeseen import unusable
from zarrfs.keys import NodePath
from zarrfs.model.metadata import Node, UnsupportedNode
from zarrfs.printable import printable
from zarrfs.vfs import names
from zarrfs.vfs.generated import text
from zarrfs.vfs.node import Entry, VfsNode, no_such_entry
from zarrfs.views.base import ViewContext
from zarrfs.views.extended_attributes import described

UNSUPPORTED_SUFFIX = ".unsupported.txt"

# Children processed without a checkpoint: each takes up to 200 microseconds.
_AT_ONCE = 32
# With room for the number that resolves a name conflict.
MAX_ENTRY_NBYTES = names.MAX_NBYTES - 6
_NUMBER = re.compile(r"~[1-9][0-9]{0,18}\Z")


def node_ident(view: str, path: NodePath, name: str) -> str:
    """Return `File.ident` of the entry ``name`` in a node's folder; for an empty name, the common prefix of all its entries."""
    return _folder_ident(view, path) + name


@lru_cache(1024)
def _folder_ident(view: str, path: NodePath) -> str:
    return "/".join((view, *(names.name_of(part) for part in path[1:].split("/") if part), ""))


def child_path(path: NodePath, name: str) -> NodePath:
    """Return the path of the node with the folder ``name`` in that of ``path``. Raises `NameInvalid` for an invalid name."""
    part = names.part_of(name)
    if not part or "/" in part:
        raise NameInvalid(f"{name!r} cannot name a node", key=name)
    return path.child(part)


def entry_name_of(stem: str, suffix: str) -> str:
    """Return ``stem`` + ``suffix`` as an entry name, shortened if too long; `GroupChildren` resolves conflicts."""
    if len(os.fsencode(stem + suffix)) > MAX_ENTRY_NBYTES:
        stem = names.digest_of(stem)
    return stem + suffix


class Child:
    """A child of a group as a view shows it: a folder or a file, created at lookup.

    ``name`` is the node's name and the view's ``suffix``. The other members are those of a listing, as in `zarrfs.vfs.node.Entry`.
    """

    __slots__ = ("is_directory", "make", "mtime_ns", "name", "size", "suffix", "writable")

    def __init__(
        self,
        name: str,
        is_directory: bool,
        make: Callable[[], VfsNode],
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
    """Return the entry of a node that cannot be shown: a file with the reason."""
    reason = f"{printable(node.reason)}\n".encode()
    ident = f"{view}{node.path}{UNSUPPORTED_SUFFIX}"
    return Child(
        entry_name_of(name, UNSUPPORTED_SUFFIX),
        False,
        lambda: text(ident, reason, mtime_ns=mtime_ns, extended=described(node)),
        len(reason),
        mtime_ns,
        suffix=UNSUPPORTED_SUFFIX,
    )


class GroupChildren:
    """The entries of a group's folder: the results of ``show`` or ``show_all`` for each child."""

    view: str
    suffixes: tuple[str, ...] = (UNSUPPORTED_SUFFIX,)
    """The suffixes that `show` appends to names."""

    def __init__(self, context: ViewContext, path: NodePath) -> None:
        self.context = context
        self.path = path

    async def lookup(self, name: str) -> VfsNode:
        documents = await self.documents_beside(name)
        for free in documents:
            if free.name == name:
                return free.make()
        async with aclosing(self._candidates(name)) as candidates:
            async for child, node in candidates:
                async with aclosing(self._show_all(child, node)) as every:
                    async for each in every:
                        free = await self._free(each, documents)
                        if free.name == name:
                            return free.make()
        raise no_such_entry(name)

    async def entries(self) -> AsyncIterator[Entry]:
        documents = await self.documents()
        for child in documents:
            yield child.entry
        hierarchy, times = self.context.hierarchy, ListedTimes()
        siblings = await hierarchy.child_names(self.path, times)
        async with aclosing(hierarchy.children(self.path, siblings)) as children:
            index = 0
            async for name, node in children:
                if not index % _AT_ONCE:
                    await trio.lowlevel.checkpoint()
                index += 1
                async for child in self._show_all(names.name_of(name), node):
                    if child.is_directory:
                        child.mtime_ns = await self.context.folder_mtime_ns(node.path, times)
                    yield (await self._free(child, documents, siblings)).entry

    async def documents(self) -> Sequence[Child]:
        """Return the files that represent the group itself."""
        return ()

    async def documents_beside(self, name: str) -> Sequence[Child]:
        """Return `documents` for a lookup of ``name``: of those with other names, the names alone are used."""
        return await self.documents()

    async def show(self, name: str, node: Node) -> Child:
        """Return the entry of the child ``node``: ``name`` for a folder, ``name`` and a suffix for a file."""
        raise NotImplementedError

    async def show_all(self, name: str, node: Node) -> AsyncGenerator[Child]:
        """Yield all entries of the child ``node``, each as of `show`, for a view in which a node has several or none."""
        yield await self.show(name, node)

    def show_unsupported(self, name: str, node: UnsupportedNode) -> Child:
        """Return the entry of a child that cannot be shown: a file with the reason."""
        return unsupported_child(self.view, name, node, self.context.mounted_ns)

    async def _show_all(self, name: str, node: Node) -> AsyncGenerator[Child]:
        """Yield the results of `show_all`; a child for which it fails is shown as unsupported and does not hide the others."""
        try:
            async with aclosing(self.show_all(name, node)) as every:
                async for each in every:
                    yield each
        except ZarrfsError:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            yield self.show_unsupported(name, unusable(node.path, node.dialect, error))

    async def _child_called(self, name: str) -> Node | None:
        """Return the child whose folder is called ``name``, without listing the others; None for generated names."""
        part = names.part_of(name)
        if not part or "/" in part or part in (".", "..") or names.name_of(part) != name:
            return None
        return await self.context.hierarchy.node(self.path.child(part))

    async def _child_listed(self, stem: str, name: str) -> Node | None:
        """Return the child called ``stem``; as an `UnsupportedNode` if it is unreadable and ``name`` is the file with the reason."""
        try:
            return await self._child_called(stem)
        except StoreTimeout:
            raise
        except StoreError as error:
            if stem == name or not name.endswith(UNSUPPORTED_SUFFIX):
                raise
            part = names.part_of(stem)
            assert part is not None
            return unusable(self.path.child(part), "", error)

    async def _candidates(self, name: str) -> AsyncGenerator[tuple[str, Node]]:
        """Yield the children that may appear as ``name``, each with the name of its folder: few, in a group of any size."""
        stems = [name, *(name.removesuffix(suffix) for suffix in self.suffixes if name.endswith(suffix))]
        for stem in dict.fromkeys((*stems, *(_NUMBER.sub("", stem) for stem in stems))):
            if stem and (node := await self._child_listed(stem, name)) is not None:
                yield stem, node
            elif names.is_digest(stem):
                for part in await self.context.hierarchy.child_names(self.path):
                    child = names.name_of(part)
                    if stem in (child, names.digest_of(child)) and (
                        node := await self.context.hierarchy.node(self.path.child(part))
                    ):
                        yield child, node

    async def _free(self, child: Child, documents: Iterable[Child], siblings: Collection[str] | None = None) -> Child:
        """Return ``child`` with a unique name.

        Documents keep their names, then real nodes, then generated names. A conflicting entry becomes ``stem~1`` + ``suffix``, or
        gets the first free number. ``siblings``: the names of all children, if known.
        """
        reserved = {each.name for each in documents}
        stem, suffix = child.name.removesuffix(child.suffix), child.suffix
        for number in itertools.count(1):
            is_real = not suffix and number == 1
            taken = child.name in reserved or (not is_real and await self._is_shown(child.name, "", siblings))
            if not taken and suffix and number > 1:
                taken = await self._is_shown(f"{stem}~{number - 1}", suffix, siblings)
            if not taken:
                return child
            child.name = f"{stem}~{number}{suffix}"
        raise AssertionError

    async def _is_shown(self, name: str, suffix: str, siblings: Collection[str] | None) -> bool:
        """Return True if the child with the folder name ``name`` is shown with ``suffix``."""
        if siblings is not None and names.part_of(name) not in siblings:
            return False
        node = await self._child_called(name)
        if node is None:
            return False
        async with aclosing(self._show_all(name, node)) as every:
            return any([each.suffix == suffix async for each in every])
