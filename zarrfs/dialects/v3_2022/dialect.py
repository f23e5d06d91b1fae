"""The Zarr v3 core draft of 2022: an entry point, documents below ``meta``, chunks below ``data``.

Source: Zarr v3 core draft of 2 December 2022 ("Metadata", "Storage keys", "Operations"); stores of zarr-python 2.13 to 2.16 with its
experimental API, GDAL 3.6 and zarrita 2020, which agree with each other and not with the draft.

    zarr.json                       determines the form of all others: `zarrfs.dialects.v3_2022.entry_point`
    meta/a.group.json               a group (software: meta/root/a.group.json)
    meta/a/b.array.json             an array: `zarrfs.dialects.v3_2022.array`
    data/a/b/c0/0                   a chunk

Points that the draft leaves open:

* A node is looked up as in the draft ("Determine if a node exists"): an array's document, then a group's, then a listing. If both
  documents exist the array takes precedence, and the node reports it.
* A group whose document has no ``attributes`` has none; ``extensions``, which GDAL and zarrita wrote into groups, are checked like those
  of arrays.
* Names with characters outside the draft are not nodes, and are refused for new ones.
* Attributes are shown unchanged, with the filters hidden there; an edit cannot remove or change those.
* A new hierarchy is written in the software's form, which other readers of such hierarchies know. The draft's is the other one of
  `forms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from zarrfs.dialects.base import Dialect, Documents, Edit, Layout
from zarrfs.dialects.consolidated import by_original, zmetadata_documents, zmetadata_fault
from zarrfs.dialects.documents import ATTRIBUTES, dump, merged, naming, parse_object, parsed, patched
from zarrfs.dialects.drafts import DraftKeys, attributes_of, check_extensions
from zarrfs.dialects.quirks import REFUSE, USE_OR_REFUSE
from zarrfs.dialects.unsharding import Unsharding
from zarrfs.dialects.v3_2022.array import SCALARS, chunk_keys, edited_attributes, format_array, parse_array, plain_members
from zarrfs.dialects.v3_2022.consolidated import GROUP, LOOSE, ConsolidatedCopy, copy_key
from zarrfs.dialects.v3_2022.entry_point import EntryPoint, entry_key, format_entry, parse_entry
from zarrfs.dialects.v3_2022.names import check_name, is_name, is_path
from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayNode, GroupNode, Node
from zarrfs.model.unparsed import Unparsed

_KINDS = ("array", "group")
_INDENT = 4


class V3Draft2022(Dialect):
    """The core draft of 2022.

    ``fallbacks``: an unknown data type is read as its fallback; ``chosen``: the other deviations that are refused, by the names of
    `choices`.
    """

    name = "v3_2022"
    per_node = False
    chunk_key_encoding = chunk_keys("/", software=True)
    new_codecs = (CodecSpec("gzip", {"level": 5}),)
    new_index_codecs = (CodecSpec("bytes", {"endian": "little"}),)
    forms = ("software", "text")
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = dict.fromkeys(
        ("consolidated", "fallback", "lzma", "shuffle", "zstd"), USE_OR_REFUSE
    )

    def __init__(self, *, fallbacks: bool = True, chosen: Mapping[str, str] = MappingProxyType({})) -> None:
        self.fallbacks = fallbacks
        self.chosen = chosen

    def choosing(self, chosen: Mapping[str, str]) -> V3Draft2022:
        return V3Draft2022(fallbacks=chosen.get("fallback") != REFUSE, chosen=chosen)

    def root_keys(self, prefix: Prefix) -> tuple[Key, ...]:
        return (entry_key(prefix),)

    def further_keys(self, prefix: Prefix, documents: Documents) -> tuple[Key, ...]:
        key = entry_key(prefix)
        form = parse_entry(key, documents[key]) if key in documents else None
        return (copy_key(prefix),) if form is not None and form.software else ()

    def open(self, prefix: Prefix, documents: Documents) -> V3Draft2022Layout | None:
        key = entry_key(prefix)
        form = parse_entry(key, documents[key]) if key in documents else None
        if form is None:
            return None
        layout = V3Draft2022Layout(self, prefix, form)
        if copy_key(prefix) not in documents or not form.software:
            return layout
        copy = None if self.chosen.get("consolidated") == REFUSE else layout.copy_in(documents)
        return V3Draft2022Layout(self, prefix, form, has_copy=True, copy=copy)

    def create(self, prefix: Prefix) -> V3Draft2022Layout:
        return V3Draft2022Layout(self, prefix, EntryPoint())

    def create_in(self, form: str, prefix: Prefix) -> V3Draft2022Layout:
        return V3Draft2022Layout(self, prefix, EntryPoint(software=form != "text"))


PLUGIN = V3Draft2022()


@dataclass(frozen=True, slots=True)
class V3Draft2022Layout(Layout):
    """A hierarchy of 2022. ``copy`` is its consolidated copy; None also if there is an unreadable one (``has_copy``)."""

    dialect: V3Draft2022
    prefix: Prefix
    form: EntryPoint
    has_copy: bool = False
    copy: ConsolidatedCopy | None = None

    @property
    def keys(self) -> DraftKeys:
        """Keys of documents and chunks."""
        return self.form.keys(self.prefix)

    @property
    def own_names(self) -> frozenset[str]:
        return frozenset({"meta", "data"})

    def check(self) -> None:
        if self.form.refused is not None:
            raise type(self.form.refused)(str(self.form.refused), key=entry_key(self.prefix))

    def document_keys(self, path: NodePath) -> tuple[Key, ...]:
        return tuple(self.keys.document(path, kind) for kind in _KINDS)

    def shared_keys(self, path: NodePath) -> tuple[Key, ...]:
        # Nodes below another file of this name would not be found again.
        return tuple(self.entry_documents())

    def is_own(self, path: NodePath, key: Key, value: bytes) -> bool:
        return self.dialect.open(self.prefix, {key: value}) is not None

    def group_keys(self, path: NodePath) -> tuple[Key, ...]:
        return (self.keys.document(path, "group"),)

    def parse(self, path: NodePath, documents: Documents) -> Node | None:
        if not is_path(path) or self._is_of_copy(path):
            return None
        array, group = self._sources(path, documents)
        if array is not None or group is not None:
            self.check()
        if array is not None:
            with naming(array.key):
                document = array.read()
                parsed = parse_array(document, self.form, fallbacks=self.dialect.fallbacks, chosen=self.dialect.chosen)
            beside = () if group is None else (f"a group exists at the same path: {group.key}",)
            return ArrayNode(
                path=path,
                dialect=self.dialect.name,
                metadata=parsed.metadata,
                chunk_prefix=self.chunk_prefix(path),
                attributes=attributes_of(document),
                quirks=(*parsed.quirks, *beside, *self.form.quirks),
                warnings=parsed.warnings,
            )
        if group is not None:
            with naming(group.key):
                attributes = self._group_attributes(group.read())
            return GroupNode(path=path, dialect=self.dialect.name, attributes=attributes, quirks=self.form.quirks)
        if self.copy is not None and path in self.copy.children:
            return GroupNode(path=path, dialect=self.dialect.name, explicit=False)
        return None

    def listing_prefix(self, path: NodePath) -> Prefix:
        return self.keys.listing(path)

    def node_of_prefix(self, prefix: Prefix) -> NodePath | None:
        path = self.keys.node_of_listing(prefix)
        return path if path is not None and is_path(path) else None

    def child_names(self, path: NodePath, keys: Iterable[str], prefixes: Iterable[str]) -> set[str]:
        names = set(filter(is_name, self.keys.child_names(keys, prefixes)))
        return {name for name in names if not self._is_of_copy(path.child(name))}

    def consolidated_names(self, path: NodePath) -> set[str] | None:
        return None if self.copy is None else set(self.copy.children.get(path, ()))

    def copied(self, path: NodePath) -> object:
        if self.copy is None:
            return None
        names = [key[len(self.prefix) :] for key in self.document_keys(path)]
        return [self.copy.documents.get(name) for name in names], path in self.copy.children

    def missing_documents(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        sources = zip(self.document_keys(path), self._sources(path, documents), strict=True)
        copied = {key: each for key, each in sources if each is not None and not isinstance(each.value, bytes)}
        return {key: dump(each.read(), indent=_INDENT) for key, each in copied.items()}

    def without_copy(self) -> V3Draft2022Layout:
        return self if self.copy is None else replace(self, copy=None)

    def chunk_prefix(self, path: NodePath) -> Prefix:
        return self.keys.chunks(path)

    def chunk_key_encodings(self, node: ArrayNode, documents: Documents) -> tuple[ChunkKeyEncoding, ...]:
        usual = node.metadata.chunk_key_encoding
        # Documents do not name the only chunk of a 0-dimensional array.
        others = [] if node.metadata.shape else [name for name in SCALARS if name != usual.scalar]
        return (usual, *(replace(usual, scalar=name) for name in others))

    def node_of_document(self, key: Key) -> NodePath | None:
        if key in (entry_key(self.prefix), copy_key(self.prefix)):
            return ROOT
        path = self.keys.node_of_document(key)
        return path if path is not None and is_path(path) and not self._is_of_copy(path) else None

    def format(self, node: GroupNode | ArrayNode) -> dict[Key, bytes]:
        if self._is_of_copy(node.path):
            raise NotRepresentable(f"{GROUP}: reserved for the consolidated metadata", key=node.path)
        match node:
            case GroupNode():
                document: dict[str, Any] = {"attributes": dict(node.attributes)}
                kind = "group"
            case ArrayNode():
                document = format_array(node.metadata, node.attributes, self.form)
                kind = "array"
        return {self.keys.document(node.path, kind): dump(document, indent=_INDENT)}

    def entry_documents(self) -> dict[Key, bytes]:
        return {entry_key(self.prefix): format_entry(self.form)}

    def required_groups(self, path: NodePath) -> tuple[NodePath, ...]:
        """Return none: it is not necessary to create documents of ancestors ("Create a group", "Create an array")."""
        return ()

    def consolidated_keys(self, path: NodePath) -> tuple[Key, ...]:
        return (copy_key(self.prefix),) if self.form.software else ()

    def copy_key(self, path: NodePath) -> Key | None:
        return copy_key(self.prefix) if path == ROOT and self.form.software else None

    def copy_fault(self, key: Key, data: bytes, *, of_members: bool) -> str | None:
        is_copy = self.form.software and key == copy_key(self.prefix)
        return zmetadata_fault(key, data, of_members=of_members) if is_copy else None

    def copied_documents(self, key: Key, document: bytes) -> Mapping[Key, bytes]:
        return by_original(zmetadata_documents(key, document), self.prefix.key)

    def new_copy(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        key = self.copy_key(path)
        if key is None:
            return {}
        # The group comes last: without the copy it would be a node.
        new = {key: {"metadata": {}, "zarr_consolidated_format": 1}, self.keys.document(GROUP, "group"): {"attributes": {}}}
        return {each: dump(document, indent=_INDENT) for each, document in new.items()}

    def amend(self, path: NodePath, documents: Documents, edit: Edit) -> dict[Key, bytes]:
        key = next((key for key in self.document_keys(path) if key in documents), None)
        node = self.parse(path, documents)
        if key is None or node is None:
            raise MetadataError(f"{path}: no documents to change", key=path)
        members: dict[str, Any] = {}
        if edit.attributes is not None:
            members["attributes"] = dict(edit.attributes)
            if isinstance(node, ArrayNode):
                with naming(key):
                    members["attributes"] = edited_attributes(
                        parse_object(key, documents[key], ATTRIBUTES), edit.attributes, self.form
                    )
        if edit.shape is not None:
            if not isinstance(node, ArrayNode):
                raise MetadataError(f"{path}: a group has no shape", key=path)
            members["shape"] = list(edit.shape)
        if edit.fill_value is not None:
            members["fill_value"] = self._fill_member(node, edit.fill_value)
        if not members:
            return {}
        data = documents[key]
        for name, value in members.items():
            data = patched(key, data, [name], value)
        self.parse(path, {key: data})
        amended = {key: data}
        copied, member = self.copy_in(documents), key[len(self.prefix) :]
        if copied is not None and member in copied.documents:
            copy = copy_key(self.prefix)
            data = documents[copy]
            for name, value in members.items():
                data = patched(copy, data, ["metadata", member, name], value)
            amended[copy] = data
        return amended

    def copies_with(self, paths: Iterable[NodePath], documents: Documents) -> dict[Key, bytes]:
        copy = copy_key(self.prefix)
        changes: dict[str, Any] = {}
        gone: list[str] = []
        for path in paths if self.copy_in(documents) is not None else ():
            for own in self.document_keys(path):
                if own in documents:
                    changes[own[len(self.prefix) :]] = parse_object(own, documents[own], ATTRIBUTES)
                else:
                    gone.append(own[len(self.prefix) :])
        return {copy: merged(copy, documents[copy], ["metadata"], changes, gone)} if changes or gone else {}

    def copies_without(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        copied, copy, keys = self.copy_in(documents), copy_key(self.prefix), self.form.keys(Prefix(""))
        if copied is None:
            return {}
        nodes = {name: keys.node_of_document(name) for name in copied.documents}
        gone = [name for name, at in nodes.items() if at is not None and (at == path or path in at.ancestors())]
        return {copy: merged(copy, documents[copy], ["metadata"], {}, gone)} if gone else {}

    def unsharded(self, key: Key, document: bytes) -> bytes:
        return self._unsharding.unsharded(key, document)

    def copied_keys(self, key: Key, document: bytes) -> Mapping[str, Key]:
        return self._unsharding.copied_keys(key, document)

    def resharded(self, key: Key, document: bytes, stored: bytes, nodes: Mapping[str, bytes]) -> bytes:
        return self._unsharding.resharded(key, document, stored, nodes)

    @property
    def _unsharding(self) -> Unsharding:
        return Unsharding(
            b"storage_transformers",
            ("metadata",),
            LOOSE,
            partial(plain_members, form=self.form),
            lambda _, name: self.prefix.key(name),
        )

    def check_name(self, name: str) -> None:
        check_name(name)

    def copy_in(self, documents: Documents) -> ConsolidatedCopy | None:
        """Return the consolidated copy among ``documents``, if there is a readable one."""
        key = copy_key(self.prefix)
        if not self.form.software:
            return None
        try:
            return ConsolidatedCopy.parse(key, documents[key], self.form.keys(Prefix("")))
        except (KeyError, MetadataError):
            return None

    def _is_of_copy(self, path: NodePath) -> bool:
        """Return True if ``path`` is that of the consolidated copy, which is not a node."""
        return self.has_copy and (path == GROUP or GROUP in path.ancestors())

    def _sources(self, path: NodePath, documents: Documents) -> list[_Source | None]:
        """Return the array's document and the group's: the node's own, or else those of the consolidated copy."""
        keys = self.document_keys(path)
        if self.copy is None or any(key in documents for key in keys):
            return [_Source(key, documents[key]) if key in documents else None for key in keys]
        names = [key[len(self.prefix) :] for key in keys]
        copied, copy = self.copy.documents, copy_key(self.prefix)
        return [_Source(f"{copy} ({name})", copied[name]) if name in copied else None for name in names]

    def _group_attributes(self, document: dict[str, Any]) -> dict[str, Any]:
        self.form.check_members(document, ("attributes", "extensions"), "group document")
        check_extensions(document.get("extensions", []), "the group")
        return attributes_of(document)


@dataclass(frozen=True, slots=True)
class _Source:
    """One document: the bytes under a key, or an object of the consolidated copy."""

    key: str
    value: bytes | dict[str, Any] | Unparsed

    def read(self) -> dict[str, Any]:
        if isinstance(self.value, bytes):
            return parse_object(self.key, self.value, ATTRIBUTES)
        return parsed(self.key, self.value, ATTRIBUTES)
