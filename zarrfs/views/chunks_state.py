"""What ``chunks/`` remembers of a mount, beside what is in the store.

* **Hidden documents.** ``rm -r`` of a node unlinks its files in any order, and only then removes the folder. So unlinking ``.zarray`` or
  ``.zgroup`` takes the name away and nothing else; removing the folder erases the node (docs/design/006-node-edits.md).
* **How documents were written.** A document is made from the node, and may be spelled otherwise than it was written. As long as it says
  the same, it is read back as it was written, byte for byte: editors and rsync compare.
* **Chunks that waited.** Files with the names of chunks in a folder that had no ``.zarray`` yet: when it comes, they become chunks, and
  whoever knows such a file has to look it up again.
"""

from __future__ import annotations

from collections import OrderedDict

from zarrfs.keys import NodePath
from zarrfs.vfs import names
from zarrfs.views.base import ViewContext

VIEW = "chunks"

_SPELLINGS_KEPT = 1000
_SPELLING_NBYTES = 64 * 1024


def ident(path: NodePath, name: str) -> str:
    """`File.ident` of the entry ``name`` of the folder of a node; with an empty name, what those of all entries begin with."""
    return "/".join((VIEW, *(names.name_of(part) for part in path[1:].split("/") if part), name))


class ChunksState:
    """See the module's text. Documents are known by their idents; ``made`` is what the view makes of the node for one."""

    def __init__(self, context: ViewContext) -> None:
        self.context = context
        self.became_chunks: set[str] = set()
        self._hidden: dict[str, bytes] = {}
        self._spellings: OrderedDict[str, tuple[bytes, bytes]] = OrderedDict()

    def hide(self, document: str, made: bytes) -> None:
        """Take the name of a document away, until it is written again or says something else than now."""
        self._hidden[document] = made

    def show(self, document: str) -> None:
        """Give it back."""
        self._hidden.pop(document, None)

    def is_hidden(self, document: str, made: bytes) -> bool:
        """Whether the name is away."""
        if document in self._hidden and self._hidden[document] != made:
            del self._hidden[document]
        return document in self._hidden

    def spell(self, document: str, made: bytes, written: bytes) -> None:
        """``written`` is what somebody wrote, and ``made`` what the view makes of it."""
        self._spellings.pop(document, None)
        if made != written and len(written) <= _SPELLING_NBYTES:
            self._spellings[document] = made, written
            if len(self._spellings) > _SPELLINGS_KEPT:
                self._spellings.popitem(last=False)

    def spelled(self, document: str, made: bytes) -> bytes:
        """The document as it was written, if that is known."""
        known, written = self._spellings.get(document, (b"", b""))
        return written if known == made else made

    def forget_below(self, prefix: str) -> None:
        """Nodes whose idents begin with ``prefix`` are gone, or others."""
        for table in (self._hidden, self._spellings):
            for document in [each for each in table if each.startswith(prefix)]:
                del table[document]
