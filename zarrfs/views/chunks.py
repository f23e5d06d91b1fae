"""``chunks/``: the hierarchy with every array a folder of decoded chunks, laid out as an uncompressed Zarr v2 hierarchy.

A chunk file is all elements of the chunk at its full shape, in C order, little-endian; its name is the coordinates joined by dots.
Chunks that are not stored are not listed (with ``fill`` they can be read as fill value); writing one creates it. The documents beside
them (``.zgroup``, ``.zarray``, ``.zattrs``) say just this, so that Zarr v2 readers open the folder whatever the store's own layout; what
is written to them changes the nodes of that layout. Folders that are made are groups; one that gets a ``.zarray`` is an array.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zarrfs.dialects.v2 import ZMETADATA
from zarrfs.hierarchy.nodes import NodeChange
from zarrfs.keys import ROOT
from zarrfs.stores.base import Change
from zarrfs.vfs import names
from zarrfs.vfs.node import Directory
from zarrfs.views.base import Affected, View, ViewContext, ViewPlugin
from zarrfs.views.chunks_documents import DOCUMENTS, KEYS
from zarrfs.views.chunks_folders import ChunksFolder
from zarrfs.views.chunks_state import VIEW, ChunksState, ident


class ChunksView(View):
    """See the module's text."""

    def __init__(self, context: ViewContext) -> None:
        self._state = ChunksState(context)

    def root(self) -> Directory:
        return ChunksFolder(self._state, ROOT)

    def affected(self, change: Change, nodes: Sequence[NodeChange]) -> Iterable[Affected]:
        for node in nodes:
            folder = tuple(names.name_of(part) for part in node.path[1:].split("/") if part)
            if node.coords is not None:
                name = KEYS.encode(node.coords)
                # What was a temporary file until now has to be looked up anew.
                gone = change.kind in ("erase", "unknown") or ident(node.path, name) in self._state.became_chunks
                yield Affected((*folder, name), gone=gone, content=change.kind != "times")
            else:
                if change.is_prefix and change.kind == "erase":
                    self._state.forget_below(ident(node.path, ""))
                yield Affected(folder, gone=True)
                for document in DOCUMENTS:
                    yield Affected((*folder, document), gone=True, content=change.kind != "times")

    def left(self) -> Iterable[str]:
        # A consolidated copy that was copied in says nothing that its nodes do not say; that of the store follows every edit.
        temporary = self._state.context.temporaries.left()
        return [each for each in temporary if each.startswith(f"{VIEW}/") and not each.endswith(f"/{ZMETADATA}")]


PLUGIN = ViewPlugin(
    "chunks", "every array a folder of decoded chunks (C order, little-endian), which Zarr v2 readers open", ChunksView
)
