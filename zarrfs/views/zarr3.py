"""``zarr3/``: the hierarchy as plain final Zarr v3, every array unsharded: one key for each inner chunk.

A chunk file is the chunk's stored bytes, unchanged, where the final v3 has words for the array's codecs; else the chunk is decoded, and
its codec is ``bytes`` (C order, little-endian). Keys are the array's own where it is of the final v3, else ``c/1/2``. What is written to
a chunk has to decode to one, and is stored as it is; a ``zarr.json`` that is written changes the node, whatever its dialect. Folders that
are made are groups; one that gets the document of an array is an array with the codecs and chunks that it asks for
(docs/design/009-zarr3.md).

Source: Zarr v3 core, version 3.1. The document is that of a plain, unsharded hierarchy: one key for each inner chunk, the codecs those
of the inner chunks; a group's holds a consolidated copy where the store has one (`zarrfs.views.nodes.shown_copies`). What of a node it
has no words for stays in the node's own documents.

Of a dialect without names of dimensions, those in the attribute ``_ARRAY_DIMENSIONS`` (xarray's convention) are shown as the names that
they are, and names that somebody gives are stored there.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zarrfs import threads
from zarrfs.arrays.concurrency import has_any
from zarrfs.dialects.base import Edit, Layout
from zarrfs.dialects.documents import ATTRIBUTES, dump, is_object, patched
from zarrfs.dialects.documents import parsed as parsed_member
from zarrfs.dialects.v3.chain import filters_last, final_codecs, plain_codecs
from zarrfs.dialects.v3.consolidated import LOOSE, MEMBER, copied_documents
from zarrfs.dialects.v3.dialect import PLUGIN as V3
from zarrfs.dialects.v3.names import DOCUMENT
from zarrfs.errors import ContentInvalid, MetadataError, NotRepresentable
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.cf_fill_value import NAME as FILL_VALUE
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node
from zarrfs.model.shards import ShardSpec
from zarrfs.model.unparsed import Unparsed, are_large
from zarrfs.views.base import ViewContext, ViewPlugin
from zarrfs.views.nodes.chunk import ChunkFile, DecodedChunk, EncodedChunk, decoded_size
from zarrfs.views.nodes.document import NodeDocument, check_attributes, check_only_shape_differs, parsed
from zarrfs.views.nodes.shown_copies import named_nodes
from zarrfs.views.nodes.undecided import groups_from_undecided
from zarrfs.views.nodes.view import NodeView
from zarrfs.views.nodes.view_format import ViewFormat
from zarrfs.views.shown_dimensions import DIMENSIONS
from zarrfs.views.zarr3_fill import are_alike, changed_fill, in_order, new_fill, shown_attributes, with_shown_fill

KEYS = chunk_key.default("/")

_LAYOUT = V3.create(Prefix(""))
_FIXED = ("data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")

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
    copy_document = DOCUMENT
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

    def member_of_copy(self, place: str, document: str) -> str | None:
        return place.rstrip("/") or None

    def with_copy(self, plain: bytes | None, members: bytes) -> bytes:
        assert plain is not None
        copy = {"kind": "inline", "must_understand": False, "metadata": Unparsed(members)}
        return patched(DOCUMENT, plain, [MEMBER], copy)

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
    example=("python3 -c 'import zarr; print(zarr.open(\"zarr3\").tree())'", "the hierarchy, with any reader of Zarr v3"),
)


class Zarr3Document(NodeDocument):
    """``zarr.json``."""

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
        check_array(self.ident, node, written)
        editor, named = self._context.editor, _is_named(zarr3_array(node).metadata)
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
            shards = self._context.new_arrays.shards(layout, written.metadata.grid_shape)
        except NotRepresentable as error:
            raise ContentInvalid(f"{self.ident}: {error}", key=self.ident) from error
        await editor.turn_into_array(new_array(layout, self.ident, written, shards))
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

    async def _set_attributes(
        self, node: ArrayNode | GroupNode, attributes: Mapping[str, Any], fill_value: bytes | None = None
    ) -> None:
        # Compared as text: 1, 1.0 and true are equal, and are not the same.
        if fill_value is not None or dump(dict(node.attributes)) != dump(dict(attributes)):
            await self._context.editor.amend(self.path, Edit(attributes=attributes, fill_value=fill_value), of=self.live)


# --- what the document says of a node of any dialect, and what it means that somebody wrote it -----------------------------


@dataclass(frozen=True, slots=True)
class Zarr3Array:
    """How the view shows an array: the metadata that its document says, and whether its chunks are the stored bytes (else they are
    decoded)."""

    metadata: ArrayMetadata
    encoded: bool
    document: bytes


def zarr3_array(node: ArrayNode) -> Zarr3Array:
    """How ``node`` is shown. Raises `NotRepresentable`."""
    metadata = node.metadata
    encoded = True
    try:
        codecs = final_codecs(metadata.codecs, metadata.data_type)
    except NotRepresentable:
        codecs, encoded = plain_codecs(metadata.data_type), False
    # Other layouts have words for keys that the final v3 lacks, and their programs do not come here. What most v3 programs ask for when
    # they make an array is shown, so that they can.
    keys = metadata.chunk_key_encoding if node.dialect == V3.name else KEYS
    shown = replace(
        metadata,
        codecs=codecs,
        chunk_key_encoding=keys,
        fill_value=metadata.fill_bytes,
        dimension_names=_dimension_names(node),
        shards=(),
    )
    attributes: Mapping[str, Any] = shown_attributes(node, named=_is_named(shown))
    if shown.dimension_names is not None and node.dialect != V3.name:
        # The names say it.
        attributes = {name: value for name, value in attributes.items() if name != DIMENSIONS}
    return Zarr3Array(shown, encoded, _formatted(replace(node, metadata=shown, attributes=attributes)))


def zarr3_group(node: GroupNode) -> bytes:
    """The document of a group."""
    return _formatted(node)


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


def check_array(ident: str, node: ArrayNode, written: ArrayNode) -> None:
    """Raise `ContentInvalid` where ``written`` asks of the array ``node`` for something else than other attributes or another shape; of
    a dialect that has names of dimensions in an attribute, for other names."""
    before, after = zarr3_array(node).metadata, written.metadata
    check_only_shape_differs(ident, before, after, dict(zip(_FIXED, _FIXED, strict=True)))
    names = after.dimension_names
    if node.dialect != V3.name and (names is None or DIMENSIONS not in written.attributes) and None not in (names or ()):
        return
    if names not in (before.dimension_names, _dimension_names(replace(node, attributes=written.attributes))):
        raise ContentInvalid(f"{ident}: dimension_names of an array cannot be changed; its shape can", key=ident)


def stored_attributes(dialect: str, written: ArrayNode, before: ArrayNode | None = None) -> Mapping[str, Any]:
    """The attributes that an array of ``dialect`` is to have when ``written`` is written, in the place of ``before``. Names of dimensions
    that are left out stay; a new array without dimensions has no names, which xarray wants said."""
    names = written.metadata.dimension_names
    if dialect == V3.name or DIMENSIONS in written.attributes:
        return written.attributes
    if names is None:
        names = _dimension_names(before) if before is not None else None if written.metadata.ndim else ()
    return written.attributes if names is None else {**written.attributes, DIMENSIONS: list(names)}


def new_array(layout: Layout, ident: str, written: ArrayNode, shards: tuple[ShardSpec, ...] = ()) -> ArrayNode:
    """The array that ``written`` asks for, in the words of ``layout``: with its codecs, chunks and fill value, and such that its document
    says what was written; its chunks are stored in ``shards``. Raises `ContentInvalid` where the layout has no words for it."""
    asked, dialect = written.metadata, layout.dialect
    is_final = dialect.name == V3.name
    if not is_final and asked.dimension_names is not None and None in asked.dimension_names:
        raise ContentInvalid(f"{ident}: {dialect.name} has no names for some dimensions and none for others", key=ident)
    # Those of no dimensions will be an empty list.
    fill_value, attributes = new_fill(ident, dialect.name, written, named=_is_named(asked) or not asked.ndim)
    attributes = stored_attributes(dialect.name, replace(written, attributes=attributes))
    keys = asked.chunk_key_encoding if is_final else dialect.chunk_key_encoding
    names = asked.dimension_names if is_final else None
    reason = ""
    for codecs in (asked.codecs, filters_last(asked.codecs, asked.data_type)):
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
            if (differs := _difference(made, written)) is None:
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
    return {MEMBER, "dimension_names", *(parsed(DOCUMENT, _formatted(node)) if isinstance(node, ArrayNode | GroupNode) else ())}


def _difference(made: ArrayNode, written: ArrayNode) -> str | None:
    """What the document of ``made`` says otherwise than ``written``, and why."""
    shown, asked = zarr3_array(made).metadata, with_shown_fill(made, written).metadata
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


def _dimension_names(node: ArrayNode) -> tuple[str | None, ...] | None:
    metadata, names = node.metadata, node.attributes.get(DIMENSIONS)
    if node.dialect == V3.name or metadata.dimension_names is not None:
        return metadata.dimension_names
    if not isinstance(names, list) or len(names) != metadata.ndim or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)


def _is_named(shown: ArrayMetadata) -> bool:
    """True if all dimensions have names, which CF readers demand."""
    return shown.dimension_names is not None and None not in shown.dimension_names


def _formatted(node: ArrayNode | GroupNode) -> bytes:
    (document,) = _LAYOUT.format(replace(node, path=ROOT)).values()
    return document
