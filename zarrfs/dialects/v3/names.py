"""Node names of the final v3. Source: Zarr v3 core, section "Node names"."""

from __future__ import annotations

from zarrfs.errors import NameInvalid
from zarrfs.keys import NodePath

DOCUMENT = "zarr.json"


def check_name(name: str) -> None:
    """Raise `NameInvalid` if the specification does not allow ``name`` for a node."""
    reason = _against(name)
    if reason is not None:
        raise NameInvalid(f"{name!r}: invalid name for a node of Zarr v3: {reason}", key=name)


def is_name(name: str) -> bool:
    """Return True if a node may have this ``name``."""
    return _against(name) is None


def are_names(relative: str) -> bool:
    """Return True if a node may have ``relative``, names joined by slashes, as its path below the root."""
    return all(map(is_name, relative.split("/")))


def node_path(relative: str) -> NodePath | None:
    """Return the path of a node below the root, from its names joined by slashes; None if one of them is not a node name."""
    return NodePath(f"/{relative}") if are_names(relative) else None


def _against(name: str) -> str | None:
    if not name.strip("."):
        return "consists of periods only"
    if "/" in name:
        return "contains a slash"
    if name.startswith("__"):
        return "begins with '__', which is reserved"
    if name == DOCUMENT:
        return "reserved for documents"
    if not _is_unicode(name):
        return "not a string of Unicode code points"
    return None


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
