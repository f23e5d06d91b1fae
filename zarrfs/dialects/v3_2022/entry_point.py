"""The entry point ``zarr.json`` of the Zarr v3 core draft of 2022, which decides the form of the whole hierarchy.

Source: Zarr v3 core draft of 2022, "Entry point metadata", "Storage keys"; stores of zarr-python 2.13 to 2.16, GDAL 3.6 and zarrita 2020.

    {"zarr_format": "https://purl.org/zarr/spec/core/3.0",                                                the text
     "metadata_encoding": {"type": "json", "metadata_key_suffix": ".json"}, "extensions": []}
    {"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0", "metadata_key_suffix": ".json",       the software
     "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0", "extensions": []}

The object or the flat members tell the two forms apart. With the latter, keys have ``root``:

    text        meta/group.json       meta/a/b.array.json       data/a/b/c0/0
    software    meta/root.group.json  meta/root/a/b.array.json  data/root/a/b/c0/0

An encoding that is a MIME type is of the draft of 2019, and not ours.

An encoding that is null is read where the suffix beside it tells the form, as zarr-python reads it, whose `decode_hierarchy_metadata`
(2.13 to 2.18) looks at the names of the members alone; else the text is followed, which demands a value, and the hierarchy is refused.

The text says both that names that it does not define are ignored ("zarr_format": "in other words, if the major version number is "3"")
and that an implementation must fail to open what has unknown fields ("Array metadata"). The former speaks of later versions: so members
that are not known are refused in a hierarchy of version 3.0, and ignored in one of a later 3.x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zarrfs.dialects import documents
from zarrfs.dialects.documents import dump, naming, parse_object, shortened
from zarrfs.dialects.drafts import ENTRY, PROTOCOL, DraftKeys, check_extensions, protocol_version
from zarrfs.errors import MetadataError, MetadataUnsupported
from zarrfs.keys import Key, Prefix

_CORE = "https://purl.org/zarr/spec/core/3.0"
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """How a hierarchy is written. ``software``: as zarr-python wrote it, else as the text has it. ``suffix``: of metadata keys.

    ``lenient``: members that are not known are ignored. ``refused``: why nothing of the hierarchy can be read. ``quirks``: what is odd
    about the entry point.
    """

    software: bool = True
    suffix: str = _SUFFIX
    lenient: bool = False
    refused: MetadataError | None = None
    quirks: tuple[str, ...] = ()

    def keys(self, prefix: Prefix) -> DraftKeys:
        """Where the documents and chunks of a hierarchy at ``prefix`` are."""
        if self.software:
            return DraftKeys(prefix, meta="meta/root", data="data/root", root="meta/root.", suffix=self.suffix)
        return DraftKeys(prefix, meta="meta", data="data", root="meta/", suffix=self.suffix)

    def check_members(self, members: Mapping[str, Any], known: tuple[str, ...], place: str) -> tuple[str, ...]:
        """Quirks: the members of ``place`` that are ignored. Raises `MetadataUnsupported` for one that is not ``known``, where none are
        ignored."""
        unknown = [name for name in members if name not in known]
        if unknown and not self.lenient:
            raise MetadataUnsupported(f"{place}: member {shortened(unknown[0])} is not known, and may not be ignored")
        return tuple(f"{place}: member {shortened(name)} is not known, and ignored" for name in unknown)


def parse_entry(key: Key, data: bytes) -> EntryPoint | None:
    """The form that ``data``, the value of ``key``, says; None when it is no entry point of this draft. Never raises."""
    try:
        document = parse_object(key, data)
    except MetadataError:
        return None
    if not _is_ours(document):
        return None
    encoding = document.get("metadata_encoding")
    software = isinstance(encoding, str) or (not isinstance(encoding, dict) and "metadata_key_suffix" in document)
    try:
        with naming(key):
            return _form(document, software)
    except MetadataError as error:
        return EntryPoint(software=software, refused=error)


def format_entry(form: EntryPoint) -> bytes:
    """The document that says ``form``, its members in the order of who wrote it so."""
    if form.software:
        flat = {"extensions": [], "metadata_encoding": PROTOCOL, "metadata_key_suffix": form.suffix, "zarr_format": PROTOCOL}
        return dump(flat, indent=4)
    encoding = {"type": "json", "metadata_key_suffix": form.suffix}
    return dump({"zarr_format": _CORE, "metadata_encoding": encoding, "extensions": []}, indent=4)


def entry_key(prefix: Prefix) -> Key:
    """The key of the entry point of a hierarchy at ``prefix``."""
    return prefix.key(ENTRY)


def _is_ours(document: Mapping[str, Any]) -> bool:
    if "node_type" in document or not isinstance(document.get("zarr_format"), str):
        return False
    encoding = document.get("metadata_encoding")
    if isinstance(encoding, str):
        return protocol_version(encoding) is not None or "://" in encoding
    if encoding is None:
        # It must be there; the rest tells whose document it is.
        return "metadata_key_suffix" in document or "/spec/core/" in document["zarr_format"]
    return isinstance(encoding, dict)


def _form(document: Mapping[str, Any], software: bool) -> EntryPoint:
    version = protocol_version(documents.member(document, "zarr_format"))
    if version is None or version[0] != 3:
        raise MetadataUnsupported(f"zarr_format {shortened(document['zarr_format'])} is no version 3 of the core specification")
    form = EntryPoint(software=software, lenient=version[1] > 0)
    encoding = documents.member(document, "metadata_encoding")
    known: tuple[str, ...] = ("zarr_format", "metadata_encoding", "extensions")
    quirks: tuple[str, ...] = ()
    if software:
        if encoding is None:
            quirks = ("metadata_encoding is null: read as JSON",)
        elif protocol_version(encoding) is None:
            raise MetadataUnsupported(f"metadata_encoding {shortened(encoding)} is not known")
        known = (*known, "metadata_key_suffix")
        # zarrita had no such member, and no suffix, before October 2020.
        suffix = document.get("metadata_key_suffix", "")
    else:
        encoding = documents.mapping(encoding, "metadata_encoding")
        if "extension" in encoding or encoding.get("type") != "json":
            raise MetadataUnsupported(f"metadata_encoding {shortened(encoding.get('type'))} is not known; 'json' is")
        form.check_members(encoding, ("type", "metadata_key_suffix"), "metadata_encoding")
        suffix = documents.member(encoding, "metadata_key_suffix")
    form.check_members(document, known, "the entry point")
    check_extensions(document.get("extensions", []), "the entry point")
    return EntryPoint(software=software, suffix=_suffix(suffix), lenient=form.lenient, quirks=quirks)


def _suffix(value: Any) -> str:
    suffix = documents.string(value, "metadata_key_suffix")
    if "/" in suffix or "\0" in suffix or not suffix.isprintable():
        raise MetadataError(f"metadata_key_suffix {shortened(suffix)} cannot end the key of a document")
    return suffix
