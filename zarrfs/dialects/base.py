"""The interface of a dialect: one layout of metadata documents.

A `Dialect` recognises hierarchies of its kind; a `Layout` is one such hierarchy at one prefix of a store: its document keys, their
content, and how to write them. Both are pure: the caller gets the documents that they name from a store and sets those that they return.
A dialect is one file; its module constant ``PLUGIN`` is an instance of the `Dialect`.

Translation between dialects is ``A.parse``, then ``B.format``. Anything that B cannot represent raises `NotRepresentable`.

Documents are untrusted: they are read through `zarrfs.dialects.documents`, which limits size and depth.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from zarrfs.errors import MetadataError, NameInvalid, StoreReadOnly
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.chunk_grid import ChunkGrid, RegularGrid, Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayNode, GroupNode, Node

Documents = Mapping[Key, bytes]
"""Documents by store key; an absent key is omitted."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Changes of a node's metadata; None keeps a property. ``attributes`` is the complete new set of user attributes."""

    attributes: Mapping[str, Any] | None = None
    shape: Shape | None = None
    dimension_names: tuple[str | None, ...] | None = None
    """Only for arrays of a dialect with `Dialect.has_dimension_names`."""
    fill_value: bytes | None = None
    """New element of missing chunks."""


class Dialect(abc.ABC):
    """A layout of documents. ``name`` is that of its module; of several matching dialects the lowest ``priority`` comes first."""

    name: ClassVar[str]
    priority: ClassVar[int] = 100
    per_node: ClassVar[bool] = True
    """True if all documents of a node are in the folder of the node (v0, v1, v2, final v3).

    Hierarchies of several such dialects can share folders. Otherwise (2019, 2022) a hierarchy has an entry point and owns its prefix.
    """
    names_fold_case: ClassVar[bool] = False
    """True if names of new nodes must differ from those of their siblings in more than case."""
    has_groups: ClassVar[bool] = True
    """True if groups have documents; else (v0, v1) a group is a folder with arrays, or an empty one, and has no attributes."""
    fill_value_marks_missing: ClassVar[bool] = True
    """True if software treats elements equal to ``fill_value`` as missing data, as CF does with ``_FillValue``.

    Otherwise (final v3) the fill value is only the value of missing chunks.
    """
    has_undefined_fill: ClassVar[bool] = False
    """True if every array document can leave the fill value undefined (null)."""
    has_dimension_names: ClassVar[bool] = False
    """True if documents of arrays have names of dimensions (`Edit.dimension_names`)."""
    lock_suffix: ClassVar[str] = ""
    """Suffix that the dialect's software appends to a key to lock it: such keys belong to the node of the key."""
    chunk_key_encoding: ClassVar[ChunkKeyEncoding]
    """Chunk key encoding of new arrays."""
    new_index_codecs: ClassVar[tuple[CodecSpec, ...] | None] = None
    """Codecs of the index of new shards; None for a dialect without shards."""
    has_written_forms: ClassVar[bool] = False
    """True if arrays of one hierarchy are written in several forms; a new array gets that of a neighbouring one."""
    forms: ClassVar[tuple[str, ...]] = ()
    """Forms of a new hierarchy, the default first, where specification and software differ."""
    new_codecs: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("zstd", {"level": 0, "checksum": False}),)
    """Default codecs of new arrays, in the terms of the final v3; `bytes` precedes them unless one of them is an array -> bytes codec."""
    writable: ClassVar[bool] = True
    """True if nodes of this dialect can be created and changed, and their chunks stored.

    Otherwise its files cannot be opened for writing, and changes fail with EROFS, on any store.
    """
    data_types: ClassVar[tuple[str, ...] | None] = None
    """Names of all representable data types without a configuration, if they are few, for the conformance suite; else None."""
    examples: ClassVar[tuple[Mapping[str, bytes], ...]] = ()
    """Array documents at the root, by key below the root's prefix, for the conformance suite of a read-only dialect."""
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """User choices of how documents are read, where specifications and software disagree: names and values, the default first."""

    def choosing(self, chosen: Mapping[str, str]) -> Dialect:
        """Return this dialect with these choices (from `choices`, checked)."""
        return self

    def chunk_keys(self, separator: str) -> ChunkKeyEncoding:
        """Return `chunk_key_encoding` with another separator. `Layout.format` checks if the dialect can represent it."""
        return replace(self.chunk_key_encoding, separator=separator)

    def chunk_grid(self, chunks: Shape, shape: Shape) -> ChunkGrid:
        """Return the grid of a new array of ``shape`` with the requested chunk shape ``chunks``. Raises `MetadataError`."""
        return RegularGrid.checked(chunks, shape)

    @abc.abstractmethod
    def root_keys(self, prefix: Prefix) -> tuple[Key, ...]:
        """Return the keys of the documents by which a hierarchy of this dialect at ``prefix`` is recognised and opened."""

    def further_keys(self, prefix: Prefix, documents: Documents) -> tuple[Key, ...]:
        """Return the keys of further documents for `open`, given the ``documents`` found under `root_keys`."""
        return ()

    @abc.abstractmethod
    def open(self, prefix: Prefix, documents: Documents) -> Layout | None:
        """Return the hierarchy with its root at ``prefix``; None if it is not of this dialect.

        ``documents`` are those found under `root_keys` and `further_keys`. Never raises for a bad document: an unreadable root gives a
        `Layout` whose `parse` raises.
        """

    @abc.abstractmethod
    def create(self, prefix: Prefix) -> Layout:
        """Return a layout for a new, empty hierarchy with its root at ``prefix``."""

    def create_in(self, form: str, prefix: Prefix) -> Layout:
        """Return the result of `create`, written in one of `forms`."""
        return self.create(prefix)


class Layout(abc.ABC):
    """One hierarchy of a dialect, at one prefix of a store. Immutable."""

    dialect: Dialect
    prefix: Prefix
    document_names: ClassVar[frozenset[str]] = frozenset()
    """Names of the documents of any node but the root, all of them in its folder; empty if they may lie elsewhere."""
    copy_only: bool = False
    """True if the consolidated copy describes nodes that no key in the store implies: the hierarchy has no documents of its own."""

    def in_form(self, form: str) -> Layout:
        """Return the layout that writes new arrays in the form `ArrayNode.form`."""
        return self

    @property
    def per_node(self) -> bool:
        """See `Dialect.per_node`."""
        return self.dialect.per_node

    @property
    def own_names(self) -> frozenset[str]:
        """Names directly below `prefix` that hold the documents and chunks of the hierarchy, and no other nodes."""
        return frozenset()

    @property
    def edit_lock(self) -> Key:
        """The key that a mount locks while it edits nodes of the hierarchy (`zarrfs.stores.base.Store.exclusive`)."""
        return self.dialect.root_keys(self.prefix)[0]

    def holds(self, path: NodePath) -> bool:
        """Return True if nodes of this hierarchy can be at ``path``."""
        return True

    def require_writable(self) -> None:
        """Raise `StoreReadOnly` if the dialect is read-only."""
        if not self.dialect.writable:
            raise StoreReadOnly(f"hierarchies of {self.dialect.name} are read-only", key=self.prefix)

    def check(self) -> None:
        """Raise `MetadataError` or `MetadataUnsupported` if the entry point makes the whole hierarchy unreadable."""

    @abc.abstractmethod
    def document_keys(self, path: NodePath) -> tuple[Key, ...]:
        """Return the keys that may hold documents of the node at ``path``; `parse` requires all of them."""

    def deciding(self, keys: tuple[Key, ...]) -> tuple[Key, ...]:
        """Return those of ``keys``, the `document_keys` of a path, of which any node has one: without them no other is requested."""
        return keys

    def shared_keys(self, path: NodePath) -> tuple[Key, ...]:
        """Return keys of documents of the node at ``path`` or its hierarchy that may hold another file, which is never replaced."""
        return ()

    def reserved_keys(self, path: NodePath) -> tuple[Key, ...]:
        """Return those of `shared_keys` with a name that only documents have: any other file there is a fault."""
        return self.shared_keys(path)

    def is_own(self, path: NodePath, key: Key, value: bytes) -> bool:
        """Return False if ``value``, that of one of the `shared_keys`, is another file. Raises `MetadataError` for a bad document."""
        return self.parse(path, {key: value}) is not None

    def group_keys(self, path: NodePath) -> tuple[Key, ...]:
        """Return those of `document_keys` that denote a group, unless an array document is at the same path.

        Empty if a single document states the kind of the node.
        """
        return ()

    @abc.abstractmethod
    def parse(self, path: NodePath, documents: Documents) -> Node | None:
        """Return the node that ``documents`` (those found under `document_keys`) describe; None if they describe none.

        Raises `MetadataError` for bad documents and `MetadataUnsupported` for unsupported ones; the caller shows such a node as
        unsupported, without effect on its neighbours. A node that only a consolidated copy describes is parsed from that copy if
        ``documents`` is empty.
        """

    @abc.abstractmethod
    def listing_prefix(self, path: NodePath) -> Prefix:
        """Return the prefix whose listing contains the children of the group at ``path``."""

    def listing_prefixes(self, path: NodePath) -> tuple[Prefix, ...]:
        """Return all prefixes whose listings contain children, `listing_prefix` first: several if documents may be in several places."""
        return (self.listing_prefix(path),)

    def node_of_prefix(self, prefix: Prefix) -> NodePath | None:
        """Return the group that has ``prefix`` among its `listing_prefixes`; None if there is none. For invalidation."""
        try:
            return NodePath("/" + prefix[len(self.prefix) : -1]) if prefix.startswith(self.prefix) else None
        except NameInvalid:
            return None

    @abc.abstractmethod
    def child_names(self, path: NodePath, keys: Iterable[str], prefixes: Iterable[str]) -> set[str]:
        """Return possible names of children of the group at ``path``, from the names of keys and prefixes in one listing.

        A name is possible if `parse` of the child may return a node, or if only its own children would: an implicit group.
        """

    def consolidated_names(self, path: NodePath) -> set[str] | None:
        """Return the names of the children of ``path`` in a consolidated copy; None if there is no copy.

        For stores that cannot list, and for nodes without documents of their own.
        """
        return None

    def copied(self, path: NodePath) -> object:
        """Return the copy's content for the node at ``path``, with equal ``repr`` for equal content; None if there is no copy."""
        return None

    def missing_documents(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        """Return the documents that the node at ``path`` lacks because only the consolidated copy has them; empty if it lacks none.

        ``documents``: those found under `document_keys`. They are to be set in this order.
        """
        return {}

    def without_copy(self) -> Layout:
        """Return the layout without its consolidated copy: equal for all layouts that parse documents of nodes alike."""
        return self

    @abc.abstractmethod
    def chunk_prefix(self, path: NodePath) -> Prefix:
        """Return the prefix of the encoded chunk coordinates in the keys of the array at ``path``."""

    def chunk_key_encodings(self, node: ArrayNode, documents: Documents) -> tuple[ChunkKeyEncoding, ...]:
        """Return the possible encodings of the chunk keys of ``node``, where its documents do not name it, and software differs.

        The first one by which a chunk is stored applies, else the first, which is that of the metadata. ``documents``: its own.
        """
        return (node.metadata.chunk_key_encoding,)

    @abc.abstractmethod
    def node_of_document(self, key: Key) -> NodePath | None:
        """Return the node that the document ``key`` belongs to (the root for a consolidated copy); None if it is no document.

        For invalidation.
        """

    @abc.abstractmethod
    def format(self, node: GroupNode | ArrayNode) -> dict[Key, bytes]:
        """Return new documents for a node (at ``node.path`` of this layout), without those of its parents.

        They are to be set in this order: the document that makes the node appear comes last. Raises `NotRepresentable`.
        """

    def kept_prefixes(self, node: GroupNode | ArrayNode) -> tuple[Prefix, ...]:
        """Return the prefixes that a new node has even while they are empty, on stores that can hold such."""
        return () if self.dialect.has_groups or isinstance(node, ArrayNode) else (self.listing_prefix(node.path),)

    def entry_documents(self) -> dict[Key, bytes]:
        """Return the initial documents of a hierarchy besides those of its nodes. They are set before the first node."""
        return {}

    def required_groups(self, path: NodePath) -> tuple[NodePath, ...]:
        """Return the ancestors of ``path``, root first, that must be explicit groups before a node may be created there."""
        return ()

    def consolidated_keys(self, path: NodePath) -> tuple[Key, ...]:
        """Return the keys of all consolidated copies that a change of the node at ``path`` must update."""
        return ()

    def copy_key(self, path: NodePath) -> Key | None:
        """Return the key of the consolidated copy of the group at ``path``.

        None if the layout has none there, or keeps it in the group's own document (`GroupNode.has_copy`).
        """
        return None

    def copy_fault(self, key: Key, data: bytes, *, of_members: bool) -> str | None:
        """Return why the consolidated copy under a `copy_key` is unreadable; None if it is readable, or ``key`` is no such key.

        ``of_members``: also why a part of it is. A copy in a group's own document is read with that.
        """
        return None

    def copied_documents(self, key: Key, document: bytes) -> Mapping[Key, bytes]:
        """Return the documents in the consolidated copy in ``document``, the value of ``key``, by the keys of their originals.

        ``key``: a `copy_key`, or that of a group's own document. Raises `MetadataError`.
        """
        return {}

    def new_copy(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        """Return an empty consolidated copy for the group at ``path``, for `copies_with`; empty if the layout can have none there.

        ``documents``: those found under `document_keys`.
        """
        return {}

    @abc.abstractmethod
    def amend(self, path: NodePath, documents: Documents, edit: Edit) -> dict[Key, bytes]:
        """Return the documents changed by ``edit``, patched: other content (unknown members, extensions, hidden filters) stays.

        ``documents``: those found under `document_keys` and `consolidated_keys`. Raises `MetadataError`.
        """

    def copies_with(self, paths: Iterable[NodePath], documents: Documents) -> dict[Key, bytes]:
        """Return the existing consolidated copies, updated from the nodes' own documents at ``paths``.

        New nodes get members, also groups above them that a copy lacks, and documents that a node no longer has lose theirs.
        ``documents``: those found under `consolidated_keys` of each path, and `document_keys` of it and of the groups above. An
        unreadable copy stays as it is.
        """
        return {}

    def copies_without(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        """Return the consolidated copies (those found under `consolidated_keys`) that have nodes at or below ``path``, without these."""
        return {}

    def unsharded(self, key: Key, document: bytes) -> bytes:
        """Return ``document``, the value of ``key``, rewritten for unsharded chunks: that of an array, and copies of such in it.

        Documents without shards, and unreadable ones, stay as they are.
        """
        return document

    def copied_keys(self, key: Key, document: bytes) -> Mapping[str, Key]:
        """Return the keys of the documents that ``document``, the value of ``key``, has copies of, by the names of the copies."""
        return {}

    def resharded(self, key: Key, document: bytes, stored: bytes, nodes: Mapping[str, bytes]) -> bytes:
        """Return ``document`` with the shards of ``stored``: `unsharded` of the result is ``document`` again.

        ``nodes``: the stored documents at `copied_keys`, by the names of the copies, which get their shards.
        Raises `NotRepresentable` if there is no such document: it has other chunks or codecs than ``stored``.
        """
        return document

    def _fill_member(self, node: Node | None, fill_value: bytes) -> Any:
        """Return the member ``fill_value`` that `format` writes for ``node`` with this fill value, as JSON. Raises `MetadataError`."""
        if not isinstance(node, ArrayNode):
            raise MetadataError("only an array has a fill value", key=self.prefix)
        changed = replace(node, metadata=replace(node.metadata, fill_value=fill_value), attributes={})
        (document,) = (json.loads(text) for text in self.format(changed).values())
        return document["fill_value"]

    @abc.abstractmethod
    def check_name(self, name: str) -> None:
        """Raise `NameInvalid` if a new node must not have this name (the specification, "Node names")."""


def check_plugin(offered: object) -> None:
    """Raise TypeError for an object that is not a usable plug-in of this package: another distribution may offer anything."""
    if not isinstance(offered, Dialect):
        raise TypeError(f"a {type(offered).__name__} is no Dialect")
    if not isinstance(getattr(offered, "name", None), str) or not isinstance(offered.priority, int):
        raise TypeError("name must be a string, and priority an integer")
    if not isinstance(offered.choices, Mapping):
        raise TypeError("choices must be a mapping")
