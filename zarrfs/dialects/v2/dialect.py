"""Zarr v2: ``.zarray``, ``.zgroup`` and ``.zattrs`` in the folder of each node.

Source: Zarr storage specification version 2 (zarr-specs ``docs/v2/v2.0.rst``); sections are named where a rule is followed.

    .zgroup            {"zarr_format": 2}
    a/.zattrs          {"units": "m"}
    a/b/.zarray        {"chunks": [10], "compressor": null, "dtype": "<i4", "fill_value": 0, "filters": null, ...}
    a/b/0  a/b/1       chunks; "/" instead of "." between the indices if `dimension_separator` requires it

Points that the specification leaves open:

* A prefix without documents is an implicit group if it has content: tensorstore writes no ``.zgroup`` at parents.
* ``.zarray`` and ``.zgroup`` at one path: the array takes precedence, as in zarr-python, and the node reports it (``quirks``).
* Names that begin with a dot are ordinary node names; the names of the documents themselves are not.
* The consolidated copy is ignored for a node with documents of its own; ``.zattrs`` alone is no node.
* Deviations of real software are accepted and listed in the node's ``quirks``; `V2.choices` names those that a user may refuse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from zarrfs.dialects.base import Dialect, Documents, Edit, Layout
from zarrfs.dialects.consolidated import by_original, groups_between, zmetadata_documents, zmetadata_fault
from zarrfs.dialects.documents import MEMBERS, dump, merged, naming, parse_object, parsed, patched
from zarrfs.dialects.parse_once import ParseOnce
from zarrfs.dialects.quirks import REFUSE, USE_OR_REFUSE, Quirks
from zarrfs.dialects.v2.array import check_format, fill_to_member, format_array, parse_array
from zarrfs.dialects.v2.consolidated import NODE_DOCUMENTS, ConsolidatedCopy
from zarrfs.dialects.v2.netcdf_codecs import ELEMENTSIZE
from zarrfs.errors import MetadataError, NameInvalid
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node
from zarrfs.model.unparsed import Unparsed

ZARRAY, ZGROUP = NODE_DOCUMENTS
ZATTRS = ".zattrs"
ZMETADATA = ".zmetadata"
_NAMES = (*NODE_DOCUMENTS, ZATTRS)
_INDENT = 4


class V2(Dialect):
    """Zarr v2. ``chosen``: the deviations that are refused, by the names of `choices`."""

    name = "v2"
    chunk_key_encoding = chunk_key.v2(".")
    has_undefined_fill = True
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(
            ("consolidated", "dimension_separator", "fill_value", "level", "lzma", "missing", "shuffle", "zarr_format", "zstd"),
            USE_OR_REFUSE,
        ),
        "elementsize": ELEMENTSIZE,
    }

    def __init__(self, chosen: Mapping[str, str] = MappingProxyType({})) -> None:
        self.chosen = chosen

    def choosing(self, chosen: Mapping[str, str]) -> V2:
        return V2(chosen)

    def quirks(self) -> Quirks:
        """Return an empty set of deviations for a document to be read."""
        return Quirks(self.name, self.chosen)

    def root_keys(self, prefix: Prefix) -> tuple[Key, ...]:
        return tuple(prefix.key(name) for name in (*_NAMES, ZMETADATA))

    def open(self, prefix: Prefix, documents: Documents) -> V2Layout | None:
        if not any(prefix.key(name) in documents for name in (ZARRAY, ZGROUP, ZMETADATA)):
            return None
        key = prefix.key(ZMETADATA)
        if key not in documents or self.chosen.get("consolidated") == REFUSE:
            return V2Layout(prefix, dialect=self)
        try:
            copy = ConsolidatedCopy.parse(key, documents[key])
        except MetadataError:
            return V2Layout(prefix, dialect=self)
        copy_only = all(prefix.key(name) not in documents for name in NODE_DOCUMENTS)
        return V2Layout(prefix, copy, copy_only=copy_only, dialect=self)

    def create(self, prefix: Prefix) -> V2Layout:
        return V2Layout(prefix, dialect=self)


PLUGIN = V2()


@ParseOnce
def _parse_array(document: Mapping[str, Any], chosen: Mapping[str, str]) -> tuple[ArrayMetadata, tuple[str, ...]]:
    quirks = Quirks(V2.name, chosen)
    metadata = parse_array(document, quirks)
    return metadata, tuple(quirks)


@dataclass(frozen=True, slots=True)
class V2Layout(Layout):
    """A v2 hierarchy. ``copy`` is its consolidated copy, if there is a readable one.

    ``copy_only``: the root has no document of its own, as in a store that has only the copy.
    """

    document_names: ClassVar[frozenset[str]] = frozenset(_NAMES)

    prefix: Prefix
    copy: ConsolidatedCopy | None = None
    copy_only: bool = False
    dialect: V2 = PLUGIN

    def document_keys(self, path: NodePath) -> tuple[Key, ...]:
        base = self.chunk_prefix(path)
        return tuple(base.key(name) for name in _NAMES)

    def deciding(self, keys: tuple[Key, ...]) -> tuple[Key, ...]:
        # A node described by the copy may have attributes of its own.
        return keys if self.copy is not None else keys[: len(NODE_DOCUMENTS)]

    def parse(self, path: NodePath, documents: Documents) -> Node | None:
        sources = self._sources(path, documents)
        quirks = self.dialect.quirks()
        if ZARRAY in sources:
            with naming(sources[ZARRAY].key):
                source = sources[ZARRAY]
                metadata, deviations = _parse_array(source.read(), self.dialect.chosen, source.value)
            quirks += deviations
            if ZGROUP in sources:
                quirks.append("a group exists at the same path: .zarray and .zgroup")
            return ArrayNode(
                path=path,
                dialect=PLUGIN.name,
                metadata=metadata,
                chunk_prefix=self.chunk_prefix(path),
                attributes=_attributes(sources),
                quirks=tuple(quirks),
            )
        if ZGROUP in sources:
            with naming(sources[ZGROUP].key):
                check_format(sources[ZGROUP].read(), quirks)
            return GroupNode(path=path, dialect=PLUGIN.name, attributes=_attributes(sources), quirks=tuple(quirks))
        if self.copy is not None and path in self.copy.children:
            return GroupNode(path=path, dialect=PLUGIN.name, explicit=False)
        return None

    def listing_prefix(self, path: NodePath) -> Prefix:
        return self.chunk_prefix(path)

    def child_names(self, path: NodePath, keys: Iterable[str], prefixes: Iterable[str]) -> set[str]:
        return {name for name in prefixes if name not in (*_NAMES, ZMETADATA, "", ".", "..") and "\\" not in name}

    def consolidated_names(self, path: NodePath) -> set[str] | None:
        return None if self.copy is None else set(self.copy.children.get(path, ()))

    def copied(self, path: NodePath) -> object:
        if self.copy is None:
            return None
        return [self.copy.documents.get(path.prefix + name) for name in _NAMES], path in self.copy.children

    def missing_documents(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        sources = self._sources(path, documents)
        copied = {name: each for name in reversed(_NAMES) if (each := sources.get(name)) and not isinstance(each.value, bytes)}
        read = {name: dict(each.read(MEMBERS)) for name, each in copied.items()}
        # zarr-python 3 gives each group in a copy an empty copy, according to which the group itself would hold nothing.
        read.get(ZGROUP, {}).pop("consolidated_metadata", None)
        return {self.chunk_prefix(path).key(name): dump(each, indent=_INDENT) for name, each in read.items()}

    def without_copy(self) -> V2Layout:
        return self if self.copy is None else replace(self, copy=None)

    def chunk_prefix(self, path: NodePath) -> Prefix:
        return self.prefix.of(path)

    def chunk_key_encodings(self, node: ArrayNode, documents: Documents) -> tuple[ChunkKeyEncoding, ...]:
        usual = node.metadata.chunk_key_encoding
        source = self._sources(node.path, documents).get(ZARRAY)
        is_named = source is None or source.may_have("dimension_separator")
        if is_named or node.metadata.ndim < 2 or self.dialect.chosen.get("dimension_separator") == REFUSE:
            return (usual,)
        # The NestedDirectoryStore of zarr 2.2 to 2.7 did not name it.
        return (usual, chunk_key.v2("/"))

    def node_of_document(self, key: Key) -> NodePath | None:
        if not key.startswith(self.prefix):
            return None
        parent, slash, name = key[len(self.prefix) :].rpartition("/")
        if name not in (*_NAMES, ZMETADATA):
            return None
        if "\\" in parent or (slash and not parent):
            return None
        try:
            return NodePath(f"/{parent}")
        except NameInvalid:
            return None

    def format(self, node: GroupNode | ArrayNode) -> dict[Key, bytes]:
        """Run `Layout.format`. v2 has no dimension names: a caller that needs them puts them into the attributes."""
        base = self.chunk_prefix(node.path)
        written = {base.key(ZATTRS): _dump_attributes(node.attributes)} if node.attributes else {}
        match node:
            case GroupNode():
                written[base.key(ZGROUP)] = dump({"zarr_format": 2}, indent=_INDENT, sort_keys=True)
            case ArrayNode():
                written[base.key(ZARRAY)] = dump(format_array(node.metadata), indent=_INDENT, sort_keys=True)
        return written

    def required_groups(self, path: NodePath) -> tuple[NodePath, ...]:
        return tuple(path.ancestors())

    def consolidated_keys(self, path: NodePath) -> tuple[Key, ...]:
        # A group below the root may have been a store of its own, and have a copy from that time.
        return tuple(self._copy_key(each) for each in (*path.ancestors(), path))

    def copy_key(self, path: NodePath) -> Key | None:
        return self._copy_key(path)

    def copy_fault(self, key: Key, data: bytes, *, of_members: bool) -> str | None:
        return zmetadata_fault(key, data, of_members=of_members) if key.rpartition("/")[2] == ZMETADATA else None

    def copied_documents(self, key: Key, document: bytes) -> Mapping[Key, bytes]:
        return by_original(zmetadata_documents(key, document), key.parent.key)

    def new_copy(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        return {self._copy_key(path): dump({"metadata": {}, "zarr_consolidated_format": 1}, indent=_INDENT, sort_keys=True)}

    def amend(self, path: NodePath, documents: Documents, edit: Edit) -> dict[Key, bytes]:
        node = self.parse(path, documents)
        if node is None or (isinstance(node, GroupNode) and not node.explicit):
            raise MetadataError(f"{path}: no documents to change", key=path)
        base = self.chunk_prefix(path)
        amended: dict[Key, bytes] = {}
        members: dict[tuple[str, ...], Any] = {}
        if edit.attributes is not None:
            key = base.key(ZATTRS)
            if edit.attributes or key in documents:
                amended[key] = _dump_attributes(edit.attributes)
            members[(ZATTRS,)] = dict(edit.attributes)
        if edit.shape is not None or edit.fill_value is not None:
            source = self._sources(path, documents).get(ZARRAY)
            if source is None:
                raise MetadataError(f"{path}: a group has no shape", key=path)
            key, changed = base.key(ZARRAY), {}
            with naming(source.key):
                if edit.shape is not None:
                    changed["shape"] = list(edit.shape)
                if edit.fill_value is not None:
                    changed["fill_value"] = fill_to_member(source.read(), edit.fill_value)
                parse_array({**source.read(), **changed}, self.dialect.quirks())
            members.update({(ZARRAY, name): value for name, value in changed.items()})
            for name, value in changed.items():
                if key in documents:
                    amended[key] = patched(key, amended.get(key, documents[key]), [name], value)
        return amended | dict(self._amended_copies(path, documents, members))

    def copies_with(self, paths: Iterable[NodePath], documents: Documents) -> dict[Key, bytes]:
        wanted = tuple(paths)
        groups = dict.fromkeys(each for path in wanted for each in (*path.ancestors(), path))
        copies = {group: copy for group in groups if (copy := self._copy_in(group, documents)) is not None}
        changes: dict[NodePath, dict[str, Any]] = {group: {} for group in copies}
        gone: dict[NodePath, list[str]] = {group: [] for group in copies}
        for path in wanted:
            read = self._read(path, documents)
            for group in (each for each in (*path.ancestors(), path) if each in copies):
                relative, copy = _relative(path, group), copies[group]
                changes[group].update({relative + name: document for name, document in read.items()})
                gone[group].extend(relative + name for name in _NAMES if name not in read)
                if ZARRAY in read and copy.children.get(NodePath(f"/{relative.rstrip('/')}")):
                    # Nodes that were below, of which the copy has not learnt that they are gone.
                    own = [relative + name for name in _NAMES]
                    gone[group].extend(name for name in copy.documents if name.startswith(relative) and name not in own)
                for above in groups_between(group, path) if read.keys() & NODE_DOCUMENTS else ():
                    there = _relative(above, group)
                    if there + ZGROUP in changes[group] or (
                        there + ZGROUP in copy.documents and there + ZARRAY not in copy.documents
                    ):
                        continue
                    described = {ZGROUP: {"zarr_format": 2}} | self._read(above, documents)
                    changes[group].update({there + name: document for name, document in described.items()})
                    gone[group].extend(there + name for name in _NAMES if name not in described)
        return {
            (key := self._copy_key(group)): merged(
                key, documents[key], ["metadata"], changes[group], gone[group], group_of=_group_of
            )
            for group in copies
        }

    def _read(self, path: NodePath, documents: Documents) -> dict[str, dict[str, Any]]:
        """Return the documents of the node at ``path`` itself by their names."""
        own = {name: key for name in _NAMES if (key := self.chunk_prefix(path).key(name)) in documents}
        return {name: parse_object(key, documents[key], MEMBERS if name == ZATTRS else ()) for name, key in own.items()}

    def copies_without(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        found = {}
        for group in path.ancestors() if path != ROOT else (ROOT,):
            key, copy = self._copy_key(group), self._copy_in(group, documents)
            gone = [name for name in copy.documents if name.startswith(_relative(path, group))] if copy is not None else []
            if gone:
                found[key] = merged(key, documents[key], ["metadata"], {}, gone, group_of=_group_of)
        return found

    def check_name(self, name: str) -> None:
        if not name.isascii() or not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise NameInvalid(
                f"{name!r}: a node name must be ASCII, without slashes, and neither '.' nor '..' (v2, 'logical path')", key=name
            )
        if name in (*_NAMES, ZMETADATA):
            raise NameInvalid(f"{name!r}: reserved for a Zarr v2 document", key=name)

    def _sources(self, path: NodePath, documents: Documents) -> dict[str, _Source]:
        """Return the documents of a node by their names: its own, or else those of the consolidated copy."""
        base = self.chunk_prefix(path)
        own = {name: _Source(key, documents[key]) for name in _NAMES if (key := base.key(name)) in documents}
        if self.copy is None or not own.keys().isdisjoint(NODE_DOCUMENTS):
            return own
        copied = {
            name: _Source(f"{self.prefix}{ZMETADATA} ({member})", self.copy.documents[member])
            for name in _NAMES
            if (member := path.prefix + name) in self.copy.documents
        }
        return copied | own

    def _amended_copies(
        self, path: NodePath, documents: Documents, members: Mapping[tuple[str, ...], Any]
    ) -> Iterator[tuple[Key, bytes]]:
        """Yield each ``.zmetadata`` that has the node, with the members of its documents changed."""
        for group in (*path.ancestors(), path):
            key, relative, copy = self._copy_key(group), _relative(path, group), self._copy_in(group, documents)
            if copy is None:
                continue
            data = documents[key]
            knows = any(relative + name in copy.documents for name in NODE_DOCUMENTS)
            for (name, *rest), value in members.items():
                # Empty attributes are not added, so that an absent .zattrs stays absent.
                if relative + name in copy.documents or (name == ZATTRS and value and knows):
                    data = patched(key, data, ["metadata", relative + name, *rest], value)
            if data != documents[key]:
                yield key, data

    def _copy_key(self, group: NodePath) -> Key:
        return self.chunk_prefix(group).key(ZMETADATA)

    def _copy_in(self, group: NodePath, documents: Documents) -> ConsolidatedCopy | None:
        """Return the consolidated copy of ``group`` among ``documents``, if there is a readable one."""
        key = self._copy_key(group)
        try:
            return ConsolidatedCopy.parse(key, documents[key])
        except (KeyError, MetadataError):
            return None


@dataclass(frozen=True, slots=True)
class _Source:
    """One document: the bytes under a key, or an object of the consolidated copy."""

    key: str
    value: bytes | dict[str, Any] | Unparsed

    def may_have(self, member: str) -> bool:
        """Return False if it certainly has no ``member``; does not parse it."""
        if isinstance(self.value, dict):
            return member in self.value
        return member.encode() in (self.value.data if isinstance(self.value, Unparsed) else self.value)

    def read(self, loose: Collection[tuple[str, ...]] = ()) -> dict[str, Any]:
        return parse_object(self.key, self.value, loose) if isinstance(self.value, bytes) else parsed(self.key, self.value, loose)


def _group_of(member: str) -> str:
    """Return the path of the group of the node that a document of a consolidated copy describes."""
    return member.rpartition("/")[0].rpartition("/")[0]


def _relative(path: NodePath, group: NodePath) -> str:
    """Return the prefix of the document names of a node in the copy of ``group``."""
    return path.prefix[len(group.prefix) :]


def _attributes(sources: Mapping[str, _Source]) -> dict[str, Any]:
    """Return the attributes; absent means empty (section "Attributes")."""
    return sources[ZATTRS].read(MEMBERS) if ZATTRS in sources else {}


def _dump_attributes(attributes: Mapping[str, Any]) -> bytes:
    # Not sorted, unlike other documents: the order is the user's.
    return dump(dict(attributes), indent=_INDENT)
