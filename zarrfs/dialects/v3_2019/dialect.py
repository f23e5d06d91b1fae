"""The protocol draft of 2019: an entry point ``zarr.json``, documents below ``meta/``, chunks below ``data/``.

Source: Zarr core protocol version 3.0, editor's draft of 19 June 2019; sections are named where a rule is followed. Real stores are those
of the prototype zarrita (Alistair Miles, July 2020). Array documents are in `v3_2019.array`.

    zarr.json                     {"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
                                   "metadata_encoding": "application/json", "extensions": []}
    meta/root.group               {"extensions": [], "attributes": {}}      the root, if it is a group
    meta/root/foo/bar.array       {"shape": [20], "data_type": "<f8", ...}
    data/foo/bar/0.0              a chunk; of a root array data/0.0; of a 0-dimensional array data/foo/bar

Points that the draft leaves open, or states in two ways:

* The formula for an array's document is "meta" + P + ".array", the example has ``meta/root/foo/baz.array``, and so has software. The
  second is written; if it is absent, the first is read too, except for paths that begin with ``/root``, which could be either.
* ``zarr_format`` is the same in the draft of 2022; ``metadata_encoding``, here a MIME type, distinguishes the two.
* An array and a group at one path: the array takes precedence, as in zarrita, and the node reports it (``quirks``).
* Names with characters outside the draft are read. For new nodes they are refused, and so are names that differ from a sibling's only in
  case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from zarrfs.dialects.base import Dialect, Documents, Edit, Layout
from zarrfs.dialects.documents import ATTRIBUTES, MEMBERS, dump, member, naming, parse_object, patched, shortened, string
from zarrfs.dialects.drafts import ENTRY, PROTOCOL, DraftKeys, attributes_of, check_extensions, protocol_version
from zarrfs.dialects.v3_2019.array import CHUNK_KEYS, CODEC, format_array, parse_array
from zarrfs.errors import MetadataError, MetadataUnsupported, NameInvalid
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayNode, GroupNode, Node

JSON = "application/json"
_INDENT = 4
_OTHER_FORM = "meta"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")


class V32019(Dialect):
    """The protocol draft of 2019. ``fallbacks``: an unknown data type is read as its fallback."""

    name = "v3_2019"
    priority = 120
    per_node = False
    chunk_key_encoding = CHUNK_KEYS
    new_codecs = (CodecSpec("gzip", {"level": 5}),)
    names_fold_case = True
    has_written_forms = True
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"fallback": ("use", "refuse")}

    def __init__(self, *, fallbacks: bool = True) -> None:
        self.fallbacks = fallbacks

    def choosing(self, chosen: Mapping[str, str]) -> V32019:
        return V32019(fallbacks=chosen.get("fallback", "use") == "use")

    def root_keys(self, prefix: Prefix) -> tuple[Key, ...]:
        return (prefix.key(ENTRY),)

    def open(self, prefix: Prefix, documents: Documents) -> V32019Layout | None:
        key = prefix.key(ENTRY)
        if key not in documents:
            return None
        try:
            # It may be the document of a group in the final v3, with a large consolidated copy.
            if not _is_ours(parse_object(key, documents[key], MEMBERS)):
                return None
            document = parse_object(key, documents[key])
        except MetadataError:
            # It may be of any kind: the final v3 reports its defect.
            return None
        try:
            with naming(key):
                return V32019Layout(prefix, self, quirks=_check_entry(document))
        except MetadataUnsupported as error:
            return V32019Layout(prefix, self, refused=str(error))
        except MetadataError as error:
            return V32019Layout(prefix, self, refused=str(error), bad=True)

    def create(self, prefix: Prefix) -> V32019Layout:
        return V32019Layout(prefix, self)


PLUGIN = V32019()


@dataclass(frozen=True, slots=True)
class V32019Layout(Layout):
    """A hierarchy of this draft.

    ``refused``: why the whole of it is unreadable; ``bad``: because its entry point violates the draft. ``quirks``: deviations of the
    entry point. ``codec``: URI of the codecs of new arrays, with ``{}`` in place of the name.
    """

    prefix: Prefix
    dialect: V32019 = PLUGIN
    refused: str | None = None
    bad: bool = False
    quirks: tuple[str, ...] = ()
    codec: str = CODEC

    def in_form(self, form: str) -> V32019Layout:
        return replace(self, codec=form)

    @property
    def own_names(self) -> frozenset[str]:
        return frozenset({"meta", "data"})

    def check(self) -> None:
        if self.refused is not None:
            error = MetadataError if self.bad else MetadataUnsupported
            raise error(self.refused, key=self.prefix.key(ENTRY))

    def document_keys(self, path: NodePath) -> tuple[Key, ...]:
        other = self._other_key(path)
        return (self._key(path, "array"), self._key(path, "group"), *(() if other is None else (other,)))

    def shared_keys(self, path: NodePath) -> tuple[Key, ...]:
        # Nodes below another file of this name would not be found again.
        return tuple(self.entry_documents())

    def is_own(self, path: NodePath, key: Key, value: bytes) -> bool:
        return self.dialect.open(self.prefix, {key: value}) is not None

    def group_keys(self, path: NodePath) -> tuple[Key, ...]:
        return (self._key(path, "group"),)

    def parse(self, path: NodePath, documents: Documents) -> Node | None:
        found = [key for key in self.document_keys(path) if key in documents]
        if not found:
            return None
        self.check()
        group_key = self._key(path, "group")
        key = next((each for each in found if each != group_key), group_key)
        with naming(key):
            document = parse_object(key, documents[key], ATTRIBUTES)
            if key == group_key:
                return _group(path, document)
            parsed = parse_array(document, fallbacks=self.dialect.fallbacks)
            attributes = attributes_of(document)
        quirks = [*parsed.quirks, *self.quirks]
        if group_key in found:
            quirks.append("a group exists at the same path")
        if key == self._other_key(path):
            quirks.append(f"its document is {key}, by the formula of the draft")
        return ArrayNode(
            path=path,
            dialect=PLUGIN.name,
            metadata=parsed.metadata,
            chunk_prefix=self.chunk_prefix(path),
            attributes=attributes,
            quirks=tuple(quirks),
            warnings=parsed.warnings,
            form=parsed.form,
        )

    def listing_prefix(self, path: NodePath) -> Prefix:
        return self._keys.listing(path)

    def listing_prefixes(self, path: NodePath) -> tuple[Prefix, ...]:
        if path != ROOT and _is_ambiguous(path):
            return (self.listing_prefix(path),)
        return self.listing_prefix(path), self._other_keys.listing(path)

    def node_of_prefix(self, prefix: Prefix) -> NodePath | None:
        found = self._keys.node_of_listing(prefix)
        return found if found is not None else self._other_keys.node_of_listing(prefix)

    def child_names(self, path: NodePath, keys: Iterable[str], prefixes: Iterable[str]) -> set[str]:
        """Return names of children (section "Discover children of a group")."""
        return self._keys.child_names(keys, prefixes)

    def chunk_prefix(self, path: NodePath) -> Prefix:
        return self._keys.chunks(path)

    def node_of_document(self, key: Key) -> NodePath | None:
        if key == self.prefix.key(ENTRY):
            return ROOT
        found = self._keys.node_of_document(key)
        if found is not None or not key.endswith(".array"):
            return found
        # Keys of the form meta/root... are always the software's.
        other = self._other_keys.node_of_document(key)
        return None if other is None or _is_ambiguous(other) else other

    def format(self, node: GroupNode | ArrayNode) -> dict[Key, bytes]:
        document: dict[str, Any]
        match node:
            case GroupNode():
                kind, document = "group", {"extensions": [], "attributes": dict(node.attributes)}
            case ArrayNode():
                kind, document = "array", format_array(node.metadata, node.attributes, self.codec)
        return {self._key(node.path, kind): dump(document, indent=_INDENT)}

    def entry_documents(self) -> dict[Key, bytes]:
        """Return the entry point (section "Bootstrap metadata")."""
        entry = {"zarr_format": PROTOCOL, "metadata_encoding": JSON, "extensions": []}
        return {self.prefix.key(ENTRY): dump(entry, indent=_INDENT)}

    def required_groups(self, path: NodePath) -> tuple[NodePath, ...]:
        """Return none: "it is not necessary to create or check for the existence of metadata documents" of ancestors.

        Section "Create a group".
        """
        return ()

    def amend(self, path: NodePath, documents: Documents, edit: Edit) -> dict[Key, bytes]:
        node = self.parse(path, documents)
        if node is None:
            raise MetadataError(f"{path}: no document to change", key=path)
        key, other = self._key(path, "group"), self._other_key(path)
        if isinstance(node, ArrayNode):
            key = self._key(path, "array")
            if key not in documents and other is not None:
                key = other
        elif edit.shape is not None:
            raise MetadataError(f"{path}: a group has no shape", key=path)
        data = documents[key]
        if edit.attributes is not None:
            data = patched(key, data, ["attributes"], dict(edit.attributes))
        if edit.shape is not None:
            data = patched(key, data, ["shape"], list(edit.shape))
        if edit.fill_value is not None:
            data = patched(key, data, ["fill_value"], self._fill_member(node, edit.fill_value))
        if data == documents[key]:
            return {}
        self.parse(path, {key: data})
        return {key: data}

    def check_name(self, name: str) -> None:
        """Check a name (section "Node names")."""
        if _NAME.fullmatch(name) is None or not name.strip("."):
            raise NameInvalid(
                f"{name!r}: a node name must be 1 to 255 of a-z A-Z 0-9 - _ . and not only periods (Zarr v3, 2019)",
                key=name,
            )

    @property
    def _keys(self) -> DraftKeys:
        return DraftKeys(self.prefix)

    @property
    def _other_keys(self) -> DraftKeys:
        """Keys by the formula of section "Storage keys" for arrays; it has none for groups, and none for the root."""
        return DraftKeys(self.prefix, meta=_OTHER_FORM)

    def _key(self, path: NodePath, kind: str) -> Key:
        return self._keys.document(path, kind)

    def _other_key(self, path: NodePath) -> Key | None:
        return None if path == ROOT or _is_ambiguous(path) else self._other_keys.document(path, "array")


def _is_ambiguous(path: NodePath) -> bool:
    """Return True if the document key by the formula is that of another node in the software's form."""
    return path == ROOT or path.partition("/")[2].partition("/")[0] == "root"


def _is_ours(document: Mapping[str, Any]) -> bool:
    """Return True if an entry point is of this draft: its encoding is a MIME type. In 2022 it was an object, or a URI."""
    encoding = document.get("metadata_encoding")
    if protocol_version(document.get("zarr_format")) is None or "metadata_key_suffix" in document:
        return False
    return encoding is None or (isinstance(encoding, str) and "://" not in encoding)


def _check_entry(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Check the entry point (section "Bootstrap metadata"); return quirks. Raises `MetadataError`, `MetadataUnsupported`."""
    version = protocol_version(document.get("zarr_format"))
    if version is None or version[0] != 3:
        raise MetadataUnsupported(f"zarr_format {shortened(document.get('zarr_format'))}: not version 3")
    encoding = string(member(document, "metadata_encoding"), "metadata_encoding")
    if encoding.partition(";")[0].strip().lower() != JSON:
        raise MetadataUnsupported(f"metadata_encoding {shortened(encoding)}: not supported, only {JSON}")
    if "extensions" not in document:
        return ("extensions is missing in the entry point",)
    return check_extensions(document["extensions"], "the hierarchy")


def _group(path: NodePath, document: Mapping[str, Any]) -> GroupNode:
    """Return the group of a document (section "Group metadata")."""
    if "extensions" in document:
        check_extensions(document["extensions"], "the group")
    return GroupNode(path=path, dialect=PLUGIN.name, attributes=attributes_of(document))
