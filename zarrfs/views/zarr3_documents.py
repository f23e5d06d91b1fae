"""The document ``zarr.json`` of ``zarr3/``: what it says of a node of any dialect, and what it means that somebody wrote it.

Source: Zarr v3 core, version 3.1. It is that of a plain, unsharded hierarchy: one key for each inner chunk, the codecs those of the
inner chunks, no consolidated metadata. What of a node it has no words for stays in the node's own documents.

Of a dialect without names of dimensions, those in the attribute ``_ARRAY_DIMENSIONS`` (xarray's convention) are shown as the names that
they are, and names that somebody gives are stored there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zarrfs.dialects.base import Layout
from zarrfs.dialects.v3.chain import filters_last, final_codecs, plain_codecs
from zarrfs.dialects.v3.consolidated import LOOSE, MEMBER
from zarrfs.dialects.v3.dialect import PLUGIN as V3
from zarrfs.dialects.v3.names import DOCUMENT
from zarrfs.errors import ContentInvalid, MetadataError, NotRepresentable
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node
from zarrfs.views.nodes.document import check_only_shape_differs, parsed

KEYS = chunk_key.default("/")

_LAYOUT = V3.create(Prefix(""))
DIMENSIONS = "_ARRAY_DIMENSIONS"
_FIXED = ("data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")


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
    return Zarr3Array(shown, encoded, _formatted(replace(node, metadata=shown)))


def zarr3_group(node: GroupNode) -> bytes:
    """The document of a group."""
    return _formatted(node)


def written_node(path: NodePath, ident: str, data: bytes) -> ArrayNode | GroupNode:
    """What ``data``, written as ``zarr.json``, says of the node at ``path``; a consolidated copy in it is passed over.

    Of an array, the chain is complete, and an undefined fill value zeros, as `zarr3_array` has them. Raises `ContentInvalid`, also for
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


def check_array(ident: str, node: ArrayNode, written: ArrayNode) -> None:
    """Raise `ContentInvalid` where ``written`` asks of the array ``node`` for something else than other attributes or another shape."""
    before, after = zarr3_array(node).metadata, written.metadata
    check_only_shape_differs(ident, before, after, dict(zip(_FIXED, _FIXED, strict=True)))
    allowed = {before.dimension_names}
    if node.dialect != V3.name:
        allowed |= {None, _dimension_names(replace(node, attributes=written.attributes))}
    if after.dimension_names not in allowed:
        raise ContentInvalid(f"{ident}: dimension_names of an array cannot be changed; its shape can", key=ident)


def stored_attributes(dialect: str, written: ArrayNode) -> Mapping[str, Any]:
    """The attributes that an array of ``dialect`` is to have when ``written`` is written."""
    names = written.metadata.dimension_names
    if dialect == V3.name or names is None or DIMENSIONS in written.attributes:
        return written.attributes
    return {**written.attributes, DIMENSIONS: list(names)}


def new_array(layout: Layout, ident: str, written: ArrayNode) -> ArrayNode:
    """The array that ``written`` asks for, in the words of ``layout``: with its codecs, chunks and fill value, and such that its document
    says what was written. Raises `ContentInvalid` where the layout has no words for it."""
    asked, dialect = written.metadata, layout.dialect
    is_final = dialect.name == V3.name
    if not is_final and asked.dimension_names is not None and None in asked.dimension_names:
        raise ContentInvalid(f"{ident}: {dialect.name} has no names for some dimensions and none for others", key=ident)
    attributes = stored_attributes(dialect.name, written)
    keys = asked.chunk_key_encoding if is_final else dialect.chunk_key_encoding
    names = asked.dimension_names if is_final else None
    reason = ""
    for codecs in (asked.codecs, filters_last(asked.codecs, asked.data_type)):
        new = ArrayNode(
            path=written.path,
            dialect=dialect.name,
            metadata=replace(asked, codecs=codecs, chunk_key_encoding=keys, dimension_names=names),
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
    """Whether a document that was written says what the view would write. One with a consolidated copy does not: the copy is not kept."""
    if made is None or MEMBER in parsed(DOCUMENT, data):
        return False
    node, written = written_node(path, DOCUMENT, made), written_node(path, DOCUMENT, data)
    if isinstance(node, ArrayNode) and isinstance(written, ArrayNode):
        with_names = {**written.attributes, DIMENSIONS: list(written.metadata.dimension_names or ())}
        return node.metadata == written.metadata and node.attributes in (written.attributes, with_names)
    return isinstance(node, GroupNode) and isinstance(written, GroupNode) and node.attributes == written.attributes


def _known_members(node: Node | None) -> set[str]:
    """What a document of such a node may say: what is written of it, and what is passed over."""
    return {MEMBER, "dimension_names", *(parsed(DOCUMENT, _formatted(node)) if isinstance(node, ArrayNode | GroupNode) else ())}


def _difference(made: ArrayNode, written: ArrayNode) -> str | None:
    """What the document of ``made`` says otherwise than ``written``, and why."""
    shown, asked = zarr3_array(made).metadata, written.metadata
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


def _formatted(node: ArrayNode | GroupNode) -> bytes:
    (document,) = _LAYOUT.format(replace(node, path=ROOT)).values()
    return document
