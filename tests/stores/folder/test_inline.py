"""Requests to a folder on the event loop's thread: their cost, and their limits."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support.small_stores import write
from tests.support.stores import contents
from zarrfs.keys import Key, Prefix
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.folder.file_systems import RemoteMounts
from zarrfs.stores.folder.store import FolderStore

ROOT = Path(__file__).parents[3]

_TRACED = """
import os, sys, trio
from zarrfs.keys import ByteRange, Key
from zarrfs.stores.folder.store import FolderStore
def mark(name):
    try:
        os.stat("/--" + name)
    except OSError:
        pass
async def main():
    store = FolderStore(sys.argv[1])
    for key in ("k", "a/b/c/k", "a/b/missing"):
        asked = Key(key)
        for name, ask in (("stat", lambda: store.stat_now(asked)), ("read", lambda: store.get_with_stat_now(asked, ByteRange(0, 1)))):
            ask()
            mark(f"{name} {key}")
            ask()
            mark("end")
trio.run(main)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "store", {"k": b"k", "a/b/c/k": b"k", "a/k": b"k"})


@contextmanager
def mounted(kind: str, place: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("mounts a file system")
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", kind, "none", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_system_calls_of_a_lookup_and_a_read_at_any_depth(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    command = ["strace", "-o", trace, sys.executable, "-c", _TRACED, folder]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "PTRACE" in ran.stderr:
        pytest.skip("may not trace")
    assert ran.returncode == 0, ran.stderr
    counts = {
        name: lines.count("\n") - 1 for name, lines in re.findall(r'"/--(\w+ [^"]+)"(.*?)"/--end"', trace.read_text(), re.DOTALL)
    }
    assert counts == {
        "stat k": 3,
        "read k": 7,
        "stat a/b/c/k": 3,
        "read a/b/c/k": 7,
        "stat a/b/missing": 1,
        "read a/b/missing": 1,
    }


@trio_test
async def test_a_folder_of_few_names_is_listed_at_once(folder: Path) -> None:
    store = FolderStore(str(folder))
    for prefix in ("", "a/", "a/b/c/", "missing/", "k/below/"):
        now = store.list_dir_now(Prefix(prefix))
        assert list(now) == [entry async for entry in store.list_dir(Prefix(prefix))]
        assert store.prefix_mtime_ns_now(Prefix(prefix)) == await store.prefix_mtime_ns(Prefix(prefix))
    for number in range(257):
        (folder / f"a/b/{number}").touch()
    with pytest.raises(WouldWait):
        store.list_dir_now(Prefix("a/b/"))
    assert len([entry async for entry in store.list_dir(Prefix("a/b/"))]) == 258
    with mounted("proc", folder / "a/m"), pytest.raises(WouldWait):
        store.list_dir_now(Prefix("a/m/"))
    await store.aclose()


@trio_test
async def test_a_kernel_without_openat2(folder: Path) -> None:
    store = FolderStore(str(folder))
    store._inline._has_openat2 = False
    assert await contents(store) == {"k": b"k", "a/k": b"k", "a/b/c/k": b"k"}
    assert store.stat_now(Key("a/b/missing")) is None
    assert store.stat_now(Key("a/b/c/k")) is not None
    with mounted("proc", folder / "a/m"), pytest.raises(WouldWait):
        store.stat_now(Key("a/k"))
    assert store.stat_now(Key("a/k")) is not None
    await store.aclose()


@pytest.mark.parametrize("kind", ["tmpfs", "proc"])
@trio_test
async def test_what_is_mounted_within_is_left_to_threads(folder: Path, kind: str) -> None:
    store = FolderStore(str(folder))
    with mounted(kind, folder / "a/m"):
        for key in ("a/m/x", "a/m"):
            with pytest.raises(WouldWait):
                store.stat_now(Key(key))
        assert await store.stat(Key("a/m/x")) is None
        assert store.stat_now(Key("a/k")) is not None
        assert [name async for name, *_ in store.list_dir(Prefix("a/"))].count("m") == 1
        assert store.part_of(Key("a/m/x")) == ("" if kind == "tmpfs" else "a/m")
        assert store.part_of(Key("a/k")) == store.part_of(Prefix("a/m/")) == ""
    assert await store.stat(Key("a/m/x")) is None
    await store.aclose()


def test_the_table_of_mounts(folder: Path) -> None:
    root = os.open(folder, os.O_PATH)
    mounts = RemoteMounts(root)
    assert mounts.now() == ()
    with mounted("proc", folder / "a/b \n"):
        assert mounts.now() == (("a", "b \n"),)
        assert mounts.over(("a", "b \n", "c")) == ("a", "b \n")
        assert mounts.over(("a", "b")) is None
        assert mounts.names_in(("a",)) == {"b \n"}
        assert mounts.meet(("a",)) and mounts.meet(()) and not mounts.meet(("b",))
        os.rename(folder / "a", folder / "c")
        assert mounts.now(0) == (("c", "b \n"),)
        os.rename(folder / "c", folder / "a")
    with mounted("tmpfs", folder / "a/m"):
        assert mounts.now() == ()
    mounts.close()
    os.close(root)
    assert RemoteMounts(None).now() == ()
