"""``zarr3/``: the hierarchy as plain final Zarr v3 without shards: one key for each inner chunk.

A chunk file holds the chunk's stored bytes, unchanged, if final v3 can represent the array's codecs. Otherwise the chunk is decoded
and its codec is ``bytes`` (C order, little-endian). Keys are the array's own for arrays of final v3, else ``c/1/2``. Bytes written
to a chunk must decode, and are stored unchanged. A write to ``zarr.json`` changes the node, whatever its dialect. A new folder is a
group; the document of an array turns it into an array with the requested codecs and chunks (docs/design/009-zarr3.md).

Source: Zarr v3 core, version 3.1. The document is that of a plain, unsharded hierarchy: one key for each inner chunk, with the
codecs of the inner chunks. A group's document holds a consolidated copy if the store has one (`zarrfs.views.nodes.shown_copies`).
Parts of a node that it cannot represent stay in the node's own documents.

In dialects without dimension names, the names in the attribute ``_ARRAY_DIMENSIONS`` (xarray's convention) appear as dimension
names, and written names are stored there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from zarrfs.dialects.documents import patched
from zarrfs.dialects.v3.consolidated import MEMBER
from zarrfs.dialects.v3.names import DOCUMENT
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.keys import NodePath
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.model.unparsed import Unparsed
from zarrfs.views.base import ViewContext, ViewPlugin
from zarrfs.views.nodes.chunk import ChunkFile, DecodedChunk, EncodedChunk, decoded_size
from zarrfs.views.nodes.view import NodeView
from zarrfs.views.nodes.view_format import ViewFormat
from zarrfs.views.zarr3_array import ShownArrays, formatted, zarr3_array
from zarrfs.views.zarr3_document import Zarr3Document

_KEY = re.compile(r"c|(c[./])?[0-9]+([./][0-9]+)*")


class Zarr3Format(ViewFormat):
    """See the module's text."""

    view = "zarr3"
    documents = (DOCUMENT,)
    array_documents = (DOCUMENT,)
    group_document = DOCUMENT
    copy_document = DOCUMENT
    folders = True

    def __init__(self, context: ViewContext) -> None:
        super().__init__(context)
        self._arrays = ShownArrays(zarr3_array)

    def render(self, node: ArrayNode | GroupNode) -> Mapping[str, bytes]:
        if isinstance(node, GroupNode):
            return {DOCUMENT: formatted(node)}
        return {DOCUMENT: self._arrays.document(node)}

    def member_of_copy(self, folder: str, document: str) -> str | None:
        return folder.rstrip("/") or None

    def with_copy(self, plain: bytes | None, members: bytes) -> bytes:
        assert plain is not None
        copy = {"kind": "inline", "must_understand": False, "metadata": Unparsed(members)}
        return patched(DOCUMENT, plain, [MEMBER], copy)

    def keys(self, node: ArrayNode) -> ChunkKeyEncoding:
        return self._arrays.of(node).metadata.chunk_key_encoding

    def known_keys(self, path: NodePath) -> ChunkKeyEncoding | None:
        return self._arrays.known_keys(path)

    def looks_like_chunk(self, key: str) -> bool:
        return _KEY.fullmatch(key) is not None

    def document(self, path: NodePath, name: str) -> Zarr3Document:
        return Zarr3Document(self, path, name)

    def chunk(self, open_array: OpenArray, coords: Coords, path: NodePath | None = None) -> ChunkFile:
        kind = EncodedChunk if self._arrays.of(open_array.array.node).encoded else DecodedChunk
        return kind(self, open_array, coords, path)

    async def chunk_size(self, open_array: OpenArray, coords: Coords, stored_nbytes: int) -> int:
        is_encoded = self._arrays.of(open_array.array.node).encoded
        return stored_nbytes if is_encoded else await decoded_size(open_array, coords)

    def is_hollow(self, node: GroupNode) -> bool:
        return not node.attributes


PLUGIN = ViewPlugin(
    "zarr3",
    "the hierarchy as plain Zarr v3 without shards, chunks encoded as stored, for Zarr v3 readers and writers",
    lambda context: NodeView(Zarr3Format(context)),
    example=("python3 -c 'import zarr; print(zarr.open(\"zarr3\").tree())'", "the hierarchy, with any reader of Zarr v3"),
    documents=(DOCUMENT,),
)
