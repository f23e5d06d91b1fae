"""LMDB environments: with and without locks, with an active writer, and invalid ones."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support import archives
from tests.support.cases import cases
from tests.support.stores import contents
from zarrfs.errors import GenerationMismatch, StoreError, StoreUnsupported
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.stores import lmdb as module
from zarrfs.stores.archive_file import ArchiveFile
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.lmdb_tree import newest
from zarrfs.stores.opening import open_store

pytest.importorskip("lmdb")


@asynccontextmanager
async def opened(path: Path | str) -> AsyncIterator[Store]:
    store = await open_store(str(path))
    try:
        yield store
    finally:
        await store.aclose()


def write(path: Path, key: str, value: bytes, map_nbytes: int = 1 << 30) -> None:
    """Write in another process: a process must not open an environment twice."""
    program = (
        "import lmdb, sys\n"
        "with lmdb.open(sys.argv[1], map_size=int(sys.argv[3])) as environment, environment.begin(write=True) as transaction:\n"
        "    transaction.put(sys.argv[2].encode(), sys.stdin.buffer.read())\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path), key, str(map_nbytes)], input=value, check=True)


@trio_test
async def test_the_case_of_zarr_python() -> None:
    (case,) = [case for case in cases("v2") if case.name == "v2/lmdb"]
    expected = case.values
    async with opened(case.path) as store:
        assert await contents(store) == expected
    assert os.listdir(case.path) == ["data.mdb"]


@pytest.mark.parametrize("lock", ["there", "missing", "foreign", "read-only"])
@trio_test
async def test_with_and_without_its_lock_file(tmp_path: Path, lock: str) -> None:
    path = archives.lmdb(tmp_path, {"k": b"v"})
    file = path / "lock.mdb"
    match lock:
        case "missing":
            file.unlink()
        case "foreign":
            file.write_bytes(b"something else" * 99)
        case "read-only":
            file.chmod(0o444)
    before = (path / "data.mdb").read_bytes(), sorted(os.listdir(path))
    async with opened(path) as store:
        assert await contents(store) == {"k": b"v"}
    assert ((path / "data.mdb").read_bytes(), sorted(os.listdir(path))) == before


@pytest.mark.parametrize("how", [pytest.param("LOCK_EX", marks=pytest.mark.logs("opened without its locks")), "LOCK_SH"])
def test_a_process_that_keeps_the_lock_file_for_itself_is_not_waited_for(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Any process does so while it opens the environment, and may be stopped there."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    path = archives.lmdb(tmp_path, {"k": b"v"})
    program = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+b') as file:\n"
        "    fcntl.lockf(file, getattr(fcntl, sys.argv[2]))\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    held = [sys.executable, "-c", program, str(path / "lock.mdb"), how]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with closing(module.LmdbArchive(str(path))) as archive:
            assert [name for name, *_ in archive.entries(b"")] == [b"k"]
        holder.stdin.close()
    assert ("without its locks" in caplog.text) == (how == "LOCK_EX")


@trio_test
async def test_another_program_writes_meanwhile(tmp_path: Path) -> None:
    path = archives.lmdb(tmp_path, {"k": b"old", "other": b"x"})
    async with opened(path) as store:
        before = await store.stat(Key("k"))
        assert before is not None and await store.get(Key("k")) == b"old"
        for value in (b"new", b"longer" * 2000):
            write(path, "k", value)
            with pytest.raises(GenerationMismatch):
                await store.get_partial_values([(Key("k"), ByteRange())], if_generation=before.generation)
            assert await contents(store) == {"k": value, "other": b"x"}
            found = await store.stat(Key("k"))
            assert found is not None and found.generation != before.generation
            before = found


@pytest.mark.parametrize("lock", [True, False])
@trio_test
async def test_another_program_enlarges_it(tmp_path: Path, lock: bool) -> None:
    path = tmp_path / "small.lmdb"
    write(path, "k", b"v", map_nbytes=1 << 20)
    if not lock:
        (path / "lock.mdb").unlink()
    async with opened(path) as store:
        assert await contents(store) == {"k": b"v"}
        write(path, "large", bytes(32 << 20), map_nbytes=1 << 30)
        assert await store.get(Key("large")) == bytes(32 << 20)
        assert set(await contents(store)) == {"k", "large"}


@pytest.mark.parametrize("commits", [1, 3])
@trio_test
async def test_its_lock_file_is_removed_and_made_again_by_the_next_writer(tmp_path: Path, commits: int) -> None:
    """After one commit, the content of before was read, for good; after more, each read was an error."""
    path = tmp_path / "x.lmdb"
    for key in ("a", "b"):
        write(path, key, b"old")
    async with opened(path) as store:
        assert await store.get(Key("a")) == b"old"
        (path / "lock.mdb").unlink()
        for number in range(commits):
            write(path, "a", b"new %d" % number)
        assert await store.get(Key("a")) == b"new %d" % (commits - 1)
        found = await store.get_partial_values([(Key(key), WHOLE) for key in ("a", "b")])
        assert [bytes(value or b"") for value in found] == [b"new %d" % (commits - 1), b"old"]
        assert [name for name, *_ in [entry async for entry in store.list_dir(Prefix(""))]] == ["a", "b"]


def test_it_is_read_where_address_space_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "small.lmdb"
    write(path, "k", b"v", map_nbytes=1 << 20)
    program = (
        "import resource, sys; from zarrfs.stores.lmdb import LmdbArchive; from zarrfs.keys import ByteRange\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))\n"
        "print(bytes(LmdbArchive(sys.argv[1]).read(b'k', [ByteRange()])[1][0]))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "b'v'\n"


@trio_test
async def test_a_part_of_a_large_value_copies_no_more(tmp_path: Path) -> None:
    import tracemalloc

    async with opened(archives.lmdb(tmp_path, {"k": bytes(100 << 20) + b"end"})) as store:
        tracemalloc.start()
        try:
            assert await store.get_partial_values([(Key("k"), ByteRange.suffix(4))]) == [b"\0end"]
            stat = await store.stat(Key("k"))
            assert stat is not None and stat.size == (100 << 20) + 3
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@trio_test
async def test_keys_that_no_lmdb_can_hold_are_not_there(tmp_path: Path) -> None:
    values = {"x" * 511: b"longest", "x" * 510: b"shorter"}
    async with opened(archives.lmdb(tmp_path, values)) as store:
        for key in ("x" * 512, "x" * 511 + "/y", "y" * 9999):
            assert await store.get(Key(key)) is await store.stat(Key(key)) is None
            assert not [entry async for entry in store.list_dir(Key(key).parent) if entry[0] == Key(key).name]
        assert await contents(store) == values
        assert await contents(store, "x" * 600 + "/") == {}
        archive = store._archive  # type: ignore[attr-defined]
        for start, following in ((b"x" * 511, [b"x" * 511]), (b"x" * 511 + b"\0", []), (b"x" * 510 + b"\0", [b"x" * 511])):
            assert [name for name, *_ in archive.entries(start)] == following


@trio_test
async def test_one_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    """Access to the missing pages would end the process."""
    path = archives.lmdb(tmp_path, {f"d/{number}": bytes(5000) for number in range(50)})
    whole = (path / "data.mdb").stat().st_size
    os.truncate(path / "data.mdb", whole - 4096)
    with pytest.raises(StoreError, match="cut short"):
        await open_store(str(path))
    shutil.rmtree(path)
    path = archives.lmdb(tmp_path, {f"d/{number}": bytes(5000) for number in range(50)})
    async with opened(path) as store:
        os.truncate(path / "data.mdb", 8192)
        for key in ("d/1", "d/49"):
            with pytest.raises(StoreError, match="cut short"):
                await store.get(Key(key))


def write_and_give_back(path: Path, nbytes: int) -> None:
    """Write a value in another process, behind all others, and remove it in the same transaction: its pages are free, and not written."""
    program = (
        "import lmdb, sys\n"
        "with lmdb.open(sys.argv[1], map_size=1 << 30) as environment:\n"
        "    for number in range(6):\n"
        "        with environment.begin(write=True) as transaction:\n"
        "            transaction.put(b'k', b'v' * 3000 + bytes([number]))\n"
        "    with environment.begin(write=True) as transaction:\n"
        "        transaction.put(b'given back', bytes(int(sys.argv[2])))\n"
        "        transaction.delete(b'given back')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path), str(nbytes)], check=True)


@pytest.mark.parametrize("nbytes", [1 << 20, 40 << 20], ids=["a short list", "a list with pages of its own"])
@trio_test
async def test_free_pages_at_the_end_may_be_missing(tmp_path: Path, nbytes: int) -> None:
    """The library reads such a file, and so do all programs that use it."""
    path = archives.lmdb(tmp_path, {"k": b"v"})
    async with opened(path) as store:
        assert await store.get(Key("k")) == b"v"
        write_and_give_back(path, nbytes)
        assert (path / "data.mdb").stat().st_size < nbytes, "the pages were not written"
        assert await store.get(Key("k")) == b"v" * 3000 + b"\5"
    async with opened(path) as store:
        assert await contents(store) == {"k": b"v" * 3000 + b"\5"}
    # Without a page that is in use, it is cut.
    root = newest(ArchiveFile(str(path / "data.mdb"))).root
    assert root is not None
    os.truncate(path / "data.mdb", root * 4096)
    with pytest.raises(StoreError, match=r"cut short|damaged"):
        await open_store(str(path))


@pytest.mark.parametrize(("order", "at"), [(">", 16), ("<", 12), (">", 12)])
@trio_test
async def test_one_of_another_kind_of_machine_is_refused_by_name(tmp_path: Path, order: str, at: int) -> None:
    if sys.byteorder == "big":
        order = {"<": ">", ">": "<"}[order]
    (tmp_path / "x.lmdb").mkdir()
    (tmp_path / "x.lmdb/data.mdb").write_bytes(bytes(at) + struct.pack(f"{order}I", 0xBEEFC0DE) + bytes(8192))
    with pytest.raises(StoreUnsupported, match="another kind of machine"):
        await open_store(str(tmp_path / "x.lmdb"))


@trio_test
async def test_a_folder_with_a_file_of_that_name_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"something else" * 99)
    async with opened(tmp_path) as store:
        assert isinstance(store, FolderStore)


def test_without_the_library_it_is_recognised_and_the_extra_is_named(tmp_path: Path) -> None:
    path = archives.lmdb(tmp_path, {"k": b"v"})
    program = (
        "import sys, trio\nsys.modules['lmdb'] = None\nfrom zarrfs.stores.opening import open_store\n"
        "from zarrfs.errors import StoreUnsupported\n"
        "try:\n    trio.run(open_store, sys.argv[1])\nexcept StoreUnsupported as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert "pip install 'zarrfs[lmdb]'" in done.stdout
