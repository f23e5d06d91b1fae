"""Consolidated copies in ``chunks/`` and ``zarr3/``: they show the nodes of the view, however outdated the stored copy is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.support.scenes import Scene, example
from tests.support.small_stores import array_document
from tests.support.stores import HangingStore, WaitingStore, contents, fill
from tests.support.trees import listing, read, tree_over, walk, write
from tests.support.zarr_python import everything, written
from zarrfs.buffers import Buffer
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import ContentInvalid, NoSuchEntry, StoreFull
from zarrfs.keys import Key, Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import SIZE_UNKNOWN, VfsNode
from zarrfs.views.nodes import shown_copies

DIALECTS = pytest.mark.parametrize("dialect", [2, 3])
COPY_KEY = {2: ".zmetadata", 3: "zarr.json"}
CHANGED = {
    2: ("g/a/.zattrs", {"units": "km"}),
    3: ("g/h/zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": {"n": 1}}),
}


@asynccontextmanager
async def over(values: dict[str, bytes], **options: Any) -> AsyncIterator[Scene]:
    store = MemoryStore()
    await fill(store, values)
    async with tree_over(store, **options) as tree:
        yield Scene(tree, store)


async def documents(tree: MountTree, view: str, path: str = "") -> dict[str, Any]:
    """Return the documents at and below a folder, as its copy should contain them."""
    found = {}
    for name, (_, is_directory, *_) in (await listing(tree, f"{view}/{path}")).items():
        if is_directory:
            found |= {f"{name}/{place}": document for place, document in (await documents(tree, view, f"{path}/{name}")).items()}
        elif name in (".zgroup", ".zattrs", ".zarray", "zarr.json"):
            found[name] = json.loads(await read(tree, f"{view}/{path}/{name}"))
            found[name].pop("consolidated_metadata", None)
    return found


async def copy_in(tree: MountTree, view: str, path: str = "") -> dict[str, Any]:
    name = ".zmetadata" if view == "chunks" else "zarr.json"
    document = json.loads(await read(tree, f"{view}/{path}/{name}"))
    if view == "chunks":
        return dict(document["metadata"])
    copy = document["consolidated_metadata"]
    assert copy.keys() == {"kind", "must_understand", "metadata"} and copy["kind"] == "inline" and copy["must_understand"] is False
    return {f"{place}/zarr.json": member for place, member in copy["metadata"].items()}


async def agrees(tree: MountTree, path: str = "") -> None:
    """Assert that both views show a copy at ``path`` that agrees with their documents."""
    assert await copy_in(tree, "chunks", path) == await documents(tree, "chunks", path)
    expected = await documents(tree, "zarr3", path)
    del expected["zarr.json"]
    assert await copy_in(tree, "zarr3", path) == expected


def gets(tree: MountTree) -> int:
    operations: Any = tree.stats()["store_operations"]
    return int(operations["get"] + operations["get_partial_values"] + operations["list_dir"])


@DIALECTS
@trio_test
async def test_it_is_what_the_documents_say_and_not_what_is_stored(dialect: int) -> None:
    values = written(dialect, example, consolidated=True)
    key, document = CHANGED[dialect]
    values[key] = json.dumps(document).encode()
    async with over(values) as s:
        await agrees(s.tree)
        changed = "g/a/zarr.json" if dialect == 2 else "g/h/zarr.json"
        attributes = document if dialect == 2 else document["attributes"]
        assert (await copy_in(s.tree, "zarr3"))[changed]["attributes"] == attributes
        assert await contents(s.store) == values
        with pytest.raises(NoSuchEntry):
            await read(s.tree, "chunks/g/.zmetadata")
        assert ".zmetadata" not in await s.names("g") and ".zmetadata" not in await s.names("b")


@DIALECTS
@trio_test
async def test_without_one_in_the_store_there_is_none(dialect: int) -> None:
    async with over(written(dialect, example)) as s:
        assert ".zmetadata" not in await s.names()
        assert "consolidated_metadata" not in json.loads(await read(s.tree, "zarr3/zarr.json"))
        with pytest.raises(NoSuchEntry):
            await s.read(".zmetadata")


@DIALECTS
@trio_test
async def test_a_group_below_the_root_may_have_one(dialect: int) -> None:
    values = {f"x/{key}": value for key, value in written(dialect, example, consolidated=True).items()}
    async with over(values) as s:
        await agrees(s.tree, "x")
        assert ".zmetadata" not in await s.names()
        before = await s.json("x/g/a/.zattrs")
        await s.write("x/g/a/.zattrs", before | {"more": 1})
        await agrees(s.tree, "x")
        inside = {key[2:]: value for key, value in (await contents(s.store)).items()}
        assert everything(inside)["g/a"][1]["more"] == 1
        assert everything(inside) == everything(inside, use_consolidated=False)
        # The copy is removed with its group.
        await s.remove("x")
        assert not [key for key in await contents(s.store) if key.startswith("x/")]


@DIALECTS
@trio_test
async def test_what_changes_is_in_it_at_once(dialect: int) -> None:
    async with over(written(dialect, example, consolidated=True), metadata_ttl="600") as s:
        await agrees(s.tree)
        await s.write("g/a/.zattrs", {"units": "km"})
        assert (await copy_in(s.tree, "chunks"))["g/a/.zattrs"]["units"] == "km"
        await agrees(s.tree)
        await s.mkdir("g/new")
        await s.names("g")
        await agrees(s.tree)
        await s.rename("g/a", "g/b")
        await agrees(s.tree)
        await s.remove("g")
        await agrees(s.tree)
        assert everything(await contents(s.store)).keys() == {"", "b"}


@DIALECTS
@trio_test
async def test_what_another_program_changes_is_in_it(dialect: int) -> None:
    async with over(written(dialect, example, consolidated=True), metadata_ttl="0") as s:
        await agrees(s.tree)
        key, document = CHANGED[dialect]
        await s.store.set(Key(key), json.dumps(document).encode())
        await agrees(s.tree)
        await s.store.erase_prefix(Prefix("b/"))
        await agrees(s.tree)
        assert not [place for place in await copy_in(s.tree, "zarr3") if place.startswith("b/")]


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@DIALECTS
@trio_test
async def test_what_changes_while_it_waits_for_that_of_another_group_is_in_it(dialect: int, view: str) -> None:
    values = written(dialect, example, consolidated=True)
    store = HangingStore(MemoryStore())
    await fill(store, values | {f"x/{key}": value for key, value in values.items()})
    name = ".zmetadata" if view == "chunks" else "zarr.json"
    async with tree_over(store) as tree:
        s = Scene(tree, store)
        files = [await walk(tree, f"{view}/{path}{name}") for path in ("x/", "")]
        store.hang("x/g/a/*")
        async with trio.open_nursery() as nursery:
            for file in files:
                nursery.start_soon(file.attributes)
                await trio.testing.wait_all_tasks_blocked()
            assert store.hanging
            await s.write(".zattrs", {"new": 1})
            store.answer()
        await agrees(tree)
        assert json.loads(await read(tree, "zarr3/zarr.json"))["attributes"] == {"new": 1}


@DIALECTS
@trio_test
async def test_a_node_that_cannot_be_used_is_left_out(dialect: int) -> None:
    values = written(dialect, example, consolidated=True)
    bad = {2: "g/a/.zarray", 3: "g/a/zarr.json"}[dialect]
    async with over(values | {bad: b"{"}) as s:
        await agrees(s.tree)
        assert not [place for place in await copy_in(s.tree, "chunks") if place.startswith("g/a/")]
        assert "a.unsupported.txt" in await s.names("g")


def many(root: Any) -> None:
    for number in range(50):
        root.create_group(f"g{number}/inside")


@trio_test
async def test_looking_up_other_names_does_not_make_it() -> None:
    for dialect in (2, 3):
        async with over(written(dialect, many, consolidated=True), metadata_ttl="600") as s:
            for view in ("chunks", "zarr3"):
                before = gets(s.tree)
                await walk(s.tree, f"{view}/g7/inside")
                assert gets(s.tree) - before < 20
                # Nor does listing; a request for the size renders the copy.
                name = ".zmetadata" if view == "chunks" else "zarr.json"
                folder: Any = await walk(s.tree, view)
                entries = {entry[0]: entry async for entry in folder.entries()}
                assert entries[name][2] == SIZE_UNKNOWN
                node: VfsNode = await folder.lookup(name)
                size = (await node.attributes()).size
                entries = {entry[0]: entry async for entry in folder.entries()}
                assert entries[name][2] == size == len(await read(s.tree, f"{view}/{name}"))
                # Known documents are not read again.
                before = gets(s.tree)
                await read(s.tree, f"{view}/{name}")
                assert gets(s.tree) == before


@pytest.mark.logs("consolidated copy not shown")
@trio_test
async def test_one_that_would_be_too_large_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_copies, "MAX_NBYTES", 500)
    async with over(written(3, example, consolidated=True)) as s:
        with pytest.raises(NoSuchEntry):
            await s.read(".zmetadata")
        assert ".zmetadata" not in await s.names()
        assert "consolidated_metadata" not in json.loads(await read(s.tree, "zarr3/zarr.json"))


@DIALECTS
@trio_test
async def test_one_with_thousands_of_arrays_is_written_as_others(dialect: int) -> None:
    """Its documents counted as members that have to be parsed, of which a document has at most 1 MiB."""
    async with over(written(dialect, example, consolidated=True), metadata_ttl="60") as s:
        attributes = {"units": "K", "history": "x" * 600_000}
        for path in ("zarr3/g/zarr.json", "zarr3/g/a/zarr.json"):
            document = json.loads(await read(s.tree, path))
            await write(s.tree, path, json.dumps(document | {"attributes": attributes}).encode())
            # Compared with the present one.
            await write(s.tree, path, json.dumps(document | {"attributes": attributes}, indent=1).encode())
        root = json.loads(await read(s.tree, "zarr3/zarr.json"))
        assert root["consolidated_metadata"]["metadata"]["g/a"]["attributes"] == attributes
        await write(s.tree, "zarr3/zarr.json", json.dumps(root | {"attributes": {"title": "new"}}).encode())
        assert json.loads(await read(s.tree, "zarr3/zarr.json")) == root | {"attributes": {"title": "new"}}
        large = root | {"attributes": {"history": ["x" * 1000] * 1200}}
        await write(s.tree, "zarr3/zarr.json", json.dumps(large).encode())
        assert json.loads(await read(s.tree, "zarr3/zarr.json")) == large


@DIALECTS
@trio_test
async def test_its_time_is_that_of_the_newest_document(dialect: int) -> None:
    async with over(written(dialect, example, consolidated=True)) as s:
        before = (await (await walk(s.tree, "chunks/.zmetadata")).attributes()).mtime_ns
        await trio.lowlevel.checkpoint()
        await s.write("g/a/.zattrs", {"units": "km"})
        changed = "chunks/g/a/.zattrs" if dialect == 2 else "chunks/.zgroup"
        newest = (await (await walk(s.tree, changed)).attributes()).mtime_ns
        assert before is not None and newest is not None and newest > before
        assert (await (await walk(s.tree, "chunks/.zmetadata")).attributes()).mtime_ns == newest


@pytest.mark.parametrize("told", [False, True])
def test_where_every_change_is_told_it_counts_until_there_is_one(told: bool) -> None:
    clock = MockClock()

    async def main() -> None:
        async with over(written(2, many, consolidated=True), metadata_ttl="10") as s:
            s.tree.watched = told
            await s.read(".zmetadata")
            before = gets(s.tree)
            await s.read(".zmetadata")
            assert gets(s.tree) == before
            clock.jump(100)
            await s.read(".zmetadata")
            # Opening the file checks its group in any case.
            assert (gets(s.tree) - before < 20) == told
            await s.write("g7/.zattrs", {"units": "km"})
            await agrees(s.tree)

    trio.run(main, clock=clock)


# --- written ----------------------------------------------------------------------------------------------------------------------


@DIALECTS
@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@trio_test
async def test_one_that_is_written_is_stored_and_kept(dialect: int, view: str) -> None:
    async with over(written(dialect, example), metadata_ttl="600") as s:
        s.view = view
        if view == "chunks":
            text: dict[str, Any] = {"zarr_consolidated_format": 1, "metadata": {"stale/.zgroup": {"zarr_format": 2}}}
            await s.write(".zmetadata", text)
        else:
            root = await s.json("zarr.json")
            await s.write(
                "zarr.json", root | {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {}}}
            )
        await agrees(s.tree)
        assert COPY_KEY[dialect] in await contents(s.store)
        assert await s.stored() == everything(await contents(s.store), use_consolidated=False)
        s.view = "chunks"
        await s.write("g/a/.zattrs", {"units": "km"})
        assert (await s.stored())["g/a"][1]["units"] == "km"
    if dialect == 3:
        assert "consolidated_metadata" in json.loads((await contents(s.store))["zarr.json"])


@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@trio_test
async def test_one_that_comes_before_its_arrays_is_stored_when_they_are_there(view: str) -> None:
    source = written(2 if view == "chunks" else 3, example, consolidated=True)
    async with over(written(3, lambda root: None)) as s:
        s.view = view
        for folder in ("g", "g/a", "b", "g/h"):
            await s.mkdir(folder)
        metadata = {key: value for key, value in source.items() if key.rpartition("/")[2].startswith((".z", "zarr.json"))}
        for number, key in enumerate(sorted(metadata, key=lambda key: (key.count("/"), key != ".zmetadata"))):
            data = json.loads(metadata[key])
            if key.endswith(".zarray"):
                data |= {"compressor": None}
            await s.write(key, data)
            if not number:
                # This mount shows the copy from here on.
                await copy_in(s.tree, view)
                assert b"consolidated_metadata" not in (await contents(s.store))["zarr.json"]
        await agrees(s.tree)
        assert b"consolidated_metadata" in (await contents(s.store))["zarr.json"]
        assert (await s.stored()).keys() == {"", "g", "g/a", "g/h", "b"}


@trio_test
async def test_a_layout_without_any_shows_one_while_it_is_mounted() -> None:
    store = MemoryStore()
    async with tree_over(store, new_dialect="v1") as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write("a/.zarray", array_document((4,), (2,), "<i4"))
        assert "a/meta" in await contents(store)
        before = await contents(store)
        await s.write(".zmetadata", {"zarr_consolidated_format": 1, "metadata": {}})
        await agrees_in_chunks(tree)
        assert await contents(store) == before
    async with tree_over(store) as tree:
        assert ".zmetadata" not in await Scene(tree, store).names()


async def agrees_in_chunks(tree: MountTree) -> None:
    assert await copy_in(tree, "chunks") == await documents(tree, "chunks")


@pytest.mark.logs("write failed, data lost")
@trio_test
async def test_one_that_is_no_copy_is_refused() -> None:
    async with over(written(2, example)) as s:
        for data in (b"", b"[]", b'{"zarr_consolidated_format": 2, "metadata": {}}', b'{"zarr_consolidated_format": 1}'):
            with pytest.raises(ContentInvalid):
                await s.write(".zmetadata", data)
        assert ".zmetadata" not in await s.names()


@DIALECTS
@trio_test
async def test_one_that_is_removed_comes_back_when_it_is_written(dialect: int) -> None:
    async with over(written(dialect, example, consolidated=True)) as s:
        before = await contents(s.store)
        copy = await s.read(".zmetadata")
        await s.unlink(".zmetadata")
        assert ".zmetadata" not in await s.names()
        await s.write("g/a/.zattrs", {"units": "km"})
        assert ".zmetadata" not in await s.names()
        await s.write("g/a/.zattrs", {"units": "m", "_ARRAY_DIMENSIONS": ["y", "x"]} if dialect == 3 else {"units": "m"})
        assert (await contents(s.store)).keys() == before.keys()
        await s.write(".zmetadata", copy)
        await agrees(s.tree)


@trio_test
async def test_one_that_is_written_reads_back_as_it_was_while_it_says_the_same() -> None:
    async with over(written(2, example, consolidated=True)) as s:
        spelled = json.dumps(await s.json(".zmetadata"), separators=(",", ":")).encode()
        await s.write(".zmetadata", spelled)
        await (await walk(s.tree, "chunks/.zmetadata")).set_mtime(1_000_000_000)
        assert await s.read(".zmetadata") == spelled
        assert (await (await walk(s.tree, "chunks/.zmetadata")).attributes()).mtime_ns == 1_000_000_000
        await s.write("g/a/.zattrs", {"units": "km"})
        assert await s.read(".zmetadata") != spelled
        await agrees(s.tree)


@trio_test
async def test_two_that_wait_for_one_array_do_not_fail_it_if_a_node_is_renamed_meanwhile() -> None:
    store = WaitingStore(MemoryStore())
    await fill(store, written(3, lambda root: root.create_group("h")))
    source = written(3, lambda root: root.create_array("g/a", shape=(4,), chunks=(2,), dtype="i4"))
    array = json.loads(source["g/a/zarr.json"])
    group: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}

    def naming(path: str) -> dict[str, Any]:
        return group | {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {path: array}}}

    async with tree_over(store) as tree:
        s = Scene(tree, store, "zarr3")
        await s.mkdir("g")
        await s.mkdir("g/a")
        await s.write("g/zarr.json", naming("a"))
        await s.write("zarr.json", naming("g/a"))
        store.waits.add("set")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(s.write, "g/a/zarr.json", array)
            await trio.testing.wait_all_tasks_blocked()
            root = await s.folder("")
            nursery.start_soon(root.rename, "h", root, "i")
            await trio.testing.wait_all_tasks_blocked()
            store.let_go()
        assert await s.names("g") == {"a", "zarr.json"} and await s.names() == {"g", "i", "zarr.json"}
        stored = await contents(store)
        assert all(b"consolidated_metadata" in stored[key] for key in ("zarr.json", "g/zarr.json"))


class _Full(ForwardingStore):
    """A store without room for values under the key ``full``."""

    full = ""

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if key == self.full:
            raise StoreFull("no room")
        return await super().set(key, value, expect=expect)


@pytest.mark.logs("write failed, data lost")
@trio_test
async def test_one_that_waits_for_an_array_and_cannot_be_stored_is_an_error_for_the_array_and_tried_again() -> None:
    """It was a line in the log: a copy that a program had written was in no store, and no program was told."""
    store, array = _Full(MemoryStore()), array_document((4,), (2,), "<i4")
    copy = {"zarr_consolidated_format": 1, "metadata": {".zgroup": {"zarr_format": 2}, "a/.zarray": json.loads(array)}}
    async with tree_over(store, new_dialect="v2") as tree:
        s = Scene(tree, store)
        await s.mkdir("a")
        await s.write(".zmetadata", copy)
        store.full = ".zmetadata"
        with pytest.raises(StoreFull):
            await s.write("a/.zarray", array)
        # The array is there, as with a copy that cannot be updated.
        assert "a/.zarray" in await contents(store) and ".zmetadata" not in await contents(store)
        store.full = ""
        await s.write("a/.zarray", array)
        assert "a/.zarray" in json.loads((await contents(store))[".zmetadata"])["metadata"]
        await agrees_in_chunks(tree)
