"""Operations in several steps: a failure or a kill at any store operation leaves the old or the new state.

Every operation of the store is failed once, and killed once, before and after it took effect; then the store is mounted again.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import trio

from tests.support.trees import load, names, tree_over, walk, write
from zarrfs.buffers import Buffer
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import AcrossViews, StoreFull, StoreUnsupported, ZarrfsError
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.records import Record
from zarrfs.keys import APART, ROOT, Key, NodePath, Prefix
from zarrfs.model.metadata import GroupNode
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import Directory

OLD, NEW, OTHER = np.arange(1, 17, dtype="<i4").reshape(4, 4), np.arange(1.0, 10.0).reshape(3, 3), np.full(5, 7, "<i2")
DIALECTS = ("v0", "v2", "v3", "v3_2019", "v3_2022")
# The documents of all nodes but the root are in a consolidated copy alone.
COPIED = ("v2 copy", "v3 copy", "v3_2022 copy")


class Killed(BaseException):
    """The process has ended: none of its later operations reaches the store."""


class Kind(NamedTuple):
    """Capabilities of a store. ``is_in_parts``: all nodes are on another file system than data stored apart."""

    exchanges: bool
    renames: bool
    is_in_parts: bool


class Faulty(ForwardingStore):
    """A folder whose changing operation number ``at`` fails, or is the last of its process. ``late``: after it took effect."""

    def __init__(self, path: Path, kind: Kind) -> None:
        super().__init__(FolderStore(str(path)))
        exchanges, renames, self.is_in_parts = kind
        self.exchanges = exchanges
        self.capabilities = replace(self.capabilities, rename=renames)
        self.count = 0
        self.at = -1
        self.kills = self.late = False
        self.is_dead = False

    def end_process(self) -> None:
        """Release the locks as the kernel does for a process that has ended. The descriptors are left open for their owners to close."""
        assert isinstance(self.inner, FolderStore)
        for held in self.inner._folder_locks._held.values():
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), held.fd)

    async def _changing(self, operation: Callable[[], Awaitable[Any]]) -> Any:
        if self.is_dead:
            raise Killed
        self.count += 1
        if self.count - 1 != self.at:
            return await operation()
        if self.late:
            await operation()
        if self.kills:
            self.is_dead = True
            raise Killed
        raise StoreFull("no room")

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        result: Generation = await self._changing(lambda: self.inner.set(key, value, expect=expect))
        return result

    copy = Store.copy

    async def erase(self, key: Key) -> None:
        await self._changing(lambda: self.inner.erase(key))

    async def erase_values(self, keys: Any) -> None:
        await self._changing(lambda: self.inner.erase_values(keys))

    async def erase_prefix(self, prefix: Prefix) -> None:
        await self._changing(lambda: self.inner.erase_prefix(prefix))

    async def rename(self, old: Key, new: Key) -> bool:
        return bool(await self._changing(lambda: self.inner.rename(old, new)))

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        if not self.capabilities.rename or self._is_elsewhere(old, new):
            raise StoreUnsupported("renaming")
        return bool(await self._changing(lambda: self.inner.rename_prefix(old, new)))

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        if not (self.exchanges and self.capabilities.rename) or self._is_elsewhere(one, other):
            raise StoreUnsupported("exchanging")
        await self._changing(lambda: self.inner.exchange_prefixes(one, other))

    def _is_elsewhere(self, one: Prefix, other: Prefix) -> bool:
        return self.is_in_parts and one.startswith(APART) != other.startswith(APART)

    async def make_prefix(self, prefix: Prefix) -> None:
        await self._changing(lambda: self.inner.make_prefix(prefix))

    async def remove_prefix(self, prefix: Prefix) -> None:
        await self._changing(lambda: self.inner.remove_prefix(prefix))


@dataclass(frozen=True)
class Case:
    """An operation ``does``; the arrays are ``before`` or ``after``, by the names of their files."""

    name: str
    does: Callable[[MountTree], Awaitable[None]]
    before: dict[str, np.ndarray[Any, Any]]
    after: dict[str, np.ndarray[Any, Any]]


async def _new(tree: MountTree) -> None:
    await write(tree, "npy/g/n.npy", npy(NEW))


async def _replace(tree: MountTree) -> None:
    await write(tree, "npy/g/a.npy", npy(NEW))


async def _erase(tree: MountTree) -> None:
    await (await _folder(tree)).unlink("a.npy")


async def _rename_over(tree: MountTree) -> None:
    await (await _folder(tree)).rename("a.npy", await _folder(tree), "b.npy")


async def _rename(tree: MountTree) -> None:
    await (await _folder(tree)).rename("a.npy", await _folder(tree), "n.npy")


CASES = (
    Case("new", _new, {}, {"n.npy": NEW}),
    Case("replace", _replace, {"a.npy": OLD}, {"a.npy": NEW}),
    Case("erase", _erase, {"a.npy": OLD, "b.npy": OTHER}, {"b.npy": OTHER}),
    Case("rename", _rename, {"a.npy": OLD, "b.npy": OTHER}, {"n.npy": OLD, "b.npy": OTHER}),
    Case("rename over", _rename_over, {"a.npy": OLD, "b.npy": OTHER}, {"b.npy": OLD}),
)
STORES: dict[str, Kind] = {
    "exchange": Kind(True, True, False),
    "rename": Kind(False, True, False),
    "no rename": Kind(False, False, False),
    "elsewhere": Kind(True, True, True),
}


def _sample() -> list[object]:
    """Return every operation on every kind of store, in one layout; the other layouts are for longer runs."""

    def marks(case: Case, kind: str, dialect: str) -> list[pytest.MarkDecorator]:
        if dialect == "v3" or (dialect in COPIED and kind == "exchange"):
            return []
        if case.name.startswith("rename") and kind == "exchange" and dialect in ("v3_2019", "v3_2022"):
            return []
        return [pytest.mark.full_length if (case.name, kind, dialect) == ("replace", "exchange", "v3_2022") else pytest.mark.soak]

    return [
        pytest.param(case, kind, dialect, id=f"{case.name}-{kind}-{dialect}", marks=marks(case, kind, dialect))
        for case in CASES
        for kind in STORES
        for dialect in (*DIALECTS, *COPIED)
        if not (case.name.startswith("rename") and kind in ("no rename", "elsewhere"))
        # A group without members that is in a copy alone is not shown.
        if (case.name, dialect) != ("new", "v3_2022 copy")
        # A rename in one step.
        if case.name != "rename" or dialect in ("v3_2019", "v3_2022", *COPIED)
    ]


@pytest.mark.logs("")
@pytest.mark.many_cases
@pytest.mark.parametrize(("case", "kind", "dialect"), _sample())
def test_a_failure_or_a_kill_at_any_step_leaves_the_old_or_the_new(case: Case, kind: str, dialect: str, tmp_path: Path) -> None:
    fails_at_any_step(case, kind, dialect, tmp_path)


@pytest.mark.logs("")
@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.name)
def test_the_copy_follows_where_nothing_can_be_renamed(case: Case, tmp_path: Path) -> None:
    """An array left the copy when its creation was tried again, and was not in it when the end of the mount completed a replacement."""
    fails_at_any_step(case, "no rename", "v3 copy", tmp_path)


@pytest.mark.logs("")
def test_a_kill_leaves_no_chunks_of_a_new_array_without_its_document(tmp_path: Path) -> None:
    fails_at_any_step(CASES[0], "exchange", "v3_2022", tmp_path, faults=((True, False),))


def fails_at_any_step(
    case: Case,
    kind: str,
    dialect: str,
    tmp_path: Path,
    # A late kill is the same as a kill before the next step.
    faults: Sequence[tuple[bool, bool]] = ((False, False), (False, True), (True, False)),
) -> None:
    trio.run(_prepare, case, dialect, tmp_path / "before")
    if dialect in COPIED:
        _remove_documents(tmp_path / "before")
    for kills, late in faults:
        at, happens = 0, True
        while happens:
            path = shutil.copytree(tmp_path / "before", tmp_path / "store")
            happens = trio.run(_ends_well, case, kind, dialect, path, at, kills, late)
            shutil.rmtree(path)
            at += 1
        assert at > 2, "there are several steps"


def _copied(path: Path) -> set[str]:
    """Return the names of the arrays in the consolidated copy."""
    copies = (path / ".zmetadata", path / "zarr.json", path / "meta/root/consolidated/.zmetadata")
    text = "".join(each.read_text() for each in copies if each.is_file())
    return set(re.findall(r'"(?:meta/root/)?g/(\w+)(?:/\.zarray|\.array\.json)?"', text))


def _options(dialect: str) -> dict[str, Any]:
    return {"new_dialect": dialect.partition(" ")[0], "new_chunks": "2x2", "watch": "no"}


async def _prepare(case: Case, dialect: str, path: Path) -> None:
    await trio.Path(path).mkdir()
    store, options = FolderStore(str(path)), _options(dialect)
    async with tree_over(store, f"file:{path}", **options) as tree:
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        await folder.mkdir("g")
        for name, values in case.before.items():
            await write(tree, f"npy/g/{name}", npy(values))
        if dialect in COPIED:
            editor = NodeEditor(tree.hierarchy, tree.store, tree.intents, new_dialect=options["new_dialect"])
            assert await editor.consolidate(ROOT)
    await store.aclose()


def _remove_documents(path: Path) -> None:
    for each in [each for each in path.rglob("*") if _is_document(each.relative_to(path))]:
        each.unlink()


def _is_document(path: Path) -> bool:
    """Return True if it is a document of a node other than the root."""
    is_in_tree = path.parts[:2] == ("meta", "root") and path.name.endswith((".group.json", ".array.json"))
    is_in_tree &= path.name != "consolidated.group.json"
    return is_in_tree or (path.parent != Path() and path.name in (".zarray", ".zattrs", ".zgroup", "zarr.json"))


async def _ends_well(case: Case, kind: str, dialect: str, path: Path, at: int, kills: bool, late: bool) -> bool:
    """Return True if the fault happened at all."""
    options = _options(dialect)
    store = Faulty(path, STORES[kind])
    store.at, store.kills, store.late = at, kills, late
    what = f"operation {at} of {case.name} on {kind} {'killed' if kills else 'failed'} {'late' if late else ''}"
    acknowledged = False
    with suppress(Killed, BaseExceptionGroup):
        async with tree_over(store, f"file:{path}", **options) as tree:
            try:
                await case.does(tree)
                acknowledged = True
            except ZarrfsError:
                pass
            if not store.is_dead:
                # In this mount, too, there is no state in between, and no path is blocked.
                await _expect(tree, case, acknowledged, what)
    happened = store.count > at
    store.end_process()
    await store.inner.aclose()

    store = Faulty(path, STORES[kind])
    async with tree_over(store, f"file:{path}", **options) as tree:
        await tree.recover()
        await _expect(tree, case, acknowledged, f"{what}, mounted again")
        if (case.name, kind) == ("new", "exchange"):
            # Elsewhere chunks without a document may be left: they belong to no array.
            _expect_nothing_of_others(path, await names(tree, "npy/g"), case, what)
        if dialect in COPIED:
            assert _copied(path) == {name.removesuffix(".npy") for name in await names(tree, "npy/g")}, what
        for name in {**case.before, **case.after}:
            await write(tree, f"npy/g/{name}", npy(NEW * 2))
            np.testing.assert_array_equal(await load(tree, f"npy/g/{name}"), NEW * 2)
    await store.aclose()
    # Where no lock holds between processes, data without a record is not taken for abandoned.
    assert not STORES[kind].renames or not await trio.Path(path / APART).exists(), what
    return happened


async def _expect(tree: MountTree, case: Case, acknowledged: bool, what: str) -> None:
    found = {name: await load(tree, f"npy/g/{name}") for name in sorted(await names(tree, "npy/g"))}
    legal = [case.after] if acknowledged else [case.before, case.after]
    assert any(_equal(found, each) for each in legal), f"{what}: {found}"
    assert await names(tree, "raw") == {each for each in await names(tree, "raw") if each != ".zarrfs"}


def _expect_nothing_of_others(path: Path, there: set[str], case: Case, what: str) -> None:
    """Assert that the store holds no chunks and documents of arrays that do not exist: another program would take them for its own."""
    gone = {name.removesuffix(".npy") for name in {**case.before, **case.after}.keys() - there}
    left = [each for each in path.rglob("*") if each.is_file() and gone & {part.partition(".")[0] for part in each.parts}]
    assert not [each for each in left if APART.rstrip("/") not in each.parts], f"{what}: {left}"


def _equal(found: dict[str, np.ndarray[Any, Any]], wanted: dict[str, np.ndarray[Any, Any]]) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name].shape == values.shape and np.array_equal(found[name], values) for name, values in wanted.items()
    )


async def _folder(tree: MountTree) -> Directory:
    folder = await walk(tree, "npy/g")
    assert isinstance(folder, Directory)
    return folder


def npy(values: np.ndarray[Any, Any]) -> bytes:
    """Return an array as `np.save` writes it."""
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["no rename", "elsewhere"])
@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022"])
def test_what_cannot_be_renamed_apart_stays_as_it_was(kind: str, dialect: str, tmp_path: Path) -> None:
    case = Case("rename", _rename, {"a.npy": OLD, "b.npy": OTHER}, {"n.npy": OLD, "b.npy": OTHER})
    trio.run(_prepare, case, dialect, tmp_path / "store")
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}

    async def attempt() -> None:
        store = Faulty(tmp_path / "store", STORES[kind])
        async with tree_over(store, f"file:{tmp_path / 'store'}", **_options(dialect)) as tree:
            for does in (_rename, _rename_over):
                with pytest.raises(AcrossViews):
                    await does(tree)
                await _expect(tree, replace(case, after=case.before), True, kind)
        await store.aclose()

    trio.run(attempt)
    assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == before


class WithoutRoom(ForwardingStore):
    """A store without room for the consolidated copy."""

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if key == "zarr.json":
            raise StoreFull("no room for the copy")
        return await super().set(key, value, expect=expect)


class FullStore(WithoutRoom):
    """A store with room for one small value for each that was erased."""

    room = 0

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if not self.room:
            raise StoreFull("no room for anything")
        self.room -= 1
        return await super().set(key, value, expect=expect)

    async def erase(self, key: Key) -> None:
        await super().erase(key)
        self.room += 1


@pytest.mark.parametrize("kind", [WithoutRoom, FullStore])
@pytest.mark.logs("consolidated copies not updated: .*no room", "interrupted operation \\([\\w ]+\\) completed")
def test_what_was_removed_after_a_recovery_without_its_copy_does_not_return(kind: type[ForwardingStore], tmp_path: Path) -> None:
    """The next mount repeated the recovery: the target of the rename was in its place again, in which there was nothing now."""

    async def run() -> None:
        await _prepare(CASES[-1], "v3", tmp_path / "store")
        store, url, options = FolderStore(str(tmp_path / "store")), f"file:{tmp_path / 'store'}", _options("v3")
        async with tree_over(store, url, **options) as tree:
            editor = NodeEditor(tree.hierarchy, tree.store, tree.intents, new_dialect="v3")
            assert await editor.consolidate(ROOT)
        intent = Intents(store).new()
        await intent.begin(Record("rename", NodePath("/g/b"), Prefix("g/b/"), source=Prefix("g/a/")))
        await store.rename_prefix(Prefix("g/b/"), intent.old)
        await store.rename_prefix(Prefix("g/a/"), Prefix("g/b/"))
        await intent.let_go()
        for _ in range(2):
            async with tree_over(kind(store), url, **options) as tree:
                await tree.recover()
                assert b"no room for" in tree.losses.errors.text()
                np.testing.assert_array_equal(await load(tree, "npy/g/b.npy"), OLD)
        await store.erase_prefix(Prefix("g/b/"))
        async with tree_over(store, url, **options) as tree:
            await tree.recover()
            assert await names(tree, "npy/g") == set()
        assert _copied(tmp_path / "store") == set() and not (tmp_path / "store/.zarrfs").exists()
        await store.aclose()

    trio.run(run)


class Cancelling(ForwardingStore):
    """A store in which an edit is cancelled between the document of its node and the copy."""

    scope: trio.CancelScope | None = None

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        generation = await super().set(key, value, expect=expect)
        if key == "g/n/zarr.json" and self.scope is not None:
            self.scope.cancel()
        return generation


@pytest.mark.logs("interrupted operation \\(consolidated copy\\) completed")
def test_the_copy_follows_an_edit_that_was_cancelled(tmp_path: Path) -> None:
    async def run() -> None:
        await _prepare(CASES[0], "v3", tmp_path / "store")
        inner, url, options = FolderStore(str(tmp_path / "store")), f"file:{tmp_path / 'store'}", _options("v3")
        store = Cancelling(inner)
        async with tree_over(store, url, **options) as tree:
            editor = NodeEditor(tree.hierarchy, tree.store, tree.intents, new_dialect="v3")
            assert await editor.consolidate(ROOT)
            with trio.CancelScope() as store.scope:
                await editor.create(GroupNode(path=NodePath("/g/n"), dialect="v3"))
            assert store.scope.cancelled_caught
        async with tree_over(inner, url, **options) as tree:
            await tree.recover()
        assert "g/n" in json.loads((tmp_path / "store/zarr.json").read_bytes())["consolidated_metadata"]["metadata"]
        assert not (tmp_path / "store/.zarrfs").exists()
        await inner.aclose()

    trio.run(run)
