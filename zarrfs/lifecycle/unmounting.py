"""Unmounting waits for the daemon, not for the kernel: umount(8) returns before the last files are published."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from zarrfs.errors import MountBusy, MountpointUnusable, ZarrfsError
from zarrfs.lifecycle import as_owner, holders, last_words
from zarrfs.lifecycle.dead_mounts import PATIENCE, Life, life_of
from zarrfs.lifecycle.detaching import detach, may_detach, user_of
from zarrfs.lifecycle.last_words import Outcome
from zarrfs.lifecycle.mount_table import FSTYPE, Mount, mount_at, resolved

_NAMED = 5
_WHY_UNKNOWN = {
    Life.ALIVE: "could not be asked when everything is stored",
    Life.SILENT: "did not answer: what it has not stored is lost if it is killed",
    Life.DEAD: "had died before: what it had not stored by then is lost",
}


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
    if not may_detach(mounted):
        raise ZarrfsError(f"{mountpoint} was mounted by {user_of(mounted)}: only they and root may unmount it", key=mountpoint)
    life = life_of(mounted)
    # Who detaches it need not know any more, and must not wait for what does not answer.
    daemon = None if life is Life.DEAD or (life is Life.SILENT and lazy) else _daemon_of(mounted)
    if daemon is None:
        _detach(mountpoint, lazy)
        return Outcome(0, f"{mountpoint} is unmounted, but its daemon {_WHY_UNKNOWN[life]}")
    with daemon:
        users = holders.of(mountpoint) if lazy else []

        def tell() -> None:
            left = daemon.left()
            say(f"{mountpoint}: {left or f'waiting for its daemon (pid {daemon.pid}), which stores what is left'}")

        # The kernel has the last pages of mappings written before it lets go: that may take as long as what comes after it.
        _meanwhile(lambda: _detach(mountpoint, lazy), tell, every)
        if lazy:
            until = f"{mountpoint} is detached; its daemon (pid {daemon.pid}) goes on until it is closed by {_named(users)}"
            return Outcome(0, until if users else "")
        while not daemon.ended_within(every):
            tell()
    return daemon.outcome() or Outcome(0)


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
    """The process behind a mount of this user. ``words``: where it leaves its last words, if it does."""

    def __init__(self, pid: int, words: str | None) -> None:
        self.pid = pid
        self._words = words
        # It names the process even if its number is given to another one later.
        self._pidfd = os.pidfd_open(pid)

    def left(self) -> last_words.Left | None:
        """What it has not stored yet, if it tells."""
        return last_words.left(self._words) if self._words else None

    def outcome(self) -> Outcome | None:
        """Its last words, once."""
        return last_words.collect(self._words) if self._words else None

    def ended_within(self, seconds: float) -> bool:
        """Whether it has ended, or does within ``seconds``."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._pidfd)


class _ForeignDaemon(_Daemon):
    """The process behind another user's mount, whose files are read in that user's name."""

    def __init__(self, pid: int, words: str | None, mounted: Mount) -> None:
        super().__init__(pid, words)
        self._mounted = mounted

    def left(self) -> last_words.Left | None:
        text = self._text()
        return last_words.left_in(text) if text is not None else None

    def outcome(self) -> Outcome | None:
        text = self._text()
        outcome = last_words.outcome_in(text) if text is not None else None
        if outcome is not None and self._words:
            with contextlib.suppress(OSError):
                as_owner.run(self._mounted, "rm", "-f", "--", self._words, patience=PATIENCE)
        return outcome

    def _text(self) -> bytes | None:
        try:
            return as_owner.read(self._mounted, self._words, PATIENCE) if self._words else None
        except OSError:
            return None


def _daemon_of(mounted: Mount) -> _Daemon | None:
    """The daemon behind a mount; None when it does not tell."""
    path = f"{mounted.mountpoint}/.zarrfs/config.json"
    owner = mounted.owner if as_owner.is_somebody_else(mounted) else None
    try:
        told = json.loads(as_owner.read(mounted, path, PATIENCE) if owner is not None else Path(path).read_bytes())
        pid, words = int(told["pid"]), told["result"] and str(told["result"])
        if owner is None:
            return _Daemon(pid, words)
        # Root waits for no process but one of theirs, whatever they tell.
        return _ForeignDaemon(pid, words, mounted) if os.stat(f"/proc/{pid}").st_uid == owner.uid else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


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
