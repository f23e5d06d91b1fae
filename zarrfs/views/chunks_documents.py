"""Documents of ``chunks/``: those of an uncompressed Zarr v2 hierarchy, rendered from nodes of any dialect, and parsed when written.

Source: Zarr v2 "Arrays" and "Attributes". A document that the view could not show is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from zarrfs.dialects.base import Edit, Layout
from zarrfs.dialects.documents import MEMBERS, in_characters, parse_object
from zarrfs.dialects.v2.consolidated import ConsolidatedCopy
from zarrfs.dialects.v2.dialect import PLUGIN as V2
from zarrfs.dialects.v2.dialect import ZARRAY, ZATTRS, ZGROUP
from zarrfs.dialects.v3.chain import plain_codecs
from zarrfs.errors import ContentInvalid, MetadataError, NotRepresentable
from zarrfs.keys import NodePath, Prefix
from zarrfs.model import cf_fill_value as cf
from zarrfs.model import fill_value as fills
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.data_type import from_numpy
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode
from zarrfs.model.unparsed import Unparsed
from zarrfs.views.nodes.document import check_attributes, parsed
from zarrfs.views.nodes.shown_copies import named_nodes
from zarrfs.views.shown_dimensions import DIMENSIONS, has_names, names_from, shown_names
from zarrfs.views.shown_fill import (
    attributes_from,
    is_same_array,
    may_be_unlisted,
    says_what_is_missing,
    shown_attributes,
    shown_fill,
)
from zarrfs.views.zarr3_array import DECODED_KEYS

_LAYOUT = V2.create(Prefix(""))
_MEMBERS = frozenset(
    {"zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters", "dimension_separator"}
)


def documents_of(node: ArrayNode | GroupNode) -> dict[str, bytes]:
    """Return the v2 documents of a node by file name. Raises `NotRepresentable`."""
    if isinstance(node, GroupNode):
        shown: ArrayNode | GroupNode = GroupNode(path=node.path, dialect=V2.name, attributes=node.attributes)
    else:
        if not isinstance(node.metadata.chunk_grid, RegularGrid):
            raise NotRepresentable(f"the chunk grid of {node.path} has no Zarr v2 form")
        data_type = node.metadata.data_type
        if data_type.npy_dtype != data_type.dtype:
            data_type = from_numpy(data_type.npy_dtype)
        shown = ArrayNode(
            path=node.path,
            dialect=V2.name,
            metadata=replace(
                node.metadata,
                data_type=data_type,
                chunk_key_encoding=DECODED_KEYS,
                codecs=plain_codecs(data_type),
                fill_value=shown_fill(node),
                dimension_names=None,
                shards=(),
            ),
            chunk_prefix=node.path.prefix,
            attributes={**shown_attributes(node), **_put_in(node)},
        )
    documents = {key[len(node.path.prefix) :]: value for key, value in _LAYOUT.format(shown).items()}
    if ZATTRS in documents:
        # netCDF-C (4.9, 4.10) does not know \u: with it, the unit °C is "u00b0C" there.
        documents[ZATTRS] = in_characters(documents[ZATTRS])
    return documents


def edit_written(node: ArrayNode | GroupNode, ident: str, data: bytes) -> Edit:
    """Return the edit of ``node`` for a write of ``data`` to its ``.zattrs``. Raises `ContentInvalid`."""
    attributes = parsed(ident, data, MEMBERS)
    if isinstance(node, ArrayNode):
        for name, value in _put_in(node).items():
            if attributes.get(name) == value:
                del attributes[name]
    for name, value in attributes.items():
        stored = node.attributes.get(name)
        if isinstance(stored, Unparsed) and isinstance(value, Unparsed) and in_characters(stored.data) == value.data:
            # It differs from the stored text by what `documents_of` has changed.
            attributes[name] = stored
    if isinstance(node, GroupNode):
        check_attributes(ident, node.attributes, attributes)
        return Edit(attributes=attributes)
    names = None
    if has_names(node.dialect) and attributes.get(DIMENSIONS) != node.attributes.get(DIMENSIONS):
        names = names_from(attributes, node.metadata.ndim)
        if names is not None:
            del attributes[DIMENSIONS]
    attributes = cf.without_nan(node.metadata.data_type, attributes_from(node, attributes, ident), node.attributes)
    check_attributes(ident, node.attributes, attributes)
    return Edit(attributes=attributes, dimension_names=names)


def array_written(path: NodePath, ident: str, data: bytes) -> ArrayMetadata:
    """Return the array that the ``.zarray`` ``data`` describes. Raises `ContentInvalid`, also if the view cannot show it."""
    document = parsed(ident, data)
    _check_members(ident, document, _MEMBERS)
    if document.get("dtype") == "|O":
        return _objects_written(path, ident, data)
    for name in ("compressor", "filters"):
        if document.get(name):
            raise ContentInvalid(
                f"{ident}: {name} must be null: chunks/ shows decoded chunks; codecs of new arrays are a mount option",
                key=ident,
            )
    metadata = _metadata(path, ident, data)
    for spec in metadata.codecs:
        if spec.name == "transpose":
            raise ContentInvalid(f"{ident}: order must be 'C', the order of chunks in chunks/", key=ident)
        if spec.configuration and spec.configuration.get("endian") != "little":
            raise ContentInvalid(f"{ident}: dtype must be little-endian ('<'), the byte order of chunks in chunks/", key=ident)
    return metadata


def separator_written(ident: str, data: bytes, layout: Layout) -> str | None:
    """Return the separator of chunk keys that ``data``, a valid ``.zarray``, requests for the store; None if it requests none.

    In final v3 the separator "." only describes the chunk names in this view: Zarr libraries always write it.
    """
    separator = parsed(ident, data).get("dimension_separator")
    return None if separator is None or (separator == "." and layout.dialect.has_dimension_names) else str(separator)


def _objects_written(path: NodePath, ident: str, data: bytes) -> ArrayMetadata:
    """Return the metadata of an array with elements of variable size: its only filter must be the one of the chunk files."""
    metadata = _metadata(path, ident, data)
    (plain,) = plain_codecs(metadata.data_type)
    if [spec.name for spec in metadata.codecs] != [plain.name]:
        wanted = plain.name.removeprefix("numcodecs.")
        raise ContentInvalid(
            f"{ident}: elements of variable length need one filter (vlen-utf8, vlen-bytes or json2) and no compressor: that of "
            f"{metadata.data_type.name} is {wanted}; order is 'C'",
            key=ident,
        )
    return metadata


def _metadata(path: NodePath, ident: str, data: bytes) -> ArrayMetadata:
    try:
        node = _LAYOUT.parse(path, {path.prefix.key(ZARRAY): data})
    except MetadataError as error:
        raise ContentInvalid(f"{ident}: {error}", key=ident) from error
    assert isinstance(node, ArrayNode)
    metadata = node.metadata
    if metadata.chunk_key_encoding != DECODED_KEYS and metadata.ndim > 1:
        raise ContentInvalid(
            f"{ident}: dimension_separator must be '.', as in chunk names in chunks/; that of the store "
            "is a mount option (new_separator)",
            key=ident,
        )
    return replace(metadata, chunk_key_encoding=DECODED_KEYS)


def arrays_in_copy(path: NodePath, ident: str, data: bytes) -> set[NodePath]:
    """Return the arrays in ``data``, written as ``.zmetadata`` of the group at ``path``. Raises `ContentInvalid`."""
    try:
        copy = ConsolidatedCopy.parse(ident, data)
    except MetadataError as error:
        raise ContentInvalid(f"{ident}: {error}", key=ident) from error
    return named_nodes(path, (name.removesuffix(f"/{ZARRAY}") for name in copy.documents if name.endswith(f"/{ZARRAY}")))


def check_group(ident: str, data: bytes) -> None:
    """Raise `ContentInvalid` unless ``data`` is a ``.zgroup``."""
    document = parsed(ident, data)
    if type(document.get("zarr_format")) is not int or document["zarr_format"] != 2:
        raise ContentInvalid(f"{ident}: zarr_format must be 2", key=ident)
    _check_members(ident, document, {"zarr_format"})


def _check_members(ident: str, document: Mapping[str, Any], known: Set[str]) -> None:
    """Raise `ContentInvalid` for a member that would not be stored, except netCDF-C's: it ignores the error, and its array would be lost.

    These repeat types, shapes and dimensions, which zarrfs and netCDF-C find without them too."""
    unknown = sorted(name for name in document.keys() - known if not name.lower().startswith("_nczarr"))
    if unknown:
        raise ContentInvalid(f"{ident}: member {unknown[0]!r} is not supported", key=ident)


def is_equivalent(path: NodePath, name: str, rendered: bytes | None, written: bytes) -> bool:
    """Return True if a written document is equivalent to the view's (None: no document, equivalent to an empty ``.zattrs``)."""
    if name == ZGROUP:
        return rendered is not None
    if name == ZARRAY:
        return rendered is not None and is_same_array(array_written(path, name, rendered), array_written(path, name, written))
    return parse_object(name, rendered or b"{}", MEMBERS) == parse_object(name, written, MEMBERS)


def is_without_additions(rendered: bytes, written: bytes) -> bool:
    """Return True if ``written`` is equivalent to the view's ``.zattrs`` of a new array, or lacks only the view's additions.

    Programs that copy compare the file with their own data.
    """
    shown, attributes = parse_object(ZATTRS, rendered, MEMBERS), parse_object(ZATTRS, written, MEMBERS)
    added = {name for name, value in shown.items() if name not in attributes and (name == "_FillValue" or value == [])}
    return {name: value for name, value in shown.items() if name not in added} == attributes


def _put_in(node: ArrayNode) -> Mapping[str, Any]:
    """Return the attributes that the view adds to an array."""
    put_in: dict[str, Any] = {}
    metadata = node.metadata
    data_type = metadata.data_type
    if (names := shown_names(node)) is not None:
        put_in[DIMENSIONS] = names
    if "zarrfs" not in node.attributes:
        more: dict[str, Any] = {}
        if data_type.npy_dtype != data_type.dtype:
            more["data_type"] = data_type.v3_name
        if not says_what_is_missing(node) and may_be_unlisted(metadata):
            more["missing_chunks_read_as"] = fills.to_json(data_type, metadata.fill_bytes)
        if more:
            put_in["zarrfs"] = more
    return put_in
