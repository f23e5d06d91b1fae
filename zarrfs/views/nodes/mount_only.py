"""What a view of nodes as folders remembers of a mount, beside what is in the store.

* **Hidden documents.** ``rm -r`` of a node unlinks its files in any order, and only then removes the folder. So unlinking the document
  that makes a node takes the name away and nothing else; removing the folder erases the node (docs/design/006-node-edits.md).
* **New folders.** ``cp -r`` makes a folder and then every file in it with O_EXCL. So the document of a group whose folder was just made
  is not there until the folder, or the one it is in, is listed.
* **New arrays.** So are, until the folder is listed, the missing chunks of an array that was made here, and a ``.zattrs`` with nothing
  in it that a program wrote.
* **Removed chunks.** A missing chunk that was unlinked is not found until the folder is listed, although it can be read: ``tar`` unlinks
  a file and creates it with O_EXCL.
* **How documents were written.** A document is made from the node, and may be spelled otherwise than it was written. As long as it says
  the same, it is read back as it was written, byte for byte, with the time that was set: editors and rsync compare.
* **Chunks that waited.** Files with the names of chunks in a folder that has no array's document yet: when it comes, they become
  chunks, and whoever knows such a file has to look it up again. Where chunk keys have slashes, folders wait likewise
  (docs/design/009-zarr3.md).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from zarrfs.keys import NodePath
from zarrfs.model.metadata import ArrayNode
from zarrfs.views.group_directory import node_ident

_REMEMBERED = 1000
_REMOVED = 100_000
_TEXT_NBYTES = 64 * 1024


@dataclass(slots=True)
class _Written:
    """What is known of a document as long as the view makes ``made`` for it (None: the node has no such document)."""

    made: bytes | None
    text: bytes | None = None
    mtime_ns: int | None = None


class MountOnly:
    """See the module's text. Documents are known by their idents; ``made`` is what the view makes of the node for one, None where it
    makes none. ``changes``: counts names of documents that came or went."""

    def __init__(self, view: str) -> None:
        self._view = view
        self.changes = 0
        self.became_chunks: set[str] = set()
        self._new: set[NodePath] = set()
        self._unwritten: set[NodePath] = set()
        self._waiting: dict[NodePath, set[NodePath]] = {}
        self._made_arrays: set[NodePath] = set()
        self._unlisted: set[NodePath] = set()
        self._hidden_until_listed: set[str] = set()
        self._removed: set[str] = set()
        self._reason: tuple[ArrayNode | None, str | None] = (None, None)
        self._hidden: dict[str, bytes] = {}
        self._written: OrderedDict[str, _Written] = OrderedDict()

    def ident(self, path: NodePath, name: str) -> str:
        """See `node_ident`."""
        return node_ident(self._view, path, name)

    def reason(self, node: ArrayNode, find: Callable[[ArrayNode], str | None]) -> str | None:
        """What ``find`` says of the array at the root, which is asked for at each step below it."""
        if self._reason[0] is not node:
            self._reason = node, find(node)
        return self._reason[1]

    # --- folders that were made ---------------------------------------------------------------------------------------------

    def made_folder(self, path: NodePath) -> None:
        """mkdir(2) made a group."""
        self.changes += 1
        self._new.add(path)
        self._unwritten.add(path)

    def listed(self, path: NodePath) -> None:
        """A folder is listed: neither it nor one in it is new any more."""
        if self._new:
            self.changes += 1
            self._new = {each for each in self._new if each != path and each.parent != path}
        if self._unlisted:
            self._unlisted = {each for each in self._unlisted if each != path and each.parent != path}
        if self._hidden_until_listed or self._removed:
            below = self.ident(path, "")
            for document in [each for each in self._hidden_until_listed if each.startswith(below)]:
                self.show(document)
            self._removed = {each for each in self._removed if not each.startswith(below)}

    def filled(self, path: NodePath) -> None:
        """Somebody wrote the document of the node."""
        self.changes += 1
        self._new.discard(path)
        self._unwritten.discard(path)

    def holds_nodes(self, path: NodePath) -> None:
        """A node is made in a folder: it is a group's."""
        self._unwritten.discard(path)

    def is_new(self, path: NodePath) -> bool:
        """Whether a folder was just made, so that programs that fill it expect nothing in it."""
        return path in self._new

    def is_unwritten(self, path: NodePath) -> bool:
        """Whether a folder was made, and nobody said yet what it is."""
        return path in self._unwritten

    def made_array(self, path: NodePath) -> None:
        """A folder became an array here."""
        self._made_arrays.add(path)

    def is_made_array(self, path: NodePath) -> bool:
        """Whether it did: programs that fill it expect no folders in it but those that they make."""
        return path in self._made_arrays

    def made_unlisted(self, path: NodePath, document: str, made: bytes | None) -> None:
        """A folder became an array: its missing chunks, and the ``document`` that shows ``made``, are not there until it is listed."""
        self._unlisted.add(path)
        if made is not None:
            self.hide(document, made)
            self._hidden_until_listed.add(document)

    def removed_chunk(self, ident: str) -> None:
        """unlink(2) of a chunk."""
        if len(self._removed) >= _REMOVED:
            self._removed.clear()
        self._removed.add(ident)

    def hides_missing(self, path: NodePath, ident: str) -> bool:
        """True if the chunk ``ident`` of the array at ``path``, which can be read although it is missing, is not to be found."""
        return path in self._unlisted or ident in self._removed

    def wait(self, path: NodePath) -> None:
        """mkdir(2) made a folder that may be one of chunks, or a group: it is in this mount only."""
        self._waiting.setdefault(path.parent, set()).add(path)

    def waits(self, path: NodePath) -> bool:
        """Whether it still does."""
        return path in self._waiting.get(path.parent, ())

    def done_waiting(self, path: NodePath) -> None:
        """It is something now, or gone."""
        beside = self._waiting.get(path.parent, set())
        beside.discard(path)
        if not beside:
            self._waiting.pop(path.parent, None)

    def waiting_in(self, path: NodePath) -> list[NodePath]:
        """Those directly in a folder."""
        return sorted(self._waiting.get(path, ()))

    def waiting_below(self, path: NodePath) -> list[NodePath]:
        """Those in a folder, and in those."""
        return [each for inner in self.waiting_in(path) for each in (inner, *self.waiting_below(inner))]

    # --- documents ----------------------------------------------------------------------------------------------------------

    def hide(self, document: str, made: bytes | None) -> None:
        """Take the name of a document away, until it is written again or says something else than now."""
        self.changes += 1
        self._written.pop(document, None)
        if made is not None:
            self._hidden[document] = made

    def show(self, document: str) -> None:
        """Give it back."""
        self.changes += 1
        self._hidden.pop(document, None)
        self._hidden_until_listed.discard(document)

    def is_hidden(self, document: str, made: bytes | None) -> bool:
        """Whether the name is away."""
        if document in self._hidden and self._hidden[document] != made:
            del self._hidden[document]
        return document in self._hidden

    def wrote(self, document: str, made: bytes | None, text: bytes) -> None:
        """Somebody wrote ``text``, which says what ``made`` says."""
        if len(text) <= _TEXT_NBYTES:
            self._remember(document, made).text = text

    def set_mtime(self, document: str, made: bytes | None, mtime_ns: int) -> None:
        """utimens(2)."""
        self._remember(document, made).mtime_ns = mtime_ns

    def text(self, document: str, made: bytes | None) -> bytes | None:
        """The document as it was written, if that is known."""
        known = self._written.get(document)
        return known.text if known is not None and known.made == made and known.text is not None else made

    def mtime_ns(self, document: str, made: bytes | None) -> int | None:
        """The time that was set, if there is one."""
        known = self._written.get(document)
        return known.mtime_ns if known is not None and known.made == made else None

    def _remember(self, document: str, made: bytes | None) -> _Written:
        known = self._written.pop(document, None)
        if known is None or known.made != made:
            known = _Written(made)
        self._written[document] = known
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
        return known

    # --- nodes that go or move ----------------------------------------------------------------------------------------------

    def forget_below(self, prefix: str) -> None:
        """Nodes whose idents begin with ``prefix`` are gone, or others."""
        self._hidden_until_listed = {each for each in self._hidden_until_listed if not each.startswith(prefix)}
        self._removed = {each for each in self._removed if not each.startswith(prefix)}
        for paths in (self._new, self._unwritten, self._made_arrays, self._unlisted):
            paths -= {path for path in paths if self.ident(path, "").startswith(prefix)}
        for path in [each for paths in self._waiting.values() for each in paths if self.ident(each, "").startswith(prefix)]:
            self.done_waiting(path)
        for table in (self._hidden, self._written):
            for document in [each for each in table if each.startswith(prefix)]:
                del table[document]

    def moved(self, old: NodePath, new: NodePath) -> None:
        """The folder of ``old`` is that of ``new`` now, with all that is in it."""

        def called(paths: Iterable[NodePath]) -> set[NodePath]:
            return {NodePath(new + each[len(old) :]) for each in paths if each == old or each.startswith(old + "/")}

        kinds = self._new, self._unwritten, self._made_arrays, self._unlisted
        moved = [called(paths) for paths in kinds]
        waiting = called(each for paths in self._waiting.values() for each in paths)
        before, after = self.ident(old, ""), self.ident(new, "")
        hidden = {after + each[len(before) :]: made for each, made in self._hidden.items() if each.startswith(before)}
        written = {after + each[len(before) :]: known for each, known in self._written.items() if each.startswith(before)}
        self.forget_below(before)
        self.forget_below(after)
        for paths, more in zip(kinds, moved, strict=True):
            paths |= more
        for each in waiting:
            self.wait(each)
        self._hidden |= hidden
        self._written |= written
