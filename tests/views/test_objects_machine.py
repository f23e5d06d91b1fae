"""Random writes of chunks of elements without a fixed size, compared with a plain model: lists of elements, and bytes of open files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numcodecs
import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.codecs import of_objects
from tests.support.length import tries
from tests.support.stores import contents, fill
from tests.support.trees import names, read, tree_over, walk, write
from zarrfs.errors import ContentInvalid, NoSuchEntry
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, OpenFlags

pytestmark = pytest.mark.logs("write failed, data lost")

CHUNK, SHAPE = 2, 5
JSON = json.loads(json.dumps(numcodecs.JSON().get_config()))
# The filter of the store, the one that chunks are shown with, the fill value in documents and in elements, and elements.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], Any, list[Any]]] = {
    "text": ({"id": "vlen-utf8"}, {"id": "vlen-utf8"}, "-", ["", "a", "\u00e9\u4e2d", "longer text"]),
    "labels": ({"id": "categorize", "labels": ["a", "bb", "-"], "dtype": "|O"}, {"id": "vlen-utf8"}, "-", ["", "a", "bb"]),
    "json": (JSON, JSON, [1], [None, "a", [], {"b": [1.5, None]}]),
    "packed": ({"id": "msgpack2"}, JSON, [1], [None, "a", [], {"b": [1.5, None]}]),
}
COORDS = st.integers(0, 2)
ACTIONS = st.one_of(
    st.tuples(st.just("write"), COORDS, st.lists(st.integers(0, 3), min_size=CHUNK, max_size=CHUNK)),
    st.tuples(st.just("write"), COORDS, st.lists(st.integers(0, 3), max_size=CHUNK + 1)),
    st.tuples(st.just("append"), COORDS, st.binary(max_size=2)),
    st.tuples(st.just("splice"), COORDS, st.integers(0, 9), st.binary(min_size=1, max_size=2)),
    st.tuples(st.just("truncate"), COORDS, st.integers(0, 20)),
    st.tuples(st.just("raw"), COORDS, st.lists(st.integers(0, 3), min_size=CHUNK, max_size=CHUNK)),
    st.tuples(st.just("remove"), COORDS),
)


def encoded(config: dict[str, Any], elements: list[Any]) -> bytes:
    return np.asarray(memoryview(numcodecs.get_codec(dict(config)).encode(of_objects(elements, (len(elements),))))).tobytes()


def meant(shown: dict[str, Any], data: bytes, allowed: Callable[[Any], bool]) -> list[Any] | None:
    """Return the elements in ``data`` as a minimal reader decodes it; None if it is not a chunk."""
    try:
        if shown["id"] == "json2":
            *elements, dtype, shape = json.loads(data)
            return elements if isinstance(dtype, str) and shape == [CHUNK] and len(elements) == CHUNK else None
        at, elements = 4, []
        assert int.from_bytes(data[:4], "little") == CHUNK and len(data) >= 4
        for _ in range(CHUNK):
            length = int.from_bytes(data[at : at + 4], "little")
            text = data[at + 4 : at + 4 + length]
            assert len(data) >= at + 4 and len(text) == length
            elements.append(text.decode())
            at += 4 + length
        return elements if at == len(data) and all(map(allowed, elements)) else None
    except (ValueError, AssertionError, TypeError):
        return None


@pytest.mark.parametrize("kind", KINDS)
@tries(40)
@given(actions=st.lists(ACTIONS, max_size=10))
def test_chunks_are_what_was_written(kind: str, actions: list[tuple[Any, ...]]) -> None:
    trio.run(run, kind, actions)


async def run(kind: str, actions: list[tuple[Any, ...]]) -> None:
    stored_as, shown, fill_value, values = KINDS[kind]
    document = {"zarr_format": 2, "shape": [SHAPE], "chunks": [CHUNK], "dtype": "|O", "compressor": None, "order": "C"}
    store = MemoryStore()
    await fill(store, {"a/.zarray": json.dumps(document | {"fill_value": fill_value, "filters": [stored_as]}).encode()})
    model: dict[int, list[Any]] = {}

    def allowed(element: Any) -> bool:
        return kind != "labels" or element in ("", *stored_as["labels"])

    def inside(coords: int, elements: list[Any]) -> list[Any]:
        return [each if coords * CHUNK + n < SHAPE else fill_value for n, each in enumerate(elements)]

    async with tree_over(store) as tree:
        for name, coords, *rest in actions:
            path = f"chunks/a/{coords}"
            if name == "raw":
                model[coords] = [values[n % len(values)] for n in rest[0]]
                await write(tree, f"raw/a/{coords}", encoded(stored_as, model[coords]))
            elif name == "remove":
                folder = await walk(tree, "chunks/a")
                assert isinstance(folder, Directory)
                if coords in model:
                    await folder.unlink(str(coords))
                    del model[coords]
                else:
                    with pytest.raises(NoSuchEntry):
                        await folder.unlink(str(coords))
            elif name == "write":
                data = encoded(shown, [values[n % len(values)] for n in rest[0]])
                await put(model, coords, meant(shown, data, allowed), inside, write(tree, path, data))
            elif coords in model:
                before = encoded(shown, model[coords])
                assert await read(tree, path) == before
                match name, rest:
                    case "append", (more,):
                        data, change = before + more, (len(before), more)
                    case "splice", (at, part):
                        at = min(at, len(before))
                        data, change = before[:at] + part + before[at + len(part) :], (at, part)
                    case _:
                        data, change = before[: rest[0]].ljust(rest[0], b"\0"), None
                await put(model, coords, meant(shown, data, allowed), inside, edit(tree, path, change, len(data)))
            assert await names(tree, "chunks/a") == {".zarray", *map(str, model)}
            for each, elements in model.items():
                assert await read(tree, f"chunks/a/{each}") == encoded(shown, elements)
    values_now = await contents(store)
    assert {key for key in values_now if not key.endswith(".zarray")} == {f"a/{coords}" for coords in model}
    for coords, elements in model.items():
        assert values_now[f"a/{coords}"] == encoded(stored_as, elements)


async def put(model: dict[int, list[Any]], coords: int, elements: list[Any] | None, inside: Any, action: Any) -> None:
    """Await ``action``; data that is not a chunk is refused, and changes nothing."""
    if elements is None:
        with pytest.raises(ContentInvalid):
            await action
    else:
        await action
        model[coords] = inside(coords, elements)


async def edit(tree: Any, path: str, change: tuple[int, bytes] | None, size: int) -> None:
    """Write a part of a file in place, or truncate it, and close it."""
    file = await walk(tree, path)
    assert isinstance(file, File)
    handle = await file.open(OpenFlags(read=True, write=True))
    try:
        if change is not None:
            await handle.write(*change)
        else:
            await handle.truncate(size)
            # A close does not publish an empty file.
            await handle.fsync()
        await handle.flush()
    finally:
        await handle.release()
