"""Unmounting waits for the daemon, not for the kernel: umount(8) returns before the last files are published."""

from __future__ import annotations

import json
import os
import select
import shlex
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from zarrfs import holders, last_words
from zarrfs.dead_mounts import Life, life_of
from zarrfs.detaching import detach, user_of
from zarrfs.errors import MountBusy, MountpointUnusable, ZarrfsError
from zarrfs.last_words import Outcome
from zarrfs.mount_table import FSTYPE, Mount, mount_at, resolved

_NAMED = 5


def unmount(mountpoint: str, *, lazy: bool = False, say: Callable[[str], None] = lambda line: None, every: float = 2.0) -> Outcome:
    """Unmount and, unless ``lazy``, return when the daemon has ended: everything is stored then, or the outcome says what is not.

    While that takes long, ``say`` is told what is left, every so many seconds. ``lazy`` detaches the mount at once, even while it is
    in use; the daemon then ends when its last file is closed. Raises `MountpointUnusable` when zarrfs has mounted nothing there,
    `ZarrfsError` when the mount is in use.
    """
    mountpoint = resolved(mountpoint)
    mounted = mount_at(mountpoint)
    if mounted is None or mounted.fstype != FSTYPE:
        what = "nothing is mounted there" if mounted is None else f"a file system of type {mounted.fstype} is mounted there"
        raise MountpointUnusable(f"{mountpoint} is not a zarrfs mount: {what}; `findmnt -t {FSTYPE}` lists those", key=mountpoint)
    daemon = _daemon_of(mountpoint)
    if daemon is None:
        why = _why_silent(mounted)
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


def _why_silent(mounted: Mount) -> str:
    if life_of(mounted) is Life.DEAD:
        return "had died before: what it had not stored by then is lost"
    whose = f"{user_of(mounted)} alone" if mounted.owner is not None else "who mounted it"
    return f"could not be asked when everything is stored: {whose} may look into it"


def _detach(mountpoint: str, lazy: bool) -> None:
    try:
        detach(mountpoint, lazy=lazy)
    except MountBusy as error:
        users = holders.of(mountpoint)
        # Other users' processes do not show what they have open, except to root.
        by = f" by {_named(users)}" if users else f"; `fuser -vm {shlex.quote(mountpoint)}`, as root, shows by whom"
        raise ZarrfsError(f"{mountpoint} is in use{by}: close it there, or use --lazy", key=mountpoint) from error


def _named(users: Sequence[holders.Holder]) -> str:
    listed = ", ".join(f"{user.name} ({user.pid}: {user.place})" for user in users[:_NAMED])
    return listed + (f" and {len(users) - _NAMED} more" if len(users) > _NAMED else "")
