"""Common part of the drafts of Zarr v3 (2019 and 2022): URIs, extensions, codecs, and the keys of documents and chunks.

Sources: Zarr core protocol version 3.0, editor's draft of 19 June 2019; Zarr v3 core draft of 2022; and stores of zarrita and
zarr-python. Both drafts name codecs and extensions by URIs, which occur in more forms than the specifications have: with ``http`` and
``https``, with and without a version, ``codec`` and ``codecs``. The name in the path is decisive.

    https://purl.org/zarr/spec/protocol/core/3.0      http://purl.org/zarr/spec/codec/gzip      .../spec/codec/gzip/1.0
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zarrfs.codecs import lookup
from zarrfs.dialects import documents
from zarrfs.errors import MetadataError, MetadataUnsupported, NameInvalid, NotRepresentable
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model.codec_spec import CodecSpec

ENTRY = "zarr.json"
PROTOCOL = "https://purl.org/zarr/spec/protocol/core/3.0"

_PROTOCOL = re.compile(r"https?://purl\.org/zarr/spec/(?:protocol/)?core/([0-9]{1,9})\.([0-9]{1,9})/?")
_SPECIFICATION = re.compile(
    r"https?://purl\.org/zarr/spec/((?:[A-Za-z0-9_-]+/)+)([A-Za-z_][A-Za-z0-9_-]*)(?:/v?([0-9]{1,9})(?:\.[0-9.]*)?)?/?"
)
_CODEC_KINDS = ("codec", "codecs")


def protocol_version(uri: object) -> tuple[int, int] | None:
    """Return the version (3, 0) in the URI of a core protocol; None for anything else."""
    match = _PROTOCOL.fullmatch(uri) if isinstance(uri, str) else None
    return (int(match[1]), int(match[2])) if match is not None else None


def name_in_uri(uri: object, kinds: Iterable[str]) -> str | None:
    """Return ``gzip`` of ``https://purl.org/zarr/spec/codec/gzip/1.0`` if the part before the name is one of ``kinds``.

    None if ``uri`` is not of zarr-specs, or of another kind or major version: the same name may then have another meaning.
    """
    match = _SPECIFICATION.fullmatch(uri) if isinstance(uri, str) else None
    if match is None or int(match[3] or 1) != 1:
        return None
    return match[2] if match[1].strip("/").rpartition("/")[2] in kinds else None


def form_of_uri(uri: str) -> str | None:
    """Return ``uri``, that of a codec, with ``{}`` in place of the name; None if it is not of zarr-specs."""
    match = _SPECIFICATION.fullmatch(uri)
    return f"{uri[: match.start(2)]}{{}}{uri[match.end(2) :]}" if match is not None else None


def codec_from_json(value: Any, label: str) -> CodecSpec:
    """Return the codec of ``{"codec": URI, "configuration": {...}}``. Raises `MetadataError`, `MetadataUnsupported`."""
    members = documents.mapping(value, label)
    uri = documents.string(documents.member(members, "codec"), f"codec of {label}")
    configuration = members.get("configuration")
    name = name_in_uri(uri, _CODEC_KINDS)
    if name is None:
        raise MetadataUnsupported(f"codec {documents.shortened(uri)}: unknown")
    config = {} if configuration is None else documents.mapping(configuration, f"configuration of {label}")
    return lookup.from_numcodecs({**config, "id": name})


def codec_to_json(spec: CodecSpec, uri: str) -> dict[str, Any]:
    """Return ``spec`` in this form; ``uri`` has ``{}`` in place of the name. Raises `NotRepresentable`."""
    try:
        config = lookup.to_numcodecs(spec)
    except MetadataUnsupported as error:
        raise NotRepresentable(f"codec {spec.name!r} has no form in the drafts of Zarr v3") from error
    return {"codec": uri.format(config.pop("id")), "configuration": config}


def check_extensions(value: Any, label: str) -> tuple[str, ...]:
    """Return quirks for the extensions in ``value``, the member ``extensions`` of ``label``, that are ignored as they permit.

    Raises `MetadataUnsupported` for one that must be understood, as none is; `MetadataError` for one without ``must_understand``.
    """
    ignored = []
    for each in documents.array(value, f"extensions of {label}"):
        members = documents.mapping(each, f"an extension of {label}")
        uri = documents.string(documents.member(members, "extension"), f"an extension of {label}")
        must = documents.member(members, "must_understand")
        if not isinstance(must, bool):
            raise MetadataError(
                f"must_understand of {documents.shortened(uri)} must be true or false, not {documents.shortened(must)}"
            )
        if must:
            raise MetadataUnsupported(f"extension {documents.shortened(uri)} of {label} must be understood, and is unknown")
        ignored.append(f"extension {documents.shortened(uri)} of {label} is unknown, and ignored as it permits")
    return tuple(ignored)


def attributes_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of an array or a group: empty if the member is missing, or null, as zarrita wrote empty ones."""
    value = document.get("attributes")
    return {} if value is None else documents.mapping(value, "attributes")


@dataclass(frozen=True, slots=True)
class DraftKeys:
    """The keys of documents and chunks of nodes in a hierarchy at ``prefix``.

    A document of the node ``/P`` is ``meta`` + ``/P`` + ``.array`` or ``.group`` + ``suffix``, that of the root is ``root`` + ``array``
    or ``group`` + ``suffix``, and chunks are below ``data`` + ``/P/``.
    """

    prefix: Prefix
    meta: str = "meta/root"
    data: str = "data"
    root: str = "meta/root."
    suffix: str = ""

    def document(self, path: NodePath, kind: str) -> Key:
        """Return the key of the document of an ``array`` or a ``group``."""
        stem = self.root if path == ROOT else f"{self.meta}{path}."
        return Key(f"{self.prefix}{stem}{kind}{self.suffix}")

    def listing(self, path: NodePath) -> Prefix:
        """Return the prefix of the documents of the children."""
        return Prefix(f"{self.prefix}{self.meta}/{path.prefix}")

    def chunks(self, path: NodePath) -> Prefix:
        """Return the prefix of the chunks of an array."""
        return Prefix(f"{self.prefix}{self.data}/{path.prefix}")

    def node_of_document(self, key: str) -> NodePath | None:
        """Return the node of a document; None for other keys."""
        if not key.startswith(self.prefix):
            return None
        inside = key[len(self.prefix) :]
        for kind in ("array", "group"):
            if inside == f"{self.root}{kind}{self.suffix}":
                return ROOT
            end = f".{kind}{self.suffix}"
            if inside.startswith(f"{self.meta}/") and inside.endswith(end):
                return node_path(inside[len(self.meta) : -len(end)])
        return None

    def node_of_listing(self, prefix: str) -> NodePath | None:
        """Return the group whose children's documents are at ``prefix``; None if there is none."""
        top = self.listing(ROOT)
        if not prefix.startswith(top):
            return None
        return ROOT if prefix == top else node_path("/" + prefix[len(top) : -1])

    def child_names(self, keys: Iterable[str], prefixes: Iterable[str]) -> set[str]:
        """Return the names of children in a listing: those of documents, and of groups that only descendants imply."""
        names = {name for name in prefixes if node_path(f"/{name}") is not None}
        for key in keys:
            for kind in ("array", "group"):
                end = f".{kind}{self.suffix}"
                if key.endswith(end) and node_path(f"/{key[: -len(end)]}") is not None:
                    names.add(key[: -len(end)])
        return names


def node_path(text: str) -> NodePath | None:
    """Return ``text`` as a path if it is one of a node other than the root; else None."""
    try:
        return NodePath(text) if text != "/" else None
    except NameInvalid:
        return None
