"""Stores mounted by the real mount(8) and unmounted by the real umount(8), through the helpers that zarrfs install has linked."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.attackers import needs_root
from tests.support.mounting import ROOT
from tests.support.namespace import run_in_namespace
from tests.support.users import opened
from zarrfs.options.config import MountConfig

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]

EXAMPLE = ROOT / "demo" / "example.zarr"
USER = 65534

# In $W; after any failure nothing stays mounted there, and the daemons end. Logs are those of this namespace.
_PREPARED = """
mount -t tmpfs logs /var/log
"$SCRIPTS/zarrfs" install mount-helper > /dev/null
unmount_all() {
    findmnt -rno TARGET -t fuse.zarrfs | { grep "^$W/" || true; } | while read -r place; do umount -i -l "$(printf %b "$place")"; done
}
trap unmount_all EXIT
of() { findmnt -no "$2" "$1"; }
pid_of() { sed -n 's/.*"pid": \\([0-9]*\\).*/\\1/p' "$1/.zarrfs/config.json"; }
code() { local given=0; "$@" || given=$?; echo "code $given"; }
cd "$W"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A world-accessible folder with a store, an archive of it, and a mountpoint."""
    with tempfile.TemporaryDirectory(prefix="zarrfs-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(EXAMPLE, folder / "x.zarr")
        shutil.make_archive(str(folder / "x"), "zip", EXAMPLE)
        (folder / "mnt").mkdir()
        yield folder


@pytest.fixture
def machine(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs a script in ``folder`` (``$W``), on a machine whose mount(8) supports zarrfs. No daemon may be left."""

    def run(script: str, **options: bool) -> subprocess.CompletedProcess[str]:
        done = run_in_namespace(_PREPARED + script, sbin=True, env={"W": str(folder), "LC_ALL": "C.UTF-8"}, **options)
        # The daemon of a detached mount may still be ending.
        left = [pid for pid in _daemons(folder) if not _ends(pid)]
        assert not left, f"{left}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def _daemons(folder: Path) -> list[int]:
    """Return the processes with ``folder`` in an argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def _ends(pid: int, seconds: float = 30) -> bool:
    """Return True if a process ends by itself in time; otherwise kill it."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        ended = bool(poll.poll(seconds * 1000))
        if not ended:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return ended
    finally:
        os.close(pidfd)


Machine = Callable[..., subprocess.CompletedProcess[str]]


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the output of a successful script."""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def unescaped(text: str) -> str:
    """Return ``text`` without the escapes of findmnt(8)."""
    return re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), text.encode()).decode()


@pytest.mark.parametrize("fstype", ["zarrfs", "fuse.zarrfs"])
def test_mount_returns_when_the_mount_can_be_used_and_umount_takes_it_away(fstype: str, machine: Machine, folder: Path) -> None:
    done = machine(
        f"""
        mount -t {fstype} x.zarr mnt -o ro,nofail,_netdev,noatime
        ls mnt
        cmp mnt/raw/zarr.json x.zarr/zarr.json
        of mnt FSTYPE,SOURCE,TARGET
        of mnt OPTIONS
        code touch mnt/raw/new
        umount mnt
        ls mnt
        """
    )
    *views, what, options, code = lines(done)
    assert views == ["README.txt", "chunks", "npy", "raw", "zarr3"]
    assert what.split() == ["fuse.zarrfs", f"{folder}/x.zarr", f"{folder}/mnt"]
    assert {"ro", "nosuid", "nodev", "noatime"} <= set(options.split(","))
    assert code == "code 1" and "Read-only file system" in done.stderr


@pytest.mark.full_length
def test_all_of_fstab_without_an_environment(machine: Machine, folder: Path) -> None:
    for name in ("zip", "a b", "f", "m", "n"):
        (folder / name).mkdir()
    shutil.copytree(EXAMPLE, folder / "ö,b c.zarr")
    (folder / "c,d.toml").write_text("read_only = true\nmetadata_ttl = 7")
    (folder / "fstab").write_text(
        f"{folder}/x.zarr        {folder}/mnt       zarrfs       nofail,_netdev,relatime,x-systemd.automount,comment=a   0 0\n"
        f"{folder}/x.zip         {folder}/zip       fuse.zarrfs  ro,auto,user,exec,metadata-ttl=5                        0 0\n"
        f"{folder}/ö,b\\040c.zarr  {folder}/a\\040b   zarrfs       log_file={folder}/l\\,og,x-systemd.after=a.service      0 0\n"
        f'file://{folder}/x.zarr/ {folder}/f        zarrfs       config="{folder}/c,d.toml",users,dev,suid            0 0\n'
        f"memory:                {folder}/m         zarrfs       defaults                                              0 0\n"
        f"memory:                {folder}/n         zarrfs       noauto                                                0 0\n"
    )
    done = machine(
        """
        mounted() { findmnt -rno SOURCE,TARGET,VFS-OPTIONS -t fuse.zarrfs | grep " $W/"; }
        env -i /usr/bin/mount -a -T "$W/fstab"
        mounted
        ls npy mnt/npy zip/npy "a b/npy" f/npy m/npy 2>/dev/null | grep -c lat.npy
        grep -o '"metadata_ttl": [0-9.]*' f/.zarrfs/config.json zip/.zarrfs/config.json
        ls
        echo again
        env -i /usr/bin/mount -a -T "$W/fstab"
        mounted | wc -l
        env -i /usr/bin/mount -T "$W/fstab" "$W/n"
        mounted | wc -l
        env -i /usr/bin/umount "$W/mnt" "$W/zip" "$W/a b" "$W/f" "$W/m" "$W/n"
        code mounted
        """
    )
    before, after = lines(done)[:-3], lines(done)[-3:]
    mounts = [[unescaped(field) for field in line.split(" ")] for line in before[:5]]
    shown = {fields[1].removeprefix(f"{folder}/"): fields for fields in mounts}
    assert shown["mnt"][0] == f"{folder}/x.zarr" and "rw" in shown["mnt"][2].split(",")
    assert shown["zip"][0] == f"{folder}/x.zip" and "ro" in shown["zip"][2].split(",") and "noexec" not in shown["zip"][2]
    assert shown["a b"][0] == f"{folder}/ö,b c.zarr"
    assert shown["f"][0] == f"file://{folder}/x.zarr/" and {"ro", "noexec"} <= set(shown["f"][2].split(","))
    assert shown["m"][0] == "memory:"
    assert all({"nosuid", "nodev"} <= set(fields[2].split(",")) for fields in shown.values())
    assert before[5] == "4"
    assert before[6:8] == ['f/.zarrfs/config.json:"metadata_ttl": 7.0', 'zip/.zarrfs/config.json:"metadata_ttl": 5.0']
    assert "l,og" in before
    assert after == ["5", "6", "code 1"]


@pytest.mark.full_length
def test_the_exit_codes_are_those_of_mount_8(machine: Machine, folder: Path) -> None:
    (folder / "fstab").write_text(f"{folder}/none.zarr {folder}/mnt zarrfs nofail 0 0\n")
    done = machine(
        """
        code mount -t zarrfs none.zarr mnt
        code mount -t zarrfs x.zarr mnt -o metadata_tll=5
        code mount -t zarrfs x.zarr mnt -o timeout=0
        mkdir mnt/occupied; code mount -t zarrfs x.zarr mnt; rmdir mnt/occupied
        code mount -a -T fstab
        mount -t zarrfs x.zarr mnt
        code mount -t zarrfs x.zarr mnt
        code mount -o remount,ro mnt
        touch mnt/raw/still-writable
        code umount mnt
        code umount mnt/raw
        code umount.fuse.zarrfs mnt
        """
    )
    assert lines(done) == [f"code {code}" for code in (32, 1, 1, 32, 32, 32, 1, 0, 32, 32)]
    told = done.stderr.splitlines()
    assert f"mount.zarrfs: there is no store {folder}/none.zarr: No such file or directory" in told
    assert "mount.zarrfs: -o metadata_tll: unknown option; did you mean metadata_ttl?" in told
    assert any("already mounted by zarrfs" in line for line in told)
    assert any("-o remount: not supported by zarrfs mounts" in line for line in told)


@pytest.mark.full_length
def test_a_fake_mount_checks_what_it_can_and_mounts_nothing(machine: Machine, folder: Path) -> None:
    (folder / "text").write_text("no store")
    done = machine(
        """
        code mount -f -v -t zarrfs x.zarr mnt -o ro
        ls mnt
        code mount -f -t zarrfs none.zarr mnt
        code mount -f -t zarrfs text mnt
        code mount -f -t zarrfs x.zarr mnt -o metadata_tll=5
        code mount -f -t zarrfs x.zarr x.zarr/lat
        """
    )
    assert lines(done) == ["code 0", "code 32", "code 32", "code 1", "code 32"]
    assert done.stderr.splitlines()[0] == f"mount.zarrfs: would mount {folder}/x.zarr on {folder}/mnt, read_only=True"


@pytest.mark.full_length
def test_sloppily_and_verbosely(machine: Machine, folder: Path) -> None:
    done = machine("code mount -s -n -v -t zarrfs x.zarr mnt -o metadata_tll=5,metadata_ttl=6; ls mnt/npy; umount -v mnt")
    assert lines(done)[0] == "code 0" and "lat.npy" in lines(done)
    assert done.stderr.splitlines() == [
        "mount.zarrfs: -o metadata_tll: unknown option, ignored",
        f"mount.zarrfs: mounting {folder}/x.zarr on {folder}/mnt, metadata_ttl=6.0",
        f"mount.zarrfs: mounted {folder}/x.zarr on {folder}/mnt",
        f"umount.zarrfs: {folder}/mnt unmounted",
    ]


def test_secrets_of_a_source_are_shown_nowhere(machine: Machine, folder: Path) -> None:
    plugin = folder / "plugin" / "somewhere-1.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: somewhere\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[zarrfs.stores]\nsomewhere = somewhere:PLUGIN\n")
    (plugin.parent / "somewhere.py").write_text(
        "from zarrfs.stores.base import StorePlugin\n"
        "from zarrfs.stores.memory import MemoryStore\n"
        "async def opened(location, read_only):\n"
        "    assert location == '//key:canary@host/x?token=canary'\n"
        "    return MemoryStore(read_only=read_only)\n"
        "PLUGIN = StorePlugin('somewhere', ('somewhere',), opened)\n"
    )
    done = machine(
        """
        export PYTHONPATH=$W/plugin${PYTHONPATH:+:$PYTHONPATH}
        mount -v -t zarrfs 'somewhere://key:canary@host/x?token=canary' mnt
        of mnt SOURCE
        cat /proc/self/mountinfo /proc/[0-9]*/mountinfo mnt/.zarrfs/config.json /var/log/zarrfs/* 2>/dev/null | grep -c canary || true
        tr '\\0' ' ' < "/proc/$(pid_of mnt)/cmdline"; echo
        umount -v mnt
        echo "store = 'somewhere://key:canary@host/x?token=canary'" > secret.toml
        mount -v -t zarrfs none mnt -o config="$W/secret.toml"
        of mnt SOURCE
        umount mnt
        """
    )
    source, count, arguments, none = lines(done)
    assert none == "none"
    assert source == "somewhere://***@host/x?token=***"
    assert count == "0" and source in arguments and source in done.stderr and "canary" not in arguments + done.stderr


def slowly(folder: Path) -> str:
    """Return a script that mounts, like mount(8), a store on which each set takes two seconds."""
    config = MountConfig(store=f"{folder}/x.zarr", mountpoint=f"{folder}/mnt", log_file=f"{folder}/log")
    assert "'" not in config.to_json()
    return f"""
        coproc '{sys.executable}' -P '{ROOT}/tests/support/slow_mount.py' '{config.to_json()}' 2
        read -r line <&"${{COPROC[0]}}"
        """


def test_umount_returns_when_the_last_byte_is_stored(machine: Machine, folder: Path) -> None:
    # An empty new file is stored on RELEASE, which the kernel sends after close() and umount(2) have returned.
    assert lines(machine(f"{slowly(folder)} touch mnt/raw/new; umount mnt; ls x.zarr/new")) == ["x.zarr/new"]


@pytest.mark.full_length
def test_without_the_helper_umount_returns_before(machine: Machine, folder: Path) -> None:
    """The control: without waiting, the value is missing when umount returns."""
    done = machine(f"{slowly(folder)} touch mnt/raw/new; umount -i mnt; ls x.zarr/new || echo early; wait")
    assert lines(done) == ["early"]


def test_what_was_refused_is_named_by_umount(machine: Machine) -> None:
    done = machine("mount -t zarrfs x.zarr mnt; code cp /etc/hostname mnt/chunks/lat/0; code umount mnt; findmnt mnt || echo gone")
    assert lines(done) == ["code 1", "code 0", "gone"]
    assert "umount.zarrfs: " in done.stderr and "chunks/lat/0" in done.stderr.splitlines()[-1]


def test_a_mount_in_use_stays_unless_it_is_detached(machine: Machine, folder: Path) -> None:
    done = machine(
        """
        mount -t zarrfs x.zarr mnt
        exec 5> mnt/raw/new
        code umount mnt; code umount -f mnt
        ls mnt/npy/lat.npy
        code umount -l mnt
        ls mnt
        echo written >&5; exec 5>&-
        until [ "$(cat x.zarr/new)" = written ]; do :; done
        """
    )
    assert lines(done) == ["code 32", "code 32", "mnt/npy/lat.npy", "code 0"]
    first = done.stderr.splitlines()[0]
    assert re.fullmatch(rf"umount\.zarrfs: {folder}/mnt: in use by bash \(\d+: raw/new\): close it there, or use --lazy", first)


def test_a_mount_that_only_umount_itself_uses_names_it(machine: Machine, folder: Path) -> None:
    done = machine("mount -t zarrfs x.zarr mnt; code bash -c 'cd mnt/npy; exec umount ../../mnt'; umount mnt")
    assert lines(done) == ["code 32"]
    assert re.match(rf"umount\.zarrfs: {folder}/mnt: in use by umount \(\d+: npy\)", done.stderr.splitlines()[0])


@pytest.mark.full_length
def test_a_dead_mount_is_replaced_and_taken_away(machine: Machine, folder: Path) -> None:
    (folder / "fstab").write_text(f"{folder}/x.zarr {folder}/mnt zarrfs nofail 0 0\n")
    done = machine(
        """
        killed() { local pid; pid=$(pid_of mnt); kill -9 $pid; tail --pid=$pid -f /dev/null; }
        mount -a -T fstab; killed; code ls mnt
        mount -a -T fstab; code ls mnt
        mount -T fstab "$W/mnt"; ls mnt/npy/lat.npy; findmnt -no SOURCE mnt | wc -l; killed
        code umount mnt; ls mnt
        """
    )
    assert lines(done) == ["code 2", "code 2", "mnt/npy/lat.npy", "1", "code 0"]
    assert "removed a zarrfs mount whose daemon died" in done.stderr and "its daemon had died before" in done.stderr


@pytest.mark.full_length
def test_another_mount_namespace(machine: Machine, folder: Path) -> None:
    done = machine(
        """
        mkfifo gate; unshare --mount --propagation private bash -c 'read < gate' > /dev/null 2>&1 & other=$!
        trap 'kill $other 2>/dev/null || true; unmount_all' EXIT
        until [ "$(readlink /proc/$other/ns/mnt)" != "$(readlink /proc/self/ns/mnt)" ]; do :; done
        mount -N $other -t zarrfs "$W/x.zarr" "$W/mnt" -o ro
        ls mnt | wc -l
        nsenter --target $other --mount ls "$W/mnt/npy"
        code mount -N $other -t zarrfs "$W/x.zarr" "$W/mnt"
        code mount.zarrfs x.zarr mnt -N $other -o metadata_tll=5
        umount -N $other "$W/mnt"
        nsenter --target $other --mount ls "$W/mnt" | wc -l
        mount.zarrfs x.zarr mnt -N $other && nsenter --target $other --mount ls "$W/mnt/npy/lat.npy"
        umount.fuse.zarrfs mnt -N /proc/$other/ns/mnt
        code mount.zarrfs x.zarr mnt -N /nowhere 2>/dev/null
        echo > gate; wait $other
        """
    )
    assert lines(done) == [
        "0",
        *("air_temperature.npy", "lat.npy", "lon.npy", "time.npy"),
        "code 32",
        "code 1",
        "0",
        f"{folder}/mnt/npy/lat.npy",
        "code 1",
    ]
    assert "already mounted by zarrfs" in done.stderr and "did you mean metadata_ttl?" in done.stderr


def test_root_runs_nothing_in_a_mount_namespace_of_a_user(machine: Machine, folder: Path) -> None:
    """Its owner can mount anything there, also over the interpreter."""
    done = machine(
        """
        mkfifo gate ready; chmod 666 gate ready
        setpriv --reuid=65534 --regid=65534 --clear-groups unshare -U -r -m bash -c 'echo > ready; read < gate' & other=$!
        read < ready || { echo no namespaces for users; exit; }
        code mount.zarrfs x.zarr mnt -N $other
        code umount.fuse.zarrfs mnt -N /proc/$other/ns/mnt
        code mount.zarrfs x.zarr mnt -N x.zarr/zarr.json
        code mount.zarrfs x.zarr mnt -N gate
        echo > gate; wait $other
        """
    )
    if lines(done)[0].startswith("no namespaces"):
        pytest.skip("users may not create namespaces here")
    assert lines(done) == ["code 32"] * 4
    assert done.stderr.count("belongs to another user namespace") == 2
    assert done.stderr.count("not a namespace of this machine's root") == 2


@needs_root
def test_a_user_mounts_what_fstab_lets_users_mount(machine: Machine, folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, USER, USER)
    (folder / "fstab").write_text(f"{folder}/x.zarr {folder}/mnt zarrfs noauto,user,log_file={folder}/log 0 0\n")
    done = machine(
        opened()
        + f"""
        mount --bind fstab /etc/fstab
        as_user() {{ setpriv --reuid={USER} --regid={USER} --clear-groups env "$@"; }}
        as_user mount "$W/mnt"
        of mnt FSTYPE,SOURCE
        of mnt OPTIONS
        as_user touch mnt/raw/new
        as_user umount "$W/mnt"; stat -c %u x.zarr/new
        code findmnt mnt
        """,
        fuse_for_users=True,
    )
    what, options, owner, code = lines(done)
    assert what.split() == ["fuse.zarrfs", f"{folder}/x.zarr"]
    assert {"nosuid", "nodev", "noexec", f"user_id={USER}"} <= set(options.split(","))
    assert (owner, code) == (str(USER), "code 1")


@pytest.mark.full_length
def test_installing_and_undoing_it(machine: Machine, folder: Path) -> None:
    done = machine(
        """
        zarrfs=$SCRIPTS/zarrfs
        $zarrfs uninstall mount-helper > /dev/null
        $zarrfs install mount-helper --dry-run > would; ls /sbin/*zarrfs 2>/dev/null || echo none
        $zarrfs install mount-helper | diff would - && echo as announced
        $zarrfs install mount-helper
        for name in mount.zarrfs mount.fuse.zarrfs umount.fuse.zarrfs; do [ /sbin/$name -ef $SCRIPTS/${name/.fuse/} ] && echo $name; done
        $zarrfs uninstall mount-helper --dry-run > would; ls /sbin/*zarrfs | wc -l
        $zarrfs uninstall mount-helper | diff would - && echo as announced
        ls /sbin/*zarrfs 2>/dev/null || echo none
        $zarrfs uninstall mount-helper
        echo mine > /sbin/mount.zarrfs
        code $zarrfs install mount-helper
        code $zarrfs uninstall mount-helper
        code $zarrfs install something
        cat /sbin/mount.zarrfs
        """
    )
    assert lines(done) == [
        *("none", "as announced", "nothing to do", "mount.zarrfs", "mount.fuse.zarrfs", "umount.fuse.zarrfs"),
        *("3", "as announced", "none", "nothing to do", "code 1", "code 1", "code 2", "mine"),
    ]
    assert "\nzarrfs: /sbin/mount.zarrfs: not a link, so not created by `zarrfs install`" in f"\n{done.stderr}"


def test_who_is_not_root_is_told_what_to_type(machine: Machine) -> None:
    done = machine(
        opened()
        + f"""
        "$SCRIPTS/zarrfs" uninstall mount-helper > /dev/null
        as_user() {{ setpriv --reuid={USER} --regid={USER} --clear-groups "$@"; }}
        as_user "$SCRIPTS/zarrfs" install mount-helper --dry-run | wc -l
        code as_user "$SCRIPTS/zarrfs" install mount-helper
        ls /sbin/*zarrfs 2>/dev/null || echo none
        "$SCRIPTS/zarrfs" install mount-helper | wc -l
        code as_user "$SCRIPTS/zarrfs" uninstall mount-helper
        """
    )
    assert lines(done) == ["3", "code 4", "none", "3", "code 4"]
    scripts = Path(sys.executable).parent
    assert [line for line in done.stderr.splitlines() if "warning:" not in line] == [
        f"zarrfs: /sbin: owned by root (run `sudo {scripts}/zarrfs {how} mount-helper`)" for how in ("install", "uninstall")
    ]
