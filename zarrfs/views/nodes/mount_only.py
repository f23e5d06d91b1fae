"""State that a view of nodes as folders keeps for a mount, in addition to the store.

* **Hidden documents.** ``rm -r`` of a node unlinks its files in any order, and then removes the folder. Unlinking the document that
  defines a node therefore hides the name only; removing the folder erases the node (docs/design/006-node-edits.md).
* **New folders.** ``cp -r`` creates a folder and then every file in it with O_EXCL. The document of a group with a new folder therefore
  does not exist until the folder, or its parent, is listed.
* **New arrays.** The same applies, until the folder is listed, to the missing chunks of an array created here, and to an empty
  ``.zattrs`` that a program wrote.
* **Removed chunks.** An unlinked missing chunk is not found until the folder is listed, although it can be read: ``tar`` unlinks a file
  and creates it with O_EXCL.
* **Written documents.** A document is generated from the node, and may differ in form from the one that was written. While it is
  equivalent, it is read back byte for byte, with the time that was set: editors and rsync compare.
* **Waiting chunks.** Files with the names of chunks in a folder without an array's document: when the document is written, they become
  chunks, and programs that hold them have to look them up again. If chunk keys have slashes, folders wait likewise
  (docs/design/009-zarr3.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from zarrfs.hierarchy.path_index import PathIndex
from zarrfs.keys import ROOT, NodePath
from zarrfs.keys.path_set import PathDict, PathSet, folder_of_ident
from zarrfs.model.metadata import ArrayNode
from zarrfs.views.group_directory import node_ident

_REMEMBERED = 1000
_REMOVED = 100_000
_TEXT_NBYTES = 64 * 1024
_SHORT_NBYTES = 1024


@dataclass(slots=True)
class _Written:
    """The written form of a document while the view generates ``rendered``, a `_mark`, for it (None: the node has no such document).

    ``beyond``: what the written form says beyond it (`ViewFormat.beyond`)."""

    rendered: bytes | None
    text: bytes | None = None
    beyond: bytes | None = None
    mtime_ns: int | None = None


class MountOnly:
    """See the module's text.

    Documents are identified by their idents; ``rendered`` is the document that the view generates from the node, None for none.
    ``changes`` counts names of documents that appeared or disappeared. ``root_is_written``: a program wrote the document of the root.
    """

    def __init__(self, view: str) -> None:
        self._view = view
        self.changes = 0
        self.became_chunks: set[str] = set()
        self.root_is_written = False
        self._new = PathIndex()
        self._unwritten = PathIndex()
        self._undecided = PathIndex()
        self._created_arrays = PathIndex()
        self._unlisted = PathIndex()
        self._hidden_until_listed = PathSet(folder_of_ident)
        self._hidden_meanwhile: set[str] = set()
        self._removed = PathSet(folder_of_ident)
        self._reason: tuple[ArrayNode | None, str | None] = (None, None)
        self._hidden = PathDict[str, bytes](folder_of_ident)
        self._written = PathDict[str, _Written](folder_of_ident)

    def ident(self, path: NodePath, name: str) -> str:
        """Return the result of `node_ident`."""
        return node_ident(self._view, path, name)

    def reason(self, node: ArrayNode, find: Callable[[ArrayNode], str | None]) -> str | None:
        """Return the result of ``find`` for the array at the root, which every lookup below it needs."""
        if self._reason[0] is not node:
            self._reason = node, find(node)
        return self._reason[1]

    # --- new folders --------------------------------------------------------------------------------------------------------

    def folder_created(self, path: NodePath) -> None:
        """Record a group created by mkdir(2)."""
        self.changes += 1
        self._new.add(path)
        self._unwritten.add(path)

    def listed(self, path: NodePath) -> None:
        """Record a listing of a folder: neither it nor a folder in it is new any longer."""
        if self._new:
            self.changes += 1
        for known in (self._new, self._unlisted):
            if known:
                for each in (path, *known.directly_below(path)):
                    known.discard(each)
        if self._hidden_until_listed or self._removed:
            for document in self._hidden_until_listed.take_below(self.ident(path, "")):
                self.show(document)
            self.forget_removed(path)

    def filled(self, path: NodePath) -> None:
        """Record that a program wrote the document of the node."""
        self.changes += 1
        self.root_is_written |= path == ROOT
        self._new.discard(path)
        self._unwritten.discard(path)

    def holds_nodes(self, path: NodePath) -> None:
        """Record a node created in the folder, which is therefore a group."""
        self._unwritten.discard(path)

    def is_new(self, path: NodePath) -> bool:
        """Return True if a folder was just created, so that programs that fill it expect no entries."""
        return path in self._new

    def is_unwritten(self, path: NodePath) -> bool:
        """Return True if a folder was created and its kind is not determined yet."""
        return path in self._unwritten

    @contextmanager
    def creating_array(self, path: NodePath, document: str = "", rendered: bytes | None = None) -> Iterator[None]:
        """Record that a folder of the view becomes an array in the body, before whose end other tasks may find it.

        Its missing chunks, and ``document``, which shows ``rendered``, are hidden until it is listed.
        """
        self._created_arrays.add(path)
        self._unlisted.add(path)
        if rendered is not None:
            self._hidden_meanwhile.add(document)
        try:
            yield
        except BaseException:
            self._created_arrays.discard(path)
            self._unlisted.discard(path)
            raise
        finally:
            self._hidden_meanwhile.discard(document)
        # A listing in the body may have been one of the group.
        self._unlisted.add(path)
        if rendered is not None:
            self.hide(document, rendered)
            self._hidden_until_listed.add(document)

    def is_created_array(self, path: NodePath) -> bool:
        """Return True if a folder of the view became the array: its writer expects only the folders that it creates."""
        return path in self._created_arrays

    def removed_chunk(self, ident: str) -> None:
        """Record unlink(2) of a chunk."""
        if len(self._removed) >= _REMOVED:
            self._removed = PathSet(folder_of_ident)
        self._removed.add(ident)

    def wrote_chunk(self, ident: str) -> None:
        """Record that a program wrote a chunk."""
        self._removed.discard(ident)

    def is_removed(self, ident: str) -> bool:
        """Return True if a program removed a chunk, and has neither written it nor listed the folder since."""
        return ident in self._removed

    def forget_removed(self, path: NodePath) -> None:
        """Forget that chunks of the array at ``path`` were removed: their names are found again."""
        self._removed.take_below(self.ident(path, ""))

    def hides_missing(self, path: NodePath, ident: str) -> bool:
        """Return True if the chunk ``ident`` of the array at ``path``, missing but readable, must not be found."""
        return path in self._unlisted or ident in self._removed

    def add_undecided(self, path: NodePath) -> None:
        """Record a folder created by mkdir(2) that may be part of chunk keys, or a group: it exists in this mount only."""
        self._undecided.add(path)

    def keep_folder(self, path: NodePath) -> None:
        """Record a folder of chunk keys that stays until rmdir(2), although its last chunk is removed: so many at most."""
        if len(self._undecided) < _REMOVED:
            self.add_undecided(path)

    def is_undecided(self, path: NodePath) -> bool:
        """Return True if it still waits."""
        return path in self._undecided

    def decided(self, path: NodePath) -> None:
        """Record that a waiting folder is now a node or part of a chunk key, or gone."""
        self._undecided.discard(path)

    def undecided_in(self, path: NodePath) -> list[NodePath]:
        """Return the waiting folders directly in a folder."""
        return sorted(self._undecided.directly_below(path)) if self._undecided else []

    def undecided_below(self, path: NodePath) -> list[NodePath]:
        """Return the waiting folders in a folder, and all below them."""
        return [each for inner in self.undecided_in(path) for each in (inner, *self.undecided_below(inner))]

    # --- documents ----------------------------------------------------------------------------------------------------------

    def hide(self, document: str, rendered: bytes | None) -> None:
        """Hide the name of a document until it is written again or its content changes."""
        self.changes += 1
        self._written.take(document)
        if rendered is not None:
            self._hidden[document] = _mark(rendered)

    def show(self, document: str) -> None:
        """Show the name of a hidden document."""
        self.changes += 1
        self._hidden.take(document)
        self._hidden_until_listed.discard(document)

    def is_hidden(self, document: str, rendered: bytes | None) -> bool:
        """Return True if the name is hidden."""
        if document in self._hidden_meanwhile:
            return True
        if document in self._hidden and (rendered is None or self._hidden[document] != _mark(rendered)):
            del self._hidden[document]
        return document in self._hidden

    def wrote(self, document: str, rendered: bytes | None, text: bytes, beyond: bytes | None = None) -> None:
        """Record the written ``text``, which is equivalent to ``rendered``, and says ``beyond``."""
        if len(text) <= _TEXT_NBYTES:
            known = self._remember(document, rendered)
            known.text, known.beyond = text, beyond

    def set_mtime(self, document: str, rendered: bytes | None, mtime_ns: int) -> None:
        """Record utimens(2) of a document."""
        self._remember(document, rendered).mtime_ns = mtime_ns

    def text(self, document: str, rendered: bytes | None, beyond: bytes | None = None) -> bytes | None:
        """Return the document as written, if that is recorded, and what it says still holds, else ``rendered``."""
        known = self._written.get(document)
        if known is None or known.text is None or known.beyond != beyond or known.rendered != _mark_of(rendered):
            return rendered
        return known.text

    def mtime_ns(self, document: str, rendered: bytes | None) -> int | None:
        """Return the time that was set; None if there is none."""
        known = self._written.get(document)
        return known.mtime_ns if known is not None and known.rendered == _mark_of(rendered) else None

    def _remember(self, document: str, rendered: bytes | None) -> _Written:
        known, mark = self._written.take(document), _mark_of(rendered)
        if known is None or known.rendered != mark:
            known = _Written(mark)
        self._written[document] = known
        if len(self._written) > _REMEMBERED:
            del self._written[next(iter(self._written))]
        return known

    # --- removed and renamed nodes ------------------------------------------------------------------------------------------

    def forget_below(self, path: NodePath) -> None:
        """Discard the state of the node at ``path`` and of those below it: they are gone, or replaced."""
        prefix = self.ident(path, "")
        for idents in (self._hidden_until_listed, self._removed, self._hidden):
            idents.take_below(prefix)
        self._written.take_below(prefix)
        for paths in self._kinds():
            paths.take_below(path)

    def moved(self, old: NodePath, new: NodePath) -> None:
        """Move the state of the folder of ``old``, with its entries, to ``new``."""
        before, after = self.ident(old, ""), self.ident(new, "")
        moved = [paths.take_below(old) for paths in self._kinds()]
        hidden, written = self._hidden.take_below(before), self._written.take_below(before)
        self.forget_below(old)
        self.forget_below(new)
        for paths, more in zip(self._kinds(), moved, strict=True):
            for each in more:
                paths.add(NodePath(new + each[len(old) :]))
        for ident, rendered in hidden.items():
            self._hidden[after + ident[len(before) :]] = rendered
        for ident, known in written.items():
            self._written[after + ident[len(before) :]] = known

    def _kinds(self) -> Sequence[PathIndex]:
        return self._new, self._unwritten, self._undecided, self._created_arrays, self._unlisted


def _mark(rendered: bytes) -> bytes:
    """Return what to remember of a document: equal for equal ones, and short, as a document may have megabytes."""
    return rendered if len(rendered) <= _SHORT_NBYTES else hashlib.blake2b(rendered, digest_size=32).digest()


def _mark_of(rendered: bytes | None) -> bytes | None:
    return None if rendered is None else _mark(rendered)
