"""Owner, mode and ACL of files written by a folder store: no user gets more rights than before, by the rules of acl(5)."""

from __future__ import annotations

import os
import stat
import struct
from itertools import chain, combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.support.attackers import EVE, become, home, needs_root
from tests.support.length import tries
from zarrfs.keys import Key, Prefix
from zarrfs.stores.folder.rights import Acl, Entry, Owner, Rights, narrowed, share, shared
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.values import ABSENT

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNERS, GROUPS = (10, 11, 12), (20, 21, 22)
BITS = st.integers(0, 7)


def stat_of(mode: int, uid: int, gid: int) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))


def granted(acl: Acl, owner: int, group: int, uid: int, gids: tuple[int, ...]) -> list[int]:
    """Return a user's rights on a file, as combinations of bits that are granted together (acl(5), "ACCESS CHECK ALGORITHM")."""
    mask = next((entry.bits for entry in acl if entry.tag == MASK), 7)
    if uid == owner:
        return [entry.bits for entry in acl if entry.tag == USER_OBJ]
    named = [entry.bits & mask for entry in acl if entry.tag == USER and entry.ident == uid]
    if named:
        return named
    groups = [
        entry.bits & mask
        for entry in acl
        if (entry.tag == GROUP_OBJ and group in gids) or (entry.tag == GROUP and entry.ident in gids)
    ]
    return groups or [entry.bits for entry in acl if entry.tag == OTHER]


def of_mode(mode: int) -> Acl:
    return (Entry(USER_OBJ, mode >> 6 & 7), Entry(GROUP_OBJ, mode >> 3 & 7), Entry(OTHER, mode & 7))


@st.composite
def rights(draw: st.DrawFn) -> Rights:
    minimal = (Entry(USER_OBJ, draw(BITS)), Entry(GROUP_OBJ, draw(BITS)), Entry(OTHER, draw(BITS)))
    named = [Entry(USER, draw(BITS), uid) for uid in draw(st.sets(st.sampled_from(OWNERS)))]
    named += [Entry(GROUP, draw(BITS), gid) for gid in draw(st.sets(st.sampled_from(GROUPS)))]
    acl = (*minimal, *named, Entry(MASK, draw(BITS))) if named else ()
    group = next((entry.bits for entry in acl if entry.tag == MASK), minimal[1].bits)
    special = draw(st.sampled_from((0, 0o4000, 0o2000, 0o1000, 0o7000)))
    mode = special | minimal[0].bits << 6 | group << 3 | minimal[2].bits
    return Rights(stat_of(mode, draw(st.sampled_from(OWNERS)), draw(st.sampled_from(GROUPS))), acl)


@tries(500, database=None)
@given(old=rights(), uid=st.sampled_from(OWNERS), gid=st.sampled_from(GROUPS))
def test_nobody_but_the_owner_gets_more_than_before(old: Rights, uid: int, gid: int) -> None:
    mode, acl = narrowed(old, uid, gid)
    assert not mode & ~0o777
    before = (old.acl or of_mode(old.stat.st_mode), old.stat.st_uid, old.stat.st_gid)
    for after in {of_mode(mode), acl or of_mode(mode)}:
        for who in (*OWNERS, 13):
            for gids in chain.from_iterable(combinations(GROUPS, count) for count in range(4)):
                if who != uid:
                    had = granted(*before, who, gids)
                    for has in granted(after, uid, gid, who, gids):
                        assert any(has & ~one == 0 for one in had), (who, gids, had, has)
    if (uid, gid) == before[1:]:
        assert acl == old.acl
        assert acl or mode == old.stat.st_mode & 0o777


@tries(500, database=None)
@given(old=rights(), uid=st.sampled_from(OWNERS), gid=st.sampled_from(GROUPS))
def test_what_is_shared_as_its_folder_grants_nobody_else_more(old: Rights, uid: int, gid: int) -> None:
    acl = shared(old, uid, gid)
    before = (old.acl or of_mode(old.stat.st_mode), old.stat.st_uid, old.stat.st_gid)
    least = min(granted(*before, 13, ()))
    is_twice = any(entry.tag == GROUP and entry.ident == old.stat.st_gid for entry in old.acl)
    groups = [bits for each in GROUPS for bits in granted(*before, 13, (each,))]
    assert granted(acl, uid, gid, uid, ()) == [7]
    for who in {*OWNERS, 13} - {uid}:
        for gids in chain.from_iterable(combinations(GROUPS, count) for count in range(4)):
            had, has = granted(*before, who, gids), granted(acl, uid, gid, who, gids)
            for each in has:
                assert any(each & ~one == 0 for one in had), (who, gids, had, has)
            # Nor less, unless a group has fewer rights than others, or two entries.
            if gid == old.stat.st_gid or (not is_twice and all(least & ~bits == 0 for bits in groups)):
                for each in had:
                    assert any(each & ~one == 0 for one in has), (who, gids, had, has)


def packed(acl: Acl) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in acl)


def set_acl(path: Path, name: str, *acl: Entry) -> bytes:
    try:
        os.setxattr(path, name, packed(acl))
    except OSError as error:
        pytest.skip(f"no ACLs on {path}: {error.strerror}")
    return os.getxattr(path, name)


def mode_of(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


@trio_test
async def test_an_acl_stays_where_the_owner_does(tmp_path: Path) -> None:
    file = tmp_path / "k"
    file.write_bytes(b"old")
    mine = (Entry(USER_OBJ, 6), Entry(USER, 4, 12345), Entry(GROUP_OBJ, 0), Entry(MASK, 4), Entry(OTHER, 0))
    acl = set_acl(file, ACCESS, *mine)
    store = FolderStore(str(tmp_path))
    await store.set(Key("k"), b"new")
    assert (file.read_bytes(), os.getxattr(file, ACCESS), mode_of(file)) == (b"new", acl, "0o640")
    if os.geteuid() == 0:
        store.set_owner(54321, None)
        await store.set(Key("k"), b"newer")
        # The group's bits were a mask: the owning group itself had none.
        assert (os.listxattr(file), mode_of(file), file.stat().st_uid) == ([], "0o600", 54321)
    await store.aclose()


@trio_test
async def test_an_acl_of_the_folder_is_for_new_files_alone(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"old")
    (tmp_path / "k").chmod(0o640)
    default = (Entry(USER_OBJ, 7), Entry(USER, 7, 12345), Entry(GROUP_OBJ, 5), Entry(MASK, 7), Entry(OTHER, 0))
    set_acl(tmp_path, DEFAULT, *default)
    (tmp_path / "as-others-do").write_bytes(b"")
    (tmp_path / "folder-of-others").mkdir()
    store = FolderStore(str(tmp_path))
    for owner in (None, 54321) if os.geteuid() == 0 else (None,):
        store.set_owner(owner, None)
        await store.set(Key("k"), b"new")
        assert os.listxattr(tmp_path / "k") == [] and mode_of(tmp_path / "k") == "0o640"
        await store.set(Key(f"new-{owner}"), b"new")
        await store.make_prefix(Prefix(f"d-{owner}/"))
        for made, like in (f"new-{owner}", "as-others-do"), (f"d-{owner}", "folder-of-others"):
            assert mode_of(tmp_path / made) == mode_of(tmp_path / like)
            for name in os.listxattr(tmp_path / like):
                assert os.getxattr(tmp_path / made, name) == os.getxattr(tmp_path / like, name)
    await store.aclose()


@needs_root
@trio_test
async def test_the_owner_is_given_to_what_the_store_makes(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        store = FolderStore(str(tmp_path))
        store.set_owner(54321, 54322)
        await store.set(Key("d/new"), b"1")
        await store.set(Key("d/created"), b"1", expect=ABSENT)
        (tmp_path / "old").write_bytes(b"1")
        (tmp_path / "old").chmod(0o7644)
        await store.set(Key("old"), b"2")
        await store.aclose()
    finally:
        os.umask(before)
    found = {name: (mode_of(tmp_path / name), (tmp_path / name).stat()) for name in ("d", "d/new", "d/created", "old")}
    assert {name: mode for name, (mode, _) in found.items()} == {
        "d": "0o750",
        "d/new": "0o640",
        "d/created": "0o640",
        "old": "0o644",
    }
    assert {(status.st_uid, status.st_gid) for _, status in found.values()} == {(54321, 54322)}


@trio_test
async def test_what_is_made_private_while_it_is_replaced_stays_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zarrfs.stores.folder import tree

    file = tmp_path / "k"
    file.write_bytes(b"old")
    file.chmod(0o644)
    seen = []

    def written(fd: int, content: memoryview) -> None:
        seen.append(stat.S_IMODE(os.fstat(fd).st_mode))
        os.write(fd, content)
        file.chmod(0o600)

    monkeypatch.setattr(tree, "write", written)
    store = FolderStore(str(tmp_path))
    await store.set(Key("k"), b"new")
    await store.aclose()
    assert seen == [0o600] and mode_of(file) == "0o600"


@pytest.mark.parametrize("mode", [0o755, 0o2775, 0o1777, 0o700])
@trio_test
async def test_who_may_write_in_the_store_may_have_operations_in_it(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(mode)
    store = FolderStore(str(root))
    for key in (".zarrfs/1/intent.json", "a/zarr.json"):
        await store.set(Key(key), b"{}")
    await store.aclose()
    assert stat.S_IMODE((root / ".zarrfs").stat().st_mode) == mode
    assert stat.S_IMODE((root / "a").stat().st_mode) & 0o022 == 0


@trio_test
async def test_who_may_only_read_the_store_may_not_change_operations_in_it(tmp_path: Path) -> None:
    """The group bits of a folder with an ACL are those of its mask."""
    acl = (Entry(USER_OBJ, 7), Entry(USER, 7, 12345), Entry(GROUP_OBJ, 5), Entry(MASK, 7), Entry(OTHER, 0))
    expected = set_acl(tmp_path, ACCESS, *acl)
    store = FolderStore(str(tmp_path))
    await store.set(Key(".zarrfs/1/intent.json"), b"{}")
    await store.aclose()
    assert os.getxattr(tmp_path / ".zarrfs", ACCESS) == expected


@needs_root
def test_who_may_write_with_rights_of_all_shares_operations_with_all() -> None:
    """The group of a folder can be given by its members only."""
    with home() as place:
        shared_by_all = place.parent / "root"
        shared_by_all.chmod(0o1777)
        child = os.fork()
        if child == 0:
            try:
                become(EVE)
                os.chdir(shared_by_all)
                os.mkdir("private", 0o700)
                share(os.open(".", os.O_RDONLY), "private")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert (mode_of(shared_by_all / "private"), (shared_by_all / "private").stat().st_uid) == ("0o1777", EVE)


@needs_root
@pytest.mark.parametrize(("given", "is_shared"), [(None, False), (Owner(12, 20), False), (Owner(11, 20), True)])
def test_an_empty_folder_of_another_user_in_the_place_of_a_new_one_is_not_opened_to_all(
    given: Owner | None, is_shared: bool, tmp_path: Path
) -> None:
    """In a folder that every user may write to, anyone can exchange the folder that root has just created."""
    tmp_path.chmod(0o777)
    private = tmp_path / "private"
    private.mkdir(0o700)
    os.chown(private, 11, 21)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        share(fd, "private", given)
    finally:
        os.close(fd)
    assert stat.S_IMODE(private.stat().st_mode) == (0o777 if is_shared else 0o700)
    assert (private.stat().st_gid == 21) is not is_shared
