"""The systemd units: systemd accepts them, and their commands act as a service manager expects."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, mountpoint, watchdog
from tests.support.namespace import SCRIPTS
from tests.support.notifications import notified
from tests.support.programs import demand
from tests.support.service_manager import run_under_systemd
from tests.support.users import opened
from zarrfs.lifecycle.mount_table import mount_at

pytestmark = pytest.mark.fuse

UNITS = ROOT / "systemd"
SERVICE = UNITS / "zarrfs@.service"

# Each of these gives a service a mount namespace of its own (systemd.exec(5)), or is never used for one that has to mount.
PRIVATE = {
    *("PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateNetwork", "PrivateIPC", "PrivateUsers", "PrivatePIDs"),
    *("ProtectSystem", "ProtectHome", "ProtectProc", "ProcSubset", "ProtectControlGroups", "ProtectHostname"),
    *("ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectClock"),
    *("ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths", "BindPaths", "BindReadOnlyPaths"),
    *("TemporaryFileSystem", "RootDirectory", "RootImage", "MountImages", "ExtensionImages", "ExtensionDirectories", "MountAPIVFS"),
    *("LogNamespace", "DynamicUser", "MountFlags", "NoNewPrivileges", "RestrictNamespaces"),
}


def unit(path: Path) -> dict[str, dict[str, str]]:
    """Return the sections of a unit. (No directive in ours occurs twice.)"""
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes=("#", ";"), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return {name: dict(section) for name, section in parser.items()}


def command(directive: str, instance: str, configurations: Path) -> list[str]:
    """Return the exact command line of a directive, with the paths of this machine."""
    line = unit(SERVICE)["Service"][directive].removeprefix("-").replace("%i", instance)
    return shlex.split(line.replace("/usr/local/bin", str(SCRIPTS)).replace("/etc/zarrfs", str(configurations)))


# --- the files


def test_systemd_accepts_every_unit(tmp_path: Path) -> None:
    """On copies, with the path of an existing command. (systemd-analyze names every unknown directive and value.)"""
    demand("systemd-analyze")
    for path in UNITS.glob("*.*"):
        if path.suffix in (".service", ".mount", ".automount"):
            (tmp_path / path.name).write_text(path.read_text().replace("/usr/local/bin", str(SCRIPTS)))
    (tmp_path / "zarrfs@.service.d").mkdir()
    shutil.copy(UNITS / "user.conf", tmp_path / "zarrfs@.service.d")
    units = sorted(path for path in tmp_path.iterdir() if path.is_file())
    assert [path.suffix for path in units] == [".automount", ".mount", ".service"]
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False)
    # It verifies the units of this machine, too.
    ours = [line for line in verified.stderr.splitlines() if "zarrfs" in line or "mnt-air" in line]
    assert verified.returncode == 0 and not ours, verified.stderr
    with units[-1].open("a") as file:
        file.write("[Service]\nRestrt=always\n")
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False)
    assert "Restrt" in verified.stderr, "systemd-analyze would not have noticed"


def test_the_mount_is_seen_outside_of_the_service() -> None:
    """No directive gives the service a mount namespace of its own."""
    for path in (SERVICE, UNITS / "user.conf"):
        assert not PRIVATE & unit(path)["Service"].keys(), path.name


def test_the_drop_in_for_another_user_leaves_fusermount3_its_privileges() -> None:
    """The drop-in resets all settings that imply NoNewPrivileges= without CAP_SYS_ADMIN (systemd.exec(5))."""
    service, other = unit(SERVICE)["Service"], unit(UNITS / "user.conf")["Service"]
    implying = {"LockPersonality", "RestrictRealtime", "RestrictAddressFamilies", "SystemCallArchitectures", "SystemCallFilter"}
    implying |= {"SystemCallLog", "MemoryDenyWriteExecute", "RestrictSUIDSGID", "RestrictFileSystems"}
    assert {name for name in implying & service.keys() if other[name] not in ("no", "")} == set()
    assert implying & service.keys() == implying & other.keys()


def test_the_examples_fit_together() -> None:
    demand("systemd-escape")
    mount, automount = unit(UNITS / "mnt-air.mount")["Mount"], unit(UNITS / "mnt-air.automount")["Automount"]
    assert mount["Where"] == automount["Where"] and mount["Type"] == "zarrfs"
    for suffix in ("mount", "automount"):
        done = subprocess.run(["systemd-escape", "-p", f"--suffix={suffix}", mount["Where"]], capture_output=True, check=True)
        assert (UNITS / done.stdout.decode().strip()).exists()


def test_every_exit_code_is_tried_again_or_not() -> None:
    from zarrfs.command.exit_codes import EXIT_CODES

    final = {int(code) for code in unit(SERVICE)["Service"]["RestartPreventExitStatus"].split()}
    assert final | {1, 3} == set(EXIT_CODES.values())


# --- commands without a systemd


@pytest.fixture
def air(tmp_path: Path) -> Iterator[Path]:
    """The mountpoint of an instance ``air``, whose configuration is ``air.toml`` in the folder of the test."""
    store = tmp_path / "air.zarr"
    store.mkdir()
    with mountpoint() as path:
        (tmp_path / "air.toml").write_text(f'store = "{store}"\nmountpoint = "{path}"\n')
        yield path
        if mount_at(str(path)) is not None:
            subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def started(configurations: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command("ExecStart", "air", configurations), env=os.environ | environment, cwd="/") as process:
        with watchdog(60, process.kill):
            yield process


@pytest.mark.full_length
def test_start_kill_start_stop(air: Path, tmp_path: Path) -> None:
    """Act as systemd does at start, after a crash and at stop, with the messages that it waits for."""
    with notified(tmp_path) as manager:
        with started(tmp_path, NOTIFY_SOCKET=manager.name) as process:
            assert manager.next()[0] == "READY=1"
            (air / "raw/before").write_bytes(b"closed")
            process.kill()
            process.wait()
        # The mount is dead now.
        with pytest.raises(OSError, match="not connected"):
            os.listdir(air)
        with started(tmp_path, NOTIFY_SOCKET=manager.name) as process:
            assert manager.next()[0] == "READY=1"
            assert (air / "raw/before").read_bytes() == b"closed"
            (air / "raw/after").write_bytes(b"closed, too")
            stopped = subprocess.run(command("ExecStop", "air", tmp_path), cwd="/", capture_output=True, text=True, check=False)
            assert stopped.returncode == 0, stopped.stderr
            assert process.wait() == 0
    assert mount_at(str(air)) is None
    assert (tmp_path / "air.zarr/before").read_bytes() == b"closed"
    assert (tmp_path / "air.zarr/after").read_bytes() == b"closed, too"


@pytest.mark.full_length
def test_stop_while_it_is_in_use(air: Path, tmp_path: Path) -> None:
    """ExecStop fails at once, and the SIGTERM that follows publishes written data."""
    with notified(tmp_path) as manager, started(tmp_path, NOTIFY_SOCKET=manager.name) as process:
        assert manager.next()[0] == "READY=1"
        held = os.open(air / "raw/k", os.O_WRONLY | os.O_CREAT)
        os.write(held, b"written")
        stopped = subprocess.run(command("ExecStop", "air", tmp_path), cwd="/", capture_output=True, text=True, check=False)
        assert stopped.returncode == 1 and "in use" in stopped.stderr
        process.terminate()
        assert process.wait() == 0
        # The open file belongs to a file system that is gone.
        with pytest.raises(OSError, match="not connected"):
            os.close(held)
    assert (tmp_path / "air.zarr/k").read_bytes() == b"written"


# --- under systemd

INSTALL = r"""
ln -s ~/zarrfs/bin/zarrfs /usr/local/bin/zarrfs
cp systemd/zarrfs@.service /etc/systemd/system/
mkdir -p /etc/zarrfs /mnt/air /srv/air.zarr
printf 'store = "/srv/air.zarr"\nmountpoint = "/mnt/air"\n' >/etc/zarrfs/air.toml
show() { systemctl show --value -p "$1" zarrfs@air; }
systemctl daemon-reload
# A program that has written to files and keeps them open: it is for the end to store them. (An echo of the shell would.)
hold() {
    coproc HOLDER { exec ~/zarrfs/bin/python -c '
import os, sys
for path in sys.argv[1:]:
    os.write(os.open(path, os.O_WRONLY | os.O_CREAT), b"written" * int(os.environ.get("TIMES", 1)))
print("held", flush=True)
sys.stdin.read()' "$@"; }
    read -r _ <&"${HOLDER[0]}"
}
release() { kill "$HOLDER_PID"; wait "$HOLDER_PID" || :; }
"""


def test_the_service_is_ready_when_it_answers_and_stored_when_it_stopped() -> None:
    script = r"""
systemctl start zarrfs@air
echo hello >/mnt/air/raw/k
show StatusText; show ActiveState
pid=$(show MainPID)
[ /proc/$pid/ns/mnt -ef /proc/self/ns/mnt ] && echo seen outside
grep NoNewPrivs: /proc/$pid/status | cut -f 2
systemctl stop zarrfs@air
show ActiveState; show Result; ls -A /mnt/air; cat /srv/air.zarr/k
systemctl start zarrfs@air
systemctl restart zarrfs@air
cat /mnt/air/raw/k
/usr/local/bin/zarrfs umount /mnt/air
until [ "$(show ActiveState)" = inactive ]; do :; done
show Result; show NRestarts
"""
    done = run_under_systemd(INSTALL + script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *("/srv/air.zarr is mounted on /mnt/air", "active", "seen outside", "0"),
        *("inactive", "success", "hello"),
        *("hello", "success", "0"),
    ]


@pytest.mark.full_length
def test_a_crash_is_followed_by_a_mount_in_the_place_of_the_dead_one() -> None:
    script = r"""
mkdir -p /etc/systemd/system/zarrfs@air.service.d
printf '[Service]\nRestartSec=0\n' >/etc/systemd/system/zarrfs@air.service.d/soon.conf
systemctl daemon-reload
systemctl start zarrfs@air
echo closed >/mnt/air/raw/k
# Somebody who stays in the dead mount.
cd /mnt/air/raw
kill -9 "$(show MainPID)"
until [ "$(show NRestarts)" = 1 ] && [ "$(show ActiveState)" = active ]; do :; done
cd /
cat /mnt/air/raw/k
systemctl stop zarrfs@air
show Result; ls -A /mnt/air
"""
    done = run_under_systemd(INSTALL + script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["closed", "success"]


def test_stop_ends_a_mount_that_is_in_use_and_is_a_success() -> None:
    script = r"""
systemctl start zarrfs@air
hold /mnt/air/raw/k
systemctl stop zarrfs@air
show Result; cat /srv/air.zarr/k; echo; ls -A /mnt/air
journalctl | grep -o 'in use by python'
release
"""
    done = run_under_systemd(INSTALL + script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["success", "written", "in use by python"]


def test_what_cannot_get_better_is_not_tried_again() -> None:
    script = r"""
for line in 'store = 5' 'mountpoint = "/mnt/none"'; do
    printf 'store = "/srv/air.zarr"\n%s\n' "$line" >/etc/zarrfs/air.toml
    systemctl start zarrfs@air 2>/dev/null || echo "failed: $(show ExecMainStatus) $(show NRestarts) $(show ActiveState)"
done
"""
    done = run_under_systemd(INSTALL + script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["failed: 2 0 failed", "failed: 5 0 failed"]


@pytest.mark.full_length
def test_who_still_stores_is_not_killed_when_the_time_is_up() -> None:
    """A store takes four seconds for each value, and the service may take three to stop.

    The control sends no notifications, and loses written data.
    """
    script = r"""
mkdir -p /etc/systemd/system/zarrfs@air.service.d
for kind in notify exec; do
    rm -rf /srv/air.zarr; mkdir /srv/air.zarr
    printf '[Service]\nType=%s\nNotifyAccess=%s\nExecStart=\nExecStart=%s\nTimeoutStopSec=3\nRestart=no\n' $kind \
        "$([ $kind = notify ] && echo main || echo none)" \
        "$HOME/zarrfs/bin/python -P $PWD/tests/support/slow_mount.py '{\"store\": \"/srv/air.zarr\", \"mountpoint\": \"/mnt/air\"}' 4" \
        >/etc/systemd/system/zarrfs@air.service.d/slow.conf
    systemctl daemon-reload
    systemctl start zarrfs@air
    until [ -d /mnt/air/raw ]; do :; done
    hold /mnt/air/raw/{1,2}
    systemctl stop zarrfs@air
    echo "$kind: $(show Result) $(ls /srv/air.zarr | wc -l)"
    release
done
umount -l /mnt/air
"""
    done = run_under_systemd(INSTALL + script)
    assert done.returncode == 0, done.stderr
    notifying, silent = done.stdout.splitlines()
    assert (notifying, silent) == ("notify: success 2", "exec: timeout 0")


def test_what_could_not_be_stored_fails_the_unit_which_names_it() -> None:
    script = r"""
mount -t tmpfs -o size=64k full /srv/air.zarr
systemctl start zarrfs@air
TIMES=100000 hold /mnt/air/raw/k
systemctl stop zarrfs@air
echo "$(show ExecMainStatus) $(show Result)"
show StatusText
release
ls -A /mnt/air /srv/air.zarr
"""
    done = run_under_systemd(INSTALL + script)
    assert done.returncode == 0, done.stderr
    failed, status, *left = done.stdout.splitlines()
    assert failed == "7 exit-code"
    assert status.startswith("/mnt/air: not stored: raw/k: ") and "space" in status
    assert left == ["/mnt/air:", "", "/srv/air.zarr:"]


def test_a_mount_namespace_of_its_own_would_hide_the_mount() -> None:
    """The reason for the settings missing from the unit: with one of them everything seems well, and the mountpoint is empty."""
    script = r"""
mkdir -p /etc/systemd/system/zarrfs@air.service.d
printf '[Service]\nProtectControlGroups=yes\n' >/etc/systemd/system/zarrfs@air.service.d/hidden.conf
systemctl daemon-reload
systemctl start zarrfs@air
show ActiveState; ls -A /mnt/air
"""
    done = run_under_systemd(INSTALL + script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["active"]


@pytest.mark.full_length
def test_another_user_mounts_with_the_drop_in_and_not_without_it() -> None:
    """Unlike a machine's manager, a user's one excludes other users: here its socket is opened, and XDG_RUNTIME_DIR is not passed on."""
    demand("fusermount3")
    script = r"""
mount -t tmpfs -o mode=0755 device "$NAMESPACE" && mknod -m 0666 "$NAMESPACE/fuse" c 10 229
mount --bind "$NAMESPACE/fuse" /dev/fuse
chmod 0711 /run/home /run/user /run/user/systemd && chmod 0777 /run/user/systemd/notify
chown nobody /srv/air.zarr /mnt/air
settings=/etc/systemd/system/zarrfs@air.service.d
mkdir $settings
printf '[Service]\nUser=nobody\nUnsetEnvironment=XDG_RUNTIME_DIR\nRestart=no\n' >$settings/zz.conf
systemctl daemon-reload
systemctl start zarrfs@air 2>/dev/null || echo "without: $(show ExecMainStatus)"
journalctl | grep -o 'fusermount3: mount failed: .*'
cp systemd/user.conf $settings/user.conf
systemctl daemon-reload
systemctl start zarrfs@air
findmnt --noheadings --output FSTYPE /mnt/air
stat --format=%U /run/home/.cache/zarrfs/air
systemctl stop zarrfs@air
show Result; ls -A /mnt/air
"""
    prepared = f"export NAMESPACE=/run/opened; mkdir $NAMESPACE\n{opened()}\n{INSTALL}{script}"
    done = run_under_systemd(prepared)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *("without: 6", "fusermount3: mount failed: Operation not permitted"),
        *("fuse.zarrfs", "nobody", "success"),
    ]


MOUNT_INSTALL = r"""
~/zarrfs/bin/zarrfs install mount-helper >/dev/null
cp systemd/mnt-air.* /etc/systemd/system/
mkdir -p /mnt/air /srv/air.zarr
echo hello >/srv/air.zarr/k
systemctl daemon-reload
"""


@pytest.mark.full_length
def test_a_mount_unit() -> None:
    """It is also restarted after a crash: its dead mount is removed."""
    script = r"""
sed -i 's/^Options=ro$/Options=rw/' /etc/systemd/system/mnt-air.mount
systemctl daemon-reload
systemctl start mnt-air.mount
findmnt --noheadings --output SOURCE,FSTYPE /mnt/air
echo new >/mnt/air/raw/k
kill -9 "$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' /mnt/air/.zarrfs/config.json)"
until ! ls /mnt/air >/dev/null 2>&1; do :; done
systemctl restart mnt-air.mount
cat /mnt/air/raw/k
systemctl stop mnt-air.mount
cat /srv/air.zarr/k; ls -A /mnt/air
"""
    done = run_under_systemd(MOUNT_INSTALL + script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["/srv/air.zarr fuse.zarrfs", "new", "new"]


@pytest.mark.full_length
def test_an_automount_unit_mounts_when_somebody_looks_and_unmounts_when_nobody_does() -> None:
    script = r"""
[ -w /dev/autofs ] || { echo no automounter; exit; }
sed -i 's/^TimeoutIdleSec=.*/TimeoutIdleSec=1/' /etc/systemd/system/mnt-air.automount
systemctl daemon-reload
systemctl start mnt-air.automount
for _ in 1 2; do
    cat /mnt/air/raw/k
    until [ "$(systemctl show --value -p ActiveState mnt-air.mount)" = inactive ]; do :; done
    systemctl show --value -p Result mnt-air.mount
done
systemctl stop mnt-air.automount
ls -A /mnt/air
"""
    done = run_under_systemd(MOUNT_INSTALL + script)
    assert done.returncode == 0, done.stderr
    if done.stdout == "no automounter\n":
        pytest.skip("the kernel has no automounter")
    assert done.stdout.splitlines() == ["hello", "success"] * 2
