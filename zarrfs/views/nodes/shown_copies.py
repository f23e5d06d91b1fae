"""Consolidated copies as a view of nodes shows them (docs/design/025-consolidated-copies.md).

For a copy in the store, the view shows one in its own layout, generated from the documents that it shows of the nodes below the group.
It is generated when its size or bytes are requested, and is valid until a node changes, or as long as cached nodes where the store does
not report changes by other programs.

A copy written by a program is stored once all arrays that it names exist (``cp -r`` copies in any order). Until then, and always if
the store's layout has no copies, only this mount shows one.
"""

from __future__ import annotations

import abc
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import ClassVar

import trio

from zarrfs import threads
from zarrfs.arrays.concurrency import each_found, in_order
from zarrfs.dialects.documents import in_characters, parse_object
from zarrfs.dialects.json_text import MAX_NBYTES
from zarrfs.errors import MetadataError, NameInvalid, StoreAccessDenied, StoreError, StoreTimeout, ZarrfsError, raise_first
from zarrfs.keys import NodePath
from zarrfs.model.metadata import ArrayNode, GroupNode, UnsupportedNode
from zarrfs.stores.values import latest
from zarrfs.vfs import names
from zarrfs.vfs.node import SIZE_UNKNOWN, Entry
from zarrfs.views.base import ViewContext
from zarrfs.views.group_directory import child_path
from zarrfs.views.nodes.mount_only import MountOnly

log = logging.getLogger(__name__)

_WIDTH = 16
_REMEMBERED_NBYTES = 16 << 20
_SPELLED_NBYTES = 64 << 10
_LOOKED_AT = 10_000
# Lifetime in seconds of a copy while every change is reported.
_WATCHED_TTL = 300.0

TimedDocument = tuple[bytes, int]
"""A document and its mtime_ns."""


class DocumentsForm(abc.ABC):
    """The documents of a view's form: see `zarrfs.views.nodes.view_format.ViewFormat`."""

    documents: ClassVar[tuple[str, ...]]
    copy_document: ClassVar[str]
    context: ViewContext
    state: MountOnly

    @abc.abstractmethod
    def ident(self, path: NodePath, name: str) -> str:
        """Return `File.ident` of the entry ``name`` in the folder of ``path``; for an empty name, the prefix of them all."""

    @abc.abstractmethod
    async def shown_documents(self, node: ArrayNode | GroupNode) -> Mapping[str, TimedDocument]:
        """Return the documents of ``node`` by name, without a consolidated copy. Raises `ZarrfsError` for unsupported nodes."""

    async def documents_in_copy(self, node: ArrayNode | GroupNode) -> Mapping[str, TimedDocument]:
        """Return `shown_documents` in the form of a consolidated copy, which has every group that contains one of its nodes.

        Raises `ZarrfsError` if the copy cannot hold the node."""
        return await self.shown_documents(node)

    @abc.abstractmethod
    def member_of_copy(self, folder: str, document: str) -> str | None:
        """Return the name of a document in a consolidated copy; None if the copy has none for it.

        ``folder``: the folder of its node, relative to that of the copy's group (``a/b/``; empty for the group itself).
        """

    @abc.abstractmethod
    def with_copy(self, plain: bytes | None, members: bytes) -> bytes:
        """Return `copy_document` with a copy that has these ``members``, a JSON object; ``plain``: the document without one."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A document with a copy; ``text`` is None if it exceeds the maximum size of a document.

    ``digest`` identifies the text. The copy is valid while ``epoch`` is unchanged, until ``expires``.
    """

    text: bytes | None
    digest: bytes
    mtime_ns: int
    epoch: tuple[int, int]
    expires: float


class ShownCopies:
    """The copies of the view with this ``view_format``. One is computed at a time."""

    def __init__(self, view_format: DocumentsForm) -> None:
        self._view_format = view_format
        self._hierarchy = view_format.context.hierarchy
        self._rendered: OrderedDict[NodePath, _Copy] = OrderedDict()
        self._making = trio.Lock()
        self._looked: dict[NodePath, tuple[int, float, bool]] = {}
        self._shown: set[NodePath] = set()
        self._in_mount: set[NodePath] = set()
        self._missing: dict[NodePath, set[NodePath]] = {}

    async def shown(self, node: ArrayNode | GroupNode, name: str, plain: TimedDocument | None) -> TimedDocument | None:
        """Return the document ``name`` of ``node`` with its copy; ``plain`` is the document without one."""
        view_format, document = self._view_format, self._view_format.ident(node.path, name)
        if not isinstance(node, GroupNode) or name != view_format.copy_document or self._is_hidden(document):
            return plain
        if (plain is None and name in view_format.documents) or not await self._is_in(node):
            return plain
        copy = await self._of(node)
        if copy.text is None:
            return plain
        text = view_format.state.text(_spelled(document), copy.digest)
        set_ns = view_format.state.mtime_ns(_spelled(document), copy.digest)
        return copy.text if text is None or text == copy.digest else text, set_ns if set_ns is not None else copy.mtime_ns

    async def entry(self, group: GroupNode) -> Entry | None:
        """Return the entry of the document with the copy of ``group``; None if it has none.

        Its size is `SIZE_UNKNOWN` until the copy is computed.
        """
        view_format, name = self._view_format, self._view_format.copy_document
        document = view_format.ident(group.path, name)
        if self._is_hidden(document) or not await self._is_in(group):
            return None
        copy = self._known(group.path)
        if copy is None:
            return name, False, SIZE_UNKNOWN, None, view_format.context.writable
        shown = await self.shown(group, name, (copy.text, copy.mtime_ns) if copy.text is not None else None)
        return (name, False, len(shown[0]), shown[1], view_format.context.writable) if shown is not None else None

    def at_and_above(self, path: NodePath) -> Iterator[NodePath]:
        """Yield the groups with shown copies that contain the node at ``path``."""
        if self._shown:
            yield from (each for each in (path, *path.ancestors()) if each in self._shown)

    def forget(self) -> None:
        """Discard all copies: they may be outdated."""
        self._rendered.clear()

    # --- copies written by programs -----------------------------------------------------------------------------------------

    async def written(self, path: NodePath, arrays: Iterable[NodePath]) -> None:
        """Store a copy in the group at ``path``, which a program wrote; its ``arrays`` may be created later."""
        self._in_mount.add(path)
        missing = {each for each in arrays if not isinstance(await self._hierarchy.node(each), ArrayNode)}
        self._missing[path] = missing
        if not missing:
            await self._store(path)

    async def came(self, path: NodePath) -> None:
        """Record that an array was created at ``path``. Raises why a copy that waited for it is not stored; may be repeated."""
        failed: list[Exception] = []
        for group in path.ancestors():
            # Looked up at each step: while a copy is stored, another task may rename or remove a group.
            missing = self._missing.get(group, set())
            if path not in missing:
                continue
            missing.discard(path)
            if not missing:
                try:
                    await self._store(group)
                except ZarrfsError as error:
                    if not isinstance(error, StoreError) or isinstance(error, StoreAccessDenied):
                        # The group is gone, or this user may not write the copy, which lacks each new node then.
                        log.warning("%s: consolidated copy not stored: %s", group, error)
                        continue
                    self._missing[group] = {path}
                    failed.append(error)
        raise_first(failed)

    async def spelled(self, group: ArrayNode | GroupNode, written: bytes) -> None:
        """Record ``written``, which later reads return while it is equivalent to the copy shown."""
        if len(written) > _SPELLED_NBYTES or not isinstance(group, GroupNode):
            return
        name = self._view_format.copy_document
        shown = await self.shown(group, name, (await self._view_format.shown_documents(group)).get(name))
        copy = self._known(group.path)
        # The one shown may be above the limits of a document that is read.
        with suppress(MetadataError):
            if shown is not None and copy is not None and parse_object(name, shown[0]) == parse_object(name, written):
                self._view_format.state.wrote(_spelled(self._view_format.ident(group.path, name)), copy.digest, written)

    def set_mtime(self, group: NodePath, mtime_ns: int) -> None:
        """Record utimens(2) of the document with the copy, while its content stays the same."""
        if (copy := self._known(group)) is not None:
            self._view_format.state.set_mtime(
                _spelled(self._view_format.ident(group, self._view_format.copy_document)), copy.digest, mtime_ns
            )

    async def _store(self, path: NodePath) -> None:
        del self._missing[path]
        if await self._view_format.context.editor.consolidate(path):
            self._in_mount.discard(path)

    # --- removed and renamed nodes ------------------------------------------------------------------------------------------

    def forget_below(self, path: NodePath) -> None:
        """Record that the node at ``path`` is gone, with all below it."""
        for each in [each for each in (*self._in_mount, *self._missing) if each == path or each.startswith(path.rstrip("/") + "/")]:
            self._in_mount.discard(each)
            self._missing.pop(each, None)
        self.forget()

    def moved(self, old: NodePath, new: NodePath) -> None:
        """Record a move of the node at ``old`` to ``new``: arrays below it that are not created yet will have another path, too."""

        def now(path: NodePath) -> NodePath:
            return NodePath(new + path[len(old) :]) if path == old or path.startswith(f"{old}/") else path

        self._in_mount, self._shown = set(map(now, self._in_mount)), set(map(now, self._shown))
        self._missing = {now(group): set(map(now, arrays)) for group, arrays in self._missing.items()}
        self.forget()

    # --- creation -----------------------------------------------------------------------------------------------------------

    def _is_hidden(self, document: str) -> bool:
        """Return True if the name of a document that exists for its copy alone was removed."""
        return self._view_format.copy_document not in self._view_format.documents and self._view_format.state.is_hidden(
            document, b""
        )

    async def _is_in(self, group: GroupNode) -> bool:
        if group.has_copy or group.path in self._in_mount:
            return True
        known, epoch = self._looked.get(group.path), self._hierarchy.forgotten.epoch
        if known is None or known[0] != epoch or known[1] <= trio.current_time():
            found = await self._view_format.context.editor.has_copy(group)
            if len(self._looked) >= _LOOKED_AT:
                self._looked.clear()
            known = self._looked[group.path] = epoch, trio.current_time() + self._ttl(), found
        return known[2]

    def _known(self, path: NodePath) -> _Copy | None:
        copy = self._rendered.get(path)
        return copy if copy is not None and copy.epoch == self._epoch() and copy.expires > trio.current_time() else None

    def _epoch(self) -> tuple[int, int]:
        return self._hierarchy.forgotten.epoch, self._view_format.state.changes

    def _ttl(self) -> float:
        ttl = self._hierarchy.ttl
        return max(ttl, _WATCHED_TTL) if ttl and self._view_format.context.is_watched() else ttl

    async def _of(self, group: GroupNode) -> _Copy:
        async with self._making:
            copy = self._known(group.path)
            if copy is None:
                # The kernel may cache it from here on.
                self._shown.add(group.path)
                epoch = self._epoch()
                # It may have changed since the caller has looked at it.
                now = await self._hierarchy.node(group.path)
                text, mtime_ns = await self._make(now if isinstance(now, GroupNode) else group)
                digest = await threads.cpu(len(text or b""), _digest, text or b"")
                mtime_ns = mtime_ns if mtime_ns is not None else self._view_format.context.mounted_ns
                copy = _Copy(text, digest, mtime_ns, epoch, trio.current_time() + self._ttl())
                self._rendered.pop(group.path, None)
                self._rendered[group.path] = copy
                while (
                    sum(len(each.text or b"") for each in self._rendered.values()) > _REMEMBERED_NBYTES and len(self._rendered) > 1
                ):
                    self._rendered.popitem(last=False)
            return copy

    async def _make(self, group: GroupNode) -> tuple[bytes | None, int | None]:
        plain, _ = (await self._view_format.shown_documents(group)).get(self._view_format.copy_document, (None, 0))
        members: list[bytes] = []
        nbytes = len(plain or b"")
        newest_ns: int | None = None
        async with aclosing(self._nodes(group)) as nodes:
            async for folder, documents in nodes:
                for name, (text, mtime_ns) in documents.items():
                    newest_ns = latest(newest_ns, mtime_ns)
                    if (member := self._view_format.member_of_copy(folder, name)) is not None:
                        # To netCDF-C (4.10), an escaped name is another name: of an array without chunks, all fill values.
                        members.append(in_characters(json.dumps(member).encode()) + b": " + text)
                        nbytes += len(members[-1]) + 2
                if nbytes > MAX_NBYTES:
                    log.warning("%s: consolidated copy not shown: larger than %d bytes", group.path, MAX_NBYTES)
                    return None, newest_ns
        return await threads.cpu(nbytes, self._joined, plain, members), newest_ns

    def _joined(self, plain: bytes | None, members: list[bytes]) -> bytes | None:
        text = self._view_format.with_copy(plain, b"{" + b",\n".join(members) + b"}")
        return text if len(text) <= MAX_NBYTES else None

    async def _nodes(self, group: GroupNode) -> AsyncGenerator[tuple[str, Mapping[str, TimedDocument]]]:
        """Yield the group and the nodes below it: their places relative to its folder in the view, and their documents.

        Nodes that the view cannot show are left out, as in its folders.
        """
        yield "", await self._view_format.shown_documents(group)
        pending = [(group.path, "")]
        while pending:
            path, folder = pending.pop()

            async def look(name: str, path: NodePath = path) -> tuple[bool, Mapping[str, TimedDocument]] | None:
                try:
                    node = await self._hierarchy.node(path.child(name))
                    if node is None or isinstance(node, UnsupportedNode):
                        return None
                    return isinstance(node, GroupNode), await self._view_format.documents_in_copy(node)
                except StoreTimeout:
                    # A timeout reveals nothing about the node.
                    raise
                except Exception as error:  # noqa: BLE001 - it hides no other node
                    log.info("%s: left out of the consolidated copy of %s: %s", path.child(name), group.path, error)
                    return None

            found = each_found(await in_order(await self._hierarchy.child_names(path)), look, _WIDTH)
            async with aclosing(found):
                async for name, (is_group, documents) in found:
                    here = f"{folder}{names.name_of(name)}/"
                    yield here, documents
                    if is_group:
                        pending.append((path.child(name), here))


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _spelled(document: str) -> str:
    """Return the key of the state of a document with a copy, which is separate from that without."""
    return f"{document}\0"


def named_nodes(path: NodePath, relatives: Iterable[str]) -> set[NodePath]:
    """Return the nodes that a view calls ``relatives`` relative to the folder of ``path``; invalid names are skipped."""
    found = set()
    for relative in relatives:
        node = path
        try:
            for name in relative.split("/"):
                node = child_path(node, name)
        except NameInvalid:
            continue
        found.add(node)
    return found
