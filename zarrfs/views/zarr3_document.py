"""``zarr.json`` of a node of any dialect: what it means that somebody wrote one.

Of an array that is there the attributes and the shape can be changed, whatever the dialect; what of the node the document cannot say
stays in the node's own documents. How a view shows arrays, and what it makes of new ones, is for a subclass of `Zarr3Document`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from zarrfs import threads
from zarrfs.arrays.concurrency import has_any
from zarrfs.dialects.base import Edit, Layout
from zarrfs.dialects.documents import ATTRIBUTES, dump, is_object
from zarrfs.dialects.documents import parsed as parsed_member
from zarrfs.dialects.v3.chain import filters_last, final_codecs
from zarrfs.dialects.v3.consolidated import LOOSE, MEMBER, copied_documents
from zarrfs.dialects.v3.dialect import PLUGIN as V3
from zarrfs.dialects.v3.names import DOCUMENT
from zarrfs.errors import ContentInvalid, MetadataError, NotRepresentable
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.model.cf_fill_value import NAME as FILL_VALUE
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayNode, GroupNode, Node
from zarrfs.model.shards import ShardSpec
from zarrfs.views.nodes.document import NodeDocument, check_attributes, check_only_shape_differs, parsed
from zarrfs.views.nodes.shown_copies import named_nodes
from zarrfs.views.nodes.undecided import groups_from_undecided
from zarrfs.views.shown_dimensions import DIMENSIONS
from zarrfs.views.zarr3_array import Zarr3Array, dimension_names, formatted, is_named, zarr3_array
from zarrfs.views.zarr3_fill import are_alike, changed_fill, in_order, new_fill, with_shown_fill

Show = Callable[[ArrayNode], Zarr3Array]
"""How a view shows an array."""

_LAYOUT = V3.create(Prefix(""))
_FIXED = ("data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")


class Zarr3Document(NodeDocument):
    """``zarr.json``."""

    def show(self, node: ArrayNode) -> Zarr3Array:
        """How the view shows an array. Raises `NotRepresentable`."""
        return zarr3_array(node)

    async def change(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        written = await threads.cpu(len(data), written_node, self.path, self.ident, data)
        await threads.cpu(len(data), check_attributes, self.ident, node.attributes, written.attributes)
        if isinstance(written, GroupNode):
            await self._change_group(node, written)
            if (arrays := await threads.cpu(len(data), arrays_in_copy, self.path, self.ident, data)) is not None:
                await self._form.copies.written(self.path, arrays)
        elif isinstance(node, ArrayNode):
            await self._change_array(node, written)
        else:
            await self._make_array(written)

    def says_the_same(self, made: bytes | None, written: bytes) -> bool:
        return says_the_same(self.path, made, written)

    async def _change_array(self, node: ArrayNode, written: ArrayNode) -> None:
        written = with_shown_fill(node, written)
        check_array(self.ident, self.show(node), node, written)
        editor, named = self._context.editor, is_named(self.show(node).metadata)
        fill_value, attributes = changed_fill(self.ident, node, stored_attributes(node.dialect, written, node), named=named)
        if node.dialect != V3.name:
            attributes = in_order(node.attributes, attributes, (DIMENSIONS, FILL_VALUE))
        if node.metadata.shape != written.metadata.shape:
            shape = written.metadata.shape
            await editor.resize(self.path, shape, erase_outside=self._context.resize_erases, of=self.live)
        await self._set_attributes(node, attributes, fill_value)

    async def _make_array(self, written: ArrayNode) -> None:
        if await has_any(self._context.hierarchy.children(self.path)):
            raise ContentInvalid(f"{self.path} is a group that holds nodes: it cannot become an array", key=self.ident)
        editor = self._context.editor
        layout = await editor.layout_for(self.path)
        try:
            new = self._new_array(layout, written, self._context.new_arrays.shards(layout, written.metadata.grid_shape))
        except NotRepresentable as error:
            raise ContentInvalid(f"{self.ident}: {error}", key=self.ident) from error
        await editor.turn_into_array(new)
        self._state.made_array(self.path)

    def _new_array(self, layout: Layout, written: ArrayNode, shards: tuple[ShardSpec, ...]) -> ArrayNode:
        """The array that is made where ``written`` is the document. Raises `ContentInvalid`, `NotRepresentable`."""
        asked = written.metadata
        keys = asked.chunk_key_encoding if layout.dialect.name == V3.name else layout.dialect.chunk_key_encoding
        chains = (asked.codecs, filters_last(asked.codecs, asked.data_type))
        return new_array(layout, self.ident, written, show=self.show, chains=chains, keys=keys, shards=shards)

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

    async def _set_attributes(
        self, node: ArrayNode | GroupNode, attributes: Mapping[str, Any], fill_value: bytes | None = None
    ) -> None:
        # Compared as text: 1, 1.0 and true are equal, and are not the same.
        if fill_value is not None or dump(dict(node.attributes)) != dump(dict(attributes)):
            await self._context.editor.amend(self.path, Edit(attributes=attributes, fill_value=fill_value), of=self.live)


def written_node(path: NodePath, ident: str, data: bytes) -> ArrayNode | GroupNode:
    """What ``data``, written as ``zarr.json``, says of the node at ``path``; what a consolidated copy in it says is passed over.

    Of an array, the chain is complete, and an undefined fill value defined, as `zarr3_array` has them. Raises `ContentInvalid`, also for
    what the view cannot show.
    """
    document = parsed(ident, data, LOOSE)
    try:
        # At the root, because other dialects have names of nodes that v3 has not.
        node = _LAYOUT.parse(ROOT, {ROOT.prefix.key(DOCUMENT): data})
        unknown = sorted(document.keys() - _known_members(node))
        if unknown:
            raise ContentInvalid(f"{ident}: member {unknown[0]!r} has no place in the node", key=ident)
        if isinstance(node, GroupNode):
            return replace(node, path=path)
        if not isinstance(node, ArrayNode):
            raise ContentInvalid(f"{ident}: no document of Zarr v3", key=ident)
        metadata = node.metadata
        codecs = final_codecs(metadata.codecs, metadata.data_type)
    except MetadataError as error:
        raise ContentInvalid(f"{ident}: {error}", key=ident) from error
    if metadata.shards:
        raise ContentInvalid(
            f"{ident}: arrays are shown without shards here, and made without: leave out sharding_indexed", key=ident
        )
    return replace(node, path=path, metadata=replace(metadata, codecs=codecs, fill_value=metadata.fill_bytes))


def arrays_in_copy(path: NodePath, ident: str, data: bytes) -> set[NodePath] | None:
    """The arrays that the consolidated copy knows which ``data``, a ``zarr.json`` of the group at ``path``, holds; None without one."""
    copied = copied_documents(parsed(ident, data, LOOSE))
    return None if copied is None else named_nodes(path, (name for name, each in copied.items() if _is_array(ident, each)))


def _is_array(ident: str, copied: Any) -> bool:
    return is_object(copied) and parsed_member(ident, copied, ATTRIBUTES).get("node_type") == "array"


def check_array(ident: str, shown: Zarr3Array, node: ArrayNode, written: ArrayNode) -> None:
    """Raise `ContentInvalid` where ``written`` asks of the array ``node``, which is shown as ``shown``, for something else than other
    attributes or another shape; of a dialect that has names of dimensions in an attribute, for other names."""
    before, after = shown.metadata, written.metadata
    check_only_shape_differs(ident, before, after, dict(zip(_FIXED, _FIXED, strict=True)))
    names = after.dimension_names
    if node.dialect != V3.name and (names is None or DIMENSIONS not in written.attributes) and None not in (names or ()):
        return
    if names not in (before.dimension_names, dimension_names(replace(node, attributes=written.attributes))):
        raise ContentInvalid(f"{ident}: dimension_names of an array cannot be changed; its shape can", key=ident)


def stored_attributes(dialect: str, written: ArrayNode, before: ArrayNode | None = None) -> Mapping[str, Any]:
    """The attributes that an array of ``dialect`` is to have when ``written`` is written, in the place of ``before``. Names of dimensions
    that are left out stay; a new array without dimensions has no names, which xarray wants said."""
    names = written.metadata.dimension_names
    if dialect == V3.name or DIMENSIONS in written.attributes:
        return written.attributes
    if names is None:
        names = dimension_names(before) if before is not None else None if written.metadata.ndim else ()
    return written.attributes if names is None else {**written.attributes, DIMENSIONS: list(names)}


def new_array(
    layout: Layout,
    ident: str,
    written: ArrayNode,
    *,
    show: Show,
    chains: tuple[tuple[CodecSpec, ...], ...],
    keys: ChunkKeyEncoding,
    shards: tuple[ShardSpec, ...] = (),
) -> ArrayNode:
    """The array that ``written`` asks for, in the words of ``layout``: with its chunks and fill value, and such that ``show`` has what
    was written; its chunks, encoded by the first of ``chains`` that will do, are stored under ``keys``, in ``shards``. Raises
    `ContentInvalid` where the layout has no words for it."""
    asked, dialect = written.metadata, layout.dialect
    is_final = dialect.name == V3.name
    if not is_final and asked.dimension_names is not None and None in asked.dimension_names:
        raise ContentInvalid(f"{ident}: {dialect.name} has no names for some dimensions and none for others", key=ident)
    # Those of no dimensions will be an empty list.
    fill_value, attributes = new_fill(ident, dialect.name, written, named=is_named(asked) or not asked.ndim)
    attributes = stored_attributes(dialect.name, replace(written, attributes=attributes))
    names = asked.dimension_names if is_final else None
    reason = ""
    for codecs in chains:
        new = ArrayNode(
            path=written.path,
            dialect=dialect.name,
            metadata=replace(
                asked, codecs=codecs, chunk_key_encoding=keys, fill_value=fill_value, dimension_names=names, shards=shards
            ),
            chunk_prefix=layout.chunk_prefix(written.path),
            attributes=attributes,
        )
        try:
            # What the layout will read back is what counts.
            made = layout.parse(new.path, layout.format(new))
            assert isinstance(made, ArrayNode)
            if (differs := _difference(made, show(made), written)) is None:
                return made
        except MetadataError as error:
            differs = str(error)
        reason = reason or f"{ident}: {differs}"
    raise ContentInvalid(reason, key=ident)


def says_the_same(path: NodePath, made: bytes | None, data: bytes) -> bool:
    """Whether a document that was written says what the view would write. One with a consolidated copy is not compared here."""
    if made is None or MEMBER in parsed(DOCUMENT, data):
        return False
    node, written = written_node(path, DOCUMENT, made), written_node(path, DOCUMENT, data)
    if isinstance(node, ArrayNode) and isinstance(written, ArrayNode):
        with_names = {**written.attributes, DIMENSIONS: list(written.metadata.dimension_names or ())}
        data_type = written.metadata.data_type
        metadata = node.metadata if node.metadata.ndim else replace(node.metadata, dimension_names=written.metadata.dimension_names)
        alike = any(are_alike(data_type, node.attributes, each) for each in (written.attributes, with_names))
        return metadata == written.metadata and alike
    return isinstance(node, GroupNode) and isinstance(written, GroupNode) and node.attributes == written.attributes


def _known_members(node: Node | None) -> set[str]:
    """What a document of such a node may say: what is written of it, and what is passed over."""
    return {MEMBER, "dimension_names", *(parsed(DOCUMENT, formatted(node)) if isinstance(node, ArrayNode | GroupNode) else ())}


def _difference(made: ArrayNode, said: Zarr3Array, written: ArrayNode) -> str | None:
    """What the document of ``made``, which is shown as ``said``, says otherwise than ``written``, and why."""
    shown, asked = said.metadata, with_shown_fill(made, written).metadata
    for member in ("shape", *_FIXED, "dimension_names"):
        if getattr(shown, member) == getattr(asked, member):
            continue
        match member:
            case "chunk_key_encoding":
                return f"chunk keys of arrays of {made.dialect} are shown as 'default' with '/', and no others can be asked for"
            case "dimension_names" if asked.dimension_names is None:
                continue
            case "dimension_names":
                return f"{made.dialect} has names of dimensions in the attribute {DIMENSIONS} alone, which says something else"
        return f"{made.dialect} has no words for this {member}"
    return None
