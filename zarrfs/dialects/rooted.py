"""A hierarchy whose root is below that of the store: its layout, with paths relative to the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from zarrfs.dialects.base import Documents, Edit, Layout
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayNode, GroupNode, Node


class RootedLayout(Layout):
    """``inner``, with its root node at ``at``. Called only with paths that it `holds`."""

    def __init__(self, inner: Layout, at: NodePath) -> None:
        self.inner = inner
        self.at = at
        self.dialect = inner.dialect
        self.prefix = inner.prefix
        self.copy_only = inner.copy_only

    def in_form(self, form: str) -> RootedLayout:
        return RootedLayout(self.inner.in_form(form), self.at)

    def holds(self, path: NodePath) -> bool:
        return path == self.at or path.startswith(f"{self.at}/")

    @property
    def own_names(self) -> frozenset[str]:
        return self.inner.own_names

    def check(self) -> None:
        self.inner.check()

    def document_keys(self, path: NodePath) -> tuple[Key, ...]:
        return self.inner.document_keys(self._inside(path))

    def deciding(self, keys: tuple[Key, ...]) -> tuple[Key, ...]:
        return self.inner.deciding(keys)

    def shared_keys(self, path: NodePath) -> tuple[Key, ...]:
        return self.inner.shared_keys(self._inside(path))

    def reserved_keys(self, path: NodePath) -> tuple[Key, ...]:
        return self.inner.reserved_keys(self._inside(path))

    def is_own(self, path: NodePath, key: Key, value: bytes) -> bool:
        return self.inner.is_own(self._inside(path), key, value)

    def group_keys(self, path: NodePath) -> tuple[Key, ...]:
        return self.inner.group_keys(self._inside(path))

    def parse(self, path: NodePath, documents: Documents) -> Node | None:
        node = self.inner.parse(self._inside(path), documents)
        return replace(node, path=path) if node is not None else None

    def listing_prefix(self, path: NodePath) -> Prefix:
        return self.inner.listing_prefix(self._inside(path))

    def listing_prefixes(self, path: NodePath) -> tuple[Prefix, ...]:
        return self.inner.listing_prefixes(self._inside(path))

    def node_of_prefix(self, prefix: Prefix) -> NodePath | None:
        path = self.inner.node_of_prefix(prefix)
        return self._outside(path) if path is not None else None

    def child_names(self, path: NodePath, keys: Iterable[str], prefixes: Iterable[str]) -> set[str]:
        return self.inner.child_names(self._inside(path), keys, prefixes)

    def consolidated_names(self, path: NodePath) -> set[str] | None:
        return self.inner.consolidated_names(self._inside(path))

    def copied(self, path: NodePath) -> object:
        return self.inner.copied(self._inside(path))

    def missing_documents(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        return self.inner.missing_documents(self._inside(path), documents)

    def without_copy(self) -> Layout:
        return self.inner.without_copy()

    def chunk_prefix(self, path: NodePath) -> Prefix:
        return self.inner.chunk_prefix(self._inside(path))

    def chunk_key_encodings(self, node: ArrayNode, documents: Documents) -> tuple[ChunkKeyEncoding, ...]:
        return self.inner.chunk_key_encodings(replace(node, path=self._inside(node.path)), documents)

    def node_of_document(self, key: Key) -> NodePath | None:
        path = self.inner.node_of_document(key)
        return self._outside(path) if path is not None else None

    def format(self, node: GroupNode | ArrayNode) -> dict[Key, bytes]:
        return self.inner.format(replace(node, path=self._inside(node.path)))

    def kept_prefixes(self, node: GroupNode | ArrayNode) -> tuple[Prefix, ...]:
        return self.inner.kept_prefixes(replace(node, path=self._inside(node.path)))

    def entry_documents(self) -> dict[Key, bytes]:
        return self.inner.entry_documents()

    def required_groups(self, path: NodePath) -> tuple[NodePath, ...]:
        return tuple(map(self._outside, self.inner.required_groups(self._inside(path))))

    def consolidated_keys(self, path: NodePath) -> tuple[Key, ...]:
        return self.inner.consolidated_keys(self._inside(path))

    def copy_key(self, path: NodePath) -> Key | None:
        return self.inner.copy_key(self._inside(path))

    def copy_fault(self, key: Key, data: bytes, *, of_members: bool) -> str | None:
        return self.inner.copy_fault(key, data, of_members=of_members)

    def new_copy(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        return self.inner.new_copy(self._inside(path), documents)

    def amend(self, path: NodePath, documents: Documents, edit: Edit) -> dict[Key, bytes]:
        return self.inner.amend(self._inside(path), documents, edit)

    def copies_with(self, paths: Iterable[NodePath], documents: Documents) -> dict[Key, bytes]:
        return self.inner.copies_with(map(self._inside, paths), documents)

    def unsharded(self, key: Key, document: bytes) -> bytes:
        return self.inner.unsharded(key, document)

    def copied_documents(self, key: Key, document: bytes) -> Mapping[Key, bytes]:
        return self.inner.copied_documents(key, document)

    def copied_keys(self, key: Key, document: bytes) -> Mapping[str, Key]:
        return self.inner.copied_keys(key, document)

    def resharded(self, key: Key, document: bytes, stored: bytes, nodes: Mapping[str, bytes]) -> bytes:
        return self.inner.resharded(key, document, stored, nodes)

    def copies_without(self, path: NodePath, documents: Documents) -> dict[Key, bytes]:
        return self.inner.copies_without(self._inside(path), documents)

    def check_name(self, name: str) -> None:
        self.inner.check_name(name)

    def _inside(self, path: NodePath) -> NodePath:
        assert self.holds(path), f"{path} is not in the hierarchy at {self.at}"
        return ROOT if path == self.at else NodePath(path[len(self.at) :])

    def _outside(self, path: NodePath) -> NodePath:
        return self.at if path == ROOT else NodePath(self.at + path)
