"""Records of operations in several steps that another user puts into a shared store: the next mount does not carry them out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support.arrays import reading
from tests.support.attackers import EVE, MALLORY, act, home, needs_root, snapshot
from tests.support.claiming_mount import claiming_mount
from tests.support.mounting import ROOT, mounted, zarrfs
from zarrfs.errors import StoreAccessDenied
from zarrfs.hierarchy.intents import Intent, Intents
from zarrfs.hierarchy.records import Record
from zarrfs.hierarchy.recovery import recover, require_known
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.stores.folder.store import FolderStore

pytestmark = needs_root

PATH, PLACE = NodePath("/a"), Prefix("a/")
DOCUMENT, ATTRIBUTES = b'{"zarr_format": 2}', b"{}"
# The first of two documents is stored already.
CHANGED = Record(
    "amend", PATH, PLACE, before={Key("a/.zattrs"): ATTRIBUTES}, after={Key(".zgroup"): DOCUMENT, Key("a/.zattrs"): b"changed"}
)
EMPTIED = Record("replace", PATH, PLACE, copies=True, count=0)
LATER = CHANGED.format().replace(b'"version": 1', b'"version": 99')


@pytest.fixture
def shared() -> Iterator[Path]:
    """A store in which every user may create files, with a group that only Mallory may change."""
    with home() as place:
        store = place.parent / "store"
        store.mkdir()
        store.chmod(0o1777)
        (store / ".zgroup").write_bytes(DOCUMENT)
        script = 'mkdir "$1" && printf "$2" > "$1/.zgroup" && printf "$3" > "$1/.zattrs"'
        act(MALLORY, script, store / "a", DOCUMENT.decode(), ATTRIBUTES.decode())
        yield store


def plant(store: Path, number: int, record: bytes, user: int = EVE) -> None:
    act(
        user, 'mkdir -p "$1/.zarrfs/$2" && printf "%s" "$3" > "$1/.zarrfs/$2/intent.json"', store, f"{number:032x}", record.decode()
    )


@pytest.mark.fuse
def test_records_of_a_stranger_change_nothing(shared: Path) -> None:
    for number, record in enumerate((CHANGED.format(), EMPTIED.format(), LATER)):
        plant(shared, number, record)
    before = snapshot(shared / "a")
    with mounted(shared) as mount:
        assert "left unchanged: operation of another user" in mount.log()
        (mount.path / "raw/new").write_bytes(b"not read-only")
    assert zarrfs("check", "--repair", str(shared)).returncode == 1
    assert snapshot(shared / "a") == before
    assert sorted(os.listdir(shared / ".zarrfs")) == [f"{number:032x}" for number in range(3)]


@pytest.mark.fuse
def test_records_that_another_users_mount_claims_to_be_roots_change_nothing(shared: Path) -> None:
    act(EVE, 'mkdir "$1/.zarrfs"', shared)
    before = snapshot(shared / "a")
    name = f"{0:032x}/intent.json"
    with claiming_mount(shared / ".zarrfs", EVE, {name: CHANGED.format()}):
        assert (shared / ".zarrfs" / name).stat().st_uid == 0
        with mounted(shared) as mount:
            assert "left unchanged: '.zarrfs/" in mount.log()
    assert snapshot(shared / "a") == before


@pytest.mark.logs("interrupted operation \\(amend\\) completed")
@pytest.mark.parametrize("owner", ["root", "the owner of the store", "the owner of new files"])
@trio_test
async def test_records_of_others_are_carried_out(shared: Path, owner: str) -> None:
    if owner == "the owner of the store":
        os.chown(shared, EVE, EVE)
    store = FolderStore(str(shared))
    if owner == "the owner of new files":
        store.set_owner(EVE, None)
    plant(shared, 0, CHANGED.format(), 0 if owner == "root" else EVE)
    try:
        await require_known(Intents(store))
        assert [each.is_done for each in await recover(Intents(store), reading(store).hierarchy, store)] == [True]
        assert await store.get(Key("a/.zattrs")) == b"changed"
    finally:
        await store.aclose()


@trio_test
async def test_the_owner_is_that_of_the_record_that_is_read(shared: Path) -> None:
    plant(shared, 0, CHANGED.format())
    store = FolderStore(str(shared))
    try:
        with pytest.raises(StoreAccessDenied):
            await Intent(store, f"{0:032x}").record()
        os.chown(shared / ".zarrfs" / f"{0:032x}" / "intent.json", 0, 0)
        assert await Intent(store, f"{0:032x}").record() == CHANGED
    finally:
        await store.aclose()


@pytest.mark.parametrize("trick", ["writable", "link"])
@trio_test
async def test_a_record_that_others_may_have_written_is_not_its_owners(trick: str, shared: Path) -> None:
    """Who may write to a file of another user can also give it a second name, if ever so it is called."""
    plant(shared, 0, CHANGED.format(), 0)
    record = shared / ".zarrfs" / f"{0:032x}" / "intent.json"
    if trick == "writable":
        record.chmod(0o664)
    else:
        os.link(record, shared / "shared-file")
    store = FolderStore(str(shared))
    try:
        with pytest.raises(StoreAccessDenied, match=r"others may write to intent\.json: it counts after chmod go-w"):
            await Intent(store, f"{0:032x}").record()
        record.chmod(0o644)
        (shared / "shared-file").unlink(missing_ok=True)
        assert await Intent(store, f"{0:032x}").record() == CHANGED
    finally:
        await store.aclose()


@trio_test
async def test_records_are_written_by_their_owner_alone(shared: Path) -> None:
    """With the usual umask of shared folders, too."""
    umask = os.umask(0o002)
    store = FolderStore(str(shared))
    try:
        intent = Intent(store)
        await intent.begin(CHANGED)
        record = shared / intent.prefix / "intent.json"
        assert (oct(record.stat().st_mode & 0o777), oct(record.parent.stat().st_mode & 0o777)) == ("0o644", "0o755")
        assert await Intent(store, record.parent.name).record() == CHANGED
        await intent.let_go()
    finally:
        os.umask(umask)
        await store.aclose()


_IN_A_NAMESPACE = """
import sys, trio
from zarrfs.errors import StoreAccessDenied
from zarrfs.hierarchy.intents import Intent
from zarrfs.stores.folder.store import FolderStore

async def main():
    try:
        await Intent(FolderStore(sys.argv[1]), f"{0:032x}").record()
    except StoreAccessDenied:
        print("denied")

trio.run(main)
"""


def test_the_owner_of_a_store_is_not_known_by_the_number_of_all_strangers(shared: Path) -> None:
    """In a user namespace, users without a number in it look the same."""
    os.chown(shared, MALLORY, MALLORY)
    plant(shared, 0, CHANGED.format())
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-P", "-c", _IN_A_NAMESPACE, str(shared)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)
    if "unshare" in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.stdout == "denied\n", done.stderr
