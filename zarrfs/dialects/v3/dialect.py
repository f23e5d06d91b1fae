"""The final Zarr v3: one document ``zarr.json`` in the folder of each node.

Source: Zarr v3 core specification, version 3.1 (zarr-specs ``docs/v3/core``); sections are named where a rule is followed. Array
documents are in `v3.array`, the consolidated copy in `v3.consolidated`.

    zarr.json          {"zarr_format": 3, "node_type": "group", "attributes": {}}
    a/b/zarr.json      {"zarr_format": 3, "node_type": "array", "shape": [20], ...}
    a/b/c/0  a/b/c/1   chunks

Points that the specification leaves open:

* A prefix without a document is an implicit group if it has content. Later versions require a document for each group; tensorstore writes
  none at parents. Nodes created here have them, as in zarr-python.
* Earlier layouts (2019 and 2022) also have a ``zarr.json``, without ``node_type``. A document with neither ``node_type`` nor the
  ``zarr_format`` 3 is not of this dialect; one with only one of them is bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from zarrfs.dialects.base import Dialect, Documents, Edit, Layout
from zarrfs.dialects.consolidated import by_original, groups_between
from zarrfs.dialects.documents import (
    ATTRIBUTES,
    dump,
    is_object,
    mapping,
    member,
    merged,
    naming,
    parse_object,
    parsed,
    patched,
    shortened,
)
from zarrfs.dialects.parse_once import ParseOnce
from zarrfs.dialects.quirks import REFUSE, USE_OR_REFUSE
from zarrfs.dialects.unsharding import Unsharding
from zarrfs.dialects.v3.array import format_array, parse_array, plain_members
from zarrfs.dialects.v3.codecs import SHARDING
from zarrfs.dialects.v3.consolidated import LOOSE, MEMBER, ConsolidatedCopy, CopiedDocuments, copied_documents
from zarrfs.dialects.v3.extension import check_members
from zarrfs.dialects.v3.grid import grid_to_json
from zarrfs.dialects.v3.names import DOCUMENT, are_names, check_name, is_name, node_path
from zarrfs.errors import MetadataError
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayNode, GroupNode, Node
from zarrfs.model.unparsed import Unparsed

_GROUP_MEMBERS = ("zarr_format", "node_type", "attributes", MEMBER)
_GROUP = {"attributes": {}, "zarr_format": 3, "node_type": "group"}
_INDENT = 2


class V3(Dialect):
    """The final Zarr v3. Precedes v2: if documents of both are in one folder, zarr-python opens those of v3.

    ``chosen``: the deviations that are refused, by the names of `choices`.
    """

    name = "v3"
    chunk_key_encoding = chunk_key.default("/")
    new_index_codecs = (CodecSpec("bytes", {"endian": "little"}), CodecSpec("crc32c"))
    priority = 50
    fill_value_marks_missing = False
    has_dimension_names = True
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = dict.fromkeys(("codecs", "consolidated", "fill_value"), USE_OR_REFUSE)

    def __init__(self, chosen: Mapping[str, str] = MappingProxyType({})) -> None:
        self.chosen = chosen

    def choosing(self, chosen: Mapping[str, str]) -> V3:
        return V3(chosen)

    def chunk_keys(self, separator: str) -> ChunkKeyEncoding:
        return chunk_key.default(separator)

    def root_keys(self, prefix: Prefix) -> tuple[Key, ...]:
        return (prefix.key(DOCUMENT),)

    def open(self, prefix: Prefix, documents: Documents) -> V3Layout | None:
        key = prefix.key(DOCUMENT)
        if key not in documents:
            return None
        try:
            document = parse_object(key, documents[key], LOOSE)
            if not _is_ours(document):
                return None
            copy = None if self.chosen.get("consolidated") == REFUSE else ConsolidatedCopy.of(document)
            return V3Layout(prefix, copy, self)
        except MetadataError:
            return V3Layout(prefix, dialect=self)

    def create(self, prefix: Prefix) -> V3Layout:
        return V3Layout(prefix, dialect=self)


PLUGIN = V3()


@dataclass(frozen=True, slots=True)
class V3Layout(Layout):
    """A hierarchy of the final v3. ``copy`` is the consolidated copy in its root group."""

    document_names: ClassVar[frozenset[str]] = frozenset((DOCUMENT,))

    prefix: Prefix
    copy: ConsolidatedCopy | None = None
    dialect: V3 = PLUGIN

    def document_keys(self, path: NodePath) -> tuple[Key, ...]:
        return (self._key(path),)

    def shared_keys(self, path: NodePath) -> tuple[Key, ...]:
        # It may be the damaged entry point of an earlier layout, or of a later version.
        return self.document_keys(path)

    def parse(self, path: NodePath, documents: Documents) -> Node | None:
        key = self._key(path)
        if path != ROOT and not are_names(path[1:]):
            return None
        if key not in documents:
            return self._copied(path)
        with naming(key):
            document = parse_object(key, documents[key], LOOSE)
            return self._node(path, document, documents[key]) if _is_ours(document) else None

    def listing_prefix(self, path: NodePath) -> Prefix:
        return self.chunk_prefix(path)

    def child_names(self, path: NodePath, keys: Iterable[str], prefixes: Iterable[str]) -> set[str]:
        return set(filter(is_name, prefixes))

    def consolidated_names(self, path: NodePath) -> set[str] | None:
        return None if self.copy is None else set(self.copy.children.get(path, ()))

    def copied(self, path: NodePath) -> object:
        return None if self.copy is None else (self.copy.documents.get(path), path in self.copy.children)

    def missing_documents(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        key = self._key(path)
        if key in documents or self.copy is None or path not in self.copy.documents:
            return {}
        # zarr-python gives each group in a copy an empty copy, according to which the group itself would hold nothing.
        members = parsed(key, self.copy.documents[path], LOOSE).items()
        return {key: dump({name: value for name, value in members if name != MEMBER}, indent=_INDENT)}

    def without_copy(self) -> V3Layout:
        return self if self.copy is None else replace(self, copy=None)

    def chunk_prefix(self, path: NodePath) -> Prefix:
        return self.prefix.of(path)

    def node_of_document(self, key: Key) -> NodePath | None:
        if not key.startswith(self.prefix):
            return None
        parent, slash, name = key[len(self.prefix) :].rpartition("/")
        if name != DOCUMENT:
            return None
        return node_path(parent) if slash else ROOT

    def format(self, node: GroupNode | ArrayNode) -> dict[Key, bytes]:
        document: dict[str, Any]
        match node:
            case GroupNode():
                document = {"attributes": dict(node.attributes), "zarr_format": 3, "node_type": "group"}
            case ArrayNode():
                document = format_array(node.metadata, node.attributes)
        return {self._key(node.path): dump(document, indent=_INDENT)}

    def required_groups(self, path: NodePath) -> tuple[NodePath, ...]:
        return tuple(path.ancestors())

    def consolidated_keys(self, path: NodePath) -> tuple[Key, ...]:
        return tuple(self._key(ancestor) for ancestor in path.ancestors())

    def new_copy(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        key = self._key(path)
        empty = {"kind": "inline", "must_understand": False, "metadata": {}}
        return {key: patched(key, documents[key], [MEMBER], empty)} if key in documents else {}

    def amend(self, path: NodePath, documents: Documents, edit: Edit) -> dict[Key, bytes]:
        key, members = self._key(path), _members(edit)
        if not members and edit.fill_value is None:
            return {}
        # Of a node that only the copy describes.
        documents = {**self.missing_documents(path, documents), **documents}
        if key not in documents:
            raise MetadataError(f"{key}: no document to change", key=key)
        data = documents[key]
        if edit.shape is not None:
            members |= self._grid_for(path, data, edit.shape)
        if edit.fill_value is not None:
            members["fill_value"] = self._fill_member(self.parse(path, {key: data}), edit.fill_value)
        for name, value in members.items():
            data = patched(key, data, [name], value)
        if self.parse(path, {key: data}) is None:
            raise MetadataError(f"{key}: not a document of Zarr v3", key=key)
        amended = {key: data}
        for ancestor in path.ancestors():
            key, relative = self._key(ancestor), _relative(path, ancestor)
            if key in documents and _has_copy_of(key, documents[key], relative):
                data = documents[key]
                for name, value in members.items():
                    data = patched(key, data, [MEMBER, "metadata", relative, name], value)
                amended[key] = data
        return amended

    def _grid_for(self, path: NodePath, document: bytes, shape: Shape) -> dict[str, Any]:
        """Return the member ``chunk_grid`` if that of ``document`` does not fit an array of ``shape``; else nothing."""
        node = self.parse(path, {self._key(path): document})
        if not isinstance(node, ArrayNode) or len(shape) != node.metadata.ndim:
            return {}
        before = node.metadata.chunk_grid
        after = before.resized(shape)
        return {} if after == before else {"chunk_grid": grid_to_json(after)}

    def copies_with(self, paths: Iterable[NodePath], documents: Documents) -> dict[Key, bytes]:
        wanted = tuple(paths)
        keys = {each: self._key(each) for path in wanted for each in path.ancestors()}
        found = {each: _copies(key, documents[key]) for each, key in keys.items() if key in documents}
        copies = {each: CopiedDocuments(copy) for each, copy in found.items() if copy is not None}
        changes: dict[NodePath, dict[str, Any]] = {each: {} for each in copies}
        gone: dict[NodePath, list[str]] = {each: [] for each in copies}
        for path in wanted:
            document = self._own_of(path, documents)
            for ancestor in (each for each in path.ancestors() if each in copies):
                relative, copy = _relative(path, ancestor), copies[ancestor]
                if document is None:
                    gone[ancestor].append(relative)
                    continue
                changes[ancestor][relative] = document
                if document.get("node_type") == "array":
                    # Nodes that were below, of which the copy has not learnt that they are gone.
                    gone[ancestor].extend(copy.below(relative))
                for above in groups_between(ancestor, path):
                    there = _relative(above, ancestor)
                    if there not in changes[ancestor] and not copy.is_group(there):
                        changes[ancestor][there] = self._own_of(above, documents) or _GROUP
        return {
            (key := keys[each]): merged(key, documents[key], [MEMBER, "metadata"], changes[each], gone[each], group_of=_group_of)
            for each in copies
        }

    def _own_of(self, path: NodePath, documents: Documents) -> dict[str, Any] | None:
        """Return the document of the node at ``path`` itself as a copy has it; None if there is none."""
        key = self._key(path)
        document = parse_object(key, documents[key], LOOSE) if key in documents else {}
        # It may be the entry point of a hierarchy of 2019 or 2022.
        if not _is_ours(document):
            return None
        # A copy within the copy would have to be kept up to date, too.
        document.pop(MEMBER, None)
        return document

    def copies_without(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        found = {}
        for ancestor in path.ancestors():
            key, relative = self._key(ancestor), _relative(path, ancestor)
            copies = _copies(key, documents[key]) if key in documents else None
            gone = [each for each in copies or () if each == relative or each.startswith(relative + "/")]
            if gone:
                found[key] = merged(key, documents[key], [MEMBER, "metadata"], {}, gone, group_of=_group_of)
        return found

    def unsharded(self, key: Key, document: bytes) -> bytes:
        return self._unsharding.unsharded(key, document)

    def copied_documents(self, key: Key, document: bytes) -> Mapping[Key, bytes]:
        copied = copied_documents(parse_object(key, document, LOOSE)) or {}
        return by_original(copied, lambda name: _copied_key(key, name))

    def copied_keys(self, key: Key, document: bytes) -> Mapping[str, Key]:
        return self._unsharding.copied_keys(key, document)

    def resharded(self, key: Key, document: bytes, stored: bytes, nodes: Mapping[str, bytes]) -> bytes:
        return self._unsharding.resharded(key, document, stored, nodes)

    @property
    def _unsharding(self) -> Unsharding:
        plain = partial(plain_members, chosen=self.dialect.chosen)
        return Unsharding(SHARDING.encode(), (MEMBER, "metadata"), LOOSE, plain, _copied_key)

    def check_name(self, name: str) -> None:
        check_name(name)

    def _key(self, path: NodePath) -> Key:
        return self.prefix.key(path.prefix + DOCUMENT)

    def _copied(self, path: NodePath) -> Node | None:
        """Return the node in the consolidated copy; an implicit group if the copy has only nodes below it."""
        if self.copy is None:
            return None
        if path in self.copy.documents:
            label = f"{self._key(ROOT)} ({MEMBER} of {path})"
            with naming(label):
                copied = self.copy.documents[path]
                return self._node(path, mapping(parsed(label, copied, ATTRIBUTES), "document"), copied)
        if path in self.copy.children:
            return GroupNode(path=path, dialect=PLUGIN.name, explicit=False)
        return None

    def _node(self, path: NodePath, document: dict[str, Any], source: bytes | dict[str, Any] | Unparsed) -> Node:
        version, node_type = document.get("zarr_format"), member(document, "node_type")
        if not _is_three(version):
            raise MetadataError(f"zarr_format must be 3, not {shortened(version)}")
        attributes = mapping(document.get("attributes", {}), "attributes")
        match node_type:
            case "group":
                check_members(document, _GROUP_MEMBERS, "group document")
                has_copy = copied_documents(document) is not None
                return GroupNode(path=path, dialect=PLUGIN.name, attributes=attributes, has_copy=has_copy)
            case "array":
                metadata, quirks = _parse_array(document, self.dialect.chosen, source)
                return ArrayNode(
                    path=path,
                    dialect=PLUGIN.name,
                    metadata=metadata,
                    chunk_prefix=self.chunk_prefix(path),
                    attributes=attributes,
                    quirks=quirks,
                )
        raise MetadataError(f"node_type must be 'array' or 'group', not {shortened(node_type)}")


_parse_array = ParseOnce(parse_array)


def _is_ours(document: Mapping[str, Any]) -> bool:
    return "node_type" in document or _is_three(document.get("zarr_format"))


def _is_three(version: Any) -> bool:
    return type(version) is int and version == 3


def _members(edit: Edit) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if edit.attributes is not None:
        members["attributes"] = dict(edit.attributes)
    if edit.shape is not None:
        members["shape"] = list(edit.shape)
    if edit.dimension_names is not None:
        members["dimension_names"] = list(edit.dimension_names)
    return members


def _group_of(member: str) -> str:
    """Return the path of the group of a node, by the names of a consolidated copy."""
    return member.rpartition("/")[0]


def _relative(path: NodePath, ancestor: NodePath) -> str:
    """Return the name of a node in the copy of the group ``ancestor``."""
    return path[len(ancestor.prefix) + 1 :]


def _has_copy_of(key: str, data: bytes, relative: str) -> bool:
    """Return True if the group's document ``data`` holds a copy of the document of the node at ``relative`` below it."""
    copies = _copies(key, data)
    return copies is not None and is_object(copies.get(relative))


def _copied_key(key: Key, name: str) -> Key:
    """Return the key of the document that the copy ``name`` in the document at ``key`` repeats."""
    return Key(f"{key.removesuffix(DOCUMENT)}{name}/{DOCUMENT}")


def _copies(key: str, data: bytes) -> dict[str, Any] | None:
    """Return the documents in the copy in the group's document ``data``, if it has a readable one."""
    try:
        return copied_documents(parse_object(key, data, LOOSE))
    except MetadataError:
        return None
