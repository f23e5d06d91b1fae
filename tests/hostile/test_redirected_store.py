"""Root opens a store in the folder of another user, who puts links to folders and files of root's in its place."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from tests.support.attackers import EVE, MALLORY, act, become, exchanging, home, needs_root
from tests.support.claiming_mount import claiming_mount
from tests.support.mounting import mountpoint, zarrfs
from zarrfs.errors import StoreAccessDenied, StoreError, ZarrfsError
from zarrfs.keys import WHOLE, Key
from zarrfs.lifecycle import apart
from zarrfs.stores import own_files
from zarrfs.stores.beside import is_safe_path
from zarrfs.stores.opening import open_store
from zarrfs.stores.sqlite.archive import SqliteArchive

pytestmark = needs_root

DOCUMENT = b'{"zarr_format": 2}'

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_BIND, _MS_REC = 0x1000, 0x4000
_PR_SET_DUMPABLE = 4


@pytest.fixture
def eve() -> Iterator[Path]:
    """Eve's home. Beside it is ``root``, which only root may enter."""
    with home() as place:
        yield place


def folder(path: Path) -> None:
    path.mkdir()
    (path / ".zgroup").write_bytes(DOCUMENT)


def zip_file(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(".zgroup", DOCUMENT)


def sqlite(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE zarr(k TEXT PRIMARY KEY, v BLOB)")
        connection.execute("INSERT INTO zarr VALUES ('.zgroup', ?)", (DOCUMENT,))
    connection.close()


def lmdb(path: Path) -> None:
    library = pytest.importorskip("lmdb")
    with library.open(str(path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b".zgroup", DOCUMENT)


def dbm(path: Path) -> None:
    path.with_name(path.name + ".dat").write_bytes(DOCUMENT)
    path.with_name(path.name + ".dir").write_text(f"'.zgroup', (0, {len(DOCUMENT)})\n")


KINDS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "folder": (folder, ("",)),
    "zip": (zip_file, ("",)),
    "sqlite": (sqlite, ("",)),
    "lmdb": (lmdb, ("", "/data.mdb")),
    "dbm": (dbm, (".dat", ".dir")),
}


async def content(path: Path, scheme: str = "") -> bytes:
    store = await open_store(f"{scheme}{path}", read_only=True)
    try:
        found = await store.get(Key(".zgroup"))
        return b"" if found is None else bytes(found)
    finally:
        await store.aclose()


async def is_refused(path: Path, scheme: str) -> bool:
    """Return True if nothing can be read; a folder with a link as ``data.mdb`` is a folder without values."""
    try:
        return not await content(path, scheme)
    except ZarrfsError:
        return True


@pytest.mark.parametrize("explicit", [False, True], ids=["path", "url"])
@pytest.mark.parametrize("kind", KINDS)
@trio_test
async def test_a_link_to_something_of_roots_is_not_followed(kind: str, explicit: bool, eve: Path) -> None:
    make, suffixes = KINDS[kind]
    scheme = ("file:" if kind == "folder" else f"{kind}:") if explicit else ""
    make(eve.parent / "root/private")
    for suffix in suffixes:
        name, of = eve / f"x{suffix}", eve.parent / f"root/private{suffix}"
        act(EVE, 'mkdir -p "$(dirname "$1")" && ln -sfT "$2" "$1"', name, of)
        if suffix == "" and len(suffixes) > 1:
            with pytest.raises(ZarrfsError):
                await content(eve / "x", scheme)
            act(EVE, 'rm "$1" && mkdir "$1"', name)
    assert await is_refused(eve / "x", scheme)
    act(EVE, 'ln -s "$1" "$2"', eve.parent / "root", eve / "way")
    assert await is_refused(eve / "way/private", scheme)
    # Links of root's lead anywhere.
    link = eve.parent / "root/link"
    link.symlink_to(eve.parent / "root")
    assert await content(link / "private", scheme) == DOCUMENT


@pytest.mark.parametrize("explicit", [False, True], ids=["path", "url"])
@pytest.mark.parametrize(("kind", "names"), [("lmdb", ["x/data.mdb"]), ("dbm", ["x.dat"]), ("dbm", ["x.dir", "x.dat"])])
def test_a_file_of_anothers_store_that_is_a_link_leads_no_ordinary_user_to_their_own(
    kind: str, names: list[str], explicit: bool, eve: Path
) -> None:
    """Of these stores the user names the folder, or the common part of the names: not the files, which Eve chooses."""
    make, scheme = KINDS[kind][0], f"{kind}:" if explicit else ""
    mallory = eve.parent / "mallory"
    mallory.mkdir()
    make(mallory / "private")
    shutil.copytree(mallory, eve, dirs_exist_ok=True)
    for path in eve.glob("private*"):
        path.rename(path.with_name(path.name.replace("private", "x")))
    own = mallory / "links"
    shutil.copytree(eve, own)
    for name in names:
        for folder, user in ((eve, EVE), (own, MALLORY)):
            (folder / name).unlink()
            (folder / name).symlink_to(mallory / name.replace("x", "private", 1))
            os.lchown(folder / name, user, user)
    for path in (mallory, *mallory.rglob("*")):
        os.lchown(path, MALLORY, MALLORY)
    mallory.chmod(0o700)

    def is_refused_as_mallory(path: Path) -> bool:
        become(MALLORY)
        return trio.run(is_refused, path, scheme)

    # Imports what Mallory may not.
    assert trio.run(content, mallory / "private", scheme) == DOCUMENT
    assert not apart.call(lambda: is_refused_as_mallory(own / "x"), 60)
    assert apart.call(lambda: is_refused_as_mallory(eve / "x"), 60)


@trio_test
async def test_a_link_to_a_store_of_ones_own_is_followed(eve: Path) -> None:
    act(
        EVE,
        'mkdir -p "$1/v3/x" && echo -n "$2" > "$1/v3/x/.zgroup" && ln -s v3 "$1/now" && ln -s now/x "$1/x"',
        eve,
        DOCUMENT.decode(),
    )
    assert await content(eve / "x") == await content(eve / "now/x") == await content(eve / "now/../now/./x") == DOCUMENT
    # It may be anyone's by now.
    act(EVE, 'ln -sfn "$1/of-mallory" "$1/now" && mkdir "$1/of-mallory" && chmod 777 "$1/of-mallory"', eve)
    act(MALLORY, 'mkdir "$1"', eve / "of-mallory/x")
    with pytest.raises(StoreAccessDenied, match="is not opened by root: a link on the path belongs to another user"):
        await content(eve / "x")


@contextmanager
def mounted_for_oneself(user: int, folder: Path, mountpoint: Path, *, dumpable: bool) -> Iterator[int]:
    """Run a process of ``user`` in a mount namespace of its own, in which ``folder`` is mounted; yield its number.

    The links of a process that is not ``dumpable`` belong to root.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"failed"
        try:
            become(user)
            if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
                said = b"no namespaces"
                return
            for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{user} {user} 1")):
                Path("/proc/self", name).write_text(text)
            if libc.mount(os.fsencode(folder), os.fsencode(mountpoint), None, _MS_BIND | _MS_REC, None) == 0:
                said = b"mounted"
            libc.prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0)
        finally:
            os.write(writer, said)
            signal.pause()
            os._exit(1)
    try:
        if (said := os.read(reader, 100)) == b"no namespaces":
            pytest.skip("users may not create namespaces")
        assert said == b"mounted"
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("dumpable", [True, False])
@trio_test
async def test_a_link_into_the_mount_namespace_of_another_user_is_not_followed(dumpable: bool, eve: Path) -> None:
    # Theirs is the folder, and mounted in it is one of root's.
    folder(eve.parent / "root/private")
    act(EVE, 'mkdir -p "$1/real/x"', eve)
    with mounted_for_oneself(EVE, eve.parent / "root", eve / "real/x", dumpable=dumpable) as process:
        act(EVE, 'ln -s "/proc/$1/root$2/real" "$2/link"', str(process), eve)
        # Root can read it there.
        assert os.listdir(f"/proc/{process}/root{eve}/real/x") == ["private"]
        for path in (eve / "link", eve / "link/x", eve / "link/x/private"):
            with pytest.raises(StoreAccessDenied, match="another user's link on the path leads through a process"):
                await open_store(str(path), read_only=True)


def test_a_store_that_is_exchanged_while_it_is_opened(eve: Path) -> None:
    folder(eve.parent / "root/private")
    act(EVE, 'mkdir "$1/x" && ln -s "$1/../root/private" "$1/link"', eve)
    private = (eve.parent / "root/private").stat()
    opened = refused = 0
    with exchanging(EVE, eve / "x", eve / "link"):
        for _ in range(2000):
            try:
                fd = own_files.open_store(str(eve / "x"), os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                refused += 1
            else:
                opened += 1
                assert not os.path.samestat(os.fstat(fd), private)
                os.close(fd)
    assert opened and refused


@pytest.mark.fuse
@trio_test
async def test_a_link_that_another_users_mount_claims_to_be_roots_is_not_followed(eve: Path) -> None:
    folder(eve.parent / "root/private")
    act(EVE, 'mkdir "$1/m"', eve)
    link = eve / "m/link"
    with claiming_mount(eve / "m", EVE, {"link": eve.parent / "root/private"}):
        assert os.lstat(link).st_uid == os.lstat(link.parent).st_uid == 0
        assert is_safe_path(str(eve.parent / "root")) and not is_safe_path(str(link.parent))
        with pytest.raises(PermissionError, match="on the path belongs to another user"):
            own_files.open_file(str(link / "new"), os.O_RDWR | os.O_CREAT)
        with pytest.raises(PermissionError, match="on the path belongs to another user"):
            own_files.make_folder(str(link / "new"))
        with pytest.raises(StoreAccessDenied, match="a link on the path belongs to another user than its target"):
            await content(link)
    assert os.listdir(eve.parent / "root/private") == [".zgroup"]


class Exchanging(SqliteArchive):
    """A database in whose place its owner puts the link ``exchanged`` for as long as SQLite looks it up."""

    exchanged: Path | None = None

    def _connect(self) -> sqlite3.Connection:
        if self.exchanged is None:
            return super()._connect()
        act(EVE, 'mv "$1" "$1.aside" && mv "$2" "$1"', Path(self.path), self.exchanged)
        try:
            return super()._connect()
        finally:
            act(EVE, 'mv "$1" "$2" && mv "$1.aside" "$1"', Path(self.path), self.exchanged)


def test_a_database_that_is_exchanged_while_sqlite_opens_it(eve: Path) -> None:
    for path, value in ((eve / "x", b"of eve"), (eve.parent / "root/private", b"of root")):
        sqlite(path)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE zarr SET v = ?", (value,))
        connection.close()
    os.chown(eve / "x", EVE, EVE)
    act(EVE, 'ln -s "$1/../root/private" "$1/link"', eve)
    archive = Exchanging(str(eve / "x"))
    found = archive.read(b".zgroup", [WHOLE])
    assert found is not None and bytes(found[1][0]) == b"of eve"
    archive.close()
    archive.exchanged = eve / "link"
    with pytest.raises(StoreError, match="replaced since it was opened"):
        archive.read(b".zgroup", [WHOLE])


@pytest.mark.fuse
def test_a_service_that_is_restarted_mounts_nothing_of_roots(eve: Path) -> None:
    act(EVE, 'mkdir "$1/x"', eve)
    folder(eve.parent / "root/private")
    with mountpoint() as path:
        arguments = ("mount", "-o", f"allow_other,uid={EVE}", str(eve / "x"), str(path))
        assert zarrfs(*arguments).returncode == 0
        assert zarrfs("umount", str(path)).returncode == 0
        act(EVE, 'mv "$1/x" "$1/old" && ln -s "$1/../root/private" "$1/x"', eve)
        done = zarrfs(*arguments)
        assert done.returncode == 4, done
        assert "a link on the path belongs to another user than its target" in done.stderr
        assert not os.listdir(path)
    shutil.rmtree(eve / "old")
