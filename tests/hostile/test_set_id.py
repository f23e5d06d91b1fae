"""A user whose store root has mounted gains no rights by files that the daemon writes: no set-id program, no file or folder of root's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.attackers import EVE, MALLORY, act, attempt, home, needs_root, repeating
from tests.support.length import share
from tests.support.mounting import Mounted, mounted
from zarrfs.stores.folder.rights import Owner
from zarrfs.stores.folder.tree import FolderTree

pytestmark = [pytest.mark.fuse, needs_root]


@pytest.fixture
def store() -> Iterator[Path]:
    with home() as place:
        act(EVE, 'mkdir "$1/s"', place)
        yield place / "s"


@contextmanager
def shared(store: Path, options: str) -> Iterator[Mounted]:
    """Mount as root; other users have access as far as the modes permit."""
    with mounted(store, "-o", f"allow_other,{options}") as mount:
        mount.path.parent.chmod(0o755)
        yield mount


def shown(path: Path) -> tuple[str, int, int]:
    """Return mode, owner and group."""
    status = path.lstat()
    return oct(stat.S_IMODE(status.st_mode)), status.st_uid, status.st_gid


@pytest.mark.parametrize("options", [f"uid={EVE}", f"uid={EVE},gid={EVE}", "umask=000"])
def test_a_set_id_file_that_is_replaced_becomes_a_plain_one(options: str, store: Path) -> None:
    modes = ("4755", "2755", "6755", "1755", "7777", "4711")
    for mode in modes:
        act(EVE, 'cp /bin/cat "$1/$2" && chmod "$2" "$1/$2"', store, mode)
    secret = store.parents[1] / "root/secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    secret.parent.chmod(0o755)
    with shared(store, options) as mount:
        for way in 'cp /bin/cat "$1/raw/$2"', 'cp /bin/cat "$1/raw/$2.__lock" && mv "$1/raw/$2.__lock" "$1/raw/$2"':
            for mode in modes:
                (store / mode).chmod(int(mode, 8))
                act(EVE, way, mount.path, mode)
                assert oct(stat.S_IMODE((store / mode).stat().st_mode)) == oct(int(mode, 8) & 0o777)
                assert (store / mode).read_bytes() == Path("/bin/cat").read_bytes()
                assert "Permission denied" in attempt(EVE, '"$1/$2" "$3"', store, mode, secret).stderr


def test_a_set_id_file_that_is_renamed_is_still_the_same_file(store: Path) -> None:
    act(EVE, 'cp /bin/true "$1/tool" && chmod 4755 "$1/tool"', store)
    with shared(store, f"uid={EVE}") as mount:
        act(EVE, 'mv "$1/raw/tool" "$1/raw/other"', mount.path)
        assert shown(store / "other") == ("0o4755", EVE, EVE)
        act(EVE, 'echo x >> "$1/raw/other"', mount.path)
        assert shown(store / "other") == ("0o755", EVE, 0)


@pytest.mark.parametrize(
    ("options", "owner"), [(f"uid={EVE},gid={EVE}", (EVE, EVE)), (f"uid={EVE}", (EVE, 0)), (f"gid={EVE},umask=0", (0, EVE))]
)
def test_files_and_folders_belong_to_the_owner_of_the_mount(options: str, owner: tuple[int, int], store: Path) -> None:
    act(EVE, 'echo old > "$1/k" && chmod 644 "$1/k"', store)
    with shared(store, options) as mount:
        act(EVE, 'echo new > "$1/raw/k" && mkdir -p "$1/raw/a/b" && echo new > "$1/raw/a/b/c"', mount.path)
        act(EVE, 'mkdir "$1/chunks/group" && ls "$1/chunks/group"', mount.path)
        names = [store / "k", store / "a", store / "a/b", store / "a/b/c"]
        assert {shown(path)[1:] for path in names} == {owner}
        assert [shown(path)[0] for path in names] == ["0o644", "0o755", "0o755", "0o644"]
    assert {shown(path)[1:] for path in store.rglob("*")} == {owner}
    if owner[0] == EVE:
        # The user can change and remove everything that root's daemon created, without the daemon.
        act(EVE, 'echo more >> "$1/a/b/c" && touch "$1/a/b/new" && rm -r "$1/a" "$1/k"', store)


def test_what_only_the_owner_may_read_is_for_nobody_else_at_any_time(store: Path) -> None:
    """Neither under its temporary name while it is written, nor afterwards."""
    act(EVE, 'echo old > "$1/k" && chmod 600 "$1/k"', store)

    def read() -> str | None:
        for name in os.listdir(store):
            with suppress(PermissionError, FileNotFoundError), (store / name).open("rb") as file:
                return f"{name}: {len(file.read(10))} bytes"
        return None

    with shared(store, f"uid={EVE},gid={EVE}") as mount:
        with repeating(MALLORY, read) as seen:
            for _ in range(3):
                act(EVE, 'head -c "$2" /dev/zero > "$1/raw/k"', mount.path, share(10_000_000))
                assert shown(store / "k") == ("0o600", EVE, EVE)
        assert not seen


def test_rights_of_a_group_are_not_given_to_another(store: Path) -> None:
    for mode in ("640", "660", "604", "750", "710"):
        act(EVE, 'echo old > "$1/$2" && chmod "$2" "$1/$2"', store, mode)
    with shared(store, f"uid={EVE},gid={MALLORY}") as mount:
        for mode in ("640", "660", "604", "750", "710"):
            act(EVE, 'echo new > "$1/raw/$2"', mount.path, mode)
        assert {mode: shown(store / mode) for mode in ("640", "660", "604", "750", "710")} == {
            "640": ("0o600", EVE, MALLORY),
            "660": ("0o600", EVE, MALLORY),
            "604": ("0o600", EVE, MALLORY),
            "750": ("0o700", EVE, MALLORY),
            "710": ("0o700", EVE, MALLORY),
        }


def test_a_folder_whose_files_belong_to_its_group_goes_on(store: Path) -> None:
    act(EVE, 'echo old > "$1/k" && chmod 660 "$1/k" && chmod 2775 "$1"', store)
    with shared(store, f"uid={EVE}") as mount:
        act(EVE, 'echo new > "$1/raw/k" && mkdir "$1/raw/d" && echo new > "$1/raw/d/new"', mount.path)
        assert shown(store / "k") == ("0o660", EVE, EVE)
        assert shown(store / "d") == ("0o2755", EVE, EVE)
        assert shown(store / "d/new") == ("0o644", EVE, EVE)


def test_a_folder_that_is_put_in_the_place_of_a_new_one_is_not_given_away(store: Path) -> None:
    """Root's own folder in another user's store stays root's, however often it is exchanged for a folder that is being created."""
    (store / "of-root").mkdir(mode=0o700)
    fd = os.open(store / "of-root", os.O_RDONLY)
    inode = os.fstat(fd).st_ino

    def swap() -> None:
        (store / "d").rename(store / "taken")
        (store / "of-root").rename(store / "d")
        while (store / "d").exists():
            pass

    tree = FolderTree(str(store))
    tree.owner = Owner(EVE, EVE)
    swapped = 0
    with repeating(EVE, swap):
        for _ in range(3000):
            with suppress(FileNotFoundError):
                tree.make_folder(("d",))
            for name in "d", "taken":
                with suppress(FileNotFoundError):
                    if (store / name).stat().st_ino == inode:
                        swapped += 1
                        (store / name).rename(store / "of-root")
                    else:
                        (store / name).rmdir()
    tree.close()
    assert swapped
    assert os.fstat(fd).st_uid == os.fstat(fd).st_gid == 0
    os.close(fd)
