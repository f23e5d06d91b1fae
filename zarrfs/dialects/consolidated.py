"""Parts of consolidated copies that several dialects share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from zarrfs.dialects import documents
from zarrfs.errors import KeyUnusable, MetadataError
from zarrfs.keys import Key, NodePath
from zarrfs.model.unparsed import Unparsed

MAX_PATHS_LENGTH = 16 << 20
"""Limit of the paths of all groups in a copy together: a path of n parts has n - 1 groups above it, with paths as long."""


def zmetadata_documents(key: str, data: bytes) -> dict[str, Any]:
    """Return the members of a ``.zmetadata`` document of format 1 by name, from ``data``, the value of ``key``.

    zarr-python 2 writes it in hierarchies of v2 and of 2022. Raises `MetadataError`; a member that is not an object is omitted.
    """
    with documents.naming(key):
        return {name: each for name, each in _members(key, data).items() if documents.is_object(each)}


def by_original(copied: Mapping[str, Any], key_of: Callable[[str], Key]) -> dict[Key, bytes]:
    """Return the documents of a copy as JSON texts, by the keys of their originals; a member that no key can have is omitted."""
    found = {}
    for name, each in copied.items():
        with suppress(KeyUnusable):
            found[key_of(name)] = each.data if isinstance(each, Unparsed) else json.dumps(each).encode()
    return found


def zmetadata_fault(key: str, data: bytes, *, of_members: bool) -> str | None:
    """Return why a ``.zmetadata`` document is unreadable, with ``of_members`` also why a part of it is; None if it is readable."""
    try:
        with documents.naming(key):
            members = _members(key, data)
            prefixes_of(members)
    except MetadataError as error:
        return str(error).removeprefix(f"{key}: ")
    bad = [name for name, each in members.items() if not documents.is_object(each)] if of_members else []
    return f"{documents.shortened(bad[0])} must be an object, not {documents.shortened(members[bad[0]])}" if bad else None


def _members(key: str, data: bytes) -> Mapping[str, Any]:
    document = documents.parse_object(key, data, frozenset({("metadata",)}))
    version = document.get("zarr_consolidated_format")
    if version != 1:
        raise MetadataError(f"zarr_consolidated_format must be 1, not {documents.shortened(version)}")
    return documents.mapping(documents.member(document, "metadata"), "metadata")


def children_by_path(paths: Iterable[NodePath]) -> dict[NodePath, frozenset[str]]:
    """Return the names of the children of each node: the nodes at ``paths``, and those above them, which are implicit groups.

    Raises `MetadataError` for paths of so many parts that these take much memory.
    """
    children: dict[NodePath, set[str]] = {}
    left = MAX_PATHS_LENGTH
    for path in paths:
        while path != "/" and path.name not in children.setdefault(path.parent, set()):
            children[path.parent].add(path.name)
            path = path.parent
            left = _less(left, path)
    return {path: frozenset(names) for path, names in children.items()}


def prefixes_of(names: Iterable[str]) -> set[str]:
    """Return what is before any of the slashes in ``names``. Raises `MetadataError` as `children_by_path`."""
    found: set[str] = set()
    left = MAX_PATHS_LENGTH
    for name in names:
        while (cut := name.rfind("/")) > 0 and (name := name[:cut]) not in found:
            found.add(name)
            left = _less(left, name)
    return found


def _less(left: int, path: str) -> int:
    if len(path) > left:
        raise MetadataError(f"paths of nodes, and of groups above them, exceed the limit of {MAX_PATHS_LENGTH} characters")
    return left - len(path)


def groups_between(group: NodePath, path: NodePath) -> Sequence[NodePath]:
    """Return the groups below ``group`` and above ``path``, in this order.

    A copy needs a member for each: zarr-python 3 does not open the group of a copy with a node whose group is not in it, or is an array.
    """
    above = tuple(path.ancestors())
    return above[above.index(group) + 1 :] if group in above else ()
