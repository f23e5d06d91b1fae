"""Unmounting waits for the daemon, not for the kernel: umount(8) returns before the last files are published.

It waits as long as the remaining data decreases. A daemon without progress for longer than the deadline of one store operation is
abandoned, and the outcome states how to continue the wait and how to end it: a daemon may hang, and another user's may do so on purpose.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from zarrfs.errors import MountBusy, MountpointUnusable, ZarrfsError
from zarrfs.lifecycle import apart, as_owner, daemons, exit_report, namespaces, open_by, umount_table
from zarrfs.lifecycle.daemons import Daemon
from zarrfs.lifecycle.dead_mounts import PATIENCE, Life, life_of
from zarrfs.lifecycle.detaching import Detaching, may_detach, user_of
from zarrfs.lifecycle.exit_report import Left, Outcome
from zarrfs.lifecycle.mount_table import FSTYPE, Mount, mount_at, mounts_of, resolved
from zarrfs.lifecycle.watcher import how_to_abort
from zarrfs.stores import own_files

SPARE = 30.0
"""Seconds without progress, in addition to the deadline of one store operation, after which a daemon is abandoned."""

_NAMED = 5
# Another user's daemon may report progress at will.
_LONGEST_FOR_OTHERS = 3600.0
_WHY_UNKNOWN = {
    Life.ALIVE: "gives no information on when everything is stored",
    Life.SILENT: "did not answer: its unstored data is lost if it is killed",
    Life.DEAD: "had died before: its unstored data is lost",
}

_UNREPORTED = "could not create an exit report (full disk?): data that could not be stored is named in its log only"


def unmount(
    mountpoint: str,
    *,
    lazy: bool = False,
    print_line: Callable[[str], None] = lambda line: None,
    every: float = 2.0,
    spare: float = SPARE,
) -> Outcome:
    """Unmount and, unless ``lazy``, return once the daemon has ended: everything is stored then, or the outcome states what is not.

    While that takes long, ``print_line`` reports what is left, every ``every`` seconds; ``spare`` as `SPARE`. ``lazy`` detaches the mount
    at once, even while it is in use; the daemon then ends when its last file is closed. Raises `MountpointUnusable` if there is no zarrfs
    mount, `ZarrfsError` if the mount is in use.
    """
    given = mountpoint
    try:
        mountpoint = apart.call(lambda: resolved(given), PATIENCE)
    except TimeoutError as error:
        what = f"{given}: not unmounted: a file system on the path did not answer within {PATIENCE:g} s"
        raise MountpointUnusable(what, key=given) from error
    mounted = mount_at(mountpoint)
    if mounted is None or mounted.fstype != FSTYPE:
        what = "not mounted" if mounted is None else f"not a zarrfs mount but one of type {mounted.fstype}"
        raise MountpointUnusable(f"{mountpoint}: {what} (see: findmnt -t {FSTYPE})", key=mountpoint)
    if not may_detach(mounted):
        raise ZarrfsError(f"{mountpoint}: mounted by {user_of(mounted)}: only they and root may unmount it", key=mountpoint)
    if os.geteuid() == 0:
        _require_own_links(given, mounted)
    try:
        return _unmount(mounted, lazy, print_line, every, spare)
    finally:
        exit_report.clear()
        umount_table.remove(mountpoint)


def _require_own_links(path: str, mounted: Mount) -> None:
    """Raise `ZarrfsError` if users other than root and the owner of ``mounted`` lead root there by symbolic links on ``path``."""
    try:
        place, leaders = own_files.place_of(path)
    except OSError as error:
        raise ZarrfsError(f"{path}: not unmounted: {(error.strerror or str(error)).lower()}", key=path) from error
    # Else it was exchanged since it was resolved.
    if place != mounted.mountpoint or leaders - {mounted.owner.uid if mounted.owner is not None else 0}:
        raise ZarrfsError(
            f"{path}: a link on the path belongs to another user than the mount on {mounted.mountpoint}: use that path", key=path
        )


def _unmount(mounted: Mount, lazy: bool, print_line: Callable[[str], None], every: float, spare: float) -> Outcome:
    mountpoint = mounted.mountpoint
    life, daemon = life_of(mounted), None
    # A lazy umount needs no daemon, and must not wait for one that does not answer.
    if life is Life.ALIVE or (life is Life.SILENT and not lazy):
        try:
            daemon = daemons.find(mounted)
        except TimeoutError:
            life = Life.SILENT
    with daemon or contextlib.nullcontext():
        users = _holders(mountpoint) if lazy else []
        wait = _Wait(mounted, daemon, print_line, every, PATIENCE if lazy else spare)
        # By mountpoint too: once unmounted, another mount may have its device number.
        others = Counter(mounts_of(mounted.device)) - Counter([mounted])
        detaching = Detaching(mounted, lazy=lazy)
        # The kernel writes back the last pages of mappings before it unmounts: that may take as long as what follows.
        if not wait.until(detaching.ended_within):
            return wait.given_up_unmounting(lazy)
        try:
            detaching.end()
        except ZarrfsError as error:
            if isinstance(error, MountBusy):
                error = _silent(mounted) if life is Life.SILENT else _in_use(mountpoint)
            if mount_at(mountpoint) == mounted:
                raise error from None
            # It may have been in use by that process only.
            raise MountpointUnusable(f"{mountpoint}: no longer mounted: another process has unmounted it", key=mountpoint) from None
        if remaining := others & Counter(mounts_of(mounted.device)):
            places = ", ".join(sorted(each.mountpoint for each in remaining))
            what = "detached; its" if lazy else "unmounted, but its"
            return Outcome(0 if lazy else 1, f"{mountpoint}: {what} daemon continues: also mounted (bind mount) on {places}")
        if daemon is not None and namespaces.keeps(daemon.pid, mounted.device):
            # It would be waited for in vain, and the advice for one that hangs is to kill it.
            what = f"{'detached' if lazy else 'unmounted'} in this mount namespace only; its daemon (pid {daemon.pid}) continues"
            return Outcome(0 if lazy else 1, f"{mountpoint}: {what}: still mounted in the daemon's own")
        if daemon is None:
            # Success would mean that everything is stored.
            unknown = not lazy and (life is Life.SILENT or (life is Life.ALIVE and not mounted.read_only))
            return Outcome(1 if unknown else 0, f"{mountpoint}: unmounted, but its daemon {_WHY_UNKNOWN[life]}")
        if lazy:
            until = f"{mountpoint}: detached; its daemon (pid {daemon.pid}) continues until it is closed by {_named(users)}"
            return Outcome(0, until if users else "")
        if not wait.until(daemon.ended_within):
            return wait.given_up_storing(daemon)
        outcome = daemon.outcome()
        if outcome is None and (not daemon.reports or daemon.has_report()):
            outcome = Outcome(1, f"{mountpoint}: unmounted, but its daemon {_UNREPORTED}")
        return outcome or Outcome(0)


class _Wait:
    """A wait as long as ``daemon`` makes progress, and for ``spare`` seconds plus the deadline of one store operation without."""

    def __init__(
        self, mounted: Mount, daemon: Daemon | None, print_line: Callable[[str], None], every: float, spare: float
    ) -> None:
        self._mounted = mounted
        self._daemon = daemon
        self._print_line = print_line
        self._every = every
        self._patience = spare + (daemon.timeout if daemon is not None else 0)
        self._least: Left | None = None
        self._last: Left | None = None
        now = time.monotonic()
        self._progress = now
        self._end = now + _LONGEST_FOR_OTHERS if as_owner.is_somebody_else(mounted) else None

    def until(self, ended_within: Callable[[float], bool]) -> bool:
        """Wait until ``ended_within(seconds)``, reporting what is left; return False if that is abandoned."""
        self._progress = time.monotonic()
        while not ended_within(self._every):
            self._look()
            now = time.monotonic()
            if now - self._progress >= self._patience or (self._end is not None and now >= self._end):
                # The look may have taken longer than that.
                return ended_within(0)
            self._print_line(f"{self._mounted.mountpoint}: {self._left()}")
        return True

    def given_up_storing(self, daemon: Daemon) -> Outcome:
        """Return the outcome for a mount that is gone and a daemon that is not."""
        how = f"`tail --pid={daemon.pid} -f /dev/null` waits for its end, `kill -9 {daemon.pid}` drops its unstored data"
        what = f"its daemon (pid {daemon.pid}) has made no progress for {self._patience:g} s"
        return Outcome(1, f"{self._mounted.mountpoint}: unmounted, but {what}{self._and_left()}; {how}")

    def given_up_unmounting(self, lazy: bool) -> Outcome:
        """Return the outcome if the kernel still waits for the daemon; the mount may be gone from the mount table."""
        mountpoint = self._mounted.mountpoint
        stays = mount_at(mountpoint) == self._mounted
        state = "still mounted" if stays else "unmounted"
        what = f"the kernel has waited for its daemon{self._daemon_named()} for {self._patience:g} s, to write back mapped files"
        # A lazy umount has succeeded once the mount is gone.
        return Outcome(
            0 if lazy and not stays else 1,
            f"{mountpoint}: {state}, but {what}{self._and_left()}; {how_to_abort(self._mounted.device)} ends that, and drops the data",
        )

    def _look(self) -> None:
        self._last = self._daemon.left() if self._daemon is not None else None
        if self._last is not None and (self._least is None or self._last[:2] < self._least[:2]):
            # The first report is no progress: it may have come late.
            self._progress = self._progress if self._least is None else time.monotonic()
            self._least = self._last

    def _left(self) -> str:
        waiting = f"waiting for its daemon{self._daemon_named()}"
        if self._last is None:
            return f"{waiting}, which stores what is left"
        return str(self._last) if self._last.files else f"{waiting}, which ends"

    def _and_left(self) -> str:
        return f": {self._last}" if self._last is not None else ""

    def _daemon_named(self) -> str:
        return f" (pid {self._daemon.pid})" if self._daemon is not None else ""


def _holders(mountpoint: str) -> list[open_by.Holder]:
    """Return the processes found in time that use the mount: a look at a process may block."""
    found: list[open_by.Holder] = []
    looking = threading.Thread(target=lambda: found.extend(open_by.of(mountpoint)), daemon=True)
    looking.start()
    looking.join(PATIENCE)
    return list(found)


def _in_use(mountpoint: str) -> ZarrfsError:
    users = _holders(mountpoint)
    # Open files of other users' processes are visible to root only.
    by = f" by {_named(users)}" if users else f"; `fuser -vm {shlex.quote(mountpoint)}`, as root, shows by whom"
    return ZarrfsError(f"{mountpoint}: in use{by}: close it there, or use --lazy", key=mountpoint)


def _silent(mounted: Mount) -> ZarrfsError:
    # Requests already sent, also by this command, cannot be withdrawn.
    what = "in use, at least by programs that wait for its daemon, which does not answer"
    how = f"{how_to_abort(mounted.device)} ends requests that hang"
    return ZarrfsError(f"{mounted.mountpoint}: {what}: end them, or use --lazy; {how}", key=mounted.mountpoint)


def _named(users: Sequence[open_by.Holder]) -> str:
    listed = ", ".join(f"{user.name} ({user.pid}: {user.path})" for user in users[:_NAMED])
    return listed + (f" and {len(users) - _NAMED} more" if len(users) > _NAMED else "")
