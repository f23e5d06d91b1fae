"""Unmodified editors and copying programs on a mounted raw/ leave the same files as in a plain folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import Mounted, mounted, run, shell
from tests.support.programs import demand, type_into

pytestmark = pytest.mark.fuse

OLD_NS = 1_000_000_007_000_000_000


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    store = tmp_path_factory.mktemp("store")
    with mounted(store) as mount:
        yield mount
        assert "Traceback" not in mount.log()


@pytest.fixture
def folder(mount: Mounted, request: pytest.FixtureRequest) -> Path:
    """A folder in raw/ for this test alone."""
    path = mount.path / "raw" / re.sub(r"\W+", "-", request.node.name)
    path.mkdir()
    return path


@pytest.fixture
def behind(mount: Mounted, folder: Path) -> Path:
    """The same folder in the store."""
    return mount.store / folder.name


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with folders, an empty file, an empty folder and a large file, all with old times."""
    path = tmp_path / "source"
    (path / "a" / "b").mkdir(parents=True)
    (path / "empty folder").mkdir()
    (path / "a" / "0.0").write_bytes(os.urandom(5000))
    (path / "a" / "b" / "ünïcode").write_bytes(b"x")
    (path / "empty").write_bytes(b"")
    (path / "large").write_bytes(os.urandom(3 << 20))
    for below in [*path.rglob("*"), path]:
        os.utime(below, ns=(OLD_NS, OLD_NS))
    return path


def times(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# By default, vim makes no backups of files in /tmp.
VIM = ("vim", "-u", "NONE", "-N", "-i", "NONE", "-c", "set backupskip= directory=. updatecount=1")


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("set writebackup", {"notes"}),
        ("set backup backupdir=.", {"notes", "notes~"}),
        ("set backup backupdir=. backupcopy=yes", {"notes", "notes~"}),
        ("set backup backupdir=. backupcopy=no", {"notes", "notes~"}),
        ("set nowritebackup noswapfile", {"notes"}),
    ],
)
def test_vim(options: str, left: set[str], folder: Path, behind: Path) -> None:
    demand("vim")
    (folder / "notes").write_bytes(b"second\n")
    type_into([*VIM, "-c", options, folder / "notes"], b"ggOfirst\x1b:wq\r", ready=b"second")
    assert (behind / "notes").read_bytes() == b"first\nsecond\n"
    assert files(behind) == files(folder) == left
    if "notes~" in left:
        assert (behind / "notes~").read_bytes() == b"second\n"


def test_vim_with_its_swap_file(folder: Path, behind: Path) -> None:
    demand("vim")
    shown = type_into([*VIM, folder / "new"], b"ihello\x1b:w\r:!ls -A %:h\r\r:q\r", ready=b"[New]")
    assert ".new.swp" in shown
    assert (behind / "new").read_bytes() == b"hello\n"
    assert files(behind) == {"new"}


def test_nano(folder: Path, behind: Path) -> None:
    demand("nano")
    (folder / "notes").write_bytes(b"second\n")
    type_into(["nano", "--ignorercfiles", folder / "notes"], b"first\r\x0f\r\x18", ready=b"second")
    assert (behind / "notes").read_bytes() == b"first\nsecond\n"
    assert files(behind) == {"notes"}


def test_nano_with_a_backup_and_a_lock(folder: Path, behind: Path) -> None:
    demand("nano")
    (folder / "notes").write_bytes(b"second\n")
    type_into(["nano", "--ignorercfiles", "--backup", "--locking", folder / "notes"], b"first\r\x0f\r\x18", ready=b"second")
    assert (behind / "notes").read_bytes() == b"first\nsecond\n"
    assert files(behind) == {"notes", "notes~"}


def test_cp_a(source: Path, folder: Path, behind: Path) -> None:
    run("cp", "-a", source, folder / "copy")
    run("diff", "-r", source, folder / "copy")
    run("diff", "-r", source, behind / "copy")
    assert times(folder / "copy") == times(source)
    run("cp", "-a", folder / "copy", folder / "again")
    run("diff", "-r", source, behind / "again")


def test_mv_of_files_and_folders(source: Path, folder: Path, behind: Path) -> None:
    run("cp", "-a", source, folder / "copy")
    run("mv", folder / "copy", folder / "moved")
    run("diff", "-r", source, behind / "moved")
    assert times(folder / "moved") == times(source)
    run("mv", folder / "moved" / "large", folder / "moved" / "a" / "0.0")
    assert (behind / "moved" / "a" / "0.0").read_bytes() == (source / "large").read_bytes()
    assert not (behind / "moved" / "large").exists()
    run("mv", folder / "moved", behind.parent.parent / "out")
    assert not (folder / "moved").exists()
    run("mv", behind.parent.parent / "out", folder / "in")
    assert files(behind / "in") == files(source) - {"large"}


def test_shells_that_append_to_one_file(folder: Path, behind: Path) -> None:
    for number in range(6):
        log = folder / str(number)
        line = 'for n in 0 1 2 3 4 5 6 7 8 9; do echo "$2 $n" >> "$1"; done'
        shell(f"for shell in a b c d; do sh -c '{line}' - \"$1\" $shell & done; wait", log)
        expected = {f"{each} {n}" for each in "abcd" for n in range(10)}
        assert set((behind / str(number)).read_text().splitlines()) == expected
        assert len(log.read_text().splitlines()) == len(expected)


def test_rsync_a_and_again_transfers_nothing(mount: Mounted, source: Path, folder: Path, behind: Path) -> None:
    demand("rsync")
    run("rsync", "-a", f"{source}/", f"{folder}/")
    run("diff", "-r", source, behind)
    assert times(folder) == times(source)
    with mount.counted() as cost:
        again = run("rsync", "-a", "--itemize-changes", f"{source}/", f"{folder}/")
    assert again.stdout == b""
    assert not {"set", "erase", "rename", "set_times"} & set(cost), cost
    (source / "empty").write_bytes(b"no more")
    again = run("rsync", "-a", "--inplace", "--delete", "--itemize-changes", f"{source}/", f"{folder}/")
    assert [line.split()[-1] for line in again.stdout.decode().splitlines()] == ["empty"]
    assert (behind / "empty").read_bytes() == b"no more"


def test_tar_x(source: Path, folder: Path, behind: Path, tmp_path: Path) -> None:
    run("tar", "-C", source, "-cf", tmp_path / "tar", ".")
    run("tar", "-C", folder, "-xf", tmp_path / "tar")
    run("diff", "-r", source, behind)
    assert times(folder) == times(source)
    done = shell('tar -C "$1" -cf - . | tar -C "$2" -df -', folder, source)
    assert done.stdout == b"", "what is packed from the mount is the same"


def test_cp_r_of_a_store_into_an_empty_one_stores_it(tmp_path: Path) -> None:
    demo = Path(__file__).parents[2] / "demo" / "example.zarr"
    (tmp_path / "store").mkdir()
    with mounted(tmp_path / "store") as mount:
        run("cp", "-r", f"{demo}/.", mount.path / "raw/")
        run("diff", "-r", demo, tmp_path / "store")
        assert sorted(os.listdir(mount.path / "npy")) == ["air_temperature.npy", "lat.npy", "lon.npy", "time.npy"]
