"""Each group as one file, in a container format for tests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import trio_test

from tests.support.arrays import Example
from tests.support.bundle_container import OFFER, Bundle, loaded
from tests.support.plugged import plugins
from tests.support.stores import fill
from tests.support.trees import names, read, tree_over, walk
from tests.views.conformance import ViewConformance
from zarrfs import registry
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NotPermitted, StaleEntry
from zarrfs.keys import Key, Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, File, Handle, OpenFlags
from zarrfs.views.base import ViewPlugin
from zarrfs.views.group_file import file as group_file
from zarrfs.views.group_file import layouts as group_layouts
from zarrfs.views.group_file.layouts import GroupLayout

GROUP = b'{"zarr_format": 2}'
A = Example((4, 5), (2, 3), missing=frozenset({(1, 1)}))
B = Example((3,), (2,), "|u1")
HALF = Example((5,), (2,), "<f2")
SCALAR = Example((), (), "<f8")


bundle = plugins(OFFER)


@pytest.fixture
def plugin() -> ViewPlugin:
    return next(each for each in registry.plugins("zarrfs.views") if each.name == "bundle")


class TestConformance(ViewConformance):
    """See `ViewConformance`."""


async def store_of_groups() -> MemoryStore:
    """Return ``/a``, ``/g/half``, ``/g/sub/b``, ``/g/sub/scalar``, and ``/g/broken``, which cannot be read."""
    store = MemoryStore()
    values = {".zgroup": GROUP, "g/.zgroup": GROUP, "g/sub/.zgroup": GROUP, "g/.zattrs": b'{"title": "groups"}'}
    arrays = {"a": A, "g/half": HALF, "g/sub/b": B, "g/sub/scalar": SCALAR}
    for name, example in arrays.items():
        values |= example.values(name)
    await fill(store, values | {"g/broken/.zarray": b"{}", "g/sub/b/.zattrs": b'{"units": "m"}'})
    return store


async def opened(tree: MountTree, path: str) -> Handle:
    file = await walk(tree, path)
    assert isinstance(file, File)
    return await file.open(OpenFlags())


async def extent(tree: MountTree, path: str, array: str) -> tuple[int, int]:
    """Return the offset and size of an array's elements in the file at ``path``."""
    handle = await opened(tree, path)
    layout = handle.of
    await handle.release()
    assert isinstance(layout, GroupLayout)
    return next((each.offset, each.nbytes) for each in layout.layout.extents if getattr(each, "path", None) == array)


@trio_test
async def test_a_group_is_a_file_with_all_below_it() -> None:
    async with tree_over(await store_of_groups()) as tree:
        assert await names(tree, "bundle") == {"array.bundle", "g", "g.bundle"}
        assert await names(tree, "bundle/g") == {"sub", "sub.bundle", "broken.unsupported.txt"}
        assert await names(tree, "bundle/g/sub") == set()
        whole = loaded(await read(tree, "bundle/array.bundle"))
        assert list(whole) == ["/", "/a", "/g", "/g/broken", "/g/half", "/g/sub", "/g/sub/b", "/g/sub/scalar"]
        for path, example in (("/a", A), ("/g/half", HALF), ("/g/sub/b", B), ("/g/sub/scalar", SCALAR)):
            assert np.array_equal(whole[path][0], example.elements), path
        assert whole["/a"][0].dtype == ">i2" and whole["/g/half"][0].dtype == "<f4"
        assert whole["/g"] == {"title": "groups"} and whole["/g/sub/b"][1] == {"units": "m"}
        assert "zarr_format" in whole["/g/broken"]
        sub = loaded(await read(tree, "bundle/g/sub.bundle"))
        assert list(sub) == ["/g/sub", "/g/sub/b", "/g/sub/scalar"]


@trio_test
async def test_any_range_is_that_of_the_whole_file() -> None:
    async with tree_over(await store_of_groups()) as tree:
        whole = await read(tree, "bundle/array.bundle")
        handle = await opened(tree, "bundle/array.bundle")
        begin = whole.index(b"\n") - 3
        for offset in range(begin, len(whole) + 2):
            for size in (1, 3, 7, 50):
                assert bytes(await handle.read(offset, size)) == whole[offset : offset + size], (offset, size)
        await handle.release()


@trio_test
async def test_a_root_that_is_an_array_is_the_only_file() -> None:
    store = MemoryStore()
    await fill(store, {key.removeprefix("x/"): value for key, value in A.values("x").items()})
    async with tree_over(store) as tree:
        assert await names(tree, "bundle") == {"array.bundle"}
        assert np.array_equal(loaded(await read(tree, "bundle/array.bundle"))["/"][0], A.elements)


@trio_test
async def test_what_a_format_refuses_is_a_file_with_the_reason_and_its_groups_are_there() -> None:
    store = await store_of_groups()
    await fill(store, B.values("g/refused"))
    async with tree_over(store) as tree:
        assert await names(tree, "bundle") == {"array.bundle.unsupported.txt", "g", "g.bundle.unsupported.txt"}
        assert b"called refused" in await read(tree, "bundle/g.bundle.unsupported.txt")
        assert await names(tree, "bundle/g") == {"sub", "sub.bundle", "broken.unsupported.txt"}
        await tree.store.erase_prefix(Prefix("g/refused/"))
        assert await names(tree, "bundle") == {"array.bundle", "g", "g.bundle"}


@trio_test
async def test_more_nodes_than_a_format_allows_are_refused() -> None:
    before = Bundle.layouts
    store = await store_of_groups()
    for index in range(Bundle.most_nodes):
        await fill(store, {f"g/more/m{index:03}/.zgroup": GROUP})
    await fill(store, {"g/more/.zgroup": GROUP})
    async with tree_over(store) as tree:
        assert await names(tree, "bundle") == {"array.bundle.unsupported.txt", "g", "g.bundle.unsupported.txt"}
        assert b"/g has more than 60 nodes" in await read(tree, "bundle/g.bundle.unsupported.txt")
        assert "sub.bundle" in await names(tree, "bundle/g")
        assert Bundle.layouts - before < 70


@trio_test
async def test_attributes_of_any_size_are_refused_before_they_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_layouts, "MAX_KNOWN_NBYTES", 100_000)
    store = await store_of_groups()
    await fill(store, {"g/sub/.zattrs": json.dumps({"long": "x" * 200_000}).encode()})
    async with tree_over(store) as tree:
        assert "array.bundle.unsupported.txt" in await names(tree, "bundle")
        assert b"exceed 100000 bytes" in await read(tree, "bundle/array.bundle.unsupported.txt")
        await fill(store, {"g/sub/.zattrs": json.dumps({"long": "x" * 80_000}).encode()})
    async with tree_over(store) as tree:
        assert len(loaded(await read(tree, "bundle/array.bundle"))["/g/sub"]["long"]) == 80_000


# --- change -----------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_an_array_that_is_gone_makes_its_own_elements_stale_and_no_others() -> None:
    async with tree_over(await store_of_groups()) as tree:
        before = await read(tree, "bundle/array.bundle")
        handle = await opened(tree, "bundle/array.bundle")
        offset, size = await extent(tree, "bundle/array.bundle", "/g/half")
        # One of the two arrays was read before, the other was not.
        await handle.read(offset, size)
        await tree.store.erase_prefix(Prefix("g/half/"))
        await tree.store.erase_prefix(Prefix("a/"))
        fine = stale = 0
        for at in range(len(before)):
            try:
                assert bytes(await handle.read(at, 1)) == before[at : at + 1]
                fine += 1
            except StaleEntry:
                stale += 1
        assert stale == 4 * HALF.elements.size + 2 * A.elements.size
        assert fine == len(before) - stale
        await handle.release()
        again = loaded(await read(tree, "bundle/array.bundle"))
        assert "/a" not in again and np.array_equal(again["/g/sub/b"][0], B.elements)


@trio_test
@pytest.mark.parametrize("first", [True, False], ids=["read before", "not read before"])
@pytest.mark.parametrize("other", [Example((4, 5), (2, 3), "<i4"), Example((6, 5), (2, 3)), A], ids=["type", "shape", "equal"])
async def test_an_array_that_was_replaced_is_not_read_through_the_old_layout(first: bool, other: Example) -> None:
    async with tree_over(await store_of_groups()) as tree:
        handle = await opened(tree, "bundle/array.bundle")
        layout = handle.of
        offset, nbytes = await extent(tree, "bundle/array.bundle", "/a")
        if first:
            await handle.read(offset, nbytes)
        await tree.store.erase_prefix(Prefix("a/"))
        for key, value in other.values("a").items():
            await tree.store.set(Key(key), value)
        with pytest.raises(StaleEntry):
            await handle.read(offset, nbytes)
        await handle.release()
        file = await walk(tree, "bundle/array.bundle")
        assert isinstance(file, File)
        assert file.of is not layout
        assert np.array_equal(loaded(await read(tree, "bundle/array.bundle"))["/a"][0], other.elements)


@trio_test
@pytest.mark.parametrize("first", [True, False], ids=["read before", "not read before"])
async def test_an_open_file_follows_an_array_that_is_renamed(first: bool) -> None:
    async with tree_over(await store_of_groups()) as tree:
        before = await read(tree, "bundle/array.bundle")
        handle = await opened(tree, "bundle/array.bundle")
        if first:
            await handle.read(0, len(before))
        for view, name, new in (("npy/g", "half.npy", "third.npy"), ("zarr3/g", "sub", "below")):
            folder = await walk(tree, view)
            assert isinstance(folder, Directory)
            await folder.rename(name, folder, new)
        assert bytes(await handle.read(0, len(before))) == before
        await handle.release()
        assert {"/g/third", "/g/below/b"} < set(loaded(await read(tree, "bundle/array.bundle")))


@trio_test
async def test_elements_that_change_are_read_and_move_the_time() -> None:
    async with tree_over(await store_of_groups()) as tree:
        handle = await opened(tree, "bundle/array.bundle")
        before = (await (await walk(tree, "bundle/array.bundle")).attributes()).mtime_ns
        assert before is not None
        await tree.store.set(Key("a/0.0"), np.zeros(6, "<i2").tobytes())
        whole = bytes(await handle.read(0, 100_000))
        assert loaded(whole)["/a"][0][0, 0] == 0
        after = (await (await walk(tree, "bundle/array.bundle")).attributes()).mtime_ns
        assert after is not None and after > before
        await handle.release()


@trio_test
async def test_a_layout_is_rendered_again_only_after_a_change_of_a_document_in_it() -> None:
    async with tree_over(await store_of_groups(), metadata_ttl="100") as tree:
        before = Bundle.layouts
        await names(tree, "bundle")
        first = Bundle.layouts
        await read(tree, "bundle/array.bundle")
        await names(tree, "bundle")
        operations = tree.stats()["store_operations"]
        await walk(tree, "bundle/g.bundle")
        assert Bundle.layouts == first == before + 2
        assert tree.stats()["store_operations"] == operations
        await tree.store.set(Key("a/0.0"), bytes(12))
        await tree.store.set(Key("other/.zgroup"), GROUP)
        await names(tree, "bundle/other")
        await walk(tree, "bundle/g.bundle")
        assert Bundle.layouts == first
        # The files of the new group and of the root.
        await names(tree, "bundle")
        assert Bundle.layouts == first + 2


@trio_test
async def test_changes_by_other_programs_are_found_after_the_ttl() -> None:
    store = await store_of_groups()
    async with tree_over(store, metadata_ttl="0") as tree:
        assert "g.bundle" in await names(tree, "bundle")
        await store.set(Key("g/.zattrs"), b'{"title": "another"}')
        assert loaded(await read(tree, "bundle/g.bundle"))["/g"] == {"title": "another"}


@trio_test
async def test_many_arrays_stay_readable_with_few_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_file, "MAX_OPEN", 2)
    async with tree_over(await store_of_groups()) as tree:
        whole = await read(tree, "bundle/array.bundle")
        handle = await opened(tree, "bundle/array.bundle")
        found: dict[int, bytes] = {}

        async def some(offset: int) -> None:
            found[offset] = bytes(await handle.read(offset, 16))

        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for offset in range(0, len(whole), 8):
                    nursery.start_soon(some, offset)
            assert all(found[offset] == whole[offset : offset + 16] for offset in found)
        assert len(handle._arrays._open) <= 3  # type: ignore[attr-defined]
        await handle.release()
        assert not handle._arrays._open  # type: ignore[attr-defined]


@trio_test
async def test_nothing_can_be_written() -> None:
    async with tree_over(await store_of_groups()) as tree:
        folder = await walk(tree, "bundle")
        assert isinstance(folder, Directory)
        file = await walk(tree, "bundle/g.bundle")
        assert isinstance(file, File)
        attempts: list[Any] = [
            lambda: folder.create("x.bundle", OpenFlags(write=True)),
            lambda: folder.mkdir("x"),
            lambda: folder.unlink("g.bundle"),
            lambda: folder.rmdir("g"),
            lambda: file.open(OpenFlags(write=True)),
            lambda: file.truncate(0),
        ]
        for attempt in attempts:
            with pytest.raises(NotPermitted):
                await attempt()


@trio_test
async def test_names_of_files_make_room_for_folders_of_that_name() -> None:
    store = await store_of_groups()
    await fill(store, {"g.bundle/.zgroup": GROUP, "array.bundle/.zgroup": b'{"zarr_format": 2}'})
    async with tree_over(store) as tree:
        found = await names(tree, "bundle")
        assert {"g", "g.bundle", "g~1.bundle", "g.bundle.bundle", "array.bundle", "array.bundle.bundle"} <= found
        for name in found:
            await walk(tree, f"bundle/{name}")
        assert isinstance(await walk(tree, "bundle/g.bundle"), Directory)
