"""What ``chunks/`` remembers of a mount, beside what is in the store.

* **Hidden documents.** ``rm -r`` of a node unlinks its files in any order, and only then removes the folder. So unlinking ``.zarray`` or
  ``.zgroup`` takes the name away and nothing else; removing the folder erases the node (docs/design/006-node-edits.md).
* **New folders.** ``cp -r`` makes a folder and then every file in it with O_EXCL. So the ``.zgroup`` of a folder that was just made is
  not there until the folder, or the one it is in, is listed.
* **How documents were written.** A document is made from the node, and may be spelled otherwise than it was written. As long as it says
  the same, it is read back as it was written, byte for byte, with the time that was set: editors and rsync compare.
* **Chunks that waited.** Files with the names of chunks in a folder that had no ``.zarray`` yet: when it comes, they become chunks, and
  whoever knows such a file has to look it up again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from zarrfs.keys import NodePath
from zarrfs.model.metadata import ArrayNode
from zarrfs.views.base import ViewContext
from zarrfs.views.tree import node_ident

VIEW = "chunks"

_REMEMBERED = 1000
_TEXT_NBYTES = 64 * 1024


def ident(path: NodePath, name: str) -> str:
    """See `node_ident`."""
    return node_ident(VIEW, path, name)


@dataclass(slots=True)
class _Written:
    """What is known of a document as long as the view makes ``made`` for it (None: the node has no such document)."""

    made: bytes | None
    text: bytes | None = None
    mtime_ns: int | None = None


class ChunksState:
    """See the module's text. Documents are known by their idents; ``made`` is what the view makes of the node for one, None where it
    makes none."""

    def __init__(self, context: ViewContext) -> None:
        self.context = context
        self.became_chunks: set[str] = set()
        self._new: set[NodePath] = set()
        self._reason: tuple[ArrayNode | None, str | None] = (None, None)
        self._hidden: dict[str, bytes] = {}
        self._written: OrderedDict[str, _Written] = OrderedDict()

    def reason(self, node: ArrayNode, find: Callable[[ArrayNode], str | None]) -> str | None:
        """What ``find`` says of the array at the root, which is asked for at each step below it."""
        if self._reason[0] is not node:
            self._reason = node, find(node)
        return self._reason[1]

    def made_folder(self, path: NodePath) -> None:
        """mkdir(2) made a group."""
        self._new.add(path)

    def listed(self, path: NodePath) -> None:
        """A folder is listed: neither it nor one in it is new any more."""
        if self._new:
            self._new = {each for each in self._new if each != path and each.parent != path}

    def filled(self, path: NodePath) -> None:
        """The folder has its ``.zgroup`` from somebody."""
        self._new.discard(path)

    def is_new(self, path: NodePath) -> bool:
        """Whether a folder was just made, so that programs that fill it expect nothing in it."""
        return path in self._new

    def hide(self, document: str, made: bytes | None) -> None:
        """Take the name of a document away, until it is written again or says something else than now."""
        self._written.pop(document, None)
        if made is not None:
            self._hidden[document] = made

    def show(self, document: str) -> None:
        """Give it back."""
        self._hidden.pop(document, None)

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

    def forget_below(self, prefix: str) -> None:
        """Nodes whose idents begin with ``prefix`` are gone, or others."""
        self._new = {path for path in self._new if not ident(path, "").startswith(prefix)}
        for table in (self._hidden, self._written):
            for document in [each for each in table if each.startswith(prefix)]:
                del table[document]
