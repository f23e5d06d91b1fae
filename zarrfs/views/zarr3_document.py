"""``zarr.json`` of a node of any dialect, and the effect of writing one.

A write to an existing array can change its attributes and shape, whatever the dialect; parts of the node that the document cannot
represent stay in the node's own documents. A subclass of `Zarr3Document` defines how a view shows arrays and creates new ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zarrfs import threads
from zarrfs.arrays.concurrency import has_any
from zarrfs.dialects.base import Edit, Layout
from zarrfs.dialects.documents import ATTRIBUTES, dump, is_object, shortened
from zarrfs.dialects.documents import parsed as parsed_member
from zarrfs.dialects.v3.chain import filters_last, final_codecs, spelt_out
from zarrfs.dialects.v3.consolidated import LOOSE, MEMBER, copied_documents
from zarrfs.dialects.v3.dialect import PLUGIN as V3
from zarrfs.dialects.v3.names import DOCUMENT
from zarrfs.errors import ContentInvalid, MetadataError, NotRepresentable
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.model import cf_fill_value as cf
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.fill_value import undefined
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node
from zarrfs.model.shards import ShardSpec
from zarrfs.views.nodes.document import NodeDocument, check_attributes, check_only_shape_differs, parsed
from zarrfs.views.nodes.shown_copies import named_nodes
from zarrfs.views.nodes.undecided import groups_from_undecided
from zarrfs.views.shown_dimensions import DIMENSIONS
from zarrfs.views.zarr3_array import Zarr3Array, dimension_names, formatted, is_named, zarr3_array
from zarrfs.views.zarr3_fill import (
    are_alike,
    changed_fill,
    has_nan,
    in_order,
    is_shared,
    new_fill,
    with_defined_fill,
    with_shown_fill,
    with_stored_nan,
)

Show = Callable[[ArrayNode], Zarr3Array]
"""Returns an array as a view shows it."""

_LAYOUT = V3.create(Prefix(""))
_FIXED = ("data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")


class Zarr3Document(NodeDocument):
    """``zarr.json``."""

    def show(self, node: ArrayNode) -> Zarr3Array:
        """Return the array as the view shows it. Raises `NotRepresentable`."""
        return zarr3_array(node)

    async def change(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        written = await threads.cpu(len(data), written_node, self.path, self.ident, data)
        if isinstance(written, ArrayNode):
            written = replace(written, attributes=_without_bare_nan(written, node.attributes))
        await threads.cpu(len(data), check_attributes, self.ident, node.attributes, written.attributes)
        if isinstance(written, GroupNode):
            await self._change_group(node, written)
            if (arrays := await threads.cpu(len(data), arrays_in_copy, self.path, self.ident, data)) is not None:
                await self._view_format.copies.written(self.path, arrays)
        else:
            # GDAL writes NaN for null where the type has it.
            is_undefined = written.metadata.fill_value is None or has_nan(written)
            fills = self._context.hierarchy.undefined_fills
            written = replace(written, metadata=_with_fill(written.metadata))
            if isinstance(node, GroupNode):
                new = await self._make_array(written)
                if is_undefined:
                    fills.add(self.path, new.metadata.fill_bytes)
            else:
                await self._change_array(node, written)
            if not is_undefined:
                fills.discard(self.path)

    def is_equivalent(self, rendered: bytes | None, written: bytes) -> bool:
        return is_equivalent(self.path, rendered, written)

    async def _change_array(self, node: ArrayNode, written: ArrayNode) -> None:
        written = with_stored_nan(node, with_shown_fill(node, written))
        is_new = self._context.hierarchy.undefined_fills.is_at(self.path, node.metadata.fill_bytes)
        defined = with_defined_fill(node, written, is_new=is_new)
        check_array(self.ident, self.show(defined), defined, written)
        editor, named = self._context.editor, is_named(self.show(node).metadata)
        fill_value, attributes = changed_fill(self.ident, defined, stored_attributes(node.dialect, written, node), named=named)
        if fill_value is None and defined is not node:
            fill_value = defined.metadata.fill_value
        if node.dialect != V3.name:
            attributes = in_order(node.attributes, attributes, (DIMENSIONS, cf.NAME))
        shape = written.metadata.shape
        is_same = fill_value is None and dump(dict(node.attributes)) == dump(dict(attributes))
        if node.metadata.shape != shape or (is_same and (self.live, shape) in self._context.hierarchy.live.half_erased):
            # The same document again erases what a failed attempt has left outside of the shape.
            edit = None if is_same else Edit(attributes=attributes, fill_value=fill_value)
            await editor.resize(self.path, shape, erase_outside=self._context.resize_erases, of=self.live, edit=edit)
        elif not is_same:
            await self._set_attributes(node, attributes, fill_value)
        if fill_value is not None:
            self._context.hierarchy.undefined_fills.discard(self.path)

    async def _make_array(self, written: ArrayNode) -> ArrayNode:
        if await has_any(self._context.hierarchy.children(self.path)):
            raise ContentInvalid(f"{self.path} is a group that holds nodes: it cannot become an array", key=self.ident)
        editor = self._context.editor
        layout = await editor.layout_for(self.path)
        try:
            new = self._new_array(layout, written, self._context.new_arrays.shards(self.path, layout, written.metadata.grid_shape))
        except NotRepresentable as error:
            raise ContentInvalid(f"{self.ident}: {error}", key=self.ident) from error
        with self._state.creating_array(self.path):
            await editor.turn_into_array(new)
        return new

    def _new_array(self, layout: Layout, written: ArrayNode, shards: tuple[ShardSpec, ...]) -> ArrayNode:
        """Return the new array for the document ``written``. Raises `ContentInvalid`, `NotRepresentable`."""
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
        await groups_from_undecided(self._view_format, self.path)

    async def _set_attributes(
        self, node: ArrayNode | GroupNode, attributes: Mapping[str, Any], fill_value: bytes | None = None
    ) -> None:
        # Compared as text: 1, 1.0 and true are equal in Python, but differ in JSON.
        if fill_value is not None or dump(dict(node.attributes)) != dump(dict(attributes)):
            edit = Edit(attributes=attributes, fill_value=fill_value)
            await self._context.editor.amend(self.path, edit, of=self.live, seen=type(node))


def written_node(path: NodePath, ident: str, data: bytes) -> ArrayNode | GroupNode:
    """Return the node at ``path`` as ``data``, written as ``zarr.json``, describes it, without its consolidated copy.

    The codec chain of an array is complete, as in `zarr3_array`. Raises `ContentInvalid`, also for nodes that the view cannot show.
    """
    document = parsed(ident, data, LOOSE)
    try:
        # Parsed as the root: other dialects allow node names that v3 does not.
        node = _LAYOUT.parse(ROOT, {ROOT.prefix.key(DOCUMENT): data})
        unknown = sorted(document.keys() - _known_members(node))
        if unknown:
            raise ContentInvalid(f"{ident}: member {unknown[0]!r} is not supported", key=ident)
        if isinstance(node, GroupNode):
            return replace(node, path=path)
        if not isinstance(node, ArrayNode):
            raise ContentInvalid(f"{ident}: not a document of Zarr v3", key=ident)
        metadata = node.metadata
        codecs = final_codecs(metadata.codecs, metadata.data_type)
    except MetadataError as error:
        raise ContentInvalid(f"{ident}: {error}", key=ident) from error
    if metadata.shards:
        raise ContentInvalid(f"{ident}: arrays have no shards in zarr3/ and chunks/: omit sharding_indexed", key=ident)
    return replace(node, path=path, metadata=replace(metadata, codecs=codecs))


def _without_bare_nan(written: ArrayNode, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes of ``written`` with a ``_FillValue`` of NaN in its v3 form, and no ``missing_value`` of NaN.

    A bare NaN that is ``stored`` already stays.
    """
    attributes, data_type = dict(written.attributes), written.metadata.data_type
    new, before = attributes.get(cf.NAME), stored.get(cf.NAME)
    if (
        cf.is_plain_nan(data_type, new)
        and not cf.is_plain_nan(data_type, before)
        and (nan := cf.decode(data_type, new)) is not None
    ):
        attributes[cf.NAME] = cf.encode(data_type, nan)
    return cf.without_nan(data_type, attributes, stored)


def _with_fill(metadata: ArrayMetadata) -> ArrayMetadata:
    """Return ``metadata`` with an undefined fill value defined, as in `zarr3_array`."""
    return replace(metadata, fill_value=metadata.fill_bytes)


def arrays_in_copy(path: NodePath, ident: str, data: bytes) -> set[NodePath] | None:
    """Return the arrays in the consolidated copy of ``data``, the ``zarr.json`` of the group at ``path``; None without a copy."""
    copied = copied_documents(parsed(ident, data, LOOSE))
    return None if copied is None else named_nodes(path, (name for name, each in copied.items() if _is_array(ident, each)))


def _is_array(ident: str, copied: Any) -> bool:
    return is_object(copied) and parsed_member(ident, copied, ATTRIBUTES).get("node_type") == "array"


def check_array(ident: str, shown: Zarr3Array, node: ArrayNode, written: ArrayNode) -> None:
    """Raise `ContentInvalid` if ``written`` changes more of the array ``node`` than attributes and shape.

    ``shown``: ``node`` as the view shows it. Dialects with dimension names in an attribute also allow other names.
    """
    before, after = _spelt_out(shown.metadata), _spelt_out(written.metadata)
    check_only_shape_differs(ident, before, after, dict(zip(_FIXED, _FIXED, strict=True)))
    names = after.dimension_names
    if node.dialect != V3.name and (names is None or DIMENSIONS not in written.attributes) and None not in (names or ()):
        return
    if names not in (before.dimension_names, dimension_names(replace(node, attributes=written.attributes))):
        if node.dialect != V3.name and None in (names or ()):
            raise ContentInvalid(
                f"{ident}: {node.dialect} has no arrays in which some dimensions have names and others none", key=ident
            )
        raise ContentInvalid(f"{ident}: dimension_names of an array cannot be changed; its shape can", key=ident)


def stored_attributes(dialect: str, written: ArrayNode, before: ArrayNode | None = None) -> Mapping[str, Any]:
    """Return the attributes of an array of ``dialect`` after a write of ``written`` over ``before``.

    Omitted dimension names stay. A new array without dimensions gets an empty list of names, which xarray requires.
    """
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
    """Return the array that ``written`` requests, as ``layout`` represents it. Raises `ContentInvalid` if it cannot.

    The array has the requested chunks and fill value, and ``show`` returns ``written`` for it. Its chunks are encoded by the first
    usable chain of ``chains``, and stored under ``keys``, in ``shards``.
    """
    asked, dialect = written.metadata, layout.dialect
    # In final v3 the document is stored as it was written; the documents of other layouts state everything.
    is_final = dialect.name == V3.name
    if not is_final and asked.dimension_names is not None and None in asked.dimension_names:
        raise ContentInvalid(f"{ident}: {dialect.name} cannot represent dimension names of which some are null", key=ident)
    # Without dimensions, the names will be an empty list.
    fill_value, attributes = new_fill(ident, dialect.name, written, named=is_named(asked) or not asked.ndim)
    attributes = stored_attributes(dialect.name, replace(written, attributes=attributes))
    names = asked.dimension_names if is_final else None
    # v0 and v1 have no zeros of structured types and most raw bytes; undefined, they read as zeros, too.
    fills = (fill_value, None) if is_shared(dialect.name) and fill_value == undefined(asked.data_type) else (fill_value,)
    reason = ""
    for fill, codecs in itertools.product(fills, chains):
        new = ArrayNode(
            path=written.path,
            dialect=dialect.name,
            metadata=replace(
                asked,
                codecs=codecs if is_final else spelt_out(codecs),
                chunk_key_encoding=keys,
                fill_value=fill,
                dimension_names=names,
                shards=shards,
            ),
            chunk_prefix=layout.chunk_prefix(written.path),
            attributes=attributes,
        )
        try:
            # Compare the array as the layout reads it back.
            parsed_node = layout.parse(new.path, layout.format(new))
            assert isinstance(parsed_node, ArrayNode)
            if (differs := _difference(parsed_node, show(parsed_node), written)) is None:
                return parsed_node
        except MetadataError as error:
            differs = str(error)
        reason = reason or f"{ident}: {differs}"
    raise ContentInvalid(reason, key=ident)


def is_equivalent(path: NodePath, rendered: bytes | None, data: bytes) -> bool:
    """Return True if a written document is equivalent to that of the view. One with a consolidated copy is not compared here."""
    if rendered is None or MEMBER in parsed(DOCUMENT, data, LOOSE):
        return False
    node, written = written_node(path, DOCUMENT, rendered), written_node(path, DOCUMENT, data)
    if isinstance(node, ArrayNode) and isinstance(written, ArrayNode):
        with_names = {**written.attributes, DIMENSIONS: list(written.metadata.dimension_names or ())}
        data_type = written.metadata.data_type
        metadata = node.metadata if node.metadata.ndim else replace(node.metadata, dimension_names=written.metadata.dimension_names)
        alike = any(are_alike(data_type, node.attributes, each) for each in (written.attributes, with_names))
        return _spelt_out(_with_fill(metadata)) == _spelt_out(_with_fill(written.metadata)) and alike
    return isinstance(node, GroupNode) and isinstance(written, GroupNode) and node.attributes == written.attributes


def _spelt_out(metadata: ArrayMetadata) -> ArrayMetadata:
    """Return ``metadata`` for comparisons, with `spelt_out` codecs."""
    return replace(metadata, codecs=spelt_out(metadata.codecs))


def _known_members(node: Node | None) -> set[str]:
    """Return the members that a document of such a node may have: the supported ones and the ignored ones."""
    return {
        MEMBER,
        "dimension_names",
        *(parsed(DOCUMENT, formatted(node), LOOSE) if isinstance(node, ArrayNode | GroupNode) else ()),
    }


def _difference(parsed_node: ArrayNode, stated: Zarr3Array, written: ArrayNode) -> str | None:
    """Return the difference between the document of ``parsed_node``, shown as ``stated``, and ``written``, as a reason; None if equal."""
    shown, asked = _spelt_out(stated.metadata), _spelt_out(with_shown_fill(parsed_node, written).metadata)
    for member in ("shape", *_FIXED, "dimension_names"):
        if getattr(shown, member) == getattr(asked, member):
            continue
        match member:
            case "chunk_key_encoding":
                return f"in zarr3/ chunk keys of {parsed_node.dialect} arrays have the form 'default' with '/', and no other"
            case "dimension_names" if asked.dimension_names is None:
                continue
            case "dimension_names":
                return f"{parsed_node.dialect} has dimension names only in the attribute {DIMENSIONS}, which has other names"
            case "codecs":
                return f"{parsed_node.dialect} cannot represent {_differing(shown.codecs, asked.codecs)}"
        return f"{parsed_node.dialect} cannot represent this {member}"
    return None


def _differing(shown: Sequence[CodecSpec], asked: Sequence[CodecSpec]) -> str:
    """Return what a chain has and ``shown``, the one that would be read back, has not: part of a message."""
    names = [spec.name for spec in asked]
    if names != [spec.name for spec in shown]:
        return f"these codecs in this order: {', '.join(names)}"
    here, there = next((here, there) for here, there in zip(shown, asked, strict=True) if here != there)
    members = [each for each in {**there.configuration, **here.configuration} if _member(there, each) != _member(here, each)]
    stated, read = (", ".join(f"{each} {shortened(_member(of, each))}" for each in members) for of in (there, here))
    return f"codec {there.name!r} with {stated} at this place of the chain: readers would take it for {read}"


def _member(spec: CodecSpec, name: str) -> Any:
    return spec.configuration.get(name)
