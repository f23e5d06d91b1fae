"""Behaviour of the tree of files: scenarios for any `tests.support.drivers.Driver`.

``tests/fuse/test_tree.py`` runs them directly (milliseconds, no root), ``tests/mount/test_tree.py`` through the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import trio

from tests.support.drivers import Driver
from tests.support.small_stores import SMALL, array_document, chunk

Scenario = Callable[[Driver], Awaitable[None]]
SCENARIOS: list[Scenario] = []

CHUNK = chunk(0, 0)
OTHER = bytes(reversed(CHUNK))
NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_PATIENCE_S = 30


def scenario(function: Scenario) -> Scenario:
    SCENARIOS.append(function)
    return function


@contextmanager
def refused(number: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:  # noqa: PT011
        yield
    assert caught.value.errno == number, f"{errno.errorcode[caught.value.errno or 0]} instead of {errno.errorcode[number]}"


def unasked(d: Driver, number: int = errno.EPERM, by_kernel: int = errno.EACCES) -> int:
    """Return ``by_kernel`` where the kernel refuses a request without asking the mount, as to ordinary users; else ``number``."""
    return number if not d.through_kernel or os.geteuid() == 0 else by_kernel


# --- stat(2) --------------------------------------------------------------------------------------------------------------------


@scenario
async def sizes_come_from_keys_and_from_metadata(d: Driver) -> None:
    await d.put("z/0.0", b"not yet decoded")
    assert (await d.stat(f"{d.raw}/z/0.0")).st_size == 15
    assert (await d.stat(f"{d.chunks}/z/0.0")).st_size == len(CHUNK)
    assert (await d.stat(f"npy/{d.prefix}a.npy")).st_size == 128 + 6 * 5 * 4
    assert (await d.stat(f"{d.raw}/a/0.0")).st_blocks == 1


@scenario
async def modes_tell_what_can_be_written(d: Driver) -> None:
    modes = {
        path: stat.filemode((await d.stat(path)).st_mode)
        for path in (d.raw, f"{d.raw}/a/0.0", f"{d.chunks}/a", f"{d.chunks}/a/0.0", f"npy/{d.prefix}a.npy", "README.txt")
    }
    assert list(modes.values()) == ["drwxr-xr-x", "-rw-r--r--", "drwxr-xr-x", "-rw-r--r--", "-rw-r--r--", "-r--r--r--"]


@scenario
async def a_file_has_one_link_and_none_once_it_lost_its_name(d: Driver) -> None:
    async with d.opened(f"{d.raw}/a/0.0") as fd:
        assert (await d.fstat(fd)).st_nlink == 1
        await d.unlink(f"{d.raw}/a/0.0")
        assert (await d.fstat(fd)).st_nlink == 0
    assert (await d.stat(d.raw)).st_nlink >= 1


@scenario
async def an_inode_number_stays_while_the_value_does(d: Driver) -> None:
    before = (await d.stat(f"{d.raw}/a/0.0")).st_ino
    await d.read(f"{d.raw}/a/0.0")
    assert (await d.stat(f"{d.raw}/a/0.0")).st_ino == before
    await d.write(f"{d.raw}/a/0.0", b"written through the mount")
    assert (await d.stat(f"{d.raw}/a/0.0")).st_ino == before
    assert (await d.stat(f"{d.raw}/a/0.1")).st_ino != before


@scenario
async def files_of_two_views_are_two_inodes(d: Driver) -> None:
    assert (await d.stat(f"{d.raw}/a/0.0")).st_ino != (await d.stat(f"{d.chunks}/a/0.0")).st_ino


@scenario
async def a_listing_says_what_stat_says(d: Driver) -> None:
    for folder in (d.raw, f"{d.raw}/a", d.chunks, f"{d.chunks}/a", f"npy/{d.prefix[:-1]}"):
        for name in await d.listdir(folder):
            await d.stat(f"{folder}/{name}")


@scenario
async def times_are_those_of_the_key(d: Driver) -> None:
    await d.put("k", b"x")
    first = (await d.stat(f"{d.raw}/k")).st_mtime_ns
    assert first > 1_600_000_000 * 10**9
    assert (await d.stat(f"{d.raw}/k")).st_mtime_ns == first


@scenario
async def utimens_is_kept(d: Driver) -> None:
    for path in (f"{d.raw}/.zgroup", *([f"{d.chunks}/a/0.0"] if d.hierarchical else [])):
        await d.utime(path, 1_000_000_007_000_000_000)
        assert (await d.stat(path)).st_mtime_ns == 1_000_000_007_000_000_000
    async with d.opened(f"{d.raw}/copied", NEW) as fd:
        await d.pwrite(fd, b"x", 0)
        await d.futime(fd, 1_111_111_111_000_000_000)
    assert (await d.stat(f"{d.raw}/copied")).st_mtime_ns == 1_111_111_111_000_000_000
    await d.rename(f"{d.raw}/copied", f"{d.raw}/again")
    assert (await d.stat(f"{d.raw}/again")).st_mtime_ns == 1_111_111_111_000_000_000
    await d.write(f"{d.raw}/again", b"y")
    assert (await d.stat(f"{d.raw}/again")).st_mtime_ns > 1_600_000_000 * 10**9


@scenario
async def utimens_of_an_open_file_is_kept(d: Driver) -> None:
    """touch(1) opens the file first, and a reader may have it open all the time."""
    for path in (f"{d.raw}/.zgroup", *([f"{d.chunks}/a/0.0", f"npy/{d.prefix}a.npy"] if d.hierarchical else [])):
        async with d.opened(path) as reader:
            await d.pread(reader, 10, 0)
            await d.utime(path, 1_000_000_007_000_000_000)
            assert (await d.stat(path)).st_mtime_ns == (await d.fstat(reader)).st_mtime_ns == 1_000_000_007_000_000_000
            async with d.opened(path, os.O_WRONLY) as fd:
                await d.futime(fd, 1_111_111_111_000_000_000)
            assert (await d.stat(path)).st_mtime_ns == (await d.fstat(reader)).st_mtime_ns == 1_111_111_111_000_000_000
        assert (await d.stat(path)).st_mtime_ns == 1_111_111_111_000_000_000


@scenario
async def the_time_of_an_open_array_is_that_of_its_last_change(d: Driver) -> None:
    path = f"npy/{d.prefix}a.npy"
    await d.utime(path, 1_000_000_007_000_000_000)
    async with d.opened(path) as reader:
        await d.pread(reader, 10, 0)
        await d.write(f"{d.chunks}/a/0.0", OTHER)
        assert (await d.stat(path)).st_mtime_ns == (await d.fstat(reader)).st_mtime_ns > 1_600_000_000 * 10**9


@scenario
async def the_time_of_a_folder_is_kept_until_names_in_it_change(d: Driver) -> None:
    await d.write(f"{d.raw}/a/copied", b"x")
    await d.utime(f"{d.raw}/a", 1_000_000_007_000_000_000)
    assert (await d.stat(f"{d.raw}/a")).st_mtime_ns == 1_000_000_007_000_000_000
    assert "a" in await d.listdir(d.raw)
    await d.rename(f"{d.raw}/a", f"{d.raw}/b")
    assert (await d.stat(f"{d.raw}/b")).st_mtime_ns == 1_000_000_007_000_000_000
    await d.write(f"{d.raw}/b/new", b"x")
    assert (await d.stat(f"{d.raw}/b")).st_mtime_ns > 1_600_000_000 * 10**9


@scenario
async def times_of_an_open_file_whose_name_is_another_ones_are_not_the_other_ones(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"old")
    async with d.opened(f"{d.raw}/k") as fd:
        await d.unlink(f"{d.raw}/k")
        await d.write(f"{d.raw}/k", b"new")
        await d.futime(fd, 1_000_000_007_000_000_000)
        assert (await d.stat(f"{d.raw}/k")).st_mtime_ns != 1_000_000_007_000_000_000


@scenario
async def statfs_tells_of_space_and_of_the_length_of_names(d: Driver) -> None:
    space = await d.statvfs(d.raw)
    assert space.f_namemax == 255
    assert 0 < space.f_bavail <= space.f_blocks


# --- reading and writing --------------------------------------------------------------------------------------------------------


@scenario
async def what_is_written_is_in_the_store_after_close(d: Driver) -> None:
    with d.counted() as cost:
        await d.write(f"{d.raw}/k", b"value")
    assert await d.stored("k") == b"value"
    assert await d.read(f"{d.raw}/k") == b"value"
    assert cost["set"] == 1
    assert "get" not in cost


@scenario
async def an_empty_file_is_an_empty_value(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"x")
    await d.close(await d.open(f"{d.raw}/k", NEW))
    await d.becomes("k", b"")
    assert (await d.stat(f"{d.raw}/k")).st_size == 0


@scenario
async def creation_alone_is_published_at_the_last_release_and_not_at_flush(d: Driver) -> None:
    fd = await d.open(f"{d.raw}/k", NEW)
    await d.close(await d.dup(fd))
    assert await d.stored("k") is None
    assert "k" in await d.listdir(d.raw)
    assert (await d.stat(f"{d.raw}/k")).st_size == 0
    await d.close(fd)


@scenario
async def creation_alone_is_published_at_fsync(d: Driver) -> None:
    async with d.opened(f"{d.raw}/k", NEW) as fd:
        await d.fsync(fd)
        assert await d.stored("k") == b""


@scenario
async def o_trunc_alone_is_not_published_at_flush(d: Driver) -> None:
    before = await d.stored("a/0.0")
    fd = await d.open(f"{d.raw}/a/0.0", NEW)
    await d.close(await d.dup(fd))
    assert await d.stored("a/0.0") == before
    await d.fsync(fd)
    assert await d.stored("a/0.0") == b""
    await d.close(fd)


@scenario
async def an_emptied_file_that_is_looked_at_stays_the_same_file(d: Driver) -> None:
    fd = await d.open(f"{d.raw}/a/0.0", os.O_WRONLY | os.O_TRUNC)
    number = (await d.stat(f"{d.raw}/a/0.0")).st_ino
    assert (await d.fstat(fd)).st_ino == number
    await d.pwrite(fd, b"more", 0)
    assert (await d.stat(f"{d.raw}/a/0.0")).st_ino == number
    await d.close(fd)
    assert (await d.stat(f"{d.raw}/a/0.0")).st_ino == number


@scenario
async def truncation_by_path_is_published_at_once(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"0123456789")
    await d.truncate(f"{d.raw}/k", 4)
    assert await d.stored("k") == b"0123"
    await d.truncate(f"{d.raw}/k", 6)
    assert await d.stored("k") == b"0123\0\0"
    await d.truncate(f"{d.raw}/k", 0)
    assert await d.stored("k") == b""


@scenario
async def truncation_by_descriptor_is_published_at_close(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"0123456789")
    async with d.opened(f"{d.raw}/k", os.O_RDWR) as fd:
        await d.ftruncate(fd, 4)
        assert await d.pread(fd, 100, 0) == b"0123"
        assert await d.stored("k") == b"0123456789"
    assert await d.stored("k") == b"0123"


@scenario
async def a_part_is_rewritten_and_the_rest_stays(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"0123456789")
    async with d.opened(f"{d.raw}/k", os.O_WRONLY) as fd:
        await d.pwrite(fd, b"ab", 4)
    assert await d.stored("k") == b"0123ab6789"


@scenario
async def a_gap_that_was_never_written_is_zeros(d: Driver) -> None:
    async with d.opened(f"{d.raw}/k", os.O_RDWR | os.O_CREAT) as fd:
        await d.pwrite(fd, b"end", 5000)
        assert await d.pread(fd, 6000, 4990) == bytes(10) + b"end"
    assert await d.stored("k") == bytes(5000) + b"end"


@scenario
async def o_append_writes_at_the_end(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"one")
    async with d.opened(f"{d.raw}/k", os.O_WRONLY | os.O_APPEND) as fd:
        await d.append(fd, b" two")
        await d.append(fd, b" three")
    assert await d.stored("k") == b"one two three"


@scenario
async def o_excl_refuses_what_is_there(d: Driver) -> None:
    with refused(errno.EEXIST):
        await d.open(f"{d.raw}/a/0.0", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with refused(errno.EEXIST):
        await d.open(f"{d.chunks}/a/0.0", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    async with d.opened(f"{d.raw}/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL):
        with refused(errno.EEXIST):
            await d.open(f"{d.raw}/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)


@scenario
async def two_openers_share_what_is_staged(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"0123456789")
    async with d.opened(f"{d.raw}/k", os.O_RDWR) as one, d.opened(f"{d.raw}/k", os.O_RDWR) as other:
        await d.pwrite(one, b"ab", 0)
        assert await d.pread(other, 100, 0) == b"ab23456789"
        await d.pwrite(other, b"xy", 8)
        assert await d.pread(one, 100, 0) == b"ab234567xy"
        assert await d.stored("k") == b"0123456789"
    assert await d.stored("k") == b"ab234567xy"


@scenario
async def a_reader_who_was_there_first_sees_what_is_published_later(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"before")
    async with d.opened(f"{d.raw}/k") as fd:
        assert await d.pread(fd, 100, 0) == b"before"
        await d.write(f"{d.raw}/k", b"after, and longer")
        assert await d.pread(fd, 100, 0) == b"after, and longer"
        assert (await d.fstat(fd)).st_size == 17


@scenario
async def every_close_publishes(d: Driver) -> None:
    fd = await d.open(f"{d.raw}/k", NEW)
    await d.pwrite(fd, b"one", 0)
    await d.close(await d.dup(fd))
    assert await d.stored("k") == b"one"
    await d.pwrite(fd, b" two", 3)
    await d.close(fd)
    assert await d.stored("k") == b"one two"


@scenario
async def a_large_value_survives_in_pieces(d: Driver) -> None:
    value = os.urandom(300_000) * 31
    async with d.opened(f"{d.raw}/k", NEW) as fd:
        for start in range(0, len(value), 131_072):
            await d.pwrite(fd, value[start : start + 131_072], start)
    assert await d.stored("k") == value
    async with d.opened(f"{d.raw}/k") as fd:
        assert await d.pread(fd, 100_000, 9_000_000) == value[9_000_000:9_100_000]
        assert await d.pread(fd, 100, len(value)) == b""


# --- names in raw/ --------------------------------------------------------------------------------------------------------------


@scenario
async def an_unlinked_file_can_be_read_and_written_until_it_is_closed(d: Driver) -> None:
    async with d.opened(f"{d.raw}/a/0.0", os.O_RDWR) as fd:
        await d.unlink(f"{d.raw}/a/0.0")
        assert await d.stored("a/0.0") is None
        assert not await d.exists(f"{d.raw}/a/0.0")
        assert await d.pread(fd, 100, 0) == CHUNK
        await d.pwrite(fd, b"gone", 0)
        assert (await d.pread(fd, 4, 0)) == b"gone"
    assert await d.stored("a/0.0") is None


@scenario
async def a_name_that_was_unlinked_is_used_again_while_the_old_file_is_open(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"old")
    async with d.opened(f"{d.raw}/k") as fd:
        old = (await d.fstat(fd)).st_ino
        await d.unlink(f"{d.raw}/k")
        await d.write(f"{d.raw}/k", b"new value")
        assert (await d.stat(f"{d.raw}/k")).st_ino != old
        assert await d.pread(fd, 100, 0) == b"old"
        assert await d.read(f"{d.raw}/k") == b"new value"


@scenario
async def a_file_that_was_never_published_is_unlinked(d: Driver) -> None:
    async with d.opened(f"{d.raw}/k", NEW) as fd:
        await d.pwrite(fd, b"x", 0)
        await d.unlink(f"{d.raw}/k")
        assert "k" not in await d.listdir(d.raw)
    assert await d.stored("k") is None


@scenario
async def a_file_is_renamed_and_keeps_its_inode(d: Driver) -> None:
    number = (await d.stat(f"{d.raw}/a/0.0")).st_ino
    with d.counted() as cost:
        await d.rename(f"{d.raw}/a/0.0", f"{d.raw}/moved")
    assert await d.stored("a/0.0") is None
    assert await d.stored("moved") == CHUNK
    assert not await d.exists(f"{d.raw}/a/0.0")
    assert (await d.stat(f"{d.raw}/moved")).st_ino == number
    assert await d.read(f"{d.raw}/moved") == CHUNK
    assert cost["rename"] == 1


@scenario
async def a_file_is_renamed_while_it_is_being_written(d: Driver) -> None:
    async with d.opened(f"{d.raw}/k.partial", NEW) as fd:
        await d.pwrite(fd, b"one", 0)
        await d.rename(f"{d.raw}/k.partial", f"{d.raw}/k")
        await d.pwrite(fd, b" two", 3)
        assert (await d.fstat(fd)).st_size == 7
    assert await d.stored("k") == b"one two"
    assert await d.stored("k.partial") is None


@scenario
async def a_file_is_renamed_over_one_that_is_open(d: Driver) -> None:
    await d.write(f"{d.raw}/old", b"old value")
    await d.write(f"{d.raw}/new", b"new")
    async with d.opened(f"{d.raw}/old") as fd:
        number = (await d.stat(f"{d.raw}/new")).st_ino
        await d.rename(f"{d.raw}/new", f"{d.raw}/old")
        assert await d.pread(fd, 100, 0) == b"old value"
        assert await d.read(f"{d.raw}/old") == b"new"
        assert (await d.stat(f"{d.raw}/old")).st_ino == number
        assert (await d.fstat(fd)).st_nlink == 0
    assert await d.stored("old") == b"new"
    assert await d.stored("new") is None


@scenario
async def what_is_staged_in_a_file_that_was_renamed_over_is_not_published(d: Driver) -> None:
    await d.write(f"{d.raw}/new", b"new")
    async with d.opened(f"{d.raw}/old", NEW) as fd:
        await d.pwrite(fd, b"staged", 0)
        await d.rename(f"{d.raw}/new", f"{d.raw}/old")
        await d.pwrite(fd, b"more", 0)
    assert await d.stored("old") == b"new"


@scenario
async def a_rename_without_replacing_refuses(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"x")
    with refused(errno.EEXIST):
        await d.rename(f"{d.raw}/k", f"{d.raw}/a/0.0", replace=False)
    await d.rename(f"{d.raw}/k", f"{d.raw}/l", replace=False)
    assert await d.stored("l") == b"x"


@scenario
async def a_folder_is_renamed_with_all_that_is_known_below_it(d: Driver) -> None:
    numbers = {name: (await d.stat(f"{d.raw}/a/{name}")).st_ino for name in await d.listdir(f"{d.raw}/a")}
    async with d.opened(f"{d.raw}/a/0.0", os.O_RDWR) as fd:
        await d.pwrite(fd, b"wxyz", 0)
        await d.rename(f"{d.raw}/a", f"{d.raw}/b")
        assert not await d.exists(f"{d.raw}/a")
        assert await d.stored("b/0.0") == b"wxyz" + CHUNK[4:]
        assert await d.read(f"{d.raw}/b/0.1") == chunk(0, 1)
        assert {name: (await d.stat(f"{d.raw}/b/{name}")).st_ino for name in await d.listdir(f"{d.raw}/b")} == numbers
        await d.pwrite(fd, b"abcd", 0)
    assert await d.stored("b/0.0") == b"abcd" + CHUNK[4:]
    assert await d.stored("a/0.0") is None
    await d.unlink(f"{d.raw}/b/0.1")
    assert await d.stored("b/0.1") is None
    await d.rename(f"{d.raw}/b", f"{d.raw}/a")
    assert await d.read(f"{d.raw}/a/1.0") == chunk(1, 0)


@scenario
async def a_renamed_folders_old_name_is_free(d: Driver) -> None:
    await d.stat(f"{d.raw}/a/0.0")
    await d.rename(f"{d.raw}/a", f"{d.raw}/b")
    await d.mkdir(f"{d.raw}/a")
    await d.write(f"{d.raw}/a/0.0", b"another")
    assert (await d.stat(f"{d.raw}/a/0.0")).st_ino != (await d.stat(f"{d.raw}/b/0.0")).st_ino
    assert await d.read(f"{d.raw}/b/0.0") == CHUNK
    assert await d.read(f"{d.raw}/a/0.0") == b"another"


@scenario
async def a_folder_is_renamed_only_over_an_empty_one(d: Driver) -> None:
    await d.mkdir(f"{d.raw}/empty")
    with refused(errno.ENOTEMPTY):
        await d.rename(f"{d.raw}/a", f"{d.raw}/z")
    await d.rename(f"{d.raw}/a", f"{d.raw}/empty")
    assert await d.read(f"{d.raw}/empty/0.0") == CHUNK
    with refused(errno.EINVAL):
        await d.rename(f"{d.raw}/empty", f"{d.raw}/empty/below")


@scenario
async def files_and_folders_do_not_take_each_others_place(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"x")
    with refused(errno.EISDIR):
        await d.rename(f"{d.raw}/k", f"{d.raw}/a")
    with refused(errno.ENOTDIR):
        await d.rename(f"{d.raw}/a", f"{d.raw}/k")
    with refused(errno.EISDIR):
        await d.unlink(f"{d.raw}/a")
    with refused(errno.ENOTDIR):
        await d.rmdir(f"{d.raw}/k")
    with refused(errno.EEXIST):
        await d.mkdir(f"{d.raw}/k")
    with refused(errno.EEXIST):
        await d.mkdir(f"{d.raw}/a")
    with refused(errno.ENOTDIR):
        await d.stat(f"{d.raw}/k/below")
    with refused(errno.EISDIR):
        await d.open(f"{d.raw}/a", os.O_WRONLY)
    with refused(errno.ENOENT):
        await d.rename(f"{d.raw}/nothing", f"{d.raw}/k")
    with refused(errno.ENOENT):
        await d.unlink(f"{d.raw}/nothing")
    with refused(errno.ENOENT):
        await d.rmdir(f"{d.raw}/nothing")
    with refused(errno.ENOENT):
        await d.open(f"{d.raw}/nothing", os.O_RDONLY)


@scenario
async def folders_are_made_and_removed(d: Driver) -> None:
    await d.mkdir(f"{d.raw}/new")
    assert await d.listdir(f"{d.raw}/new") == []
    assert "new" in await d.listdir(d.raw)
    await d.write(f"{d.raw}/new/k", b"x")
    with refused(errno.ENOTEMPTY):
        await d.rmdir(f"{d.raw}/new")
    await d.unlink(f"{d.raw}/new/k")
    assert await d.listdir(f"{d.raw}/new") == []
    await d.rmdir(f"{d.raw}/new")
    assert "new" not in await d.listdir(d.raw)
    assert not await d.exists(f"{d.raw}/new")


@scenario
async def a_folder_with_an_unpublished_file_is_not_empty(d: Driver) -> None:
    await d.mkdir(f"{d.raw}/new")
    async with d.opened(f"{d.raw}/new/k", NEW):
        with refused(errno.ENOTEMPTY):
            await d.rmdir(f"{d.raw}/new")


@scenario
async def a_tree_is_removed(d: Driver) -> None:
    for name in await d.listdir(f"{d.raw}/a"):
        await d.unlink(f"{d.raw}/a/{name}")
    await d.rmdir(f"{d.raw}/a")
    assert not await d.exists(f"{d.raw}/a")
    await d.vanishes(f"{d.chunks}/a")


# --- temporary names ------------------------------------------------------------------------------------------------------------

PARTIAL = f"k.{'0123456789abcdef' * 2}.partial"


@scenario
async def a_temporary_name_is_seen_here_and_not_in_the_store(d: Driver) -> None:
    for name in (PARTIAL, "k.__lock"):
        await d.write(f"{d.raw}/a/{name}", b"abc")
        assert await d.read(f"{d.raw}/a/{name}") == b"abc"
        assert (await d.stat(f"{d.raw}/a/{name}")).st_size == 3
        assert name in await d.listdir(f"{d.raw}/a")
        assert await d.stored(f"a/{name}") is None
        with refused(errno.EEXIST):
            await d.open(f"{d.raw}/a/{name}", NEW | os.O_EXCL)
        with refused(errno.EEXIST):
            await d.mkdir(f"{d.raw}/a/{name}")
        await d.unlink(f"{d.raw}/a/{name}")
        assert name not in await d.listdir(f"{d.raw}/a")
        with refused(errno.ENOENT):
            await d.open(f"{d.raw}/a/{name}", os.O_RDONLY)


@scenario
async def other_names_are_keys_in_raw(d: Driver) -> None:
    for name in ("4913", ".k.swp", "k~", "t.db-journal", "k.partial"):
        await d.write(f"{d.raw}/{name}", b"x")
        assert await d.stored(name) == b"x"


@scenario
async def a_temporary_file_is_renamed_over_a_key_and_keeps_its_inode(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"old")
    async with d.opened(f"{d.raw}/{PARTIAL}", NEW) as fd, d.opened(f"{d.raw}/k") as reader:
        await d.pwrite(fd, b"new value", 0)
        number = (await d.stat(f"{d.raw}/{PARTIAL}")).st_ino
        await d.rename(f"{d.raw}/{PARTIAL}", f"{d.raw}/k")
        assert await d.stored("k") == b"new value"
        assert not await d.exists(f"{d.raw}/{PARTIAL}")
        assert (await d.stat(f"{d.raw}/k")).st_ino == (await d.fstat(fd)).st_ino == number
        assert await d.pread(reader, 99, 0) == b"old"
        await d.pwrite(fd, b"NEW", 0)
    assert await d.stored("k") == b"NEW value"


@scenario
async def a_temporary_file_keeps_its_inode_when_it_is_closed(d: Driver) -> None:
    async with d.opened(f"{d.raw}/{PARTIAL}", NEW) as fd:
        await d.pwrite(fd, b"x", 0)
        told = await d.stat(f"{d.raw}/{PARTIAL}")
    assert await d.read(f"{d.raw}/{PARTIAL}") == b"x"
    now = await d.stat(f"{d.raw}/{PARTIAL}")
    assert (now.st_ino, now.st_mtime_ns) == (told.st_ino, told.st_mtime_ns)


@scenario
async def o_trunc_empties_a_file_that_is_opened_for_reading(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"x")
    async with d.opened(f"{d.raw}/k", os.O_RDONLY | os.O_TRUNC) as fd:
        assert await d.pread(fd, 9, 0) == b""
    with refused(unasked(d)):
        await d.open("README.txt", os.O_RDONLY | os.O_TRUNC)


@scenario
async def a_key_is_renamed_to_a_temporary_name_and_back(d: Driver) -> None:
    await d.write(f"{d.raw}/k", b"value")
    await d.rename(f"{d.raw}/k", f"{d.raw}/k.__lock")
    assert await d.stored("k") is None
    assert await d.read(f"{d.raw}/k.__lock") == b"value"
    await d.rename(f"{d.raw}/k.__lock", f"{d.raw}/a/{PARTIAL}")
    await d.rename(f"{d.raw}/a/{PARTIAL}", f"{d.raw}/k")
    assert await d.stored("k") == b"value"


@scenario
async def a_link_of_a_temporary_file_creates_a_key(d: Driver) -> None:
    await d.write(f"{d.raw}/{PARTIAL}", b"value")
    await d.link(f"{d.raw}/{PARTIAL}", f"{d.raw}/new")
    assert await d.stored("new") == b"value"
    with refused(errno.EEXIST):
        await d.link(f"{d.raw}/{PARTIAL}", f"{d.raw}/new")
    await d.unlink(f"{d.raw}/{PARTIAL}")
    assert await d.read(f"{d.raw}/new") == b"value"
    with refused(errno.EPERM):
        await d.link(f"{d.raw}/new", f"{d.raw}/another")


@scenario
async def a_folder_that_holds_a_temporary_file_is_not_empty_and_takes_it_along(d: Driver) -> None:
    await d.mkdir(f"{d.raw}/folder")
    async with d.opened(f"{d.raw}/folder/k.__lock", NEW) as fd:
        await d.pwrite(fd, b"x", 0)
        with refused(errno.ENOTEMPTY):
            await d.rmdir(f"{d.raw}/folder")
        if d.hierarchical:
            await d.rename(f"{d.raw}/folder", f"{d.raw}/moved")
            assert await d.listdir(f"{d.raw}/moved") == ["k.__lock"]
            await d.rename(f"{d.raw}/moved/k.__lock", f"{d.raw}/moved/k")
            assert await d.stored("moved/k") == b"x"


@scenario
async def a_rename_between_views_is_exdev(d: Driver) -> None:
    for old, new in (
        (f"{d.raw}/a/0.0", f"{d.chunks}/a/2.1"),
        (f"{d.chunks}/a/0.0", f"{d.raw}/k"),
        (f"npy/{d.prefix}a.npy", f"{d.raw}/a.npy"),
        (f"{d.raw}/a", f"{d.chunks}/b"),
    ):
        with refused(errno.EXDEV):
            await d.rename(old, new)


@scenario
async def names_that_are_not_text_are_keys(d: Driver) -> None:
    name = os.fsdecode(b"\xff\xfe caf\xe9 \n")
    await d.write(f"{d.raw}/{name}", b"x")
    assert name in await d.listdir(d.raw)
    assert await d.stored(name) == b"x"
    await d.unlink(f"{d.raw}/{name}")
    assert await d.stored(name) is None


@scenario
async def a_name_has_at_most_255_bytes(d: Driver) -> None:
    await d.write(f"{d.raw}/{'n' * 255}", b"x")
    assert await d.stored("n" * 255) == b"x"
    with refused(errno.ENAMETOOLONG):
        await d.open(f"{d.raw}/{'n' * 256}", NEW)
    with refused(errno.ENAMETOOLONG):
        await d.stat(f"{d.raw}/{'n' * 256}")
    with refused(errno.ENAMETOOLONG):
        await d.mkdir(f"{d.raw}/{'ü' * 128}")


@scenario
async def a_name_that_looks_escaped_stands_for_one_key(d: Driver) -> None:
    for name, key in {"%%k": "%%k", "%k": "%k", "%%%25%25%252E": "%%%2E"}.items():
        await d.write(f"{d.raw}/{name}", key.encode())
        assert await d.stored(key) == key.encode()
    assert {"%%k", "%k", "%%%25%25%252E"} <= set(await d.listdir(d.raw))
    assert not await d.exists(f"{d.raw}/%%%2E")
    assert not await d.exists(f"{d.raw}/%%a")


@scenario
async def each_name_is_listed_once(d: Driver) -> None:
    for number in range(300):
        await d.put(f"many/{number}", b"")
    await d.write(f"{d.raw}/many/7", b"rewritten")
    async with d.opened(f"{d.raw}/many/new", NEW), d.opened(f"{d.raw}/many/8", os.O_WRONLY) as fd:
        await d.pwrite(fd, b"x", 0)
        listed = await d.listdir(f"{d.raw}/many")
    assert sorted(listed) == sorted([*map(str, range(300)), "new"])


# --- chunks/ --------------------------------------------------------------------------------------------------------------------


@scenario
async def a_decoded_chunk_is_read(d: Driver) -> None:
    assert await d.read(f"{d.chunks}/a/0.0") == CHUNK
    assert sorted(await d.listdir(f"{d.chunks}/a")) == [".zarray", "0.0", "0.1", "1.0", "1.1", "2.0"]
    assert not await d.exists(f"{d.chunks}/a/2.1")
    assert not await d.exists(f"{d.chunks}/a/3.0")


@scenario
async def a_chunk_is_rewritten_encoded_and_read_again(d: Driver) -> None:
    await d.write(f"{d.chunks}/z/0.0", CHUNK)
    assert await d.stored("z/0.0") not in (None, CHUNK)
    assert await d.read(f"{d.chunks}/z/0.0") == CHUNK
    async with d.opened(f"{d.chunks}/z/0.0", os.O_RDWR) as fd:
        await d.pwrite(fd, b"wxyz", 4)
    assert await d.read(f"{d.chunks}/z/0.0") == CHUNK[:4] + b"wxyz" + CHUNK[8:]


@scenario
async def a_chunk_that_was_not_stored_is_created_and_removed(d: Driver) -> None:
    await d.write(f"{d.chunks}/a/2.1", CHUNK)
    assert await d.exists(f"{d.raw}/a/2.1")
    await d.unlink(f"{d.chunks}/a/2.1")
    assert await d.stored("a/2.1") is None
    assert not await d.exists(f"{d.chunks}/a/2.1")
    await d.vanishes(f"{d.raw}/a/2.1")


@scenario
async def what_is_no_chunk_is_refused(d: Driver) -> None:
    for name in ("3.0", "0.2", "0", "0.0.0", "00.0"):
        with refused(errno.EINVAL):
            await d.open(f"{d.chunks}/a/{name}", NEW)


@scenario
async def what_is_made_cannot_be_changed(d: Driver) -> None:
    with refused(unasked(d)):
        await d.open("README.txt", os.O_WRONLY)
    with refused(unasked(d)):
        await d.truncate("README.txt", 0)
    with refused(unasked(d)):
        await d.open("new", NEW)
    with refused(unasked(d)):
        await d.mkdir("new")


@scenario
async def elements_written_in_place_are_stored_in_their_chunks(d: Driver) -> None:
    path = f"npy/{d.prefix}a.npy"
    whole = bytearray(await d.read(path))
    fd = await d.open(path, os.O_RDWR)
    await d.pwrite(fd, b"\7" * 9, len(whole) - 9)
    whole[-9:] = b"\7" * 9
    assert await d.pread(fd, len(whole), 0) == whole
    with refused(errno.EPERM):
        await d.pwrite(fd, b"\0", 3)
    with refused(errno.EFBIG):
        await d.pwrite(fd, b"\0", len(whole))
    await d.close(fd)
    assert await d.read(path) == whole
    with refused(errno.EINVAL):
        await d.truncate(path, len(whole) - 1)
    assert await d.read(path) == whole


@scenario
async def a_file_copied_in_becomes_an_array_and_goes_again(d: Driver) -> None:
    elements = np.arange(20, dtype="<i4").reshape(4, 5)
    file = io.BytesIO()
    np.save(file, elements)
    path, other = f"npy/{d.prefix}new.npy", f"npy/{d.prefix}other.npy"
    await d.write(path, file.getvalue())
    assert await d.read(path) == file.getvalue()
    assert ".zarray" in await d.listdir(f"{d.chunks}/new")
    await d.rename(path, other)
    assert await d.read(other) == file.getvalue()
    assert f"{d.prefix}new.npy".rpartition("/")[2] not in await d.listdir(f"npy/{d.prefix[:-1]}")
    await d.unlink(other)
    with refused(errno.ENOENT):
        await d.stat(other)
    with refused(errno.ENOENT):
        await d.stat(f"{d.chunks}/other")


@scenario
async def a_short_array_file_is_einval_and_nothing_is_made(d: Driver) -> None:
    file = io.BytesIO()
    np.save(file, np.arange(20))
    before = await d.listdir(f"npy/{d.prefix[:-1]}")
    fd = await d.open(f"npy/{d.prefix}short.npy", NEW)
    await d.pwrite(fd, file.getvalue()[:-1], 0)
    with refused(errno.EINVAL):
        await d.close(await d.dup(fd))
    await d.unlink(f"npy/{d.prefix}short.npy")
    with contextlib.suppress(OSError):
        await d.close(fd)
    assert await d.listdir(f"npy/{d.prefix[:-1]}") == before


@scenario
async def a_short_chunk_is_einval_and_the_store_untouched(d: Driver) -> None:
    before = await d.stored("a/0.0")
    for path in (f"{d.chunks}/a/0.0", f"{d.chunks}/a/2.1"):
        fd = await d.open(path, NEW)
        await d.pwrite(fd, b"short", 0)
        for _ in range(2):
            # Each close reports it again, until it is corrected.
            with refused(errno.EINVAL):
                await d.close(await d.dup(fd))
        with refused(errno.EINVAL):
            await d.fsync(fd)
        await d.pwrite(fd, OTHER, 0)
        await d.close(fd)
        assert await d.read(path) == (await d.stored(path.removeprefix(f"{d.chunks}/")))
    assert await d.stored("a/0.0") != before
    with refused(errno.EINVAL):
        await d.truncate(f"{d.chunks}/a/1.0", 3)
    assert await d.stored("a/1.0") == chunk(1, 0)
    assert await d.read(f"{d.chunks}/a/1.0") == chunk(1, 0)


@scenario
async def a_chunk_too_long_is_efbig(d: Driver) -> None:
    async with d.opened(f"{d.chunks}/a/0.0", os.O_WRONLY) as fd:
        with refused(errno.EFBIG):
            await d.pwrite(fd, CHUNK + b"1", 0)
        with refused(errno.EFBIG):
            await d.pwrite(fd, b"1", len(CHUNK))
        with refused(errno.EFBIG):
            await d.ftruncate(fd, len(CHUNK) + 1)
    with refused(errno.EFBIG):
        await d.truncate(f"{d.chunks}/a/0.0", len(CHUNK) + 1)
    assert await d.stored("a/0.0") == CHUNK


@scenario
async def padding_is_read_back_as_it_is_stored(d: Driver) -> None:
    written = bytes(range(24))
    await d.write(f"{d.chunks}/a/0.1", written)
    stored = await d.stored("a/0.1")
    assert stored == written[:8] + b"\7\0\0\0" + written[12:20] + b"\7\0\0\0"
    assert await d.read(f"{d.chunks}/a/0.1") == stored


@scenario
async def a_chunk_that_cannot_be_decoded_is_eio_and_can_be_removed_or_replaced(d: Driver) -> None:
    await d.put("z/0.0", b"no zlib")
    async with d.opened(f"{d.chunks}/z/0.0") as fd:
        with refused(errno.EIO):
            await d.pread(fd, 100, 0)
        await d.unlink(f"{d.chunks}/z/0.0")
    assert await d.stored("z/0.0") is None
    await d.put("z/0.1", b"no zlib")
    await d.write(f"{d.chunks}/z/0.1", CHUNK)
    assert (await d.read(f"{d.chunks}/z/0.1"))[:8] == CHUNK[:8]


# --- zarr3/ ---------------------------------------------------------------------------------------------------------------------


@scenario
async def a_chunk_is_read_as_it_is_stored_and_one_that_is_written_is_stored_so(d: Driver) -> None:
    array = f"{d.zarr3}/a"
    assert await d.read(f"{array}/c/0/0") == await d.stored("a/0.0")
    assert sorted(await d.listdir(array)) == ["c", "zarr.json"]
    assert sorted(await d.listdir(f"{array}/c")) == ["0", "1", "2"]
    assert sorted(await d.listdir(f"{array}/c/2")) == ["0"]
    await d.write(f"{array}/c/2/1", OTHER)
    assert await d.stored("a/2.1") == OTHER
    assert await d.read(f"{d.chunks}/a/2.1") != b""
    await d.unlink(f"{array}/c/2/1")
    await d.unlink(f"{array}/c/2/0")
    assert await d.stored("a/2.0") is None
    assert sorted(await d.listdir(f"{array}/c")) == ["0", "1"]


@scenario
async def what_is_no_encoded_chunk_is_refused_and_so_are_names_that_are_none(d: Driver) -> None:
    before = await d.stored("z/0.0")
    fd = await d.open(f"{d.zarr3}/z/c/0/0", NEW)
    await d.pwrite(fd, b"no zlib", 0)
    with refused(errno.EINVAL):
        await d.close(fd)
    assert await d.stored("z/0.0") == before
    for name in ("c/0/2", "c/0/0.0", "0.0"):
        with refused(errno.EINVAL):
            await d.open(f"{d.zarr3}/a/{name}", NEW)
    for name in ("c/3/0", "c/00/0", "x/0"):
        with refused(errno.ENOENT):
            await d.open(f"{d.zarr3}/a/{name}", NEW)


# --- one change, every view -----------------------------------------------------------------------------------------------------


@scenario
async def a_change_in_raw_is_seen_in_the_others_at_once(d: Driver) -> None:
    before = await d.read(f"npy/{d.prefix}a.npy")
    assert await d.read(f"{d.chunks}/a/0.0") == CHUNK
    for value in (OTHER, CHUNK, OTHER):
        await d.write(f"{d.raw}/a/0.0", value)
        assert await d.read(f"{d.chunks}/a/0.0") == value
        assert (await d.read(f"npy/{d.prefix}a.npy"))[128:140] == value[:12]
    assert before[128:140] == CHUNK[:12]


@scenario
async def a_change_in_chunks_is_seen_in_the_others_at_once(d: Driver) -> None:
    await d.read(f"npy/{d.prefix}a.npy")
    assert await d.read(f"{d.raw}/a/0.0") == CHUNK
    for value in (OTHER, CHUNK, OTHER):
        await d.write(f"{d.chunks}/a/0.0", value)
        assert await d.read(f"{d.raw}/a/0.0") == value
        assert (await d.read(f"npy/{d.prefix}a.npy"))[128:140] == value[:12]


@scenario
async def who_has_a_value_open_in_another_view_keeps_the_old_one(d: Driver) -> None:
    for mine, theirs in ((d.raw, d.chunks), (d.chunks, d.raw)):
        async with d.opened(f"{theirs}/a/0.0") as untouched, d.opened(f"{theirs}/a/0.0", os.O_RDWR) as fd:
            number = (await d.fstat(fd)).st_ino
            assert await d.pread(fd, 4, 0) == CHUNK[:4]
            async with d.opened(f"npy/{d.prefix}a.npy") as npy:
                assert await d.pread(npy, 12, 128) == CHUNK[:12]
                await d.write(f"{mine}/a/0.0", OTHER)
                # A whole array is not one value: open handles see the chunk change.
                assert await d.pread(npy, 12, 128) == OTHER[:12]
            async with d.opened(f"{theirs}/a/0.0") as new:
                assert (await d.fstat(new)).st_ino != number
                assert await d.pread(new, 24, 0) == OTHER
                assert await d.pread(fd, 20, 4) == CHUNK[4:]
            with contextlib.suppress(OSError):
                # ESTALE is possible as well: this handle had read nothing.
                assert await d.pread(untouched, 24, 0) == CHUNK
            if theirs == d.raw:
                # A mixture of both values would be one that no program wrote.
                with refused(errno.ESTALE):
                    await d.pwrite(fd, b"wxyz", 4)
                now = OTHER
            else:
                # Written elements are merged into the current value.
                await d.pwrite(fd, b"wxyz", 4)
                await d.fsync(fd)
                now = OTHER[:4] + b"wxyz" + OTHER[8:]
                assert await d.pread(fd, 24, 0) == now
        assert await d.stored("a/0.0") == now
        assert await d.read(f"{theirs}/a/0.0") == now
        await d.write(f"{d.raw}/a/0.0", CHUNK)


@scenario
async def a_chunk_erased_in_raw_is_gone_in_chunks_and_fill_in_npy(d: Driver) -> None:
    await d.read(f"{d.chunks}/a/0.0")
    await d.read(f"npy/{d.prefix}a.npy")
    await d.unlink(f"{d.raw}/a/0.0")
    await d.vanishes(f"{d.chunks}/a/0.0")
    assert "0.0" not in await d.listdir(f"{d.chunks}/a")
    assert (await d.read(f"npy/{d.prefix}a.npy"))[128:140] == b"\7\0\0\0" * 3
    await d.write(f"{d.raw}/a/0.0", OTHER)
    assert await d.read(f"{d.chunks}/a/0.0") == OTHER


@scenario
async def a_document_changed_in_raw_changes_the_other_views(d: Driver) -> None:
    assert (await d.stat(f"{d.chunks}/a/0.0")).st_size == 24
    await d.write(f"{d.raw}/a/.zarray", array_document((6, 5), (2, 3), "<i2"))
    assert (await d.stat(f"{d.chunks}/a/0.0")).st_size == 12
    assert (await d.stat(f"npy/{d.prefix}a.npy")).st_size == 128 + 60
    await d.write(f"{d.raw}/a/.zarray", b"{")
    assert "a.unsupported.txt" in await d.listdir(d.chunks)


@scenario
async def two_views_of_one_value_written_at_once_end_as_the_last_to_close(d: Driver) -> None:
    raw, chunks = await d.open(f"{d.raw}/a/0.0", os.O_WRONLY), await d.open(f"{d.chunks}/a/0.0", os.O_WRONLY)
    await d.pwrite(raw, OTHER, 0)
    await d.pwrite(chunks, bytes(24), 0)
    await d.close(raw)
    assert await d.stored("a/0.0") == OTHER
    await d.close(chunks)
    assert await d.stored("a/0.0") == bytes(24)
    assert await d.read(f"{d.raw}/a/0.0") == bytes(24)


# --- external changes -----------------------------------------------------------------------------------------------------------


@scenario
async def a_value_replaced_behind_the_mount_is_another_file_and_never_mixed_with_the_old(d: Driver) -> None:
    old, new = b"o" * 9_000_000, b"n" * 9_000_000
    await d.put("large", old)
    fd = await d.open(f"{d.raw}/large", os.O_RDONLY)
    number = (await d.fstat(fd)).st_ino
    assert await d.pread(fd, 10, 0) == b"o" * 10
    await d.put("large", new)
    try:
        assert await d.pread(fd, 10, 8_000_000) == b"o" * 10
    except OSError as error:
        assert error.errno == errno.ESTALE  # noqa: PT017
    while True:
        async with d.opened(f"{d.raw}/large") as other:
            # Until the notification of the change arrives, both are right.
            if (await d.fstat(other)).st_ino != number:
                assert await d.pread(other, 10, 0) == b"n" * 10
                assert await d.pread(other, 10, 8_000_000) == b"n" * 10
                break
    await d.close(fd)


@scenario
async def a_small_value_replaced_behind_the_mount_is_read_whole(d: Driver) -> None:
    await d.put("k", b"old value")
    assert await d.read(f"{d.raw}/k") == b"old value"
    await d.put("k", b"new")
    async with d.opened(f"{d.raw}/k") as fd:
        assert await d.pread(fd, 100, 0) == b"new"


@scenario
async def a_part_of_a_chunk_is_changed_in_the_value_that_is_there_now(d: Driver) -> None:
    for view in (d.raw, d.chunks):
        assert await d.read(f"{view}/a/0.0") == CHUNK
        await d.put("a/0.0", OTHER)
        async with d.opened(f"{view}/a/0.0", os.O_WRONLY) as fd:
            await d.pwrite(fd, b"wxyz", 4)
        assert await d.stored("a/0.0") == OTHER[:4] + b"wxyz" + OTHER[8:]
        await d.put("a/0.0", CHUNK)


@scenario
async def a_key_that_appears_behind_the_mount_is_there(d: Driver) -> None:
    assert not await d.exists(f"{d.raw}/k")
    await d.put("k", b"x")
    assert await d.read(f"{d.raw}/k") == b"x"
    assert "k" in await d.listdir(d.raw)


@scenario
async def a_file_erased_in_another_view_can_be_created_again_while_it_is_open(d: Driver) -> None:
    async with d.opened(f"{d.raw}/a/0.0"):
        await d.unlink(f"{d.chunks}/a/0.0")
        async with d.opened(f"{d.raw}/a/0.0", os.O_WRONLY | os.O_CREAT | os.O_APPEND) as fd:
            await d.append(fd, OTHER)
    assert await d.stored("a/0.0") == OTHER
    assert await d.read(f"{d.chunks}/a/0.0") == OTHER


@scenario
async def hidden_files_are_looked_up_and_not_listed(d: Driver) -> None:
    assert sorted(await d.listdir("")) == ["README.txt", "chunks", "npy", "raw", "zarr3"]
    async with d.opened(".zarrfs/version") as fd:
        assert (await d.pread(fd, 100, 0)).startswith(b"zarrfs ")
    assert sorted(await d.listdir(".zarrfs")) == ["config.json", "errors.jsonl", "stats.json", "version"]
    with refused(unasked(d)):
        await d.open(".zarrfs/new", NEW)
    for refuse in (d.rmdir(".zarrfs"), d.rename(".zarrfs", "raw/moved"), d.rename(f"{d.raw}/a", ".zarrfs")):
        with refused(unasked(d)):
            await refuse


@scenario
async def the_store_is_as_it_was_when_nothing_was_written(d: Driver) -> None:
    with d.counted() as cost:
        for path in (f"{d.raw}/a/0.0", f"{d.chunks}/a/0.0", f"npy/{d.prefix}a.npy"):
            async with d.opened(path) as fd:
                await d.pread(fd, 10, 0)
                await d.fsync(fd)
        async with d.opened(f"{d.raw}/a/0.0", os.O_RDWR) as fd:
            await d.pread(fd, 10, 0)
    assert "set" not in cost
    assert {key: await d.stored(key) for key in SMALL} == SMALL


# --- extended attributes --------------------------------------------------------------------------------------------------------


@scenario
async def an_array_and_its_files_tell_what_it_is(d: Driver) -> None:
    said = {
        "user.zarr.dialect": b"v2",
        "user.zarr.shape": b"[6,5]",
        "user.zarr.data_type": b"int32",
        "user.zarr.chunk_shape": b"[2,3]",
        "user.zarr.codecs": b'[{"name":"bytes","configuration":{"endian":"little"}}]',
        "user.zarr.fill_value": b"7",
        "user.zarr.attributes": b"{}",
    }
    for path in (
        *(f"{d.chunks}/{name}" for name in ("a", "a/0.0", "a/.zarray")),
        *(f"{d.zarr3}/{name}" for name in ("a", "a/c/0/0", "a/c/0", "a/c", "a/zarr.json")),
        f"npy/{d.prefix}a.npy",
    ):
        names = await d.listxattr(path)
        assert sorted(names) == sorted(said), path
        assert {name: await d.getxattr(path, name) for name in names} == said, path
    assert b"zlib" in await d.getxattr(f"{d.zarr3}/z", "user.zarr.codecs")


@scenario
async def what_was_listed_tells_it_without_being_looked_up(d: Driver) -> None:
    for folder in (f"{d.chunks}/a", f"{d.zarr3}/a/c/1"):
        for name in await d.listdir(folder):
            assert await d.getxattr(f"{folder}/{name}", "user.zarr.shape") == b"[6,5]"


@scenario
async def a_group_tells_its_dialect_and_attributes(d: Driver) -> None:
    await d.write(f"{d.chunks}/.zattrs", b'{"title": "t\xc3\xa4glich"}')
    for path in (d.chunks, f"{d.chunks}/.zgroup", d.zarr3, f"{d.zarr3}/zarr.json", f"npy/{d.prefix[:-1]}"):
        assert sorted(await d.listxattr(path)) == ["user.zarr.attributes", "user.zarr.dialect"]
        assert await d.getxattr(path, "user.zarr.attributes") == b'{"title":"t\\u00e4glich"}'


@scenario
async def attributes_that_change_are_told_anew(d: Driver) -> None:
    assert await d.getxattr(f"{d.chunks}/a/0.0", "user.zarr.attributes") == b"{}"
    await d.write(f"{d.chunks}/a/.zattrs", b'{"n": 1}')
    for path in (f"{d.chunks}/a/0.0", f"{d.zarr3}/a", f"npy/{d.prefix}a.npy"):
        assert await d.getxattr(path, "user.zarr.attributes") == b'{"n":1}'


@scenario
async def keys_and_what_the_mount_itself_shows_have_no_extended_attributes(d: Driver) -> None:
    await d.write(f"{d.raw}/k.__lock", b"x")
    for path in (
        "",
        "raw",
        d.raw,
        f"{d.raw}/a",
        f"{d.raw}/a/.zarray",
        f"{d.raw}/k.__lock",
        "README.txt",
        ".zarrfs/version",
        ".zarrfs",
    ):
        with refused(errno.ENOTSUP):
            await d.listxattr(path)
        with refused(errno.ENOTSUP):
            await d.getxattr(path, "user.zarr.shape")
        changed = errno.ENOTSUP if path.startswith("raw") else unasked(d, errno.ENOTSUP)
        with refused(changed):
            await d.setxattr(path, "user.zarr.shape", b"[1]")
        with refused(changed):
            await d.removexattr(path, "user.zarr.shape")


@scenario
async def extended_attributes_outside_of_user_are_not_supported(d: Driver) -> None:
    for path in (f"{d.chunks}/a", f"{d.chunks}/a/0.0", f"npy/{d.prefix}a.npy", f"{d.raw}/a/0.0"):
        for name in ("security.capability", "system.posix_acl_access"):
            with refused(errno.ENOTSUP):
                await d.getxattr(path, name)
        # The kernel hides these from ordinary users.
        with refused(unasked(d, errno.ENOTSUP, by_kernel=errno.ENODATA)):
            await d.getxattr(path, "trusted.zarr.shape")


@scenario
async def extended_attributes_cannot_be_changed(d: Driver) -> None:
    for path in (f"{d.chunks}/a", f"{d.chunks}/a/0.0", f"npy/{d.prefix}a.npy"):
        # A copied value can be copied back.
        await d.setxattr(path, "user.zarr.shape", b"[6,5]")
        for name, value in (("user.zarr.shape", b"[6,6]"), ("user.zarr.other", b""), ("user.other", b"x")):
            with refused(errno.ENOTSUP):
                await d.setxattr(path, name, value)
        with refused(errno.ENOTSUP):
            await d.removexattr(path, "user.zarr.shape")
        for name in ("user.zarr.other", "user.zarr.dimension_names", "user.", "user.shape"):
            with refused(errno.ENODATA):
                await d.removexattr(path, name)
            with refused(errno.ENODATA):
                await d.getxattr(path, name)
        assert await d.getxattr(path, "user.zarr.shape") == b"[6,5]"


@scenario
async def what_is_to_become_a_chunk_or_an_array_takes_any_of_them_and_forgets_it(d: Driver) -> None:
    for path in (f"{d.chunks}/a/.0.0.Xy12Ab", f"npy/{d.prefix[:-1]}/.a.npy.Xy12Ab", f"{d.zarr3}/a/k.__lock"):
        async with d.opened(path, NEW) as fd:
            await d.pwrite(fd, CHUNK, 0)
            await d.setxattr(path, "user.zarr.shape", b"[9]")
            with refused(errno.ENOTSUP):
                await d.setxattr(path, "user.mine", b"x")
            assert await d.listxattr(path) == []
    await d.mkdir(f"{d.chunks}/made")
    await d.setxattr(f"{d.chunks}/made", "user.zarr.shape", b"[9]")
    assert "user.zarr.shape" not in await d.listxattr(f"{d.chunks}/made")
    # A folder with a node in it is a group permanently.
    await d.mkdir(f"{d.chunks}/made/inner")
    with refused(errno.ENOTSUP):
        await d.setxattr(f"{d.chunks}/made", "user.zarr.shape", b"[9]")


@scenario
async def large_attributes_are_told_who_asks_and_not_listed(d: Driver) -> None:
    """The list fits into the limit of other file systems; the kernel's limit is 64 KiB."""
    for nbytes, number in ((2_000, 0), (5_000, 0), (65_536, 0), (65_537, errno.E2BIG)):
        text = json.dumps({"x": "y" * (nbytes - 8)}, separators=(",", ":")).encode()
        assert len(text) == nbytes
        await d.write(f"{d.chunks}/a/.zattrs", text)
        names = await d.listxattr(f"{d.chunks}/a")
        assert ("user.zarr.attributes" in names) == (nbytes == 2_000)
        assert "user.zarr.codecs" in names
        if number:
            with refused(number):
                await d.getxattr(f"{d.chunks}/a", "user.zarr.attributes")
        else:
            assert await d.getxattr(f"{d.chunks}/a", "user.zarr.attributes") == text


@scenario
async def of_what_cannot_be_shown_only_the_dialect_is_known(d: Driver) -> None:
    await d.put("bad/.zarray", array_document((6,), (0,)))
    await d.put("strange/.zarray", array_document((6,), (2,), compressor={"id": "nobody-knows"}))
    for path in (f"{d.chunks}/bad", f"{d.chunks}/strange", f"{d.zarr3}/bad", f"npy/{d.prefix}bad"):
        assert await d.listxattr(f"{path}.unsupported.txt") == ["user.zarr.dialect"]
        assert await d.getxattr(f"{path}.unsupported.txt", "user.zarr.dialect") == b"v2"


@scenario
async def extended_attributes_cost_no_operation_of_the_store(d: Driver) -> None:
    async def is_free(path: str) -> bool:
        with d.counted() as looked_up:
            await d.stat(path)
        with d.counted() as cost:
            await d.listxattr(path)
        # The kernel knows the name already and sends no request.
        return all(cost[operation] <= looked_up.get(operation, 0) for operation in cost)

    for path in (f"{d.chunks}/a", f"{d.chunks}/a/0.0", f"{d.zarr3}/a/c/0/0", f"npy/{d.prefix}a.npy"):
        await d.stat(path)
        # While changes of before wait to be reported, each lookup asks the store.
        with trio.fail_after(_PATIENCE_S):
            while not await is_free(path):
                await trio.lowlevel.checkpoint()


# --- mknod ----------------------------------------------------------------------------------------------------------------------


@scenario
async def what_is_no_header_is_not_in_the_file(d: Driver) -> None:
    """A write that is refused changes nothing: the next one, and one at the end, come where they would have come without it."""
    file = io.BytesIO()
    np.save(file, np.arange(7, dtype="<i4"))
    path, data = f"npy/{d.prefix}new.npy", file.getvalue()
    async with d.opened(path, os.O_RDWR | os.O_CREAT) as fd:
        await d.pwrite(fd, data[:4], 0)
        with refused(errno.EINVAL):
            await d.pwrite(fd, b"no header", 4)
        assert (await d.fstat(fd)).st_size == 4
        assert await d.pread(fd, 100, 0) == data[:4]
        await d.pwrite(fd, data[4:], 4)
        assert await d.pread(fd, 1000, 0) == data
    assert await d.read(path) == data


@scenario
async def mknod_makes_a_file_that_is_published_when_it_is_written(d: Driver) -> None:
    for path, data, key in (
        (f"{d.raw}/k", b"value", "k"),
        (f"{d.chunks}/a/2.1", chunk(2, 1), "a/2.1"),
        (f"{d.chunks}/z/0.0", CHUNK, "z/0.0"),
    ):
        await d.mknod(path, stat.S_IFREG | 0o644)
        assert (await d.stat(path)).st_size == 0
        with pytest.raises(FileExistsError):
            await d.mknod(path, stat.S_IFREG | 0o644)
        await d.utime(path, 1_000_000_007_000_000_000)
        # As tar does: the new file is opened, written and closed.
        async with d.opened(path, os.O_WRONLY) as fd:
            await d.pwrite(fd, data, 0)
        assert await d.read(path) == data
        stored = await d.stored(key)
        assert stored is not None
        assert stored == data or key == "z/0.0"


@scenario
async def what_mknod_made_and_nobody_wrote_can_be_removed(d: Driver) -> None:
    await d.mknod(f"{d.chunks}/a/2.1", stat.S_IFREG | 0o644)
    await d.unlink(f"{d.chunks}/a/2.1")
    assert not await d.exists(f"{d.chunks}/a/2.1")
    await d.mknod(f"{d.raw}/old", stat.S_IFREG | 0o644)
    await d.write(f"{d.raw}/new", b"new")
    await d.rename(f"{d.raw}/new", f"{d.raw}/old")
    assert await d.read(f"{d.raw}/old") == b"new"
    await d.becomes("old", b"new")


@scenario
async def mknod_makes_nothing_but_files(d: Driver) -> None:
    for kind in (stat.S_IFIFO, stat.S_IFSOCK):
        with refused(errno.EPERM):
            await d.mknod(f"{d.raw}/special", kind | 0o644)
    assert not await d.exists(f"{d.raw}/special")
