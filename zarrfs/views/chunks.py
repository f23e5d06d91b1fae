"""``chunks/``: the hierarchy with every array a folder of decoded chunks, laid out as an uncompressed Zarr v2 hierarchy.

A chunk file holds all elements of the chunk at its full shape, in C order, little-endian; its name is the coordinates joined by
dots. Missing chunks are not listed (with ``fill`` they can be read as fill value); writing one creates it. The documents beside
them (``.zgroup``, ``.zarray``, ``.zattrs``) describe these files, so that Zarr v2 readers open the folder whatever the store's own
layout; a write to one changes the node in that layout. A new folder is a group; a ``.zarray`` turns it into an array.

An array on a grid that v2 cannot represent has ``zarr.json``, of final v3, instead of ``.zarray`` and ``.zattrs``, beside the same
chunk files (`zarrfs.views.unequal_document`).

Source: Zarr v2 "Arrays" and "Attributes". The documents are those of an uncompressed hierarchy in C order, little-endian, with dots
in chunk names; a write of a document with other values is refused with the reason, since the view could not show them.

Metadata that v2 cannot represent appears in ``.zattrs``: ``_ARRAY_DIMENSIONS`` for the dimension names, and the true data type
under ``zarrfs``, if the node has no attributes with these names. A write removes them again if they are unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from zarrfs import threads
from zarrfs.arrays.concurrency import has_any
from zarrfs.dialects.base import Edit
from zarrfs.dialects.documents import patched
from zarrfs.dialects.v2.dialect import ZARRAY, ZATTRS, ZGROUP, ZMETADATA
from zarrfs.dialects.v3.names import DOCUMENT
from zarrfs.errors import ContentInvalid, NotRepresentable, StoreFull
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.keys import NodePath
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.views.base import ViewContext, ViewPlugin
from zarrfs.views.chunks_documents import (
    array_written,
    arrays_in_copy,
    check_group,
    documents_of,
    edit_written,
    is_equivalent,
    is_without_additions,
    separator_written,
)
from zarrfs.views.nodes.chunk import DecodedChunk, decoded_size
from zarrfs.views.nodes.document import NodeDocument, check_only_shape_differs, parsed
from zarrfs.views.nodes.shown_copies import TimedDocument
from zarrfs.views.nodes.view import NodeView
from zarrfs.views.nodes.view_format import ViewFormat
from zarrfs.views.shown_dimensions import DIMENSIONS, names_from
from zarrfs.views.shown_fill import (
    attributes_with_fill,
    is_undefined,
    new_attributes,
    removed_reads_as,
    says_what_is_missing,
)
from zarrfs.views.unequal_document import UnequalDocument, is_unequal
from zarrfs.views.zarr3_array import DECODED_KEYS, ShownArrays, decoded_array

DOCUMENTS = (ZARRAY, ZATTRS, ZGROUP, DOCUMENT)

_FIXED = {"chunk_grid": "chunks", "data_type": "dtype"}
_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+)*")


class ChunksFormat(ViewFormat):
    """See the module's text."""

    view = "chunks"
    documents = DOCUMENTS
    array_documents = (ZARRAY, DOCUMENT)
    group_document = ZGROUP
    copy_document = ZMETADATA
    ignored = frozenset({ZMETADATA})

    def __init__(self, context: ViewContext) -> None:
        super().__init__(context)
        self._unequal = ShownArrays(decoded_array)

    def fills(self, node: ArrayNode) -> bool:
        return self.context.fill or self.lists_missing(node)

    def lists_missing(self, node: ArrayNode) -> bool:
        # zarr.json gives the value that missing chunks read as.
        return not is_unequal(node) and not says_what_is_missing(node)

    def beyond(self, node: ArrayNode | GroupNode | None, name: str) -> bytes | None:
        return node.metadata.fill_value if name == ZARRAY and isinstance(node, ArrayNode) else None

    async def removed_reads_as(self, node: ArrayNode) -> bytes | None:
        value = removed_reads_as(node) if self.lists_missing(node) else None
        if value is None:
            return None
        # Without its document it is no array: rm -r removes the document first, as it is listed first.
        rendered = (await self.documents_of(node))[ZARRAY]
        return None if self.state.is_hidden(self.ident(node.path, ZARRAY), rendered) else value

    def render(self, node: ArrayNode | GroupNode) -> Mapping[str, bytes]:
        if isinstance(node, ArrayNode) and is_unequal(node):
            return {DOCUMENT: self._unequal.document(node)}
        return documents_of(node)

    def why_no_document(self, node: ArrayNode, name: str) -> str | None:
        if (name == DOCUMENT) == is_unequal(node):
            return super().why_no_document(node, name)
        return f"the document of {node.path} in chunks/ is {DOCUMENT if is_unequal(node) else ZARRAY}"

    async def documents_in_copy(self, node: ArrayNode | GroupNode) -> Mapping[str, TimedDocument]:
        if is_unequal(node):
            raise NotRepresentable(f"the chunk grid of {node.path} has no Zarr v2 form")
        return await super().documents_in_copy(node)

    def member_of_copy(self, folder: str, document: str) -> str:
        return folder + document

    def with_copy(self, plain: bytes | None, members: bytes) -> bytes:
        return b'{\n    "metadata": ' + members + b',\n    "zarr_consolidated_format": 1\n}'

    def keys(self, node: ArrayNode) -> ChunkKeyEncoding:
        return DECODED_KEYS

    def known_keys(self, path: NodePath) -> ChunkKeyEncoding:
        return DECODED_KEYS

    def looks_like_chunk(self, key: str) -> bool:
        return _NUMBERS.fullmatch(key) is not None

    def document(self, path: NodePath, name: str) -> NodeDocument:
        return _DOCUMENTS.get(name, ChunksDocument)(self, path, name)

    def chunk(self, open_array: OpenArray, coords: Coords, path: NodePath | None = None) -> DecodedChunk:
        return DecodedChunk(self, open_array, coords, path)

    async def chunk_size(self, open_array: OpenArray, coords: Coords, stored_nbytes: int) -> int:
        return await decoded_size(open_array, coords)


PLUGIN = ViewPlugin(
    "chunks",
    "every array a folder of decoded chunks (C order, little-endian), which Zarr v2 readers open",
    lambda context: NodeView(ChunksFormat(context)),
    order=10,
    example=("find chunks -name .zarray | head", "the arrays of the store"),
    notes=(
        "In chunks/, missing chunks are listed if .zarray does not give the value that they read as, up to 65,536 of an array.",
        "For more, .zattrs gives the value (zarrfs: missing_chunks_read_as), and each chunk can be read by its name.",
        "An array on a grid that Zarr v2 cannot represent has a zarr.json of Zarr v3 there, instead of .zarray and .zattrs.",
    ),
    documents=(*DOCUMENTS, ZMETADATA),
)


class ChunksDocument(NodeDocument):
    """``.zgroup``, ``.zarray`` or ``.zattrs``."""

    async def change(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        if is_unequal(node):
            self.check_is_of(node)
        if self.name == ZATTRS:
            await self._change_attributes(node, await threads.cpu(len(data), edit_written, node, self.ident, data))
        elif self.name == ZARRAY:
            await self._change_array(node, data)
        else:
            await self._change_group(node, data)

    def is_equivalent(self, rendered: bytes | None, written: bytes) -> bool:
        if self.name == ZATTRS and rendered is not None and self._state.is_created_array(self.path):
            return is_without_additions(rendered, written)
        return is_equivalent(self.path, self.name, rendered, written)

    async def erase(self) -> None:
        """Run unlink(2): erase the attributes; of the other documents only the name is removed."""
        if self.name == ZATTRS and not self._leaves:
            async with self._editing() as node:
                if node.attributes:
                    try:
                        await self._change_attributes(node, edit_written(node, self.ident, b"{}"))
                    except StoreFull:
                        # rm -r, as the node's document was removed before: the folder takes the attributes with it, and makes room.
                        if not await self._is_being_removed(node):
                            raise
        await super().erase()

    async def _is_being_removed(self, node: ArrayNode | GroupNode) -> bool:
        """Return True if a program has removed the document that defines the node."""
        name = ZARRAY if isinstance(node, ArrayNode) else ZGROUP
        rendered = (await self._view_format.documents_of(node)).get(name)
        return rendered is not None and self._state.is_hidden(self._view_format.ident(self.path, name), rendered)

    async def _change_attributes(self, node: ArrayNode | GroupNode, edit: Edit) -> None:
        if isinstance(node, GroupNode) and self._state.is_unwritten(self.path):
            layout = await self._context.editor.layout_for(self.path)
            if not layout.dialect.has_groups and not await has_any(self._context.hierarchy.children(self.path)):
                # Groups of such a dialect have no attributes, but this may become an array, and cp -r copies in any order.
                groups = self._context.hierarchy.empty_groups
                groups.keep(self.path, edit.attributes or {}, unstored=groups.unstored_at(self.path))
                return
        await self._context.editor.amend(self.path, edit, of=self.live, seen=type(node))
        if isinstance(node, ArrayNode):
            self._restate_fill(node, replace(node, attributes=edit.attributes or {}))

    def _restate_fill(self, before: ArrayNode, after: ArrayNode) -> None:
        """Continue to show ``.zarray`` as it was written, but with the fill value that new attributes have given it.

        netCDF-C opens no hierarchy in which the documents of groups have its members, and those of arrays do not.
        """
        document, beyond = self._view_format.ident(self.path, ZARRAY), self._view_format.beyond
        rendered, changed = documents_of(before)[ZARRAY], documents_of(after)[ZARRAY]
        text = self._state.text(document, rendered, beyond(before, ZARRAY))
        if text is not None and text != rendered and changed != rendered:
            fill_value = parsed(document, changed)["fill_value"]
            self._state.wrote(document, changed, patched(document, text, ("fill_value",), fill_value), beyond(after, ZARRAY))

    def _is_removed(self, node: ArrayNode) -> Callable[[Coords], bool]:
        """Return a function that tells removed chunks: zarr-python 3 removes those outside of a smaller shape before it writes it."""
        view_format, keys = self._view_format, self._view_format.keys(node)
        return lambda coords: self._state.is_removed(view_format.ident(self.path, keys.encode(coords)))

    async def _change_array(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        written = await threads.cpu(len(data), array_written, self.path, self.ident, data)
        editor = self._context.editor
        if isinstance(node, ArrayNode):
            before = array_written(self.path, self.ident, documents_of(node)[ZARRAY])
            if written.data_type == node.metadata.data_type:
                # Types that NumPy lacks are shown as void; a program that has stated one (tensorstore) states it again for another shape.
                written = replace(written, data_type=before.data_type)
            check_only_shape_differs(self.ident, before, written, _FIXED)
            changed = self._edit_of_fill(node, written.fill_value)
            if before.shape != written.shape or (
                changed is None and (self.live, written.shape) in self._context.hierarchy.live.half_erased
            ):
                # The same document again erases what a failed attempt has left outside of the shape.
                erase_outside = self._context.resize_erases or self._is_removed(node)
                await editor.resize(self.path, written.shape, erase_outside=erase_outside, of=self.live, edit=changed)
                # Where the array grows again, chunks are missing.
                self._state.forget_removed(self.path)
            elif changed is not None:
                await editor.amend(self.path, changed, of=self.live)
            if written.fill_value is not None:
                self._context.hierarchy.undefined_fills.discard(self.path)
            return
        layout = await editor.layout_for(self.path)
        attributes = new_attributes(layout.dialect.name, written.data_type, written.fill_value, node.attributes, self.ident)
        names = names_from(attributes, written.ndim) if layout.dialect.has_dimension_names else None
        if layout.dialect.chunk_grid(written.chunk_grid.largest, written.shape) != written.chunk_grid:
            raise ContentInvalid(f"{self.ident}: arrays of {layout.dialect.name} cannot have these chunks", key=self.ident)
        try:
            new = self._context.new_arrays.node(
                self.path,
                layout,
                shape=written.shape,
                data_type=written.data_type,
                chunk_shape=written.chunk_grid.largest,
                fill_value=written.fill_value,
                separator=separator_written(self.ident, data, layout),
            )
        except NotRepresentable as error:
            raise NotRepresentable(f"{self.ident}: {error}", key=self.ident) from error
        # An undefined fill value stays undefined if the dialect can represent that.
        metadata = replace(new.metadata, fill_value=written.fill_value, dimension_names=names)
        if names is not None:
            attributes = {name: value for name, value in attributes.items() if name != DIMENSIONS}
        new_array = replace(new, metadata=metadata, attributes=attributes)
        # A layout may keep more than the attributes there, such as the filters in 2022.
        as_stored = layout.parse(self.path, layout.format(new_array))
        shown = documents_of(as_stored).get(ZATTRS) if isinstance(as_stored, ArrayNode) else None
        document = self._view_format.ident(self.path, ZATTRS)
        with self._state.creating_array(self.path, document, None if node.attributes else shown):
            await editor.turn_into_array(new_array)
        if written.fill_value is None and not layout.dialect.has_undefined_fill:
            self._context.hierarchy.undefined_fills.add(self.path, metadata.fill_bytes)
        else:
            self._context.hierarchy.undefined_fills.discard(self.path)
        text = self._state.text(document, documents_of(node).get(ZATTRS))
        if text is None or (stored := await self._found()) is None:
            return
        # The layout may store attributes in another order (v0 and v1: sorted).
        shown = documents_of(stored).get(ZATTRS)
        if shown is not None and is_without_additions(shown, text):
            self._state.wrote(document, shown, text)

    def _edit_of_fill(self, node: ArrayNode, fill: bytes | None) -> Edit | None:
        """Return the edit of ``node`` for a write of this fill value to its ``.zarray``; None for no change. Raises `ContentInvalid`."""
        is_new = self._context.hierarchy.undefined_fills.is_at(self.path, node.metadata.fill_bytes)
        if fill is not None and is_undefined(node, is_new=is_new):
            defined = new_attributes(node.dialect, node.metadata.data_type, fill, node.attributes, self.ident)
            return Edit(attributes=defined, fill_value=fill)
        attributes = attributes_with_fill(node, fill, self.ident)
        return None if attributes is None else Edit(attributes=attributes)

    async def _change_group(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        await threads.cpu(len(data), check_group, self.ident, data)
        if isinstance(node, ArrayNode):
            raise ContentInvalid(f"{self.ident}: {self.path} is an array, and cannot be a group as well", key=self.ident)
        if not node.explicit:
            layout = await self._context.editor.layout_for(self.path)
            await self._context.editor.create(GroupNode(path=self.path, dialect=layout.dialect.name, attributes=node.attributes))


class CopyDocument(NodeDocument):
    """``.zmetadata`` of a group (`zarrfs.views.nodes.shown_copies`)."""

    async def change(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        await self._view_format.copies.written(self.path, await threads.cpu(len(data), arrays_in_copy, self.path, self.ident, data))

    def is_equivalent(self, rendered: bytes | None, written: bytes) -> bool:
        return False

    async def erase(self) -> None:
        """Run unlink(2): only the name is removed."""
        self._state.hide(self.ident, b"")

    async def set_mtime(self, mtime_ns: int) -> None:
        await self._shown()
        self._view_format.copies.set_mtime(self.path, mtime_ns)


_DOCUMENTS: dict[str, type[NodeDocument]] = {DOCUMENT: UnequalDocument, ZMETADATA: CopyDocument}
"""Classes of the documents; those of Zarr v2 nodes use `ChunksDocument`."""
