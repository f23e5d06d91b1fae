"""Consolidated copies as a view of nodes shows them (docs/design/025-consolidated-copies.md).

Where the store has one in a group, in its own layout, the view shows one in its own form, made of the documents that it shows of the
nodes there: never the stored bytes. It is made when its size or its bytes are asked for, from nodes that are known or looked up, and
counts until a node changes; where a change by another program is not told, at most as long as what is known of nodes.

A copy that a program writes makes one in the store, once all arrays that it names are there (``cp -r`` copies in any order); until then,
and for good where the store's layout has no such thing, this mount alone shows one.
"""

from __future__ import annotations

import abc
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import ClassVar

import trio

from zarrfs import threads
from zarrfs.arrays.concurrency import each_found, in_order
from zarrfs.dialects.documents import parse_object
from zarrfs.dialects.json_text import MAX_NBYTES
from zarrfs.errors import NameInvalid, StoreTimeout, ZarrfsError
from zarrfs.keys import NodePath
from zarrfs.model.metadata import ArrayNode, GroupNode, UnsupportedNode
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
# Seconds for which one counts where every change is told.
_TOLD_TTL = 300.0

Shown = tuple[bytes, int]
"""A document and its mtime_ns."""


class DocumentsForm(abc.ABC):
    """What a view's form says of documents: see `zarrfs.views.nodes.view_format.ViewFormat`."""

    documents: ClassVar[tuple[str, ...]]
    copy_document: ClassVar[str]
    context: ViewContext
    state: MountOnly

    @abc.abstractmethod
    def ident(self, path: NodePath, name: str) -> str:
        """`File.ident` of the entry ``name`` in the folder of ``path``; with an empty name, what those of all entries begin with."""

    @abc.abstractmethod
    async def shown_documents(self, node: ArrayNode | GroupNode) -> Mapping[str, Shown]:
        """All documents of ``node`` by name, without a consolidated copy. Raises `ZarrfsError` where the view cannot show it."""

    async def documents_in_copy(self, node: ArrayNode | GroupNode) -> Mapping[str, Shown]:
        """`shown_documents`, as a consolidated copy can hold them. Raises `ZarrfsError` where it cannot hold the node."""
        return await self.shown_documents(node)

    @abc.abstractmethod
    def member_of_copy(self, place: str, document: str) -> str | None:
        """The name of a document in a consolidated copy; None where it has no place there. ``place``: the folder of its node from that of
        the copy's group on (``a/b/``; empty for the group itself)."""

    @abc.abstractmethod
    def with_copy(self, plain: bytes | None, members: bytes) -> bytes:
        """`copy_document` with a copy that has these ``members``, an object in JSON; ``plain``: without one."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """The document with the copy; ``text`` is None where it would be larger than a document may be. ``digest`` tells one text from
    another. It counts while ``epoch`` is what it was, until ``expires``."""

    text: bytes | None
    digest: bytes
    mtime_ns: int
    epoch: tuple[int, int]
    expires: float


class ShownCopies:
    """Those of the view with this ``form``. One is made at a time."""

    def __init__(self, form: DocumentsForm) -> None:
        self._form = form
        self._hierarchy = form.context.hierarchy
        self._made: OrderedDict[NodePath, _Copy] = OrderedDict()
        self._making = trio.Lock()
        self._looked: dict[NodePath, tuple[int, float, bool]] = {}
        self._shown: set[NodePath] = set()
        self._in_mount: set[NodePath] = set()
        self._missing: dict[NodePath, set[NodePath]] = {}

    async def shown(self, node: ArrayNode | GroupNode, name: str, plain: Shown | None) -> Shown | None:
        """What the document ``name`` of ``node`` shows, which is ``plain`` without a copy."""
        form, document = self._form, self._form.ident(node.path, name)
        if not isinstance(node, GroupNode) or name != form.copy_document or self._is_hidden(document):
            return plain
        if (plain is None and name in form.documents) or not await self._is_in(node):
            return plain
        copy = await self._of(node, plain[0] if plain is not None else None)
        if copy.text is None:
            return plain
        text = form.state.text(_spelled(document), copy.digest)
        mtime_ns = form.state.mtime_ns(_spelled(document), copy.digest) or copy.mtime_ns
        return copy.text if text is None or text == copy.digest else text, mtime_ns

    async def entry(self, group: GroupNode) -> Entry | None:
        """The entry of the document that holds the copy in ``group``, whose size is `SIZE_UNKNOWN` where it was not made yet; None where
        it holds none."""
        form, name = self._form, self._form.copy_document
        document = form.ident(group.path, name)
        if self._is_hidden(document) or not await self._is_in(group):
            return None
        copy = self._known(group.path)
        if copy is None:
            return name, False, SIZE_UNKNOWN, None, form.context.writable
        shown = await self.shown(group, name, (copy.text, copy.mtime_ns) if copy.text is not None else None)
        return (name, False, len(shown[0]), shown[1], form.context.writable) if shown is not None else None

    def at_and_above(self, path: NodePath) -> Iterator[NodePath]:
        """The groups whose copies know the node at ``path``, of those that were shown."""
        if self._shown:
            yield from (each for each in (path, *path.ancestors()) if each in self._shown)

    def forget(self) -> None:
        """Whatever was made may be old."""
        self._made.clear()

    # --- copies that programs write -----------------------------------------------------------------------------------------

    async def written(self, path: NodePath, arrays: Iterable[NodePath]) -> None:
        """Let the store have a copy in the group at ``path``, which a program wrote; the ``arrays`` that it knows may come later."""
        self._in_mount.add(path)
        missing = {each for each in arrays if not isinstance(await self._hierarchy.node(each), ArrayNode)}
        self._missing[path] = missing
        if not missing:
            await self._store(path)

    async def came(self, path: NodePath) -> None:
        """An array was made at ``path``."""
        for group in [each for each in path.ancestors() if path in self._missing.get(each, ())]:
            self._missing[group].discard(path)
            if not self._missing[group]:
                try:
                    await self._store(group)
                except ZarrfsError as error:
                    log.warning("%s: no consolidated copy is stored: %s", group, error)

    async def spelled(self, group: ArrayNode | GroupNode, written: bytes) -> None:
        """``written`` is read back as it is, as long as it says what is shown."""
        if len(written) > _SPELLED_NBYTES or not isinstance(group, GroupNode):
            return
        name = self._form.copy_document
        shown = await self.shown(group, name, (await self._form.shown_documents(group)).get(name))
        copy = self._known(group.path)
        if shown is not None and copy is not None and parse_object(name, shown[0]) == parse_object(name, written):
            self._form.state.wrote(_spelled(self._form.ident(group.path, name)), copy.digest, written)

    def set_mtime(self, group: NodePath, mtime_ns: int) -> None:
        """utimens(2) of the document with the copy, as long as it says the same."""
        if (copy := self._known(group)) is not None:
            self._form.state.set_mtime(_spelled(self._form.ident(group, self._form.copy_document)), copy.digest, mtime_ns)

    async def _store(self, path: NodePath) -> None:
        del self._missing[path]
        if await self._form.context.editor.consolidate(path):
            self._in_mount.discard(path)

    # --- nodes that go or move ----------------------------------------------------------------------------------------------

    def forget_below(self, path: NodePath) -> None:
        """The node at ``path`` is gone, with all below it."""
        for each in [each for each in (*self._in_mount, *self._missing) if each == path or each.startswith(path.rstrip("/") + "/")]:
            self._in_mount.discard(each)
            self._missing.pop(each, None)
        self.forget()

    def moved(self, old: NodePath, new: NodePath) -> None:
        """The group at ``old`` is at ``new`` now."""

        def now(path: NodePath) -> NodePath:
            return NodePath(new + path[len(old) :]) if path == old or path.startswith(f"{old}/") else path

        self._in_mount, self._shown = set(map(now, self._in_mount)), set(map(now, self._shown))
        # Arrays that are still to come have another path, too.
        self._missing.clear()
        self.forget()

    # --- making -------------------------------------------------------------------------------------------------------------

    def _is_hidden(self, document: str) -> bool:
        """Whether the name was removed of a document that is there for a copy alone."""
        return self._form.copy_document not in self._form.documents and self._form.state.is_hidden(document, b"")

    async def _is_in(self, group: GroupNode) -> bool:
        if group.has_copy or group.path in self._in_mount:
            return True
        known, epoch = self._looked.get(group.path), self._hierarchy.forgotten.epoch
        if known is None or known[0] != epoch or known[1] <= trio.current_time():
            found = await self._form.context.editor.has_copy(group)
            if len(self._looked) >= _LOOKED_AT:
                self._looked.clear()
            known = self._looked[group.path] = epoch, trio.current_time() + self._ttl(), found
        return known[2]

    def _known(self, path: NodePath) -> _Copy | None:
        copy = self._made.get(path)
        return copy if copy is not None and copy.epoch == self._epoch() and copy.expires > trio.current_time() else None

    def _epoch(self) -> tuple[int, int]:
        return self._hierarchy.forgotten.epoch, self._form.state.changes

    def _ttl(self) -> float:
        ttl = self._hierarchy.ttl
        return max(ttl, _TOLD_TTL) if ttl and self._form.context.told() else ttl

    async def _of(self, group: GroupNode, plain: bytes | None) -> _Copy:
        async with self._making:
            copy = self._known(group.path)
            if copy is None:
                # The kernel may know of it from here on.
                self._shown.add(group.path)
                epoch = self._epoch()
                text, mtime_ns = await self._make(group, plain)
                digest = await threads.cpu(len(text or b""), _digest, text or b"")
                copy = _Copy(text, digest, mtime_ns, epoch, trio.current_time() + self._ttl())
                self._made.pop(group.path, None)
                self._made[group.path] = copy
                while sum(len(each.text or b"") for each in self._made.values()) > _REMEMBERED_NBYTES and len(self._made) > 1:
                    self._made.popitem(last=False)
            return copy

    async def _make(self, group: GroupNode, plain: bytes | None) -> tuple[bytes | None, int]:
        members: list[bytes] = []
        nbytes, newest_ns = len(plain or b""), 0
        async with aclosing(self._nodes(group)) as nodes:
            async for place, documents in nodes:
                for name, (text, mtime_ns) in documents.items():
                    newest_ns = max(newest_ns, mtime_ns)
                    if (member := self._form.member_of_copy(place, name)) is not None:
                        members.append(json.dumps(member).encode() + b": " + text)
                        nbytes += len(members[-1]) + 2
                if nbytes > MAX_NBYTES:
                    log.warning("%s: no consolidated copy is shown: it has more than %d bytes", group.path, MAX_NBYTES)
                    return None, newest_ns
        return await threads.cpu(nbytes, self._joined, plain, members), newest_ns

    def _joined(self, plain: bytes | None, members: list[bytes]) -> bytes | None:
        text = self._form.with_copy(plain, b"{" + b",\n".join(members) + b"}")
        return text if len(text) <= MAX_NBYTES else None

    async def _nodes(self, group: GroupNode) -> AsyncGenerator[tuple[str, Mapping[str, Shown]]]:
        """The group and the nodes below it, with what their places in the view are called from its folder on, and their documents. What
        the view cannot show is left out, as from its folder."""
        yield "", await self._form.shown_documents(group)
        pending = [(group.path, "")]
        while pending:
            path, place = pending.pop()

            async def look(name: str, path: NodePath = path) -> tuple[bool, Mapping[str, Shown]] | None:
                try:
                    node = await self._hierarchy.node(path.child(name))
                    if node is None or isinstance(node, UnsupportedNode):
                        return None
                    return isinstance(node, GroupNode), await self._form.documents_in_copy(node)
                except StoreTimeout:
                    # Says nothing of what is there.
                    raise
                except Exception as error:  # noqa: BLE001 - it hides no other node
                    log.info("%s: left out of the consolidated copy of %s: %s", path.child(name), group.path, error)
                    return None

            found = each_found(await in_order(await self._hierarchy.child_names(path)), look, _WIDTH)
            async with aclosing(found):
                async for name, (is_group, documents) in found:
                    here = f"{place}{names.name_of(name)}/"
                    yield here, documents
                    if is_group:
                        pending.append((path.child(name), here))


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _spelled(document: str) -> str:
    """What is remembered of a document with a copy is apart from what is of it without."""
    return f"{document}\0"


def named_nodes(path: NodePath, places: Iterable[str]) -> set[NodePath]:
    """The nodes that a view calls ``places`` from the folder of ``path`` on; without what can be none."""
    found = set()
    for place in places:
        node = path
        try:
            for name in place.split("/"):
                node = child_path(node, name)
        except NameInvalid:
            continue
        found.add(node)
    return found
