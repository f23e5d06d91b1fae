"""The document of ``zarr3/`` as a file: what becomes of a node when it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarrfs import threads
from zarrfs.arrays.concurrency import has_any
from zarrfs.dialects.base import Edit
from zarrfs.dialects.documents import dump
from zarrfs.errors import ContentInvalid
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.views.nodes.document import NodeDocument
from zarrfs.views.nodes.undecided import groups_from_undecided
from zarrfs.views.zarr3_documents import check_array, new_array, says_the_same, stored_attributes, written_node


class Zarr3Document(NodeDocument):
    """``zarr.json`` (`zarrfs.views.zarr3_documents`)."""

    async def change(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        written = await threads.cpu(len(data), written_node, self.path, self.ident, data)
        if isinstance(written, GroupNode):
            await self._change_group(node, written)
        elif isinstance(node, ArrayNode):
            await self._change_array(node, written)
        else:
            await self._make_array(written)

    def says_the_same(self, made: bytes | None, written: bytes) -> bool:
        return says_the_same(self.path, made, written)

    async def _change_array(self, node: ArrayNode, written: ArrayNode) -> None:
        check_array(self.ident, node, written)
        editor = self._context.editor
        if node.metadata.shape != written.metadata.shape:
            await editor.resize(self.path, written.metadata.shape, erase_outside=self._context.resize_erases)
        await self._set_attributes(node, stored_attributes(node.dialect, written))

    async def _make_array(self, written: ArrayNode) -> None:
        if await has_any(self._context.hierarchy.children(self.path)):
            raise ContentInvalid(f"{self.path} is a group that holds nodes: it cannot become an array", key=self.ident)
        editor = self._context.editor
        await editor.turn_into_array(new_array(await editor.layout_for(self.path), self.ident, written))
        self._state.made_array(self.path)

    async def _change_group(self, node: ArrayNode | GroupNode, written: GroupNode) -> None:
        if isinstance(node, ArrayNode):
            raise ContentInvalid(f"{self.ident}: {self.path} is an array, and cannot be a group as well", key=self.ident)
        if node.explicit:
            await self._set_attributes(node, written.attributes)
        else:
            layout = await self._context.editor.layout_for(self.path)
            group = GroupNode(path=self.path, dialect=layout.dialect.name, attributes=written.attributes)
            await self._context.editor.create(group)
        await groups_from_undecided(self._form, self.path)

    async def _set_attributes(self, node: ArrayNode | GroupNode, attributes: Mapping[str, Any]) -> None:
        # Compared as text: 1, 1.0 and true are equal, and are not the same.
        if dump(dict(node.attributes)) != dump(dict(attributes)):
            await self._context.editor.amend(self.path, Edit(attributes=attributes))
