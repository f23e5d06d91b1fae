"""``zarr.json`` in ``chunks/``, in place of ``.zarray`` and ``.zattrs``: for arrays on grids that Zarr v2 cannot represent.

Source: Zarr v3 core, "Array metadata". The document describes the chunk files beside it: the array's own grid and data type, keys
of the encoding ``v2`` with ".", and the codec ``bytes``, little-endian (for elements of variable length, their only codec). A write
changes the node as in ``zarr3/`` (`zarrfs.views.zarr3_document`); codecs and keys of new arrays are mount options, as for any array
created in ``chunks/``.
"""

from __future__ import annotations

from zarrfs.dialects.base import Layout
from zarrfs.dialects.v3.chain import final_codecs, plain_codecs
from zarrfs.errors import ContentInvalid
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.model.shards import ShardSpec
from zarrfs.views.zarr3_array import DECODED_KEYS, Zarr3Array, decoded_array
from zarrfs.views.zarr3_document import Zarr3Document, new_array


def is_unequal(node: ArrayNode | GroupNode) -> bool:
    """Return True if ``node`` is an array on a grid that Zarr v2 cannot represent."""
    return isinstance(node, ArrayNode) and not isinstance(node.metadata.chunk_grid, RegularGrid)


class UnequalDocument(Zarr3Document):
    """See the module's text."""

    def show(self, node: ArrayNode) -> Zarr3Array:
        return decoded_array(node)

    async def _change_group(self, node: ArrayNode | GroupNode, written: GroupNode) -> None:
        raise ContentInvalid(f"{self.ident}: the document of a group in chunks/ is .zgroup", key=self.ident)

    async def _change_array(self, node: ArrayNode, written: ArrayNode) -> None:
        self.check_is_of(node)
        await super()._change_array(node, written)

    def _new_array(self, layout: Layout, written: ArrayNode, shards: tuple[ShardSpec, ...]) -> ArrayNode:
        asked, options = written.metadata, self._context.new_arrays
        self.check_is_of(written)
        plain = final_codecs(plain_codecs(asked.data_type), asked.data_type)
        if asked.codecs != plain:
            raise ContentInvalid(
                f"{self.ident}: codecs must be {plain[0].name!r} alone, little-endian: chunks/ shows decoded chunks; codecs of new "
                "arrays are a mount option",
                key=self.ident,
            )
        if asked.chunk_key_encoding != DECODED_KEYS:
            raise ContentInvalid(
                f"{self.ident}: chunk_key_encoding must be 'v2' with '.', the form of chunk names in chunks/",
                key=self.ident,
            )
        chains = (options.codecs(layout, asked.data_type),)
        keys = options.chunk_keys(layout)
        return new_array(layout, self.ident, written, show=self.show, chains=chains, keys=keys, shards=shards)
