"""The documents of ``chunks/``: what they say of a node of any dialect, and what it means that somebody wrote them.

Source: Zarr v2 "Arrays" and "Attributes". They are those of an uncompressed hierarchy in C order, little-endian, with dots in the names
of chunks; a document that asks for something else asks for what the view cannot show, and is refused with the reason.

What v2 has no words for is put into ``.zattrs``: ``_ARRAY_DIMENSIONS`` from the names of dimensions, and the true data type under
``zarrfs``, where the node has no attributes of these names. It is taken out again when it comes back unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zarrfs.dialects.documents import MEMBERS, parse_object
from zarrfs.dialects.v2.dialect import PLUGIN as V2
from zarrfs.dialects.v2.dialect import ZARRAY, ZATTRS, ZGROUP
from zarrfs.dialects.v3.chain import plain_codecs
from zarrfs.errors import ContentInvalid, MetadataError, NotRepresentable
from zarrfs.keys import NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.data_type import from_numpy
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode
from zarrfs.views.nodes.document import parsed

DOCUMENTS = (ZARRAY, ZATTRS, ZGROUP)
KEYS = chunk_key.v2(".")

_LAYOUT = V2.create(Prefix(""))
_MEMBERS = frozenset(
    {"zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters", "dimension_separator"}
)


def documents_of(node: ArrayNode | GroupNode) -> dict[str, bytes]:
    """The v2 documents of a node by file name. Raises `NotRepresentable`."""
    attributes = {**node.attributes, **_put_in(node)}
    if isinstance(node, GroupNode):
        shown: ArrayNode | GroupNode = GroupNode(path=node.path, dialect=V2.name, attributes=attributes)
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
                chunk_key_encoding=KEYS,
                codecs=plain_codecs(data_type),
                dimension_names=None,
                shards=(),
            ),
            chunk_prefix=node.path.prefix,
            attributes=attributes,
        )
    documents = _LAYOUT.format(shown)
    return {key[len(node.path.prefix) :]: value for key, value in documents.items()}


def attributes_written(node: ArrayNode | GroupNode, ident: str, data: bytes) -> dict[str, Any]:
    """The attributes that ``node`` is to have when ``data`` is written as its ``.zattrs``. Raises `ContentInvalid`."""
    attributes = parsed(ident, data, MEMBERS)
    for name, value in _put_in(node).items():
        if attributes.get(name) == value:
            del attributes[name]
    return attributes


def array_written(path: NodePath, ident: str, data: bytes) -> ArrayMetadata:
    """What ``data``, written as ``.zarray``, says of an array. Raises `ContentInvalid`, also for what the view cannot show."""
    document = parsed(ident, data)
    unknown = sorted(document.keys() - _MEMBERS)
    if unknown:
        raise ContentInvalid(f"{ident}: member {unknown[0]!r} has no place in the array", key=ident)
    if document.get("dtype") == "|O":
        return _objects_written(path, ident, data)
    for name in ("compressor", "filters"):
        if document.get(name):
            raise ContentInvalid(
                f"{ident}: {name} has to be null: chunks are decoded here, and codecs of new arrays are options of the mount",
                key=ident,
            )
    metadata = _metadata(path, ident, data)
    for spec in metadata.codecs:
        if spec.name == "transpose":
            raise ContentInvalid(f"{ident}: order has to be 'C': it is that of the chunks here", key=ident)
        if spec.configuration and spec.configuration.get("endian") != "little":
            raise ContentInvalid(f"{ident}: dtype has to be little-endian ('<'): the chunks are so here", key=ident)
    return metadata


def _objects_written(path: NodePath, ident: str, data: bytes) -> ArrayMetadata:
    """What is written of an array whose elements have no fixed size: its only filter is the one that chunks are shown with."""
    metadata = _metadata(path, ident, data)
    (plain,) = plain_codecs(metadata.data_type)
    if [spec.name for spec in metadata.codecs] != [plain.name]:
        wanted = plain.name.removeprefix("numcodecs.")
        raise ContentInvalid(
            f"{ident}: the only codec of elements of variable length is a filter vlen-utf8, vlen-bytes or json2 here, and that of "
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
    if metadata.chunk_key_encoding != KEYS and metadata.ndim > 1:
        raise ContentInvalid(f"{ident}: dimension_separator has to be '.': it is so in the names of chunks here", key=ident)
    return metadata


def check_group(ident: str, data: bytes) -> None:
    """Raise `ContentInvalid` unless ``data`` is a ``.zgroup``."""
    document = parsed(ident, data)
    if type(document.get("zarr_format")) is not int or document["zarr_format"] != 2:
        raise ContentInvalid(f"{ident}: zarr_format is 2 here", key=ident)


def says_the_same(path: NodePath, name: str, made: bytes | None, written: bytes) -> bool:
    """Whether a document that was written says what the view would write (None: nothing, which is what an empty ``.zattrs`` says)."""
    if name == ZGROUP:
        return made is not None
    if name == ZARRAY:
        return made is not None and array_written(path, name, made) == array_written(path, name, written)
    return parse_object(name, made or b"{}", MEMBERS) == parse_object(name, written, MEMBERS)


def _put_in(node: ArrayNode | GroupNode) -> Mapping[str, Any]:
    """The attributes that a node is shown with and does not have."""
    put_in: dict[str, Any] = {}
    if isinstance(node, ArrayNode):
        names = node.metadata.dimension_names
        if names and all(names) and "_ARRAY_DIMENSIONS" not in node.attributes:
            put_in["_ARRAY_DIMENSIONS"] = list(names)
        data_type = node.metadata.data_type
        if data_type.npy_dtype != data_type.dtype and "zarrfs" not in node.attributes:
            put_in["zarrfs"] = {"data_type": data_type.v3_name}
    return put_in
