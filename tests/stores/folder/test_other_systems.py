"""File systems and kernels without some operations, and faster programs: operations that a folder store omits, and those it refuses."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import types
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.stores.folder.test_rights import ACCESS, DEFAULT, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, mode_of, set_acl
from tests.support.attackers import needs_root
from tests.support.small_stores import write
from tests.support.stores import contents
from zarrfs.errors import GenerationMismatch, KeyConflict, StoreError, StoreNotFound, StoreUnsupported
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.folder import calls, inline, lock, rights, tree
from zarrfs.stores.folder.rights import Entry
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.values import ABSENT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "store", {"k": b"value", "a/k": b"other"})


def failing(number: int, times: int = 1 << 30) -> Callable[..., Any]:
    """Return a system call that fails, so many times."""
    left = [times]

    def call(*_: Any, **__: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(number, os.strerror(number))

    return call


# --- reading ------------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_where_nothing_is_read_without_waiting_a_thread_reads(path: Path) -> None:
    async with aclosing(FolderStore(str(path))) as store:
        store._inline._reads_nowait = False
        with pytest.raises(WouldWait):
            store.get_with_stat_now(Key("k"), ByteRange(0, 3))
        assert await store.get_partial_values([(Key("k"), ByteRange(1, 3))]) == [b"alu"]
        assert await store.get(Key("a")) is await store.get(Key("missing")) is await store.get(Key("k/below")) is None
        found = await store.stat(Key("k"))
        assert found is not None
        assert await store.get_partial_values([(Key("k"), ByteRange(0, 1))], if_generation=found.generation) == [b"v"]
        await store.set(Key("k"), b"another")
        with pytest.raises(GenerationMismatch, match="'k' was changed concurrently"):
            await store.get_partial_values([(Key("k"), ByteRange(0, 1))], if_generation=found.generation)
        assert await store.data_from(Key("missing"), 3) == 3


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EIO], ids=["not supported", "broken"])
@trio_test
async def test_what_the_page_cache_cannot_give_is_waited_for(path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aclosing(FolderStore(str(path))) as store:
        monkeypatch.setattr(inline.os, "preadv", failing(number))
        with pytest.raises(WouldWait if number == errno.EOPNOTSUPP else StoreError):
            store.get_with_stat_now(Key("k"), ByteRange(0, 3))
        if number == errno.EOPNOTSUPP:
            # The call is not tried again.
            monkeypatch.undo()
            with pytest.raises(WouldWait):
                store.get_with_stat_now(Key("k"), ByteRange(0, 3))
            assert await store.get(Key("k")) == b"value"


@trio_test
async def test_a_file_that_ends_before_it_should_is_left_to_who_can_wait(path: Path) -> None:
    async with aclosing(FolderStore(str(path))) as store:
        fd = os.open(path / "k", os.O_RDONLY)
        try:
            assert store._inline.pread_cached(fd, 1, 3) == b"al"
            assert store._inline.pread_cached(fd, 3, 3) == b""
            with pytest.raises(WouldWait):
                store._inline.pread_cached(fd, 1, 100)
        finally:
            os.close(fd)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM], ids=["old kernel", "filtered"])
@trio_test
async def test_a_kernel_that_refuses_openat2_is_asked_once(path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    refuse = failing(number)

    def open_within(*_: Any) -> int:
        calls.append(None)
        refuse()
        raise AssertionError("unreachable")

    async with aclosing(FolderStore(str(path))) as store:
        monkeypatch.setattr(inline, "open_within", open_within)
        assert store.stat_now(Key("a/k")) is not None
        assert await contents(store) == {"k": b"value", "a/k": b"other"}
        assert len(calls) == 1
        # A file in place of a folder is examined only by requests that can wait.
        with pytest.raises(WouldWait):
            store.stat_now(Key("k/below"))
        assert await store.stat(Key("k/below")) is None
        monkeypatch.setattr(inline.os, "open", failing(errno.EIO))
        with pytest.raises(OSError, match="rror"):
            store._inline.stat(("a", "k"))


# --- writing ------------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_a_folder_that_is_removed_each_time_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[None] = []

    def written(fd: int, content: memoryview) -> None:
        tries.append(None)
        shutil.rmtree(path / "b")

    async with aclosing(FolderStore(str(path))) as store:
        monkeypatch.setattr(tree, "write", written)
        with pytest.raises(StoreNotFound, match="'b/k'"):
            await store.set(Key("b/k"), b"new")
        assert 1 < len(tries) < 100
        monkeypatch.undo()
        assert await contents(store) == {"k": b"value", "a/k": b"other"}


@trio_test
async def test_a_value_that_another_program_makes_first_is_not_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(fd: int, content: memoryview) -> None:
        os.write(fd, content)
        (path / "new").write_bytes(b"theirs")

    async with aclosing(FolderStore(str(path))) as store:
        monkeypatch.setattr(tree, "write", written)
        with pytest.raises(GenerationMismatch, match="'new' was changed concurrently"):
            await store.set(Key("new"), b"ours", expect=ABSENT)
        assert (path / "new").read_bytes() == b"theirs"
        # No written data is left.
        assert sorted(os.listdir(path)) == ["a", "k", "new"]


@trio_test
async def test_a_new_value_whose_other_name_another_mount_removes_is_created(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was reported as another program's: the file was closed, so that a listing took its temporary name for one left behind."""
    link = os.link

    async with aclosing(FolderStore(str(path))) as store, aclosing(FolderStore(str(path))) as other:

        def linked(*names: str, **folders: Any) -> None:
            link(*names, **folders)
            assert len(other.list_dir_now(Prefix(""))) == 3

        monkeypatch.setattr(os, "link", linked)
        await store.set(Key("new"), b"ours", expect=ABSENT)
        assert sorted(os.listdir(path)) == ["a", "k", "new"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS], ids=errno.errorcode.get)
@trio_test
async def test_a_new_value_is_created_in_one_step_where_there_are_no_hard_links(
    path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """exFAT and FAT refuse link(2): creation of a key by link was EACCES."""
    monkeypatch.setattr(os, "link", failing(number))
    async with aclosing(FolderStore(str(path))) as store:
        await store.set(Key("new"), b"ours", expect=ABSENT)
        with pytest.raises(GenerationMismatch):
            await store.set(Key("new"), b"again", expect=ABSENT)
        assert await contents(store) == {"k": b"value", "a/k": b"other", "new": b"ours"}
        assert sorted(os.listdir(path)) == ["a", "k", "new"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO], ids=["no such operation", "broken"])
@trio_test
async def test_a_folder_that_cannot_be_synced_is_an_error_where_folders_can_be(
    path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            failing(number)()
        real(fd)

    async with aclosing(FolderStore(str(path))) as store:
        await store.set(Key("n/k"), b"new")
        monkeypatch.setattr(os, "fsync", fsync)
        if number == errno.EINVAL:
            await store.sync([Key("n/k")])
            return
        with pytest.raises(StoreError, match="nput/output error"):
            await store.sync([Key("n/k")])
        synced: list[str] = []
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
        # The name of the folder still has to be synced, too.
        await store.sync([Key("n/k")])
        assert synced == [str(path / "n/k"), str(path / "n"), str(path)]


@trio_test
async def test_a_folder_that_cannot_be_looked_into_is_not_taken_for_a_missing_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(FolderStore(str(path))) as store:
        with pytest.raises(KeyConflict):
            await store.set(Key("k/below"), b"")
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", failing(errno.EIO))
            for look in (store._tree.stat, store._tree.folder_mtime_ns, store._tree.list_folder):
                with pytest.raises(OSError, match="nput/output error"):
                    look(("a", "k"))


# --- locks --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.logs("folders cannot be locked here")
@trio_test
async def test_a_file_system_without_locks_is_told_of_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with aclosing(FolderStore(str(path))) as store:
        monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
        for _ in range(2):
            async with store.exclusive(Key("k")):
                pass
    assert caplog.text.count("let no other mount or machine write to this store") == 1


@trio_test
async def test_a_lock_that_fails_otherwise_is_an_error_and_leaves_nothing_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aclosing(FolderStore(str(path))) as store:
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))
        with pytest.raises(StoreError, match="nput/output error"):
            async with store.exclusive(Key("k")):
                raise AssertionError("it is not held")
        assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(("times", "is_held"), [(3, True), (1000, False)], ids=["for a while", "always"])
def test_a_folder_that_others_remove_is_made_again_and_locked(
    path: Path, times: int, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, real = failing(errno.ENOENT, times), lock._try_lock

    def try_lock(*args: Any) -> int | None:
        gone()
        return real(*args)

    async def main() -> None:
        async with aclosing(FolderStore(str(path))) as store:
            async with store.exclusive(Key("b/k")):
                assert (path / "b").is_dir()

    monkeypatch.setattr(lock, "_try_lock", try_lock)
    if is_held:
        trio.run(main, clock=MockClock(autojump_threshold=0.01))
    else:
        with pytest.raises(StoreError, match="No such file"):
            trio.run(main, clock=MockClock(autojump_threshold=0.01))


# --- permissions --------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_without_extended_attributes_a_value_keeps_its_mode(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path / "k").chmod(0o640)
    monkeypatch.setattr(rights.os, "listxattr", failing(errno.EOPNOTSUPP))
    async with aclosing(FolderStore(str(path))) as store:
        await store.set(Key("k"), b"new")
    assert ((path / "k").read_bytes(), mode_of(path / "k")) == (b"new", "0o640")


@trio_test
async def test_where_attributes_cannot_be_listed_a_replaced_value_is_private(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unknown to whom an ACL of the folder would grant access."""
    (path / "k").chmod(0o644)
    monkeypatch.setattr(rights.os, "listxattr", failing(errno.EIO))
    async with aclosing(FolderStore(str(path))) as store:
        await store.set(Key("k"), b"new")
    assert ((path / "k").read_bytes(), mode_of(path / "k")) == (b"new", "0o600")


@trio_test
async def test_where_an_acl_cannot_be_given_nobody_gets_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = (Entry(USER_OBJ, 6), Entry(USER, 4, 12345), Entry(GROUP_OBJ, 0), Entry(MASK, 4), Entry(OTHER, 0))
    set_acl(path / "k", ACCESS, *named)
    monkeypatch.setattr(rights.os, "setxattr", failing(errno.ENOSPC))
    async with aclosing(FolderStore(str(path))) as store:
        await store.set(Key("k"), b"new")
    # The group's bits were the mask for the named user.
    assert ((path / "k").read_bytes(), os.listxattr(path / "k"), mode_of(path / "k")) == (b"new", [], "0o600")


@trio_test
async def test_an_acl_of_the_folder_that_names_nobody_is_a_mode(path: Path) -> None:
    set_acl(path, DEFAULT, Entry(USER_OBJ, 7), Entry(GROUP_OBJ, 5), Entry(OTHER, 1))
    (path / "as-others-do").write_bytes(b"")
    (path / "folder-of-others").mkdir()
    async with aclosing(FolderStore(str(path))) as store:
        store.set_owner(os.geteuid(), None)
        await store.set(Key("new"), b"1")
        await store.make_prefix(Prefix("made/"))
    assert mode_of(path / "new") == mode_of(path / "as-others-do") == "0o640"
    assert mode_of(path / "made") == mode_of(path / "folder-of-others") == "0o751"


def test_a_folder_that_somebody_has_filled_is_not_shared(path: Path) -> None:
    path.chmod(0o777)
    (path / "a").chmod(0o700)
    (path / "empty").mkdir(0o700)
    fd = os.open(path, os.O_RDONLY)
    try:
        for name in ("a", "empty", "missing"):
            rights.share(fd, name)
    finally:
        os.close(fd)
    assert (mode_of(path / "a"), mode_of(path / "empty")) == ("0o700", "0o777")


@needs_root
def test_a_folder_that_is_shared_is_of_the_group_of_the_one_above(path: Path) -> None:
    os.chown(path, -1, 54322)
    path.chmod(0o770)
    (path / "empty").mkdir(0o700)
    fd = os.open(path, os.O_RDONLY)
    try:
        rights.share(fd, "empty")
    finally:
        os.close(fd)
    assert ((path / "empty").stat().st_gid, mode_of(path / "empty")) == (54322, "0o770")


@trio_test
async def test_values_are_stored_and_renamed_where_the_c_library_lacks_a_function(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_LIBC", types.SimpleNamespace())
    store = FolderStore(str(path))
    await store.set(Key("new"), b"new")
    assert await store.rename(Key("new"), Key("b"))
    with pytest.raises(StoreUnsupported):
        await store.exchange_prefixes(Prefix("a/"), Prefix("c/"))
    assert await contents(store) == {"k": b"value", "a/k": b"other", "b": b"new"}
