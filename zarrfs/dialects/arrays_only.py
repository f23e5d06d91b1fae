"""Common part of v0 and v1: a folder is an array, and nothing else exists.

Each array has a document of its metadata and one of its attributes, both JSON objects in its own folder. There are no groups: a folder
above arrays is one only through its content, and has neither documents nor attributes. `Layout.format` therefore refuses groups, and an
empty one is a folder of the store, or of the mount (`Dialect.has_groups`).

The original software wrote both documents with Python's ``json``: indented by four, members sorted, in ASCII.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zarrfs.codecs import lookup
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects import documents as json_documents
from zarrfs.dialects.bare_fill import fill_from_json, fill_to_json
from zarrfs.dialects.base import Dialect, Documents, Edit, Layout
from zarrfs.dialects.documents import MEMBERS, dump, member, merged, naming, parse_object, patched
from zarrfs.dialects.memory_order import order_codecs, split_order
from zarrfs.dialects.v2.array import bytes_codec, stored_by
from zarrfs.dialects.v2.types import Stored, dtype_from_json, dtype_to_json, stored_type
from zarrfs.errors import MetadataError, MetadataUnsupported, NameInvalid, NotRepresentable
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType, from_numpy
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node, check_chunk_nbytes

_INDENT = 4


@dataclass(frozen=True)
class ArraysOnlyLayout(Layout):
    """See the module's docstring. ``array_name`` and ``attributes_name`` are the names of the two documents."""

    array_name: ClassVar[str]
    attributes_name: ClassVar[str]
    always_attributes: ClassVar[bool] = False
    """True if an array without attributes still has a document for them."""

    dialect: Dialect
    prefix: Prefix

    @abc.abstractmethod
    def parse_array(self, document: Mapping[str, Any]) -> tuple[ArrayMetadata, tuple[str, ...]]:
        """Return the metadata in the array's document, and reasons why its elements may differ (`ArrayNode.warnings`, each a quirk).

        Raises `MetadataError`, `MetadataUnsupported`.
        """

    @abc.abstractmethod
    def format_array(self, metadata: ArrayMetadata) -> dict[str, Any]:
        """Return the array's document. Raises `NotRepresentable`."""

    def read_array(self, key: Key, documents: Documents) -> dict[str, Any] | None:
        """Return the array's document, which exists, as JSON; None if it is not of this dialect. Raises `MetadataError`."""
        return parse_object(key, documents[key])

    def document_keys(self, path: NodePath) -> tuple[Key, ...]:
        folder = self.listing_prefix(path)
        return folder.key(self.array_name), folder.key(self.attributes_name)

    def deciding(self, keys: tuple[Key, ...]) -> tuple[Key, ...]:
        return keys[:1]

    def parse(self, path: NodePath, documents: Documents) -> Node | None:
        key, attributes_key = self.document_keys(path)
        if key not in documents or (document := self.read_array(key, documents)) is None:
            return None
        with naming(key):
            metadata, warnings = self.parse_array(document)
        quirks = warnings
        if attributes_key in documents:
            attributes = parse_object(attributes_key, documents[attributes_key], MEMBERS)
        else:
            attributes = {}
            quirks += (f"{self.attributes_name} is missing",) if self.always_attributes else ()
        return ArrayNode(
            path=path,
            dialect=self.dialect.name,
            metadata=metadata,
            chunk_prefix=self.chunk_prefix(path),
            attributes=attributes,
            quirks=quirks,
            warnings=warnings,
        )

    def listing_prefix(self, path: NodePath) -> Prefix:
        return self.prefix.of(path)

    def child_names(self, path: NodePath, keys: Iterable[str], prefixes: Iterable[str]) -> set[str]:
        return {name for name in prefixes if self._against(name) is None}

    def chunk_prefix(self, path: NodePath) -> Prefix:
        return self.listing_prefix(path)

    def node_of_document(self, key: Key) -> NodePath | None:
        if not key.startswith(self.prefix):
            return None
        parent, slash, name = key[len(self.prefix) :].rpartition("/")
        if name not in (self.array_name, self.attributes_name) or (slash and not parent):
            return None
        try:
            return NodePath(f"/{parent}")
        except NameInvalid:
            return None

    def format(self, node: GroupNode | ArrayNode) -> dict[Key, bytes]:
        if isinstance(node, GroupNode):
            raise NotRepresentable(f"{node.path}: {self.dialect.name} has no groups, and no group attributes", key=node.path)
        key, attributes_key = self.document_keys(node.path)
        written = {}
        if node.attributes or self.always_attributes:
            written[attributes_key] = dump(dict(node.attributes), indent=_INDENT, sort_keys=True)
        written[key] = dump(self.format_array(node.metadata), indent=_INDENT, sort_keys=True)
        return written

    def amend(self, path: NodePath, documents: Documents, edit: Edit) -> dict[Key, bytes]:
        node = self.parse(path, documents)
        if not isinstance(node, ArrayNode):
            raise MetadataError(f"{path}: no documents to change", key=path)
        key, attributes_key = self.document_keys(path)
        amended: dict[Key, bytes] = {}
        if edit.attributes is not None:
            if attributes_key in documents:
                before = documents[attributes_key]
                after = _attributes_changed(attributes_key, before, node.attributes, edit.attributes)
                if after != before:
                    amended[attributes_key] = after
            elif edit.attributes or self.always_attributes:
                amended[attributes_key] = dump(dict(edit.attributes), indent=_INDENT, sort_keys=True)
        changed = documents[key]
        if edit.shape is not None:
            changed = patched(key, changed, ["shape"], list(edit.shape))
        if edit.fill_value is not None:
            with naming(key):
                stored = dtype_from_json(member(parse_object(key, changed), "dtype"))
                changed = patched(key, changed, ["fill_value"], fill_to_json(stored, edit.fill_value))
        if changed != documents[key]:
            with naming(key):
                self.parse_array(parse_object(key, changed))
            amended[key] = changed
        return amended

    def check_name(self, name: str) -> None:
        reason = self._against(name)
        if reason is not None:
            raise NameInvalid(f"{name!r}: invalid name for an array of {self.dialect.name}: {reason}", key=name)

    def _against(self, name: str) -> str | None:
        """Return why no array can have this name; None if it can."""
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            return "not a folder name"
        if "\\" in name:
            return "a backslash is a separator on other systems"
        return None


def parse_common(
    document: Mapping[str, Any], chunk_key_encoding: ChunkKeyEncoding, compressors: Iterable[Mapping[str, Any]], *, reverse: bool
) -> ArrayMetadata:
    """Return the metadata in the members that v0 and v1 share.

    ``compressors`` are numcodecs configurations; ``reverse``: the first dimension varies fastest. Raises `MetadataError`,
    `MetadataUnsupported`.
    """
    shape = json_documents.shape(member(document, "shape"), "shape")
    chunks = json_documents.shape(member(document, "chunks"), "chunks")
    grid = RegularGrid.checked(chunks, shape)
    stored = dtype_from_json(member(document, "dtype"))
    if stored.hasobject:
        raise MetadataUnsupported("dtype: Python objects are pickled, and pickle is refused")
    data_type = from_numpy(stored)
    check_chunk_nbytes(chunks, data_type)
    codecs = (*order_codecs("F" if reverse else "C", len(shape)), bytes_codec(stored), *map(lookup.from_numcodecs, compressors))
    CodecChain.build(codecs, data_type).check(chunks)
    return ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=grid,
        chunk_key_encoding=chunk_key_encoding,
        fill_value=fill_from_json(stored, member(document, "fill_value")),
        codecs=codecs,
    )


def format_common(metadata: ArrayMetadata, dialect: Dialect) -> tuple[dict[str, Any], bool, list[dict[str, Any]]]:
    """Return the members that v0 and v1 share, whether the first dimension varies fastest, and the compressors for numcodecs.

    Raises `NotRepresentable` for other grids and chunk keys, for shards, and for types and chains absent from NumPy or these layouts.
    """
    name = dialect.name
    if not isinstance(metadata.chunk_grid, RegularGrid):
        raise NotRepresentable(f"{name} has only regular chunk grids")
    if metadata.shards:
        raise NotRepresentable(f"{name} has no shards")
    if metadata.chunk_key_encoding != dialect.chunk_key_encoding:
        raise NotRepresentable(f"{name} has no chunk keys like {metadata.chunk_key_encoding.encode((0,) * metadata.ndim)!r}")
    reverse, stored, compressors = _split(metadata.codecs, metadata.data_type, metadata.ndim, name)
    common = {
        "shape": list(metadata.shape),
        "chunks": list(metadata.chunk_grid.chunks),
        "dtype": _dtype_to_json(stored, name),
        "fill_value": fill_to_json(stored, metadata.fill_value),
    }
    return common, reverse, compressors


def _split(codecs: tuple[CodecSpec, ...], data_type: DataType, ndim: int, name: str) -> tuple[bool, Stored, list[dict[str, Any]]]:
    order, rest = split_order(codecs, ndim, name)
    stored = stored_type(data_type, big_endian=False)
    if rest and rest[0].name == "bytes":
        stored = stored_by(rest.pop(0), data_type)
    compressors = []
    for spec in rest:
        if spec.name in ("transpose", "bytes"):
            raise NotRepresentable(f"{name} has one compressor and no filters: codec {spec.name!r} follows another one")
        try:
            compressors.append(lookup.to_numcodecs(spec))
        except MetadataUnsupported as error:
            raise NotRepresentable(f"{name} cannot represent codec {spec.name!r}") from error
    return order == "F", stored, compressors


def _dtype_to_json(stored: Stored, name: str) -> str | list[Any]:
    descr = dtype_to_json(stored)
    if isinstance(descr, list) and not _of_pairs(descr):
        raise NotRepresentable(f"{name} cannot represent fields that are arrays: a field is [name, type]")
    return descr


def _of_pairs(descr: list[Any]) -> bool:
    return all(len(field) == 2 and (isinstance(field[1], str) or _of_pairs(field[1])) for field in descr)


def _attributes_changed(key: Key, data: bytes, before: Mapping[str, Any], after: Mapping[str, Any]) -> bytes:
    """Return the document with the differing members changed; the others keep every byte."""
    changes = {name: value for name, value in after.items() if name not in before or _differ(before[name], value)}
    gone = before.keys() - after.keys()
    return merged(key, data, [], changes, gone) if changes or gone else data


def _differ(one: Any, other: Any) -> bool:
    # Not ==, under which 1, 1.0 and true are equal, and NaN is not equal to itself.
    return dump(one) != dump(other)
