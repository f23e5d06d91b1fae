"""Short functions about the content of a store and its interpretation by zarrfs, for the checks of `tests.support.statements`.

A store is a dictionary of keys. Values are bytes, JSON (any other object) or elements (NumPy arrays). There is no mount: reads go
through the hierarchy and the readers, writes through the editor of nodes.
"""

from __future__ import annotations

import json
import re
import struct
import tempfile
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import trio

from tests.support.arrays import Reading, reading
from tests.support.small_stores import write
from tests.support.stores import contents, fill
from zarrfs.dialects.base import Dialect, Edit
from zarrfs.errors import ZarrfsError
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.roots import dialects
from zarrfs.keys import Key, NodePath
from zarrfs.model.data_type import DataType, from_name, from_numpy
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.opening import open_store
from zarrfs.transformers.observed import ObservedStore

Values = Mapping[str, Any]
Check = Callable[[], None]
Choices = Mapping[str, str]
"""Choices of a dialect: ``{"v1.order": "text"}``."""


def stored(values: Values) -> dict[str, bytes]:
    """Return the keys and values of the store."""
    return {key: _value(each) for key, each in values.items()}


def _value(value: Any) -> bytes:
    match value:
        case bytes():
            return value
        case np.ndarray() | np.generic():
            return value.tobytes()
    return json.dumps(value).encode()


def _chosen(choices: Choices) -> list[Dialect]:
    def of(name: str) -> Choices:
        return {each.partition(".")[2]: value for each, value in choices.items() if each.partition(".")[0] == name}

    return [dialect.choosing(of(dialect.name)) if of(dialect.name) else dialect for dialect in dialects()]


T = TypeVar("T")


async def opened(values: Values, choices: Choices = {}) -> Reading:  # noqa: B006
    """Return a hierarchy over a store of ``values``."""
    store = MemoryStore()
    await fill(store, stored(values))
    made = reading(store)
    if choices:
        pool = made.hierarchy._readers
        made.hierarchy = Hierarchy(store, pool, made.counters, ttl=10, dialects=_chosen(choices))
    return made


def run(values: Values, look: Callable[[Hierarchy], Awaitable[T]], choices: Choices = {}) -> T:  # noqa: B006
    """Return the result of ``look`` on a hierarchy over ``values``."""

    async def main() -> T:
        return await look((await opened(values, choices)).hierarchy)

    return trio.run(main)


def node(values: Values, path: str = "/", choices: Choices = {}) -> Node | None:  # noqa: B006
    """Return the node at ``path``, of any kind."""
    return run(values, lambda hierarchy: hierarchy.node(NodePath(path)), choices)


def array(values: Values, path: str = "/", choices: Choices = {}) -> ArrayNode:  # noqa: B006
    """Return the array at ``path``."""
    found = node(values, path, choices)
    assert isinstance(found, ArrayNode), found
    return found


def group(values: Values, path: str = "/") -> GroupNode:
    """Return the group at ``path``."""
    found = node(values, path)
    assert isinstance(found, GroupNode), found
    return found


def metadata(values: Values, path: str = "/") -> ArrayMetadata:
    """Return the metadata in the documents of the array at ``path``."""
    return array(values, path).metadata


def members(values: Values, path: str = "/") -> dict[str, str]:
    """Return the direct members of the group at ``path``: names, and ``array``, ``group`` or ``unsupported``."""
    kinds = {ArrayNode: "array", GroupNode: "group", UnsupportedNode: "unsupported"}

    async def look(hierarchy: Hierarchy) -> dict[str, str]:
        return {name: kinds[type(each)] async for name, each in hierarchy.children(NodePath(path))}

    return run(values, look)


def elements(values: Values, path: str = "/", choices: Choices = {}) -> np.ndarray[Any, Any]:  # noqa: B006
    """Return all elements of the array at ``path``."""

    async def look(hierarchy: Hierarchy) -> np.ndarray[Any, Any]:
        found = await hierarchy.array(NodePath(path))
        assert found is not None, await hierarchy.node(NodePath(path))
        of = found.array.metadata
        if not of.data_type.is_variable:
            data = bytes(await found.reader.read(0, of.nbytes, found.reader.new_position()))
            return np.frombuffer(data, of.data_type.dtype).reshape(of.shape)
        whole = np.empty(of.shape, object)
        for coords in np.ndindex(of.grid_shape):
            data = await found.array.read_chunk(coords)
            data = await found.array.filled(coords) if data is None else data
            shape = of.chunk_grid.chunk_shape(coords)
            assert found.array.plain is not None
            values = found.array.plain.decode(data.tobytes(), shape)
            place = tuple(slice(c * n, c * n + n) for c, n in zip(coords, shape, strict=True))
            whole[place] = values[tuple(slice(0, n) for n in whole[place].shape)]
        return whole

    return run(values, look, choices)


def chunk(values: Values, coords: tuple[int, ...], path: str = "/") -> np.ndarray[Any, Any] | None:
    """Return one decoded chunk, or None if it is not stored."""

    async def look(hierarchy: Hierarchy) -> np.ndarray[Any, Any] | None:
        found = await hierarchy.array(NodePath(path))
        assert found is not None, await hierarchy.node(NodePath(path))
        return await found.array.read_chunk(coords)

    return run(values, look)


# --- checks ----------------------------------------------------------------------------------------------------------------------


def equal(found: object, expected: object) -> None:
    """Fail if the two differ: for checks of one expression."""
    assert found == expected, found


def same(found: Any, expected: Any) -> bool:
    """Return True if the elements are equal: NaN equals NaN, and types count if ``expected`` has one."""
    if isinstance(expected, np.ndarray) and expected.dtype != found.dtype:
        return False
    expected = np.asarray(expected, found.dtype)
    if found.shape != expected.shape:
        return False
    return bool(np.array_equal(found, expected, equal_nan=found.dtype.kind in "fcmM"))


def reads(values: Values, expected: Any, path: str = "/", choices: Choices = {}) -> Check:  # noqa: B006
    """Return a check that the array at ``path`` has these elements."""

    def check() -> None:
        found = elements(values, path, choices)
        assert same(found, expected), found

    return check


def refuses(values: Values, match: str, path: str = "/", *, bad: bool = True, choices: Choices = {}) -> Check:  # noqa: B006
    """Return a check that the node at ``path`` is listed with a matching reason.

    With ``bad``, its documents are invalid, as opposed to valid and unsupported.
    """

    def check() -> None:
        found = node(values, path, choices)
        assert isinstance(found, UnsupportedNode), found
        assert re.search(match, found.reason), found.reason
        assert found.bad is bad, found

    return check


def all_of(*checks: Check) -> Check:
    """Return a check of all ``checks``."""
    assert checks

    def check() -> None:
        for each in checks:
            each()

    return check


def holds(values: Values, expected: Mapping[str, str], path: str = "/") -> Check:
    """Return a check of the members of the group at ``path``."""

    def check() -> None:
        found = members(values, path)
        assert found == expected, found

    return check


def raises(error: type[ZarrfsError], match: str, act: Callable[[], object]) -> Check:
    """Return a check that ``act`` raises this."""

    def check() -> None:
        with pytest.raises(error, match=match):
            act()

    return check


# --- writing ---------------------------------------------------------------------------------------------------------------------


async def _editor(values: Values, new: str) -> tuple[NodeEditor, Reading]:
    store = ObservedStore(MemoryStore())
    await fill(store, stored(values))
    made = reading(store)
    store.subscribe(lambda change: made.hierarchy.changed(change.target, is_prefix=change.is_prefix) and None)
    return NodeEditor(made.hierarchy, store, Intents(store), new_dialect=new), made


def edited(values: Values, edit: Callable[[NodeEditor, Hierarchy], Awaitable[object]], *, new: str = "v3") -> dict[str, bytes]:
    """Return the content of the store after ``edit``; ``new`` is the dialect of new hierarchies."""

    async def main() -> dict[str, bytes]:
        editor, made = await _editor(values, new)
        await edit(editor, made.hierarchy)
        return await contents(made.store)

    return trio.run(main)


def new_group(path: str = "/a", *, new: str, into: Values = {}, **attributes: Any) -> dict[str, bytes]:  # noqa: B006
    """Return the content of the store after creating a group."""

    async def edit(editor: NodeEditor, hierarchy: Hierarchy) -> None:
        layout = await editor.layout_for(NodePath(path))
        await editor.create(GroupNode(path=NodePath(path), dialect=layout.dialect.name, attributes=attributes))

    return edited(into, edit, new=new)


def new_array(
    path: str = "/a",
    *,
    new: str,
    into: Values = {},  # noqa: B006
    shape: tuple[int, ...] = (4,),
    chunks: tuple[int, ...] = (2,),
    dtype: str | DataType = "int32",
    fill_value: Any = None,
    order: str = "C",
    codecs: str = "none",
    separator: str | None = None,
    shards: str = "none",
    dimension_names: tuple[str | None, ...] | None = None,
    attributes: Mapping[str, Any] | None = None,
    write: Mapping[tuple[int, ...], Any] = {},
) -> dict[str, bytes]:
    """Return the content of the store after creating an array and writing the chunks ``write`` to it."""
    data_type = dtype if isinstance(dtype, DataType) else _data_type(dtype)
    fill_bytes = None if fill_value is None else np.asarray(fill_value, data_type.dtype).tobytes()

    async def edit(editor: NodeEditor, hierarchy: Hierarchy) -> None:
        layout = await editor.layout_for(NodePath(path))
        made = NewArrays(codecs=codecs, shards=shards).node(
            NodePath(path),
            layout,
            shape=shape,
            chunk_shape=chunks,
            data_type=data_type,
            order=order,
            fill_value=fill_bytes,
            separator=separator,
        )
        named = replace(made.metadata, dimension_names=dimension_names)
        await editor.create(replace(made, attributes=attributes or {}, metadata=named))
        for coords, value in write.items():
            found = await hierarchy.array(NodePath(path))
            assert found is not None
            await found.array.write_chunk(coords, np.asarray(value, data_type.dtype).tobytes())
            await hierarchy.queued.publish(found.live.chunk_prefix)

    return edited(into, edit, new=new)


def _data_type(name: str) -> DataType:
    return from_numpy(np.dtype(name)) if name[0] in "<>|" else from_name(name)


def amended(values: Values, path: str = "/", **edit: Any) -> dict[str, bytes]:
    """Return the content of the store after an edit of a node (`zarrfs.dialects.base.Edit`)."""
    return edited(values, lambda editor, _: editor.amend(NodePath(path), Edit(**edit)))


def erased(values: Values, path: str) -> dict[str, bytes]:
    """Return the content of the store after erasing a node."""
    return edited(values, lambda editor, _: editor.erase(NodePath(path)))


def document(store: Mapping[str, bytes], key: str) -> Any:
    """Return the JSON document under a key."""
    return json.loads(store[Key(key)])


def keys(store: Collection[str]) -> list[str]:
    """Return all stored keys, sorted."""
    return sorted(store)


def blosc_header(data: bytes) -> dict[str, int]:
    """Return the 16 bytes before the compressed data (README_CHUNK_FORMAT of c-blosc)."""
    lengths = struct.unpack_from("<III", data, 4)
    return dict(
        zip(("version", "codec_version", "flags", "typesize", "nbytes", "blocksize", "cbytes"), (*data[:4], *lengths), strict=True)
    )


def opened_folder(values: Values) -> dict[str, bytes]:
    """Return the content of a folder store whose files are named like the keys of ``values``."""

    async def main(folder: str) -> dict[str, bytes]:
        store = await open_store(folder)
        found = await contents(store)
        await store.aclose()
        return found

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), stored(values))
        return trio.run(main, folder)
