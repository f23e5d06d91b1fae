"""Arrays that are erased or renamed over: a failure or a kill leaves no part of them behind."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import trio_test

from tests.hierarchy.test_several_steps import CASES, OLD, STORES, Case, Faulty, Killed, _expect, _folder, _options, _prepare, npy
from tests.support.trees import load, names, read, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NoSuchEntry, StoreFull
from zarrfs.keys import Prefix
from zarrfs.vfs.node import Directory

REPLACE, ERASE, RENAME_OVER = CASES[1], CASES[2], CASES[4]


def values_of_a(store: Path) -> set[str]:
    """Return the keys of the array ``g/a``: its document, and its chunks."""
    return {each.name for each in store.rglob("*") if each.is_file() and "/g/a" in str(each.relative_to(store))}


async def _killed(case: Case, path: Path, dialect: str, at: int, kind: str = "exchange") -> None:
    """Run the operation of ``case`` on the store at ``path``, in a process that is killed at its step ``at``."""
    store = Faulty(path, STORES[kind])
    store.at, store.kills = at, True
    with suppress(Killed, BaseExceptionGroup):
        async with tree_over(store, f"file:{path}", **_options(dialect)) as tree:
            await case.does(tree)
    store.end_process()
    await store.inner.aclose()


@pytest.mark.logs("")
@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022"])
def test_chunks_are_erased_with_the_document(dialect: str, kills: bool, tmp_path: Path) -> None:
    """They stayed, without a document, where nobody could remove them."""
    trio.run(_prepare, ERASE, dialect, tmp_path / "before")
    whole = values_of_a(tmp_path / "before")

    async def attempt(at: int) -> None:
        path, url, options = tmp_path / "store", f"file:{tmp_path / 'store'}", _options(dialect)
        store = Faulty(path, STORES["exchange"])
        store.at, store.kills = at, kills
        has_failed = False
        with suppress(Killed, BaseExceptionGroup):
            async with tree_over(store, url, **options) as tree:
                try:
                    await ERASE.does(tree)
                except StoreFull:
                    has_failed = True
        store.end_process()
        await store.inner.aclose()
        if not kills:
            assert values_of_a(path) == (whole if has_failed else set()), at
        store = Faulty(path, STORES["exchange"])
        async with tree_over(store, url, **options) as tree:
            await tree.recover()
            await _expect(tree, ERASE, False, f"operation {at}")
        await store.aclose()
        assert values_of_a(path) in (whole, set()), at
        assert not (path / ".zarrfs").exists()

    for at in range(12):
        shutil.copytree(tmp_path / "before", tmp_path / "store")
        trio.run(attempt, at)
        shutil.rmtree(tmp_path / "store")


@pytest.mark.logs("")
@pytest.mark.parametrize("with_document", [False, True])
@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022"])
def test_what_another_program_stores_after_the_kill_stays(dialect: str, with_document: bool, tmp_path: Path) -> None:
    """Its array's document may come after the chunks, and after the next mount has erased what the kill left."""
    before = tmp_path / "before"
    trio.run(_prepare, ERASE, dialect, before)
    (document,) = (each.relative_to(before) for each in before.glob("meta/**/a.array*"))
    some_chunk = next(each.relative_to(before) for each in before.glob("data/**/g/a/**/*") if each.is_file())
    kept = {some_chunk, document} if with_document else {some_chunk}
    was_erased = []

    async def attempt(at: int) -> None:
        path, url, options = tmp_path / "store", f"file:{tmp_path / 'store'}", _options(dialect)
        await _killed(ERASE, path, dialect, at)
        if (path / document).exists() or not list(path.glob(".zarrfs/*/intent.json")):
            return
        was_erased.append(at)
        for each in kept:
            (path / each).parent.mkdir(parents=True, exist_ok=True)
            (path / each).write_bytes((before / each).read_bytes())
        store = Faulty(path, STORES["exchange"])
        async with tree_over(store, url, **options) as tree:
            await tree.recover()
        await store.aclose()
        found = {each.relative_to(path) for each in path.rglob("*") if each.is_file() and "/g/a" in str(each)}
        assert found >= kept, at
        assert with_document or found == kept, at
        assert not (path / ".zarrfs").exists()

    for at in range(12):
        shutil.copytree(before, tmp_path / "store")
        trio.run(attempt, at)
        shutil.rmtree(tmp_path / "store")
    assert was_erased


@pytest.mark.logs("")
def test_a_rename_over_an_array_that_took_effect_is_no_failure(tmp_path: Path) -> None:
    """The last step only puts aside what was replaced: its error was returned for a rename that could not be repeated."""

    async def attempt(at: int) -> None:
        store = Faulty(tmp_path / "store", STORES["exchange"])
        store.at = at
        async with tree_over(store, f"file:{tmp_path / 'store'}", **_options("v3")) as tree:
            with suppress(StoreFull):
                await RENAME_OVER.does(tree)
                assert await names(tree, "npy/g") == {"b.npy"}
                return
            assert await names(tree, "npy/g") == {"a.npy", "b.npy"}, at
            np.testing.assert_array_equal(await load(tree, "npy/g/b.npy"), RENAME_OVER.before["b.npy"])

    trio.run(_prepare, RENAME_OVER, "v3", tmp_path / "before")
    for at in range(12):
        shutil.copytree(tmp_path / "before", tmp_path / "store")
        trio.run(attempt, at)
        shutil.rmtree(tmp_path / "store")


@pytest.mark.logs("")
def test_an_array_that_was_renamed_over_does_not_return_when_its_successor_is_removed_before_the_next_mount(tmp_path: Path) -> None:
    """The kill was between the renames and the removal of what was replaced."""

    async def attempt(at: int) -> bool:
        path, url, options = tmp_path / "store", f"file:{tmp_path / 'store'}", _options("v3")
        await _killed(RENAME_OVER, path, "v3", at)
        is_renamed = not (path / "g/a").exists()
        if is_renamed:
            shutil.rmtree(path / "g/b")
        store = Faulty(path, STORES["exchange"])
        async with tree_over(store, url, **options) as tree:
            await tree.recover()
            assert await names(tree, "npy/g") == (set() if is_renamed else {"a.npy", "b.npy"}), at
        await store.aclose()
        return is_renamed

    trio.run(_prepare, RENAME_OVER, "v3", tmp_path / "before")
    renamed = []
    for at in range(12):
        shutil.copytree(tmp_path / "before", tmp_path / "store")
        renamed.append(trio.run(attempt, at))
        shutil.rmtree(tmp_path / "store")
    assert {*renamed} == {False, True}


class Moved(Faulty):
    """A folder in which another program moves the array ``g/a`` just before it is renamed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, STORES["exchange"])
        self.path = trio.Path(path)

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        if old == "g/a/":
            await (self.path / "g/a").rename(self.path / "g/elsewhere")
        return await super().rename_prefix(old, new)


@trio_test
async def test_an_array_stays_if_another_program_moves_the_one_to_be_renamed_over_it(tmp_path: Path) -> None:
    await _prepare(RENAME_OVER, "v3", tmp_path / "store")
    store = Moved(tmp_path / "store")
    async with tree_over(store, f"file:{tmp_path / 'store'}", **_options("v3")) as tree:
        with pytest.raises(NoSuchEntry, match="moved or removed by another program"):
            await RENAME_OVER.does(tree)
        assert await names(tree, "npy/g") == {"b.npy", "elsewhere.npy"}
        np.testing.assert_array_equal(await load(tree, "npy/g/b.npy"), RENAME_OVER.before["b.npy"])
    await store.aclose()
    assert not (tmp_path / "store/.zarrfs").exists()


class Watched(Faulty):
    """A folder that has no room to put aside what was replaced; ``looks`` is set when the end of the operation looks for it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, STORES["exchange"])
        self.looks, self.goes_on = trio.Event(), trio.Event()
        self.looked = -1

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        if new.endswith("/gone/"):
            self.looked = 0
            raise StoreFull("no room")
        return await super().rename_prefix(old, new)

    async def prefix_exists(self, prefix: Prefix) -> bool:
        is_there = await super().prefix_exists(prefix)
        if self.looked >= 0 and prefix.endswith("/old/"):
            self.looked += 1
            if self.looked == 2:
                self.looks.set()
                await self.goes_on.wait()
        return is_there


@pytest.mark.logs("")
def test_what_was_renamed_over_does_not_return_when_the_new_array_moves_on_at_once(tmp_path: Path) -> None:
    """It was put back where it had been, as if the rename over it had not taken effect."""

    async def attempt() -> None:
        store = Watched(tmp_path / "store")
        async with tree_over(store, f"file:{tmp_path / 'store'}", **_options("v3")) as tree:

            async def rename_over() -> None:
                await RENAME_OVER.does(tree)
                store.looks.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(rename_over)
                await store.looks.wait()
                folder = await _folder(tree)
                await folder.rename("b.npy", folder, "c.npy")
                store.goes_on.set()
            assert await names(tree, "npy/g") == {"c.npy"}
            np.testing.assert_array_equal(await load(tree, "npy/g/c.npy"), OLD)
        await store.aclose()

    trio.run(_prepare, RENAME_OVER, "v3", tmp_path / "store")
    trio.run(attempt)


@pytest.mark.logs("")
@pytest.mark.parametrize("had_nodes", [False, True])
@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022", "v3_2022:text"])
def test_an_empty_group_whose_removal_is_killed_has_its_attributes_or_is_gone(
    dialect: str, had_nodes: bool, tmp_path: Path
) -> None:
    """Its folders stayed without its document, so that it was a group without attributes."""

    async def prepare() -> None:
        await _prepare(ERASE, dialect, tmp_path / "before")
        store = Faulty(tmp_path / "before", STORES["exchange"])
        async with tree_over(store, f"file:{tmp_path / 'before'}", **_options(dialect)) as tree:
            await (await _folder(tree)).mkdir("e")
            await write(tree, "chunks/g/e/.zattrs", b'{"title": "measured"}')
            if had_nodes:
                await write(tree, "npy/g/e/a.npy", npy(OLD))
                folder = await walk(tree, "npy/g/e")
                assert isinstance(folder, Directory)
                await folder.unlink("a.npy")
        await store.aclose()

    async def remove(tree: MountTree) -> None:
        await (await _folder(tree)).rmdir("e")

    async def attempt(at: int) -> set[bytes]:
        path, url = tmp_path / "store", f"file:{tmp_path / 'store'}"
        await _killed(Case("rmdir", remove, {}, {}), path, dialect, at)
        store = Faulty(path, STORES["exchange"])
        async with tree_over(store, url, **_options(dialect)) as tree:
            await tree.recover()
            is_there = "e" in await names(tree, "npy/g")
            found = {await read(tree, "chunks/g/e/.zattrs")} if is_there else set()
        await store.aclose()
        assert not (path / ".zarrfs").exists(), at
        return found

    trio.run(prepare)
    found = []
    for at in range(12):
        shutil.copytree(tmp_path / "before", tmp_path / "store")
        found.append(trio.run(attempt, at))
        shutil.rmtree(tmp_path / "store")
    assert all(b"measured" in text for texts in found for text in texts), found
    assert {*map(bool, found)} == {False, True}


@pytest.mark.logs("")
@pytest.mark.parametrize("dialect", ["v3", "v3_2022"])
def test_an_array_that_others_remove_before_it_is_replaced_by_copying_does_not_return(dialect: str, tmp_path: Path) -> None:
    """The kill was between the record and the erasure of its documents: the next mount stored the new array after the removal."""

    async def attempt(at: int) -> bool:
        path, url = tmp_path / "store", f"file:{tmp_path / 'store'}"
        await _killed(REPLACE, path, dialect, at, "elsewhere")
        documents = list(path.glob("g/a/zarr.json")) + list(path.glob("meta/**/a.array.json"))
        is_removed = bool(documents) and bool(list(path.glob(".zarrfs/*/intent.json")))
        if is_removed:
            for document in documents:
                document.unlink()
            shutil.rmtree(path / "g/a" if dialect == "v3" else path / "data/root/g/a")
        store = Faulty(path, STORES["elsewhere"])
        async with tree_over(store, url, **_options(dialect)) as tree:
            await tree.recover()
            assert await names(tree, "npy/g") == (set() if is_removed else {"a.npy"}), at
        await store.aclose()
        return is_removed

    trio.run(_prepare, REPLACE, dialect, tmp_path / "before")
    removed = []
    for at in range(12):
        shutil.copytree(tmp_path / "before", tmp_path / "store")
        removed.append(trio.run(attempt, at))
        shutil.rmtree(tmp_path / "store")
    assert {*removed} == {False, True}
