"""Node names of the Zarr v3 core draft of 2022. Source: "Node names"."""

from __future__ import annotations

import re

from zarrfs.errors import NameInvalid
from zarrfs.keys import ROOT, NodePath

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def is_name(name: str) -> bool:
    """Whether a node may have this ``name``: not empty, of ``a-z A-Z 0-9 - _ .``, and not of periods alone. Case counts."""
    return _NAME.fullmatch(name) is not None and name.strip(".") != ""


def check_name(name: str) -> None:
    """Raise `NameInvalid` for what the text does not allow as the name of a node."""
    if not is_name(name):
        raise NameInvalid(f"a node of Zarr v3 (2022) cannot be called {name!r}: a name is of a-z A-Z 0-9 - _ . alone", key=name)


def is_path(path: NodePath) -> bool:
    """Whether a node may be at ``path``."""
    return path == ROOT or all(map(is_name, path[1:].split("/")))
