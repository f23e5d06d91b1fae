"""Hierarchies written by zarr-python, and hierarchies of a store as zarr-python reads them."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.comparing import in_memory
from tests.support.stores import contents, fill
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.opening import open_store

Write = Callable[[Any], None]


def written(zarr_format: int, write: Write, *, consolidated: bool = False) -> dict[str, bytes]:
    """Return the keys and values of a hierarchy; ``write`` receives its root group."""
    zarr = pytest.importorskip("zarr")
    store = in_memory({}).with_read_only(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write(zarr.create_group(store, zarr_format=zarr_format))
        if consolidated:
            zarr.consolidate_metadata(store)
    return {key: value.to_bytes() for key, value in store._store_dict.items()}


def opened(values: dict[str, bytes] | Path, **how: Any) -> Any:
    """Return the root group."""
    zarr = pytest.importorskip("zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zarr.open_group(in_memory(values) if isinstance(values, dict) else str(values), mode="r", **how)


def everything(values: dict[str, bytes] | Path, **how: Any) -> dict[str, Any]:
    """Return every node by its path: attributes, and for arrays the type and all elements, as bytes."""
    root = opened(values, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes = {"": root, **dict(root.members(max_depth=None))}
        return {path: described(node) for path, node in nodes.items()}


def described(node: Any) -> tuple[Any, ...]:
    """Return the significant properties of a node."""
    attributes = node.attrs.asdict()
    if not hasattr(node, "shape"):
        return "group", attributes
    elements = np.asarray(node[...])
    return "array", attributes, node.shape, node.chunks, str(elements.dtype), elements.tobytes()


@asynccontextmanager
async def store_of_kind(kind: str, folder: Path, values: dict[str, bytes]) -> AsyncIterator[Store]:
    """Yield a store in memory, or in a folder, with these values."""
    store = MemoryStore() if kind == "memory" else await open_store(str(folder))
    await fill(store, values)
    try:
        yield store
    finally:
        await store.aclose()


async def stored(store: Store) -> dict[str, Any]:
    """Return `everything` of a store."""
    return everything(await contents(store))
