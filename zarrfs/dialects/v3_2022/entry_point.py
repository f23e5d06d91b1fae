"""The entry point ``zarr.json`` of the Zarr v3 core draft of 2022, which determines the form of the whole hierarchy.

Source: Zarr v3 core draft of 2022, "Entry point metadata", "Storage keys"; stores of zarr-python 2.13 to 2.16, GDAL 3.6 and zarrita 2020.

    {"zarr_format": "https://purl.org/zarr/spec/core/3.0",                                                the draft
     "metadata_encoding": {"type": "json", "metadata_key_suffix": ".json"}, "extensions": []}
    {"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0", "metadata_key_suffix": ".json",       the software
     "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0", "extensions": []}

The object or the flat members distinguish the two forms. With the latter, keys have ``root``:

    draft       meta/group.json       meta/a/b.array.json       data/a/b/c0/0
    software    meta/root.group.json  meta/root/a/b.array.json  data/root/a/b/c0/0

An encoding that is a MIME type belongs to the draft of 2019, not to this dialect.

An encoding that is null is accepted if the suffix beside it determines the form, as in zarr-python, whose `decode_hierarchy_metadata`
(2.13 to 2.18) checks only the names of the members; else the draft applies, which requires a value, and the hierarchy is refused.

The draft states both that names that it does not define are ignored ("zarr_format": "in other words, if the major version number is "3"")
and that an implementation must fail to open what has unknown fields ("Array metadata"). The former is about later versions: unknown
members are therefore refused in a hierarchy of version 3.0, and ignored in one of a later 3.x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zarrfs.dialects import documents
from zarrfs.dialects.documents import MEMBERS, dump, is_object, naming, parse_object, shortened
from zarrfs.dialects.drafts import ENTRY, PROTOCOL, DraftKeys, check_extensions, protocol_version
from zarrfs.errors import MetadataError, MetadataUnsupported
from zarrfs.keys import Key, Prefix

_CORE = "https://purl.org/zarr/spec/core/3.0"
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """The form of a hierarchy.

    ``software``: zarr-python's form, else the draft's. ``suffix``: that of metadata keys. ``lenient``: unknown members are ignored.
    ``refused``: why the whole hierarchy is unreadable. ``quirks``: deviations of the entry point.
    """

    software: bool = True
    suffix: str = _SUFFIX
    lenient: bool = False
    refused: MetadataError | None = None
    quirks: tuple[str, ...] = ()

    def keys(self, prefix: Prefix) -> DraftKeys:
        """Return the keys of documents and chunks of a hierarchy at ``prefix``."""
        if self.software:
            return DraftKeys(prefix, meta="meta/root", data="data/root", root="meta/root.", suffix=self.suffix)
        return DraftKeys(prefix, meta="meta", data="data", root="meta/", suffix=self.suffix)

    def check_members(self, members: Mapping[str, Any], known: tuple[str, ...], label: str) -> tuple[str, ...]:
        """Return quirks for the ignored members of ``label``.

        Raises `MetadataUnsupported` for a member that is not ``known``, if none are ignored.
        """
        unknown = [name for name in members if name not in known]
        if unknown and not self.lenient:
            raise MetadataUnsupported(f"{label}: unknown member {shortened(unknown[0])}, which may not be ignored")
        return tuple(f"{label}: unknown member {shortened(name)}, ignored" for name in unknown)


def parse_entry(key: Key, data: bytes) -> EntryPoint | None:
    """Return the form in ``data``, the value of ``key``; None if it is no entry point of this draft. Never raises."""
    try:
        # It may be the document of a group in the final v3, with a large consolidated copy.
        if not _is_ours(parse_object(key, data, MEMBERS)):
            return None
        document = parse_object(key, data)
    except MetadataError:
        return None
    encoding = document.get("metadata_encoding")
    software = isinstance(encoding, str) or (not isinstance(encoding, dict) and "metadata_key_suffix" in document)
    try:
        with naming(key):
            return _form(document, software)
    except MetadataError as error:
        return EntryPoint(software=software, refused=error)


def format_entry(form: EntryPoint) -> bytes:
    """Return the document of ``form``, its members in the order of its original writer."""
    if form.software:
        flat = {"extensions": [], "metadata_encoding": PROTOCOL, "metadata_key_suffix": form.suffix, "zarr_format": PROTOCOL}
        return dump(flat, indent=4)
    encoding = {"type": "json", "metadata_key_suffix": form.suffix}
    return dump({"zarr_format": _CORE, "metadata_encoding": encoding, "extensions": []}, indent=4)


def entry_key(prefix: Prefix) -> Key:
    """Return the key of the entry point of a hierarchy at ``prefix``."""
    return prefix.key(ENTRY)


def _is_ours(document: Mapping[str, Any]) -> bool:
    if "node_type" in document or not isinstance(document.get("zarr_format"), str):
        return False
    encoding = document.get("metadata_encoding")
    if isinstance(encoding, str):
        return protocol_version(encoding) is not None or "://" in encoding
    if encoding is None:
        # It is required; other members determine whose document it is.
        return "metadata_key_suffix" in document or "/spec/core/" in document["zarr_format"]
    # Of another type it belongs to neither draft, and the hierarchy is refused, not hidden.
    return is_object(encoding) or protocol_version(document["zarr_format"]) is not None


def _form(document: Mapping[str, Any], software: bool) -> EntryPoint:
    version = protocol_version(documents.member(document, "zarr_format"))
    if version is None or version[0] != 3:
        raise MetadataUnsupported(f"zarr_format {shortened(document['zarr_format'])}: not version 3 of the core specification")
    form = EntryPoint(software=software, lenient=version[1] > 0)
    encoding = documents.member(document, "metadata_encoding")
    known: tuple[str, ...] = ("zarr_format", "metadata_encoding", "extensions")
    quirks: tuple[str, ...] = ()
    if software:
        if encoding is None:
            quirks = ("metadata_encoding is null: read as JSON",)
        elif protocol_version(encoding) is None:
            raise MetadataUnsupported(f"metadata_encoding {shortened(encoding)}: unknown")
        known = (*known, "metadata_key_suffix")
        # zarrita had neither this member nor a suffix before October 2020.
        suffix = document.get("metadata_key_suffix", "")
    else:
        encoding = documents.mapping(encoding, "metadata_encoding")
        if "extension" in encoding or encoding.get("type") != "json":
            raise MetadataUnsupported(f"metadata_encoding {shortened(encoding.get('type'))}: not supported, only 'json'")
        form.check_members(encoding, ("type", "metadata_key_suffix"), "metadata_encoding")
        suffix = documents.member(encoding, "metadata_key_suffix")
    form.check_members(document, known, "the entry point")
    check_extensions(document.get("extensions", []), "the entry point")
    return EntryPoint(software=software, suffix=_suffix(suffix), lenient=form.lenient, quirks=quirks)


def _suffix(value: Any) -> str:
    suffix = documents.string(value, "metadata_key_suffix")
    if "/" in suffix or "\0" in suffix or not suffix.isprintable():
        raise MetadataError(f"metadata_key_suffix {shortened(suffix)}: invalid end of a document's key")
    return suffix
