"""What is built apart has the rights that it would have got in its place."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

import pytest
import trio

from tests.support.attackers import EVE, MALLORY, needs_root
from zarrfs.hierarchy.intents import Intent
from zarrfs.hierarchy.records import Record
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.stores.folder.store import FolderStore

pytestmark = needs_root

_ACCESS, _DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
_APART, _PLACE = Prefix(".zarrfs/1/new/"), Prefix("g/a/")


def default_acl(user: int, others: int) -> bytes:
    entries = ((1, 7, -1), (2, 7, user), (4, 5, -1), (16, 7, -1), (32, others, -1))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def rights(path: Path) -> tuple[object, ...]:
    found = path.stat()
    return oct(found.st_mode), found.st_uid, found.st_gid, {name: os.getxattr(path, name) for name in sorted(os.listxattr(path))}


async def build(folder: Path, owner: int | None, over: bool) -> None:
    store = FolderStore(str(folder))
    store.set_owner(owner, None)
    store.destine(_APART, _PLACE)
    await store.set(_APART.key("c/0"), b"chunk")
    await store.set(Key(_APART + "zarr.json"), b"{}")
    await (store.exchange_prefixes if over else store.rename_prefix)(_APART, _PLACE)
    store.destine(_APART)
    await store.aclose()


@pytest.mark.parametrize("owner", [None, EVE])
@pytest.mark.parametrize(
    ("mode", "above", "there"), [(0o2770, False, True), (0o2775, True, False), (0o755, True, True), (0o755, True, False)]
)
def test_a_new_array_has_the_rights_of_its_place(mode: int, above: bool, there: bool, owner: int | None, tmp_path: Path) -> None:
    """Not those of the folder in which it is built, whose group and ACL are those of the store's folder."""
    os.chown(tmp_path, -1, EVE)
    tmp_path.chmod(0o2755)
    group = tmp_path / "g"
    group.mkdir()
    os.chown(group, -1, MALLORY)
    group.chmod(mode)
    try:
        if above:
            os.setxattr(tmp_path, _DEFAULT, default_acl(EVE, 5))
        if there:
            os.setxattr(group, _DEFAULT, default_acl(MALLORY, 0))
    except OSError as error:
        pytest.skip(f"no ACLs here: {error.strerror}")
    (group / "b/c").mkdir(parents=True)
    for name in ("b/c/0", "b/zarr.json"):
        (group / name).touch()
    for name in ("b", "b/c", "b/c/0", "b/zarr.json"):
        os.chown(group / name, -1 if owner is None else owner, -1)
    trio.run(build, tmp_path, owner, False)
    for name in ("", "c", "c/0", "zarr.json"):
        assert rights(group / "a" / name) == rights(group / "b" / name), name


@pytest.mark.parametrize(
    ("user", "team", "mode", "expected"),
    [(0, 0, 0o700, 0o700), (EVE, MALLORY, 0o2770, 0o2770), (EVE, MALLORY, 0o555, 0o555), (0, MALLORY, 0o1777, 0o1777)],
)
def test_the_folder_of_an_array_that_replaces_another_keeps_its_rights(
    user: int, team: int, mode: int, expected: int, tmp_path: Path
) -> None:
    old = tmp_path / "g/a"
    old.mkdir(parents=True)
    os.chown(old, user, team)
    old.chmod(mode)
    trio.run(build, tmp_path, None, True)
    new = old.stat()
    assert (oct(stat.S_IMODE(new.st_mode)), new.st_uid, new.st_gid) == (oct(expected), 0, team)
    assert (old / "zarr.json").exists()


_ERASURE = Record("erase", NodePath("/g/a"), Prefix("g/a/"))


async def record_of_an_operation(folder: Path, record: Record = _ERASURE, *places: Prefix) -> None:
    store = FolderStore(str(folder))
    intent = Intent(store, f"{0:032x}")
    await intent.begin(record, *places)
    await intent.let_go()
    await store.aclose()


@pytest.mark.parametrize(
    ("above", "mode", "team", "expected"),
    [
        (0o755, 0o755, MALLORY, 0o755),
        (0o755, 0o700, EVE, 0o700),
        (0o2770, 0o2755, MALLORY, 0o2750),
        (0o755, 0o2770, MALLORY, 0o700),
        (0o2775, 0o711, EVE, 0o755),
    ],
)
def test_operations_are_hidden_from_who_may_not_enter_the_folder_of_the_node(
    above: int, mode: int, team: int, expected: int, tmp_path: Path
) -> None:
    """Their records hold documents, and they move whole nodes, whose files may be readable for all."""
    group = tmp_path / "g"
    (group / "a").mkdir(parents=True)
    for folder, gid, bits in ((tmp_path, EVE, 0o2755), (group, EVE, above), (group / "a", team, mode)):
        os.chown(folder, -1, gid)
        folder.chmod(bits)
    trio.run(record_of_an_operation, tmp_path)
    assert oct(stat.S_IMODE((tmp_path / f".zarrfs/{0:032x}").stat().st_mode)) == oct(0o2000 | expected)


@pytest.mark.parametrize(
    ("record", "places"),
    [
        (Record("amend", NodePath("/a"), Prefix(""), erased=(), before={Key("g/.zattrs"): b"private"}), ()),
        (Record("rename", NodePath("/b"), Prefix("b/"), moves=((Key("g/a.json"), Key("b.json")),)), ()),
        (Record("rename", NodePath("/b"), Prefix("b/"), replaced=(Prefix("g/a/"),)), ()),
        (Record("erase", NodePath("/a"), Prefix("a/")), (Prefix("meta/a/"), Prefix("g/a/"))),
    ],
)
def test_operations_are_hidden_from_who_may_not_enter_any_of_their_folders(
    record: Record, places: tuple[Prefix, ...], tmp_path: Path
) -> None:
    """In the layouts of 2019 and 2022 documents and chunks lie in several."""
    tmp_path.chmod(0o755)
    (tmp_path / "g").mkdir(0o700)
    trio.run(record_of_an_operation, tmp_path, record, *places)
    assert oct(stat.S_IMODE((tmp_path / f".zarrfs/{0:032x}").stat().st_mode)) == "0o700"


@pytest.mark.parametrize("owner", [None, EVE])
def test_a_folder_has_its_rights_before_others_of_this_process_use_it(owner: int | None, tmp_path: Path) -> None:
    """Several chunks of a new folder are stored at once, each of which would create it."""

    async def several(store: FolderStore, prefix: Prefix) -> None:
        store.destine(prefix, _PLACE)
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(store.set, prefix.key(str(number)), b"chunk")
        store.destine(prefix)

    async def all_of_them() -> None:
        store = FolderStore(str(tmp_path))
        store.set_owner(owner, None)
        for number in range(50):
            await several(store, Prefix(f"{number}/"))
        await store.aclose()

    (tmp_path / "g").mkdir()
    trio.run(all_of_them)
    found = {(oct(each.stat().st_mode & 0o7777), each.stat().st_uid) for each in tmp_path.iterdir() if each.name != "g"}
    assert found == {("0o755", 0 if owner is None else owner)}
