"""Requirements on every view; ``test_conformance.py`` runs them over all registered views.

Each view shows a store in its own way: the content of its files is not judged here, only that they can be found, listed and read,
follow the store, and can be the root of a mount.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import trio_test

from tests.support.arrays import FILL, Example
from tests.support.stores import fill
from tests.support.trees import every_file, listing, names, read, tree_over, walk
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NoSuchEntry
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory
from zarrfs.views.base import ViewPlugin

BROKEN = b'{"zarr_format": 2, "shape": "none"}'


async def store_of_everything() -> MemoryStore:
    """Return arrays in groups, one with a missing chunk, one without dimensions, an unreadable one, and a key outside any node."""
    store = MemoryStore()
    values: dict[str, bytes] = {".zgroup": b'{"zarr_format": 2}', "g/.zgroup": b'{"zarr_format": 2}', "notes.txt": b"a key"}
    for name, example in {
        "a": Example((4, 5), (2, 3), missing=frozenset({(1, 1)})),
        "g/b": Example((3,), (3,), "|u1"),
        "g/scalar": Example((), (), "<f8"),
    }.items():
        values |= example.values(name)
    await fill(store, values | {"g/broken/.zarray": BROKEN})
    return store


class ViewConformance:
    """The suite. ``plugin`` is parametrised by the module that collects it."""

    def test_its_name_is_a_folder_and_what_it_says_are_lines(self, plugin: ViewPlugin) -> None:
        assert re.fullmatch(r"[a-z][a-z0-9_-]*", plugin.name)
        for line in (plugin.about, *plugin.notes, *(plugin.example or ())):
            assert line.strip() == line and line and line.isprintable()

    @trio_test
    async def test_the_readme_tells_of_it(self, plugin: ViewPlugin) -> None:
        async with shown(plugin, await store_of_everything()) as tree:
            text = (await read(tree, "README.txt")).decode()
            for line in (f"{plugin.name}/", plugin.about, *plugin.notes, *(plugin.example or ())):
                assert line in text

    @trio_test
    async def test_what_is_listed_is_found_and_read(self, plugin: ViewPlugin) -> None:
        async with shown(plugin, await store_of_everything()) as tree:
            found = await contents(tree, plugin.name)
            assert found
            for path in {path.rpartition("/")[0] for path in found}:
                await listing(tree, path)

    @trio_test
    async def test_what_is_not_there_is_not_found(self, plugin: ViewPlugin) -> None:
        async with shown(plugin, await store_of_everything()) as tree:
            folder = await walk(tree, plugin.name)
            assert isinstance(folder, Directory)
            for name in ("nothing", ".", "..", "a" * 300, "a%", "%2e", "a~2", "\u00e9", ".zarrfs", "x.unsupported.txt"):
                with pytest.raises(NoSuchEntry):
                    await folder.lookup(name)

    @trio_test
    async def test_a_node_that_cannot_be_read_hides_no_other(self, plugin: ViewPlugin) -> None:
        store = await store_of_everything()
        async with shown(plugin, store) as tree:
            with_it = await contents(tree, plugin.name)
        await store.erase(Key("g/broken/.zarray"))
        async with shown(plugin, store) as tree:
            without = await contents(tree, plugin.name)
        assert without.keys() <= with_it.keys()
        # A file of several nodes may contain the name of the broken one.
        assert all(with_it[path] == data or b"broken" in with_it[path] for path, data in without.items())

    @trio_test
    async def test_it_follows_what_is_changed_through_the_mount(self, plugin: ViewPlugin) -> None:
        """After each change the tree shows the same as a new tree."""
        store = await store_of_everything()
        more = Example((2,), (2,)).values("more")
        async with shown(plugin, store) as tree:
            await contents(tree, plugin.name)
            changes: list[tuple[str, bytes | None]] = [
                ("a/0.0", bytes([FILL, 0] * 6)),
                ("a/1.1", bytes(12)),
                ("g/.zattrs", b'{"said": 1}'),
                *more.items(),
                ("g/b/0", None),
                ("g/scalar/.zarray", None),
            ]
            for key, value in changes:
                await (tree.store.erase(Key(key)) if value is None else tree.store.set(Key(key), value))
                after = await contents(tree, plugin.name)
                async with shown(plugin, store) as fresh:
                    assert after == await contents(fresh, plugin.name), key

    @trio_test
    async def test_an_empty_store_is_shown(self, plugin: ViewPlugin) -> None:
        async with shown(plugin, MemoryStore()) as tree:
            await contents(tree, plugin.name)

    @trio_test
    async def test_it_can_be_the_root_of_a_mount(self, plugin: ViewPlugin) -> None:
        store = await store_of_everything()
        async with shown(plugin, store) as tree:
            expected = await names(tree, plugin.name)
        async with tree_over(store, view=plugin.name) as tree:
            assert await names(tree) - {".zarrfs"} == expected

    @trio_test
    async def test_nothing_is_writable_where_nothing_can_be_written(self, plugin: ViewPlugin) -> None:
        async with shown(plugin, await store_of_everything(), read_only="true") as tree:
            async for path in every_file(tree, plugin.name):
                assert not (await (await walk(tree, path)).attributes()).writable


@asynccontextmanager
async def shown(plugin: ViewPlugin, store: MemoryStore, **options: str) -> AsyncIterator[MountTree]:
    """Yield a mount with the view alone."""
    async with tree_over(store, views=plugin.name, **options) as tree:
        yield tree


async def contents(tree: MountTree, path: str) -> dict[str, bytes]:
    """Return every file by its path."""
    return {each: await read(tree, each) async for each in every_file(tree, path)}
