"""Before, around and after a mount, from outside: what can be checked cheaply, the background process, unmounting.

**In the background** the daemon is a new process, started by exec: clients of object stores do not survive fork. It gets the
resolved configuration in its environment, which only its owner can read (arguments are everybody's), and a pipe. Over the pipe it
says ``ready``, or its `Outcome` as JSON; when it dies without a word, what it wrote to its log in the meantime is relayed.

**Unmounting** waits for the daemon, not for the kernel: umount(8) returns before the last files are published.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from zarrfs import holders, last_words, logs
from zarrfs.config import MountConfig
from zarrfs.errors import FuseUnavailable, MountpointUnusable, ZarrfsError
from zarrfs.last_words import Outcome
from zarrfs.mount_table import mount_at
from zarrfs.redact import public_url

FSTYPE = "fuse.zarrfs"

_READY_FD = "ZARRFS_READY_FD"
_READY_CONFIG = "ZARRFS_READY_CONFIG"
_READY = b"ready"
_TAIL_NBYTES = 4096

_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_NAMED = 5


# --- before ---------------------------------------------------------------------------------------------------------------------


def check(config: MountConfig, store_path: str | None) -> None:
    """Everything that can be known before the store is opened; ``store_path``: where it lies on this machine, if it does.

    Raises `MountpointUnusable` and `FuseUnavailable`, which say what to do.
    """
    check_mountpoint(config.mountpoint)
    if store_path is not None:
        check_overlap(store_path, config.mountpoint)
    check_fuse(config)


def check_mountpoint(mountpoint: str) -> None:
    """Raise `MountpointUnusable` unless ``mountpoint`` is an empty folder that we may mount on."""
    quoted = shlex.quote(mountpoint)
    try:
        mode = os.lstat(mountpoint).st_mode
    except FileNotFoundError as error:
        raise _unusable(mountpoint, f"does not exist: make it with `mkdir -p {quoted}`") from error
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise _unusable(
                mountpoint,
                f"is a mount whose daemon died: remove it with `zarrfs umount {quoted}` (or `fusermount3 -u {quoted}`)",
            ) from error
        raise _unusable(mountpoint, f"{_reason(error)}: choose another") from error
    if stat.S_ISLNK(mode):
        raise _unusable(mountpoint, f"is a symlink: use the folder it points to, {os.path.realpath(mountpoint)}")
    if not stat.S_ISDIR(mode):
        raise _unusable(mountpoint, "is not a folder: choose an empty folder")
    mounted = mount_at(os.path.realpath(mountpoint))
    if mounted is not None and mounted.fstype == FSTYPE:
        raise _unusable(mountpoint, f"is already mounted by zarrfs: `zarrfs umount {quoted}` first, or choose another")
    try:
        with os.scandir(mountpoint) as entries:
            occupied = next(entries, None) is not None
    except OSError as error:
        raise _unusable(mountpoint, f"{_reason(error)}: choose a folder of your own") from error
    if occupied:
        raise _unusable(mountpoint, "is not empty: choose an empty folder, since a mount would hide what is in this one")
    if not os.access(mountpoint, os.W_OK):
        raise _unusable(mountpoint, "is not writable for you: choose a folder of your own")


def check_overlap(store_path: str, mountpoint: str) -> None:
    """Raise `MountpointUnusable` when one lies inside the other: the file system would wait for itself."""
    store, mount = Path(os.path.realpath(store_path)), Path(os.path.realpath(mountpoint))
    if mount.is_relative_to(store):
        raise _unusable(mountpoint, f"lies inside the store {store}: choose a folder outside it")
    if store.is_relative_to(mount):
        raise _unusable(mountpoint, f"holds the store {store}: choose a folder outside it")


def check_fuse(config: MountConfig, device: str = "/dev/fuse", fuse_conf: str = "/etc/fuse.conf") -> None:
    """Raise `FuseUnavailable` when mounting cannot work, whatever the store."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            advice = "run as root, or `chmod 0666` it; a container needs `--device /dev/fuse --cap-add SYS_ADMIN`"
            raise FuseUnavailable(f"{device} may not be used ({_reason(error)}): {advice}") from error
        advice = "load it with `modprobe fuse` as root; a container needs `--device /dev/fuse --cap-add SYS_ADMIN`"
        raise FuseUnavailable(f"the kernel offers no {device} ({_reason(error)}): {advice}") from error
    if os.geteuid() == 0:
        return
    if shutil.which("fusermount3") is None:
        raise FuseUnavailable("fusermount3 is not installed: install fuse3 (Debian and Ubuntu: `sudo apt install fuse3`)")
    if config.allow_other and not _lets_users_allow_other(fuse_conf):
        raise FuseUnavailable(f"allow_other is root's choice: have `user_allow_other` put on a line of its own in {fuse_conf}")


def _lets_users_allow_other(fuse_conf: str) -> bool:
    try:
        return "user_allow_other" in (line.strip() for line in Path(fuse_conf).read_text().splitlines())
    except OSError:
        return False


def _unusable(mountpoint: str, what: str) -> MountpointUnusable:
    return MountpointUnusable(f"mountpoint {mountpoint} {what}", key=mountpoint)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


# --- around: the parent ---------------------------------------------------------------------------------------------------------


def daemon_command(config: MountConfig) -> list[str]:
    """What runs in the background. The arguments are for readers of ``ps``; `adopt` gets the configuration itself."""
    # -P: the folder "/", where it runs, is no place to import from.
    return [sys.executable, "-P", "-m", "zarrfs", "mount", "--foreground", "--", public_url(config.store), config.mountpoint]


def start(config: MountConfig, command: Sequence[str] | None = None) -> tuple[Outcome, subprocess.Popen[bytes]]:
    """Run ``command`` (by default zarrfs itself) as the daemon of ``config``; return when its mount answers, or its reason why not.

    The process lives on when the outcome is success, and has ended otherwise. Raises `UsageError` for an unusable log file.
    """
    config = dataclasses.replace(config, log_file=config.log_file or logs.default_file(config.mountpoint))
    assert config.log_file is not None
    reader, writer = os.pipe()
    with open(reader, "rb") as pipe:
        try:
            with logs.open_to_append(config.log_file) as log_file:
                log_start = log_file.seek(0, os.SEEK_END)
                process = subprocess.Popen(
                    command or daemon_command(config),
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(writer,),
                    env=os.environ | {_READY_FD: str(writer), _READY_CONFIG: config.to_json()},
                )
        finally:
            os.close(writer)
        try:
            said = pipe.read()
            if said == _READY:
                os.listdir(config.mountpoint)
                return Outcome(0), process
        except OSError as error:
            process.terminate()
            process.wait()
            return Outcome(
                1, f"{config.mountpoint} was mounted but does not answer: {_reason(error)}; see {config.log_file}"
            ), process
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    process.wait()
    return _explain(said, process.returncode, _tail(config.log_file, log_start), config.log_file), process


def _explain(said: bytes, returncode: int, tail: str, log_file: str) -> Outcome:
    if said:
        outcome = Outcome(**json.loads(said))
        # libfuse and fusermount3 give their reasons on stderr only.
        return outcome._replace(message=f"{outcome.message}{tail}") if outcome.exit_code == 6 else outcome
    how = f"was killed by {signal.Signals(-returncode).name}" if returncode < 0 else f"exited with code {returncode}"
    return Outcome(1, f"the daemon {how} before the mount was usable; its last words, from {log_file}:{tail or ' none'}")


def _tail(log_file: str, start: int) -> str:
    with open(log_file, "rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - _TAIL_NBYTES))
        text = file.read().decode(errors="replace").strip()
    return f"\n{text}" if text else ""


# --- around: the child ----------------------------------------------------------------------------------------------------------


class Parent:
    """The process that waits for this one, the daemon; each instance says one thing."""

    def __init__(self, fd: int) -> None:
        # Nobody whom the daemon starts (fusermount3) may keep the pipe open.
        os.set_inheritable(fd, False)
        self._fd: int | None = fd

    def ready(self) -> None:
        """The mount is usable: the parent may return."""
        self._say(_READY)

    def failed(self, outcome: Outcome) -> bool:
        """There will be no mount. False when the parent has already been told that there is one."""
        return self._say(json.dumps(outcome._asdict()).encode())

    def _say(self, message: bytes) -> bool:
        if self._fd is None:
            return False
        # A parent that was killed does not listen any more; the mount goes on without it.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._fd, message)
        os.close(self._fd)
        self._fd = None
        return True

    @classmethod
    def adopt(cls) -> tuple[MountConfig, Self] | None:
        """The configuration from the parent that waits for this process, and the parent; None when nobody waits."""
        fd, config = os.environ.pop(_READY_FD, None), os.environ.pop(_READY_CONFIG, None)
        if fd is None or config is None:
            return None
        return MountConfig.from_json(config), cls(int(fd))


# --- after ----------------------------------------------------------------------------------------------------------------------


def unmount(mountpoint: str, *, lazy: bool = False, say: Callable[[str], None] = lambda line: None, every: float = 2.0) -> Outcome:
    """Unmount and, unless ``lazy``, return when the daemon has ended: everything is stored then, or the outcome says what is not.

    While that takes long, ``say`` is told what is left, every so many seconds. ``lazy`` detaches the mount at once, even while it is
    in use; the daemon then ends when its last file is closed. Raises `MountpointUnusable` when zarrfs has mounted nothing there,
    `ZarrfsError` when the mount is in use.
    """
    mountpoint = os.path.realpath(mountpoint)
    mounted = mount_at(mountpoint)
    if mounted is None or mounted.fstype != FSTYPE:
        what = "nothing is mounted there" if mounted is None else f"a file system of type {mounted.fstype} is mounted there"
        raise MountpointUnusable(f"{mountpoint} is not a zarrfs mount: {what}; `findmnt -t {FSTYPE}` lists those", key=mountpoint)
    daemon = _daemon_of(mountpoint)
    if daemon is None:
        why = _why_silent(mountpoint)
        _detach(mountpoint, lazy)
        return Outcome(0, f"{mountpoint} is unmounted, but its daemon {why}")
    with daemon:
        users = holders.of(mountpoint) if lazy else []

        def tell() -> None:
            left = last_words.left(daemon.words) if daemon.words else None
            say(f"{mountpoint}: {left or f'waiting for its daemon (pid {daemon.pid}), which stores what is left'}")

        # The kernel has the last pages of mappings written before it lets go: that may take as long as what comes after it.
        _meanwhile(lambda: _detach(mountpoint, lazy), tell, every)
        if lazy:
            until = f"{mountpoint} is detached; its daemon (pid {daemon.pid}) goes on until it is closed by {_named(users)}"
            return Outcome(0, until if users else "")
        while not daemon.ended_within(every):
            tell()
    return (last_words.collect(daemon.words) if daemon.words else None) or Outcome(0)


def _meanwhile(act: Callable[[], None], tell: Callable[[], None], every: float) -> None:
    """``act()``, with ``tell()`` every so many seconds until it is done; raises what it raises."""
    raised: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 (raised below)
            raised.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    while not done.wait(every):
        tell()
    if raised:
        raise raised[0]


class _Daemon:
    """The process behind a mount. ``words``: where it leaves its last words, if it does."""

    def __init__(self, pid: int, words: str | None) -> None:
        self.pid = pid
        self.words = words
        # It names the process even if its number is given to another one later.
        self._pidfd = os.pidfd_open(pid)

    def ended_within(self, seconds: float) -> bool:
        """Whether it has ended, or does within ``seconds``."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._pidfd)


def _daemon_of(mountpoint: str) -> _Daemon | None:
    """The daemon behind a mount; None when it does not tell, or is dead."""
    try:
        told = json.loads(Path(mountpoint, ".zarrfs", "config.json").read_bytes())
        return _Daemon(int(told["pid"]), told["result"] and str(told["result"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _why_silent(mountpoint: str) -> str:
    try:
        os.lstat(mountpoint)
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            return "had died before: what it had not stored by then is lost"
    return "could not be asked to tell when everything is stored: unmount as the user who mounted it"


def _detach(mountpoint: str, lazy: bool) -> None:
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        # Not umount(8), which calls /sbin/umount.fuse.zarrfs where that is installed, which calls us.
        if libc.umount2(os.fsencode(mountpoint), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)) == 0:
            return
        number = ctypes.get_errno()
        busy, reason = number == errno.EBUSY, os.strerror(number).lower()
    else:
        command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", mountpoint]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"})
        except FileNotFoundError as error:
            raise FuseUnavailable("fusermount3 is not installed: install fuse3") from error
        if done.returncode == 0:
            return
        reason = done.stderr.strip()
        busy = "busy" in reason
    if busy:
        users = holders.of(mountpoint)
        # Other users' processes do not show what they have open, except to root.
        by = f" by {_named(users)}" if users else f"; `fuser -vm {shlex.quote(mountpoint)}`, as root, shows by whom"
        raise ZarrfsError(f"{mountpoint} is in use{by}: close it there, or use --lazy", key=mountpoint)
    raise ZarrfsError(f"unmounting {mountpoint}: {reason}", key=mountpoint)


def _named(users: Sequence[holders.Holder]) -> str:
    listed = ", ".join(f"{user.name} ({user.pid}: {user.place})" for user in users[:_NAMED])
    return listed + (f" and {len(users) - _NAMED} more" if len(users) > _NAMED else "")
