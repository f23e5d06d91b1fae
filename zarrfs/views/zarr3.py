"""``zarr3/``: the hierarchy as plain final Zarr v3, every array unsharded: one key for each inner chunk.

A chunk file is the chunk's stored bytes, unchanged, where the final v3 has words for the array's codecs; else the chunk is decoded, and
its codec is ``bytes`` (C order, little-endian). Keys are the array's own where it is of the final v3, else ``c/1/2``. What is written to
a chunk has to decode to one, and is stored as it is; a ``zarr.json`` that is written changes the node, whatever its dialect. Folders that
are made are groups; one that gets the document of an array is an array with the codecs and chunks that it asks for
(docs/design/009-zarr3.md).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

from zarrfs.dialects.v3.names import DOCUMENT
from zarrfs.hierarchy.known_nodes import OpenArray
from zarrfs.keys import NodePath
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.model.unparsed import are_large
from zarrfs.views.base import ViewContext, ViewPlugin
from zarrfs.views.nodes.chunk import ChunkFile, DecodedChunk, EncodedChunk, decoded_size
from zarrfs.views.nodes.view import NodeView
from zarrfs.views.nodes.view_format import ViewFormat
from zarrfs.views.zarr3_documents import Zarr3Array, zarr3_array, zarr3_group
from zarrfs.views.zarr3_files import Zarr3Document

_KEY = re.compile(r"c|(c[./])?[0-9]+([./][0-9]+)*")
# As many as the hierarchy remembers nodes.
_REMEMBERED = 50_000
_LARGE_NBYTES = 8 << 10
_REMEMBERED_NBYTES = 16 << 20


class Zarr3Format(ViewFormat):
    """See the module's text."""

    view = "zarr3"
    documents = (DOCUMENT,)
    array_document = DOCUMENT
    group_document = DOCUMENT
    folders = True

    def __init__(self, context: ViewContext) -> None:
        super().__init__(context)
        self._shown: OrderedDict[NodePath, tuple[ArrayNode, Zarr3Array]] = OrderedDict()
        self._keys: OrderedDict[NodePath, ChunkKeyEncoding] = OrderedDict()
        # Bytes of those that are large, the attributes left out.
        self._nbytes: OrderedDict[NodePath, int] = OrderedDict()
        self._all_nbytes = 0

    def made(self, node: ArrayNode | GroupNode) -> Mapping[str, bytes]:
        if isinstance(node, GroupNode):
            return {DOCUMENT: zarr3_group(node)}
        known = self._shown.get(node.path)
        return {DOCUMENT: (known[1] if known is not None and known[0] is node else self._look(node)).document}

    def keys(self, node: ArrayNode) -> ChunkKeyEncoding:
        return self._as_shown(node).metadata.chunk_key_encoding

    def known_keys(self, path: NodePath) -> ChunkKeyEncoding | None:
        return self._keys.get(path)

    def looks_like_chunk(self, key: str) -> bool:
        return _KEY.fullmatch(key) is not None

    def document(self, path: NodePath, name: str) -> Zarr3Document:
        return Zarr3Document(self, path, name)

    def chunk(self, opened: OpenArray, coords: Coords, path: NodePath | None = None) -> ChunkFile:
        kind = EncodedChunk if self._as_shown(opened.array.node).encoded else DecodedChunk
        return kind(self, opened, coords, path)

    async def chunk_size(self, opened: OpenArray, coords: Coords, stored_nbytes: int) -> int:
        is_encoded = self._as_shown(opened.array.node).encoded
        return stored_nbytes if is_encoded else await decoded_size(opened, coords)

    def is_hollow(self, node: GroupNode) -> bool:
        return not node.attributes

    def _as_shown(self, node: ArrayNode) -> Zarr3Array:
        """How the chunks of ``node`` are shown. An array that is open may have other attributes by now, which do not matter here."""
        known = self._shown.get(node.path)
        if known is not None and (known[0] is node or (known[0].metadata, known[0].dialect) == (node.metadata, node.dialect)):
            return known[1]
        return self._look(node)

    def _look(self, node: ArrayNode) -> Zarr3Array:
        shown = zarr3_array(node)
        # Of a large document everything else is worth remembering.
        large = are_large(node.attributes) or len(shown.document) > _LARGE_NBYTES
        self._forget(node.path)
        self._keys[node.path] = shown.metadata.chunk_key_encoding
        if len(self._keys) > _REMEMBERED:
            self._keys.popitem(last=False)
        self._shown[node.path] = (replace(node, attributes={}), replace(shown, document=b"")) if large else (node, shown)
        if (nbytes := node.metadata.held_nbytes) > _LARGE_NBYTES:
            self._nbytes[node.path] = nbytes
            self._all_nbytes += nbytes
        while len(self._shown) > _REMEMBERED:
            self._forget(next(iter(self._shown)))
        while self._all_nbytes > _REMEMBERED_NBYTES:
            self._forget(next(iter(self._nbytes)))
        return shown

    def _forget(self, path: NodePath) -> None:
        self._shown.pop(path, None)
        self._all_nbytes -= self._nbytes.pop(path, 0)


PLUGIN = ViewPlugin(
    "zarr3",
    "the hierarchy as plain Zarr v3 without shards, chunks as they are encoded, for Zarr v3 readers and writers",
    lambda context: NodeView(Zarr3Format(context)),
)
