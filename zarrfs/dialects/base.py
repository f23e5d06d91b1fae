"""What a dialect is: one layout of metadata documents.

A `Dialect` recognises hierarchies of its kind; a `Layout` is one such hierarchy at one place in a store, and knows which keys hold
documents, what they say, and how to write them. Both are pure: the caller gets the documents that they name from a store and sets
what they return. One file a dialect; its module constant ``PLUGIN`` is an instance of the `Dialect`.

Translation between dialects is ``A.parse``, then ``B.format``. What B has no words for raises `NotRepresentable`.

Nothing in a document is trusted: documents are read through `zarrfs.dialects.documents`, which caps size and depth.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from zarrfs.errors import NameInvalid, StoreReadOnly
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.chunk_grid import ChunkGrid, RegularGrid, Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayNode, GroupNode, Node

Documents = Mapping[Key, bytes]
"""Documents by store key; a key that holds nothing is left out."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What a metadata edit changes; None leaves it as it is. ``attributes`` is the whole new set of the node's user attributes."""

    attributes: Mapping[str, Any] | None = None
    shape: Shape | None = None
    dimension_names: tuple[str | None, ...] | None = None
    """Only of arrays of a dialect with `Dialect.has_dimension_names`."""
    fill_value: bytes | None = None
    """The element that missing chunks read as from now on. Only of arrays of a dialect with `Dialect.has_undefined_fill`."""


class Dialect(abc.ABC):
    """A layout of documents. ``name`` is its module's; a lower ``priority`` is asked first where several could apply."""

    name: ClassVar[str]
    priority: ClassVar[int] = 100
    per_node: ClassVar[bool] = True
    """Whether all documents of a node lie in the folder of the node (v0, v1, v2, final v3), so that hierarchies of several such
    dialects can share folders; else (2019, 2022) a hierarchy has an entry point, and owns what lies below its prefix."""
    names_fold_case: ClassVar[bool] = False
    """Whether names of new nodes must differ from those of their siblings in more than case."""
    has_groups: ClassVar[bool] = True
    """Whether groups have documents; else (v0, v1) a group is a folder that holds arrays, or an empty one, and has no attributes."""
    fill_value_marks_missing: ClassVar[bool] = True
    """Whether software takes elements that equal ``fill_value`` for missing data, as CF does with ``_FillValue``; else (final v3) the
    fill value is what missing chunks read as, and nothing more."""
    has_undefined_fill: ClassVar[bool] = False
    """Whether every document of an array can leave the fill value undefined (null), and `Edit.fill_value` can define it."""
    has_dimension_names: ClassVar[bool] = False
    """Whether documents of arrays have names of dimensions (`Edit.dimension_names`)."""
    lock_suffix: ClassVar[str] = ""
    """What the dialect's software appends to a key to lock it: such keys belong to the node whose key it is."""
    chunk_key_encoding: ClassVar[ChunkKeyEncoding]
    """How new arrays of this dialect name their chunks."""
    new_index_codecs: ClassVar[tuple[CodecSpec, ...] | None] = None
    """Codecs of the index of new shards; None for a dialect that has no shards."""
    has_written_forms: ClassVar[bool] = False
    """Whether arrays of one hierarchy are written in several forms, of which a new one gets that of an array beside it."""
    forms: ClassVar[tuple[str, ...]] = ()
    """Forms in which a new hierarchy can be written, the default first, where text and software differ."""
    new_codecs: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("zstd", {"level": 0, "checksum": False}),)
    """Codecs of new arrays where nobody chose others, in the final v3's words; `bytes` precedes them unless one of them makes bytes of
    elements itself."""
    writable: ClassVar[bool] = True
    """Whether nodes of this dialect can be made and changed, and their chunks stored; else files of it cannot be opened to be
    written, and what would change it is EROFS, whatever the store is."""
    data_types: ClassVar[tuple[str, ...] | None] = None
    """Names of the only data types that documents can say, of those that have no configuration; None where there are many. The
    conformance suite draws of these."""
    examples: ClassVar[tuple[Mapping[str, bytes], ...]] = ()
    """Of a dialect that is not writable: documents of arrays at the root, by key below the root's prefix, for the conformance suite."""
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """What a user may choose of how documents are read, where texts and software disagree: names and their values, the default first."""

    def choosing(self, chosen: Mapping[str, str]) -> Dialect:
        """This dialect with such choices (of `choices`, checked)."""
        return self

    def chunk_keys(self, separator: str) -> ChunkKeyEncoding:
        """`chunk_key_encoding` with another separator. Whether the dialect can represent it is for `Layout.format` to tell."""
        return replace(self.chunk_key_encoding, separator=separator)

    def chunk_grid(self, chunks: Shape, shape: Shape) -> ChunkGrid:
        """The grid of a new array of ``shape``, of which ``chunks`` is the wanted shape of a chunk. Raises `MetadataError`."""
        return RegularGrid.checked(chunks, shape)

    @abc.abstractmethod
    def root_keys(self, prefix: Prefix) -> tuple[Key, ...]:
        """Keys of the documents by which a hierarchy of this dialect with its root at ``prefix`` is recognised and opened."""

    def further_keys(self, prefix: Prefix, documents: Documents) -> tuple[Key, ...]:
        """Keys of what `open` wants to see besides, now that these are the ``documents`` found under `root_keys`."""
        return ()

    @abc.abstractmethod
    def open(self, prefix: Prefix, documents: Documents) -> Layout | None:
        """The hierarchy whose root is at ``prefix``, from the documents found under `root_keys` and `further_keys`; None when it is not
        this dialect.

        Never raises for a document that is bad: a root that cannot be read is a `Layout` whose `parse` raises.
        """

    @abc.abstractmethod
    def create(self, prefix: Prefix) -> Layout:
        """A layout for a new, still empty hierarchy with its root at ``prefix``."""

    def create_in(self, form: str, prefix: Prefix) -> Layout:
        """As `create`, written in one of `forms`."""
        return self.create(prefix)


class Layout(abc.ABC):
    """One hierarchy of a dialect, at one prefix of a store. Immutable."""

    dialect: Dialect
    prefix: Prefix
    copy_only: bool = False
    """Whether the consolidated copy describes nodes that no key in the store implies: the hierarchy has no documents of its own."""

    def in_form(self, form: str) -> Layout:
        """The layout that writes new arrays as one with this `ArrayNode.form` is written."""
        return self

    @property
    def per_node(self) -> bool:
        """See `Dialect.per_node`."""
        return self.dialect.per_node

    @property
    def own_names(self) -> frozenset[str]:
        """Names directly below `prefix` under which the hierarchy keeps documents and chunks, and where no other nodes are."""
        return frozenset()

    def holds(self, path: NodePath) -> bool:
        """Whether nodes of this hierarchy can be at ``path``."""
        return True

    def require_writable(self) -> None:
        """Raise `StoreReadOnly` where nodes of the dialect are only read."""
        if not self.dialect.writable:
            raise StoreReadOnly(f"hierarchies of {self.dialect.name} are only read", key=self.prefix)

    def check(self) -> None:
        """Raise `MetadataError` or `MetadataUnsupported` where the entry point forbids to read anything of the hierarchy."""

    @abc.abstractmethod
    def document_keys(self, path: NodePath) -> tuple[Key, ...]:
        """Keys that may hold the documents of the node at ``path``, all of which `parse` wants to see."""

    def deciding_keys(self, path: NodePath) -> tuple[Key, ...]:
        """Those of `document_keys` of which one has a value where there is a node: the others are asked for when one of these has."""
        return self.document_keys(path)

    def group_keys(self, path: NodePath) -> tuple[Key, ...]:
        """Those of `document_keys` that make a group of the node where no array's document is at the same path; none where one document
        says what a node is."""
        return ()

    @abc.abstractmethod
    def parse(self, path: NodePath, documents: Documents) -> Node | None:
        """The node that ``documents`` (those found under `document_keys`) describe; None when they describe none.

        Raises `MetadataError` for documents that are bad and `MetadataUnsupported` for what zarrfs cannot do; the caller shows such a
        node as unsupported and its neighbours as they are. A node known only from a consolidated copy is parsed from that copy when
        ``documents`` is empty.
        """

    @abc.abstractmethod
    def listing_prefix(self, path: NodePath) -> Prefix:
        """The prefix whose listing tells the children of the group at ``path``."""

    def listing_prefixes(self, path: NodePath) -> tuple[Prefix, ...]:
        """Every prefix whose listing tells children, `listing_prefix` first: several where documents may lie in several places."""
        return (self.listing_prefix(path),)

    def node_of_prefix(self, prefix: Prefix) -> NodePath | None:
        """The group that has ``prefix`` among its `listing_prefixes`; None where there is none. For invalidation."""
        try:
            return NodePath("/" + prefix[len(self.prefix) : -1]) if prefix.startswith(self.prefix) else None
        except NameInvalid:
            return None

    @abc.abstractmethod
    def child_names(self, path: NodePath, keys: Iterable[str], prefixes: Iterable[str]) -> set[str]:
        """Names of what may be children of the group at ``path``, from the names of keys and prefixes under one of `listing_prefixes`.

        A name is one where `parse` of the child may give a node, or where only its own children would: an implicit group.
        """

    def consolidated_names(self, path: NodePath) -> set[str] | None:
        """Names of the children of ``path`` that a consolidated copy knows; None when there is no copy. For stores that cannot list,
        and for nodes that have no documents of their own."""
        return None

    def copied(self, path: NodePath) -> object:
        """What a consolidated copy says of the node at ``path``, None where there is no copy; of one ``repr`` while it says the same."""
        return None

    def without_copy(self) -> Layout:
        """The layout without its consolidated copy: equal to another by which the documents of nodes say the same."""
        return self

    @abc.abstractmethod
    def chunk_prefix(self, path: NodePath) -> Prefix:
        """What precedes the encoded chunk coordinates in the keys of the array at ``path``."""

    def scalar_names(self, node: ArrayNode) -> tuple[str, ...]:
        """What the only chunk of the 0-dimensional array ``node`` may be called, where software disagrees and no document tells: the
        one that is stored counts, the first where none is."""
        return (node.metadata.chunk_key_encoding.scalar,)

    @abc.abstractmethod
    def node_of_document(self, key: Key) -> NodePath | None:
        """The node whose documents ``key`` belongs to (the root for a consolidated copy); None when it is no document. For
        invalidation."""

    @abc.abstractmethod
    def format(self, node: GroupNode | ArrayNode) -> dict[Key, bytes]:
        """New documents for a node (at ``node.path`` of this layout), without those of its parents.

        The order is the order in which they are to be set: what makes the node appear comes last. Raises `NotRepresentable`.
        """

    def kept_prefixes(self, node: GroupNode | ArrayNode) -> tuple[Prefix, ...]:
        """Prefixes that a new node has even while nothing is in them, where a store can hold such."""
        return () if self.dialect.has_groups or isinstance(node, ArrayNode) else (self.listing_prefix(node.path),)

    def entry_documents(self) -> dict[Key, bytes]:
        """Documents that the hierarchy has beside those of its nodes, as they are when it is made. They are set before the first node."""
        return {}

    @abc.abstractmethod
    def required_groups(self, path: NodePath) -> tuple[NodePath, ...]:
        """Ancestors of ``path`` that must be explicit groups before a node may be created there, the root first."""

    @abc.abstractmethod
    def consolidated_keys(self, path: NodePath) -> tuple[Key, ...]:
        """Keys of consolidated copies that a change of the node at ``path`` must be written to as well."""

    def copy_key(self, path: NodePath) -> Key | None:
        """The key of the consolidated copy in the group at ``path``; None where the layout has none there, or keeps it in the group's own
        document (`GroupNode.has_copy`)."""
        return None

    def new_copy(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        """An empty consolidated copy in the group at ``path``, for `copies_with`; nothing where the layout can have none there.

        ``documents``: those found under `document_keys`.
        """
        return {}

    @abc.abstractmethod
    def amend(self, path: NodePath, documents: Documents, edit: Edit) -> dict[Key, bytes]:
        """The documents that ``edit`` changes, patched: what it does not name (unknown members, extensions, hidden filters) stays.

        ``documents``: those found under `document_keys` and `consolidated_keys`. Raises `MetadataError`.
        """

    @abc.abstractmethod
    def copies_with(self, paths: Iterable[NodePath], documents: Documents) -> dict[Key, bytes]:
        """The consolidated copies that there are, with the nodes at ``paths`` as their own documents have them: new members for new
        nodes, and none for documents that a node has no longer.

        ``documents``: those found under `document_keys` and `consolidated_keys` of each path. A copy that cannot be read stays as it is.
        """

    def unsharded(self, key: Key, document: bytes) -> bytes:
        """``document``, the value of ``key``, as it would be if no chunk lay in a shard: that of an array, and copies of such in it.

        What says nothing of shards, and what cannot be read, stays as it is.
        """
        return document

    def resharded(self, key: Key, document: bytes, stored: bytes) -> bytes:
        """``document`` with the shards of ``stored``: `unsharded` of it is ``document`` again.

        Raises `NotRepresentable` where there is no such: it says other chunks or codecs than ``stored``.
        """
        return document

    @abc.abstractmethod
    def copies_without(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        """The consolidated copies (those found under `consolidated_keys`) that know the node at ``path``, or one below it, without
        these."""

    @abc.abstractmethod
    def check_name(self, name: str) -> None:
        """Raise `NameInvalid` when a new node must not have this name (the dialect's text, "Node names")."""


def check_plugin(offered: object) -> None:
    """Raise TypeError for what is no plug-in of this package, or none that can be used: another distribution may offer anything."""
    if not isinstance(offered, Dialect):
        raise TypeError(f"a {type(offered).__name__} is no Dialect")
    if not isinstance(getattr(offered, "name", None), str) or not isinstance(offered.priority, int):
        raise TypeError("its name has to be a string, and its priority an integer")
    if not isinstance(offered.choices, Mapping):
        raise TypeError("its choices have to be a mapping")
