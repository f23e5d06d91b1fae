"""``chunks/``: the hierarchy with every array a folder of decoded chunks, laid out as an uncompressed Zarr v2 hierarchy.

A chunk file is all elements of the chunk at its full shape, in C order, little-endian; its name is the coordinates joined by dots.
Chunks that are not stored are not listed (with ``fill`` they can be read as fill value); writing one creates it. The documents beside
them (``.zgroup``, ``.zarray``, ``.zattrs``) say just this, so that Zarr v2 readers open the folder whatever the store's own layout; what
is written to them changes the nodes of that layout. Folders that are made are groups; one that gets a ``.zarray`` is an array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from zarrfs.dialects.v2.dialect import ZARRAY, ZGROUP, ZMETADATA
from zarrfs.hierarchy.known_nodes import OpenArray
from zarrfs.keys import NodePath
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.views.base import ViewContext, ViewPlugin
from zarrfs.views.chunks_documents import DOCUMENTS, KEYS, documents_of
from zarrfs.views.chunks_files import ChunksDocument
from zarrfs.views.nodes.chunk import DecodedChunk, decoded_size
from zarrfs.views.nodes.view import NodeView
from zarrfs.views.nodes.view_format import ViewFormat

_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+)*")


class ChunksFormat(ViewFormat):
    """See the module's text."""

    view = "chunks"
    documents = DOCUMENTS
    array_document = ZARRAY
    group_document = ZGROUP
    ignored = frozenset({ZMETADATA})

    def __init__(self, context: ViewContext) -> None:
        super().__init__(context)
        self.fill = context.fill

    def made(self, node: ArrayNode | GroupNode) -> Mapping[str, bytes]:
        return documents_of(node)

    def keys(self, node: ArrayNode) -> ChunkKeyEncoding:
        return KEYS

    def known_keys(self, path: NodePath) -> ChunkKeyEncoding:
        return KEYS

    def looks_like_chunk(self, key: str) -> bool:
        return _NUMBERS.fullmatch(key) is not None

    def document(self, path: NodePath, name: str) -> ChunksDocument:
        return ChunksDocument(self, path, name)

    def chunk(self, opened: OpenArray, coords: Coords, path: NodePath | None = None) -> DecodedChunk:
        return DecodedChunk(self, opened, coords, path)

    async def chunk_size(self, opened: OpenArray, coords: Coords, stored_nbytes: int) -> int:
        return await decoded_size(opened, coords)


PLUGIN = ViewPlugin(
    "chunks",
    "every array a folder of decoded chunks (C order, little-endian), which Zarr v2 readers open",
    lambda context: NodeView(ChunksFormat(context)),
)
