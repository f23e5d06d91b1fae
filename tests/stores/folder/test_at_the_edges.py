"""A folder store in edge cases: requests for nothing, for the root, or while other programs work in the same folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from tests.stores.folder.test_watch import Told
from tests.support.large_buffers import large_from
from tests.support.small_stores import write
from tests.support.stores import contents
from zarrfs.errors import GenerationMismatch, KeyConflict, KeyUnusable, PrefixNotEmpty, StoreError, StoreUnsupported
from zarrfs.keys import Key, Prefix
from zarrfs.stores.folder import calls, removal, tree
from zarrfs.stores.folder.names import Parts
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.folder.tree import FolderTree

VALUES = {"k": b"value", "a/k": b"other", "a/b/k": b"deep"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "store", VALUES)


@pytest.fixture
def all_is_large(tmp_path: Path) -> Iterator[None]:
    with large_from(1, tmp_path):
        yield


@trio_test
async def test_prefixes_that_no_folder_can_be_are_nothing_and_the_root_stays(path: Path) -> None:
    async with aclosing(FolderStore(str(path))) as store:
        for unusable in ("../", "a//b/", "./"):
            assert await store.prefix_mtime_ns(Prefix(unusable)) is None
            assert not await store.prefix_exists(Prefix(unusable))
            assert store.anchor(Prefix(unusable)) is None
        with pytest.raises(KeyUnusable, match="the store's own folder cannot be removed"):
            await store.remove_prefix(Prefix(""))
        with pytest.raises(KeyConflict, match="one lies below the other"):
            await store.exchange_prefixes(Prefix("a/"), Prefix("a/b/"))
        with pytest.raises(KeyConflict, match="one lies below the other"):
            await store.rename_prefix(Prefix("a/"), Prefix("a/b/c/"))
        assert await contents(store) == VALUES


@trio_test
async def test_a_value_that_is_held_is_that_very_value(path: Path) -> None:
    async with aclosing(FolderStore(str(path))) as store:
        assert await store.hold(Key("missing")) is await store.hold(Key("a")) is None
        held = await store.hold(Key("k"))
        assert held is not None
        try:
            await store.set(Key("k"), b"another")
            assert bytes(await held.read(1, 3)) == b"alu"
            assert bytes(await held.read(4, 100)) == b"e" and bytes(await held.read(9, 1)) == b""
        finally:
            held.close()


@trio_test
async def test_what_others_write_into_a_held_value_is_not_mixed_with_it(path: Path) -> None:
    async with aclosing(FolderStore(str(path))) as store:
        held = await store.hold(Key("k"))
        assert held is not None
        try:
            assert bytes(await held.read(0, 5)) == b"value"
            with (path / "k").open("r+b") as file:
                file.write(b"VA")
            os.utime(path / "k", ns=(1, 1))
            with pytest.raises(GenerationMismatch, match="'k' was changed in place"):
                await held.read(0, 5)
        finally:
            held.close()


@trio_test
async def test_an_anchor_that_was_let_go_tells_nothing(path: Path) -> None:
    async with aclosing(FolderStore(str(path))) as store:
        anchors = store._anchors
        assert anchors.present_parts(12345) is anchors.generation(12345, "k") is anchors.open_fd(12345) is None
        assert anchors.is_at(12345, ("a",)) and not anchors.is_erased(12345)


@trio_test
async def test_a_folder_that_cannot_be_opened_again_is_taken_for_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holders continue: a replacement cannot be detected."""

    def denied(parts: Parts) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    async with aclosing(FolderStore(str(path))) as store:
        anchor = store.anchor(Prefix("a/"))
        assert anchor is not None and anchor.is_at(Prefix("a/")) and not anchor.is_at(Prefix("a/b/"))
        monkeypatch.setattr(store._tree, "open_folder", denied)
        assert anchor.is_at(Prefix("a/b/"))


def busy(made: Callable[[Path], None], path: Path, times: int) -> Callable[[FolderTree, Parts], list[str]]:
    """Return a replacement of `_remove_files` in which another program adds to each emptied folder, so many times."""
    real, left = removal._remove_files, [times]

    def remove_files(tree: FolderTree, parts: Parts) -> list[str]:
        below = real(tree, parts)
        if left[0] and parts == ("a",):
            left[0] -= 1
            made(path / "a")
        return below

    return remove_files


@trio_test
async def test_a_folder_that_others_put_something_into_is_emptied_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "_remove_files", busy(lambda folder: (folder / "new").touch(), path, 3))
    async with aclosing(FolderStore(str(path))) as store:
        await store.erase_prefix(Prefix("a/"))
        assert await contents(store) == {"k": b"value"}
        assert os.listdir(path) == ["k"]


@pytest.mark.parametrize("made", [Path.touch, Path.mkdir], ids=["files", "folders"])
@trio_test
async def test_others_who_never_stop_are_not_waited_for(
    path: Path, made: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(1 << 20))
    monkeypatch.setattr(removal, "_remove_files", busy(lambda folder: made(folder / f"new{next(numbers)}"), path, 1 << 20))
    async with aclosing(FolderStore(str(path))) as store:
        with pytest.raises(PrefixNotEmpty, match="'a/'"):
            await store.erase_prefix(Prefix("a/"))
    assert next(numbers) < 1000


@pytest.mark.usefixtures("all_is_large")
def test_a_file_that_is_cut_while_it_is_read_is_an_error_in_pieces_too(path: Path) -> None:
    fd = os.open(path / "k", os.O_RDONLY)
    try:
        assert bytes(calls.pread(fd, 1, 4, ("k",))) == b"alu"
        with pytest.raises(StoreError, match="'k' was cut short while it was read"):
            calls.pread(fd, 1, 100, ("k",))
    finally:
        os.close(fd)


def test_a_file_system_that_cannot_be_synced_is_an_error_with_its_number() -> None:
    with pytest.raises(OSError, match="Bad file descriptor") as raised:
        calls.sync_file_system(-1)
    assert raised.value.errno == errno.EBADF


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [(errno.EINVAL, StoreUnsupported, "cannot exchange prefixes"), (errno.EIO, StoreError, "nput/output error")],
    ids=["no such operation", "broken"],
)
@trio_test
async def test_folders_that_cannot_be_exchanged_stay_as_they_are(
    path: Path, number: int, kind: type[StoreError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchange(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    write(path, {"c/k": b"third"})
    monkeypatch.setattr(tree, "exchange", exchange)
    async with aclosing(FolderStore(str(path))) as store:
        with pytest.raises(kind, match=words):
            await store.exchange_prefixes(Prefix("a/"), Prefix("c/"))
        assert await contents(store) == VALUES | {"c/k": b"third"}


@pytest.mark.parametrize(
    ("number", "why"), [(errno.EACCES, "'one' may not be read"), (errno.EIO, "'one': Input/output error")], ids=["denied", "broken"]
)
@trio_test
async def test_where_a_folder_cannot_be_looked_into_the_watch_says_which_and_ends(
    path: Path, number: int, why: str, monkeypatch: pytest.MonkeyPatch, expect_logs: Callable[[str], None]
) -> None:
    pytest.importorskip("inotify_simple")
    expect_logs(f"changes by other programs are not watched: {why}")
    store, told = FolderStore(str(path)), Told(path)
    real = store._tree.open_folder

    def open_folder(parts: tuple[str, ...], *arguments: Any, **more: Any) -> int:
        if parts[:1] == ("one",):
            raise OSError(number, os.strerror(number))
        return real(parts, *arguments, **more)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.watch, told)
            await told.complete.wait()
            monkeypatch.setattr(store._tree, "open_folder", open_folder)
            (path / "one").mkdir()
    await store.aclose()
