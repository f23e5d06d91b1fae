"""Owners and permissions of the files of a mount: the options uid, gid, umask, allow_other and noexec."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, Mounted, mount_table, mounted, zarrfs

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users"),
]

NOBODY, GROUP, OTHER = 65534, 12345, 54321


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "demo/example.zarr", tmp_path / "s.zarr"))


@contextmanager
def shared(store: Path, *options: str) -> Iterator[Mounted]:
    """Mount; other users have access as far as the modes permit."""
    with mounted(store, *options) as mount:
        mount.path.parent.chmod(0o755)
        yield mount


def attempt(script: str, path: Path, user: int, group: int = OTHER) -> str:
    """Return the output of a user's shell ``script`` for ``path`` ($1), or its error."""
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(path)],
        capture_output=True,
        check=False,
        user=user,
        group=group,
        extra_groups=[],
        cwd="/",
        env=os.environ | {"LC_ALL": "C"},
    )
    return (done.stdout if done.returncode == 0 else b"!" + done.stderr.strip().rpartition(b": ")[2]).decode(errors="replace")


def whole_tree(path: Path) -> list[os.stat_result]:
    """Return the status of everything in a tree, from listings and from lookups, which have to agree."""
    found = [os.lstat(path)]
    for folder, folders, files in os.walk(path):
        with os.scandir(folder) as entries:
            found += [entry.stat(follow_symlinks=False) for entry in entries]
        found += [os.lstat(os.path.join(folder, name)) for name in (*folders, *files)]
    return found


def modes(path: Path) -> tuple[set[int], set[int]]:
    """Return the permissions of all folders, and of all files."""
    tree = whole_tree(path)
    return (
        {stat.S_IMODE(each.st_mode) for each in tree if stat.S_ISDIR(each.st_mode)},
        {stat.S_IMODE(each.st_mode) for each in tree if stat.S_ISREG(each.st_mode)},
    )


def mount_line(path: Path) -> tuple[set[str], set[str]]:
    """Return the options of the mount, and of its file system, as findmnt shows them."""
    for fields in mount_table():
        if fields[4] == str(path):
            return set(fields[5].split(",")), set(fields[-1].split(","))
    raise AssertionError(f"nothing is mounted on {path}")


# --- stat


def test_by_default_files_belong_to_who_mounts(store: Path) -> None:
    with mounted(store) as mount:
        assert {(each.st_uid, each.st_gid) for each in whole_tree(mount.path)} == {(0, 0)}
        # README.txt is read-only.
        assert modes(mount.path) == ({0o755}, {0o644, 0o444})
        assert modes(mount.path / "raw") == ({0o755}, {0o644})


@pytest.mark.parametrize(
    ("options", "owner", "writable", "readable"),
    [
        (["-o", f"uid={NOBODY},gid={GROUP}"], (NOBODY, GROUP), (0o755, 0o644), (0o555, 0o444)),
        (["--uid", "nobody", "--umask", "027"], (NOBODY, 0), (0o750, 0o640), (0o550, 0o440)),
        (["-o", "gid=nogroup,umask=0"], (0, 65534), (0o777, 0o666), (0o555, 0o444)),
        (["--umask", "0077"], (0, 0), (0o700, 0o600), (0o500, 0o400)),
    ],
)
def test_owner_and_modes_are_options(
    options: list[str], owner: tuple[int, int], writable: tuple[int, int], readable: tuple[int, int], store: Path
) -> None:
    with mounted(store, *options) as mount:
        (mount.path / "raw/new").mkdir()
        (mount.path / "raw/new/x").write_bytes(b"x")
        os.chmod(mount.path / "raw/new/x", 0o777)
        assert {(each.st_uid, each.st_gid) for each in whole_tree(mount.path)} == {owner}
        assert modes(mount.path / "raw") == ({writable[0]}, {writable[1]})
        assert stat.S_IMODE((mount.path / "README.txt").stat().st_mode) == readable[1]
    with mounted(store, "--read-only", *options) as mount:
        assert {(each.st_uid, each.st_gid) for each in whole_tree(mount.path)} == {owner}
        assert modes(mount.path) == ({readable[0]}, {readable[1]})


@pytest.mark.parametrize("option", ["uid=nobody-at-all", "gid=-1", "umask=8", "umask=u=rwx"])
def test_nonsense_is_refused_before_the_store_is_looked_for(option: str, tmp_path: Path) -> None:
    done = zarrfs("mount", str(tmp_path / "none"), str(tmp_path), "-o", option)
    assert done.returncode == 2
    assert f"-o {option.partition('=')[0]}: expected" in done.stderr


def test_what_the_kernel_is_told_to_enforce(store: Path) -> None:
    with mounted(store) as mount:
        options, more = mount_line(mount.path)
        assert {"rw", "nosuid", "nodev", "noatime"} <= options and "noexec" not in options
        assert "default_permissions" in more and "allow_other" not in more
    with mounted(store, "-o", "ro,noexec,allow_other,suid,dev,atime") as mount:
        options, more = mount_line(mount.path)
        assert {"ro", "nosuid", "nodev", "noatime", "noexec"} <= options
        assert {"default_permissions", "allow_other"} <= more


# --- permissions


def test_without_allow_other_nobody_else_may_look(store: Path) -> None:
    with shared(store, "-o", f"uid={NOBODY},umask=0") as mount:
        assert attempt('ls "$1"', mount.path, NOBODY) == "!Permission denied"


def test_with_allow_other_everybody_may_what_the_modes_permit(store: Path) -> None:
    with shared(store, "-o", f"allow_other,uid={NOBODY},gid={GROUP},umask=027") as mount:
        document = mount.path / "raw/zarr.json"
        for user, group, may_read, may_write in [(NOBODY, OTHER, 1, 1), (OTHER, GROUP, 1, 0), (OTHER, OTHER, 0, 0), (0, 0, 1, 1)]:
            assert attempt('head -c 1 "$1"', document, user, group) == ("{" if may_read else "!Permission denied")
            assert attempt('echo x > "$1"', mount.path / "raw" / f"by-{user}", user, group) == (
                "" if may_write else "!Permission denied"
            )
        assert sorted(path.name for path in store.glob("by-*")) == ["by-0", f"by-{NOBODY}"]


def test_a_writer_who_is_not_the_owner_is_refused_before_we_are_asked(store: Path) -> None:
    scripts = (
        'echo x >> "$1"',
        'truncate -s 0 "$1"',
        'rm -f "$1"',
        'mv "$1" "$1.old"',
        'echo x > "$1.new"',
        'mkdir "$1.d"',
        'touch "$1"',
    )
    with shared(store, "--allow-other") as mount:
        document = mount.path / "raw/zarr.json"
        with mount.counted() as cost:
            assert {script: attempt(script, document, OTHER) for script in scripts} == dict.fromkeys(scripts, "!Permission denied")
        assert not any(operation.startswith(("set", "erase", "make", "remove")) for operation in cost)
        assert mount.errors() == []
        assert document.read_bytes() == (store / "zarr.json").read_bytes()


def test_with_umask_000_anybody_writes(store: Path) -> None:
    with shared(store, "-o", "allow_other,umask=000") as mount:
        changes = 'echo hello > "$1" && cat "$1" && mv "$1" "$1.old" && rm "$1.old" && touch "$1"'
        assert attempt(changes, mount.path / "raw/x", OTHER) == "hello\n"
        assert attempt('head -c 288 /dev/zero > "$1"', mount.path / "chunks/lat/0", OTHER) == ""
        assert (store / "x").read_bytes() == b""
        assert (mount.path / "chunks/lat/0").read_bytes() == bytes(288)


def test_chmod_and_chown_change_nothing_for_those_who_may(store: Path) -> None:
    with shared(store, "-o", f"allow_other,uid={NOBODY},gid={GROUP},umask=0") as mount:
        document = mount.path / "raw/zarr.json"
        before = document.stat()
        assert attempt('chmod 400 "$1"', document, NOBODY, GROUP) == ""
        assert attempt(f'chown {NOBODY}:{GROUP} "$1"', document, NOBODY, GROUP) == ""
        # As on any other file system: files cannot be given away, and only the owner can change permissions.
        assert attempt('chown 0 "$1"', document, NOBODY, GROUP) == "!Operation not permitted"
        assert attempt('chmod 777 "$1"', document, OTHER) == "!Operation not permitted"
        assert attempt('chown 0:0 "$1" && chmod 400 "$1" && chown root "$1"', document, 0, 0) == ""
        after = document.stat()
        assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, NOBODY, GROUP)
        assert attempt('cp -a /bin/true "$1" && cmp /bin/true "$1"', mount.path / "raw/copy", NOBODY, GROUP) == ""


# --- noexec

MAPS = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
mmap.mmap(descriptor, 1, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
"""


@pytest.mark.parametrize("noexec", [False, True])
def test_no_program_in_a_mount_is_run(noexec: bool, store: Path) -> None:
    shutil.copy("/bin/true", store / "program")
    with mounted(store, *(["--noexec"] if noexec else []), "--umask", "000") as mount:
        program = mount.path / "raw/program"
        with pytest.raises(PermissionError) as caught:
            subprocess.run([program], check=False)
        assert caught.value.errno == errno.EACCES
        # Mapping a program needs no execute permission, as for the loader, unless the mount is noexec.
        mapped = subprocess.run([sys.executable, "-c", MAPS, str(program)], capture_output=True, text=True, check=False)
        assert (mapped.returncode, "PermissionError" in mapped.stderr) == ((1, True) if noexec else (0, False))
