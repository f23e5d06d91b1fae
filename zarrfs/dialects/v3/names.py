"""Node names of the final v3. Source: Zarr v3 core, section "Node names"."""

from __future__ import annotations

from zarrfs.errors import NameInvalid
from zarrfs.keys import NodePath

DOCUMENT = "zarr.json"


def check_name(name: str) -> None:
    """Raise `NameInvalid` for what the text does not allow as the name of a node."""
    reason = _against(name)
    if reason is not None:
        raise NameInvalid(f"a node of Zarr v3 cannot be called {name!r}: {reason}", key=name)


def is_name(name: str) -> bool:
    """Whether a node may have this ``name``."""
    return _against(name) is None


def node_path(relative: str) -> NodePath | None:
    """The path of a node below the root, from its parts joined by slashes; None when one of them is no node's name."""
    return NodePath(f"/{relative}") if all(map(is_name, relative.split("/"))) else None


def _against(name: str) -> str | None:
    if not name.strip("."):
        return "a name is more than periods"
    if "/" in name:
        return "a slash separates names"
    if name.startswith("__"):
        return "names that begin with '__' are reserved"
    if name == DOCUMENT:
        return "this is the name of every node's document"
    if not _is_unicode(name):
        return "a name is a string of Unicode code points"
    return None


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
