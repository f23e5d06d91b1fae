"""Node names of the Zarr v3 core draft of 2022. Source: "Node names"."""

from __future__ import annotations

import re

from zarrfs.errors import NameInvalid
from zarrfs.keys import ROOT, NodePath

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def is_name(name: str) -> bool:
    """Return True if a node may have this ``name``: not empty, of ``a-z A-Z 0-9 - _ .``, and not only periods. Case counts."""
    return _NAME.fullmatch(name) is not None and name.strip(".") != ""


def check_name(name: str) -> None:
    """Raise `NameInvalid` if the draft does not allow ``name`` for a node."""
    if not is_name(name):
        raise NameInvalid(f"{name!r}: invalid name for a node of Zarr v3 (2022): allowed are a-z A-Z 0-9 - _ .", key=name)


def is_path(path: NodePath) -> bool:
    """Return True if a node may be at ``path``."""
    return path == ROOT or all(map(is_name, path[1:].split("/")))
