"""Files of others that have the names of documents: damaged ones, such of a later version of Zarr, and plain files.

They are no node, and neither replaced nor erased with one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zarrfs.dialects.base import Layout
from zarrfs.errors import MetadataError
from zarrfs.keys import Key, NodePath


def require_own(layout: Layout, path: NodePath, documents: dict[Key, bytes]) -> dict[Key, bytes]:
    """Return ``documents``. Raise `MetadataError` if a document of ``path`` would replace one of them that is none of the layout."""
    for key in sorted(foreign([layout], path, documents)):
        raise MetadataError(f"{key}: not a document of {layout.dialect.name}, and not replaced by one", key=key)
    return documents


def described_by(layouts: Collection[Layout], path: NodePath, shared: set[Key]) -> set[Key]:
    """Return the keys that documents of the node at ``path`` have in ``layouts``. ``shared``: those of `Layout.shared_keys` that exist.

    A layout of whose documents one may be another file has none there without it: in v1, ``attrs`` is a plain file without ``meta``.
    """
    found = set[Key]()
    for each in layouts:
        documents = each.document_keys(path)
        doubtful = [key for key in each.shared_keys(path) if key in documents]
        if not doubtful or not shared.isdisjoint(doubtful):
            found.update(documents)
    return found


def foreign(layouts: Collection[Layout], path: NodePath, documents: Mapping[Key, bytes]) -> set[Key]:
    """Return the keys of ``documents`` that ``layouts`` have for the node at ``path``, but that hold a document of none of them."""
    found: dict[Key, bool] = {}
    for layout in layouts:
        for key in layout.shared_keys(path):
            if key in documents:
                found[key] = found.get(key, False) or _is_own(layout, path, key, documents[key])
    return {key for key, is_own in found.items() if not is_own}


def _is_own(layout: Layout, path: NodePath, key: Key, value: bytes) -> bool:
    try:
        return layout.is_own(path, key, value)
    except MetadataError:
        # That of an unsupported node.
        return True
