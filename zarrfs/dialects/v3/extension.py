"""Extension objects of the final v3: names of data types, grids, key encodings, codecs and storage transformers in documents.

Source: Zarr v3 core, section "Extension definition".

    {"name": "gzip", "configuration": {"level": 1}}        an object; the configuration is optional
    "crc32c"                                               a short-hand name
    {"name": "x", "must_understand": false}                may be ignored if unknown (codecs, storage transformers)

A configuration of null counts as absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from zarrfs.dialects import documents
from zarrfs.errors import MetadataError, MetadataUnsupported

_MEMBERS = frozenset({"name", "configuration", "must_understand"})


@dataclass(frozen=True, slots=True)
class Extension:
    """One extension object; for a short-hand name, the name alone."""

    name: str
    configuration: Mapping[str, Any] = field(default_factory=dict)
    must_understand: bool = True


def extension(value: Any, label: str) -> Extension:
    """Return the content of ``value`` at the extension point ``label`` (for the message). Raises `MetadataError`."""
    if isinstance(value, str):
        return Extension(value)
    if not isinstance(value, dict):
        raise MetadataError(f"{label} must be an object with a name, or a name, not {documents.shortened(value)}")
    name = documents.string(value.get("name"), f"name in {label}")
    if not value.keys() <= _MEMBERS:
        check_members(value, _MEMBERS, f"{label} {documents.shortened(name)}")
    configuration = value.get("configuration")
    must_understand = value.get("must_understand", True)
    if not isinstance(must_understand, bool):
        raise MetadataError(f"must_understand in {label} must be true or false, not {documents.shortened(must_understand)}")
    return Extension(
        name, {} if configuration is None else documents.mapping(configuration, f"configuration of {name}"), must_understand
    )


def extension_to_json(name: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of an extension object."""
    # zarr-python 3.1 refuses its own codecs (numcodecs.crc32) without a configuration, even an empty one.
    members: dict[str, Any] = {"name": name}
    if configuration or name.startswith("numcodecs."):
        members["configuration"] = dict(configuration)
    return members


def check_members(members: Mapping[str, Any], known: Collection[str], label: str) -> None:
    """Raise `MetadataUnsupported` for a member that is not ``known`` and is not marked as ignorable.

    Section "must_understand": an implementation MUST fail to open a node when it does not know a field that lacks
    ``"must_understand": false``. Applied strictly: in real documents only the consolidated copy is beyond the specification 3.0, and a
    harmless unknown member cannot be distinguished from one that changes the meaning of the chunks.
    """
    for name, value in members.items():
        if name not in known and not (isinstance(value, dict) and value.get("must_understand") is False):
            raise MetadataUnsupported(f"{label}: unknown member {documents.shortened(name)}, which may not be ignored")
