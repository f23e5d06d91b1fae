"""Short ways to say what a store holds and what zarrfs makes of it: for the checks of `tests.support.statements`.

A store is a dictionary of keys; values are bytes, JSON (what is no bytes and no array) or elements (NumPy's). No mount: what is read
comes through the hierarchy and the readers, what is written through the editor of nodes.
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
"""Of a dialect: ``{"v1.order": "text"}``."""


def stored(values: Values) -> dict[str, bytes]:
    """What the store holds."""
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
    """A hierarchy over a store that holds ``values``."""
    store = MemoryStore()
    await fill(store, stored(values))
    made = reading(store)
    if choices:
        pool = made.hierarchy._readers
        made.hierarchy = Hierarchy(store, pool, made.counters, ttl=10, dialects=_chosen(choices))
    return made


def run(values: Values, look: Callable[[Hierarchy], Awaitable[T]], choices: Choices = {}) -> T:  # noqa: B006
    """What ``look`` finds in a hierarchy over ``values``."""

    async def main() -> T:
        return await look((await opened(values, choices)).hierarchy)

    return trio.run(main)


def node(values: Values, path: str = "/", choices: Choices = {}) -> Node | None:  # noqa: B006
    """The node at ``path``, whatever it is."""
    return run(values, lambda hierarchy: hierarchy.node(NodePath(path)), choices)


def array(values: Values, path: str = "/", choices: Choices = {}) -> ArrayNode:  # noqa: B006
    """The array at ``path``."""
    found = node(values, path, choices)
    assert isinstance(found, ArrayNode), found
    return found


def group(values: Values, path: str = "/") -> GroupNode:
    """The group at ``path``."""
    found = node(values, path)
    assert isinstance(found, GroupNode), found
    return found


def metadata(values: Values, path: str = "/") -> ArrayMetadata:
    """What the documents say of the array at ``path``."""
    return array(values, path).metadata


def members(values: Values, path: str = "/") -> dict[str, str]:
    """What is directly below the group at ``path``: names, and ``array``, ``group`` or ``unsupported``."""
    kinds = {ArrayNode: "array", GroupNode: "group", UnsupportedNode: "unsupported"}

    async def look(hierarchy: Hierarchy) -> dict[str, str]:
        return {name: kinds[type(each)] async for name, each in hierarchy.children(NodePath(path))}

    return run(values, look)


def elements(values: Values, path: str = "/", choices: Choices = {}) -> np.ndarray[Any, Any]:  # noqa: B006
    """All elements of the array at ``path``."""

    async def look(hierarchy: Hierarchy) -> np.ndarray[Any, Any]:
        found = await hierarchy.array(NodePath(path))
        assert found is not None, await hierarchy.node(NodePath(path))
        of = found.array.metadata
        if not of.data_type.is_variable:
            data = bytes(await found.reader.read(0, of.nbytes, found.reader.opened()))
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
    """One decoded chunk; None where it is not stored."""

    async def look(hierarchy: Hierarchy) -> np.ndarray[Any, Any] | None:
        found = await hierarchy.array(NodePath(path))
        assert found is not None, await hierarchy.node(NodePath(path))
        return await found.array.read_chunk(coords)

    return run(values, look)


# --- checks ----------------------------------------------------------------------------------------------------------------------


def equal(found: object, expected: object) -> None:
    """Fails where the two differ: for checks of one expression."""
    assert found == expected, found


def same(found: Any, expected: Any) -> bool:
    """Whether elements are those: NaN is itself, and types count where ``expected`` has one."""
    if isinstance(expected, np.ndarray) and expected.dtype != found.dtype:
        return False
    expected = np.asarray(expected, found.dtype)
    if found.shape != expected.shape:
        return False
    return bool(np.array_equal(found, expected, equal_nan=found.dtype.kind in "fcmM"))


def reads(values: Values, expected: Any, path: str = "/", choices: Choices = {}) -> Check:  # noqa: B006
    """The array at ``path`` has these elements."""

    def check() -> None:
        found = elements(values, path, choices)
        assert same(found, expected), found

    return check


def refuses(values: Values, match: str, path: str = "/", *, bad: bool = True, choices: Choices = {}) -> Check:  # noqa: B006
    """The node at ``path`` is listed with a reason that matches; ``bad``: its documents are wrong, not only more than zarrfs can do."""

    def check() -> None:
        found = node(values, path, choices)
        assert isinstance(found, UnsupportedNode), found
        assert re.search(match, found.reason), found.reason
        assert found.bad is bad, found

    return check


def all_of(*checks: Check) -> Check:
    """Every one of ``checks``."""
    assert checks

    def check() -> None:
        for each in checks:
            each()

    return check


def holds(values: Values, expected: Mapping[str, str], path: str = "/") -> Check:
    """The members of the group at ``path`` are these."""

    def check() -> None:
        found = members(values, path)
        assert found == expected, found

    return check


def raises(error: type[ZarrfsError], match: str, act: Callable[[], object]) -> Check:
    """``act`` fails so."""

    def check() -> None:
        with pytest.raises(error, match=match):
            act()

    return check


# --- what is written -------------------------------------------------------------------------------------------------------------


async def _editor(values: Values, new: str) -> tuple[NodeEditor, Reading]:
    store = ObservedStore(MemoryStore())
    await fill(store, stored(values))
    made = reading(store)
    store.subscribe(lambda change: made.hierarchy.changed(change.place, is_prefix=change.is_prefix) and None)
    return NodeEditor(made.hierarchy, store, Intents(store), new_dialect=new), made


def edited(values: Values, edit: Callable[[NodeEditor, Hierarchy], Awaitable[object]], *, new: str = "v3") -> dict[str, bytes]:
    """What the store holds after ``edit``; ``new``: the dialect of new hierarchies."""

    async def main() -> dict[str, bytes]:
        editor, made = await _editor(values, new)
        await edit(editor, made.hierarchy)
        return await contents(made.store)

    return trio.run(main)


def new_group(path: str = "/a", *, new: str, into: Values = {}, **attributes: Any) -> dict[str, bytes]:  # noqa: B006
    """What the store holds after a group was made there."""

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
    """What the store holds after an array was made there, and the chunks ``write`` were written to it."""
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
    """What the store holds after an edit of a node (`zarrfs.dialects.base.Edit`)."""
    return edited(values, lambda editor, _: editor.amend(NodePath(path), Edit(**edit)))


def erased(values: Values, path: str) -> dict[str, bytes]:
    """What the store holds after a node was erased."""
    return edited(values, lambda editor, _: editor.erase(NodePath(path)))


def document(store: Mapping[str, bytes], key: str) -> Any:
    """The JSON under a key."""
    return json.loads(store[Key(key)])


def keys(store: Collection[str]) -> list[str]:
    """What is stored, in order."""
    return sorted(store)


def blosc_header(data: bytes) -> dict[str, int]:
    """The 16 bytes before the compressed data (README_CHUNK_FORMAT of c-blosc)."""
    lengths = struct.unpack_from("<III", data, 4)
    return dict(
        zip(("version", "codec_version", "flags", "typesize", "nbytes", "blocksize", "cbytes"), (*data[:4], *lengths), strict=True)
    )


def opened_folder(values: Values) -> dict[str, bytes]:
    """What a store over a folder holds whose files are named as the keys of ``values``."""

    async def main(folder: str) -> dict[str, bytes]:
        store = await open_store(folder)
        found = await contents(store)
        await store.aclose()
        return found

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), stored(values))
        return trio.run(main, folder)
