"""The documents of ``chunks/`` as files: what becomes of a node when one of them is written or removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zarrfs import threads
from zarrfs.arrays.concurrency import has_any
from zarrfs.dialects.base import Edit
from zarrfs.dialects.v2.dialect import ZARRAY, ZATTRS
from zarrfs.errors import ContentInvalid
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.views.chunks_documents import array_written, attributes_written, check_group, documents_of, says_the_same
from zarrfs.views.nodes.document import NodeDocument, check_only_shape_differs

_FIXED = {"chunk_grid": "chunks", "data_type": "dtype", "fill_value": "fill_value"}


class ChunksDocument(NodeDocument):
    """``.zgroup``, ``.zarray`` or ``.zattrs`` (`zarrfs.views.chunks_documents`)."""

    async def change(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        if self.name == ZATTRS:
            await self._change_attributes(node, await threads.cpu(len(data), attributes_written, node, self.ident, data))
        elif self.name == ZARRAY:
            await self._change_array(node, data)
        else:
            await self._change_group(node, data)

    def says_the_same(self, made: bytes | None, written: bytes) -> bool:
        return says_the_same(self.path, self.name, made, written)

    async def erase(self) -> None:
        """unlink(2): the attributes are emptied; of the other documents only the name goes."""
        if self.name == ZATTRS and not self._leaves:
            node = await self._found()
            if node is not None and node.attributes:
                await self._change_attributes(node, {})
        await super().erase()

    async def _change_attributes(self, node: ArrayNode | GroupNode, attributes: Mapping[str, Any]) -> None:
        if isinstance(node, GroupNode) and self._state.is_unwritten(self.path):
            layout = await self._context.editor.layout_for(self.path)
            if not layout.dialect.has_groups and not await has_any(self._context.hierarchy.children(self.path)):
                # No group of such a dialect has attributes, but this may become an array, and cp -r copies in any order.
                self._context.hierarchy.empty_groups.keep(self.path, attributes)
                return
        await self._context.editor.amend(self.path, Edit(attributes=attributes))

    async def _change_array(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        written = await threads.cpu(len(data), array_written, self.path, self.ident, data)
        editor = self._context.editor
        if isinstance(node, ArrayNode):
            before = array_written(self.path, self.ident, documents_of(node)[ZARRAY])
            check_only_shape_differs(self.ident, before, written, _FIXED)
            if before.shape != written.shape:
                await editor.resize(self.path, written.shape, erase_outside=self._context.resize_erases)
            return
        new = self._context.new_arrays.node(
            self.path,
            await editor.layout_for(self.path),
            shape=written.shape,
            data_type=written.data_type,
            chunk_shape=written.chunk_grid.chunk_shape((0,) * written.ndim),
            fill_value=written.fill_value,
        )
        # An undefined fill value stays so where the dialect can say it.
        metadata = replace(new.metadata, fill_value=written.fill_value)
        await editor.turn_into_array(replace(new, metadata=metadata, attributes=node.attributes))

    async def _change_group(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        await threads.cpu(len(data), check_group, self.ident, data)
        if isinstance(node, ArrayNode):
            raise ContentInvalid(f"{self.ident}: {self.path} is an array, and cannot be a group as well", key=self.ident)
        if not node.explicit:
            layout = await self._context.editor.layout_for(self.path)
            await self._context.editor.create(GroupNode(path=self.path, dialect=layout.dialect.name, attributes=node.attributes))
