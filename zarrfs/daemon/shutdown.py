"""End of a mount: on a signal everything is published, and waiting parties are informed of what is left.

There are three. A daemon in the foreground prints progress every few seconds. ``zarrfs umount`` cannot make requests once the mount is
gone, and the daemon does not notice that before its last request is answered: so the remaining data is always recorded in the exit
report, which ``zarrfs umount`` reads while it waits. A service manager kills what takes too long: it is asked to extend its timeout as
long as the remaining data decreases.

A signal ends the mount even while it is in use, as it ends any program; data written by then is published. That includes data written
through shared mappings, which the kernel keeps until it is made to write: by sync(1). It is a separate process because a thread of the
daemon that waits for the daemon could not be killed (see `zarrfs.fuse.notifier`). Where its path does not lead to the mount (a folder
above was renamed, the mount is detached, or another one covers it), a notice to the kernel does the same, page by page.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from zarrfs.daemon import signals
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.daemon.overdue import Overdue
from zarrfs.daemon.systemd import ServiceManager
from zarrfs.lifecycle import exit_report, interrupts, programs
from zarrfs.lifecycle.exit_report import Left, Outcome
from zarrfs.options import log_file

log = logging.getLogger(__name__)

PrintLine = Callable[[str], None]
"""Prints one line for the user of the daemon."""

EVERY = 2.0
_NAMED = 20
_SYNCED_AT_ONCE = 500
# In addition to the deadline of one store operation: for encoding, and for a busy machine.
_SPARE_SECONDS = 30.0


class Shutdown:
    """The end of the mount of ``tree``.

    ``print_line`` is called every ``every`` seconds while it takes long; ``patience`` (seconds) is the time for the kernel to hand over
    its data, and for one operation of the store; ``waiting_for()`` returns lines on work in progress; ``written_back(seconds)``: see
    `Notifier.written_back`. `watch` and `on_signal` run in the background until the mount has ended.
    """

    def __init__(
        self,
        tree: MountTree,
        mountpoint: str,
        *,
        report: Path | None,
        print_line: PrintLine,
        every: float,
        patience: float,
        manager: ServiceManager,
        waiting_for: Callable[[], list[str]],
        written_back: Callable[[float], Awaitable[bool]],
    ) -> None:
        self._tree = tree
        self._mountpoint = mountpoint
        self._report = report
        self._print_line = print_line
        self._every = every
        self._patience = patience
        self._manager = manager
        self._waiting_for = waiting_for
        self._pages_written_back = written_back
        self._begun = False
        self._is_announced = False
        self._is_mounted = False
        self.is_serving = False
        """True while the kernel's requests are answered."""
        self.doing = "the answers to requests"
        """Description of the work that the end waits for."""
        self._overdue: Overdue | None = None

    @property
    def has_begun(self) -> bool:
        """True if the mount is ending."""
        return self._begun

    @property
    def progress(self) -> object:
        """Another value after any progress. Thread-safe; raises RuntimeError while a counted collection changes."""
        left = self.left()
        return self.doing, left.files, left.nbytes, self._tree.stats()["store_operations"], self._tree.stats()["bytes_written"]

    def is_bounded(self, is_due: Callable[[], bool]) -> None:
        """End the process if the mount is ending, or ``is_due()``, and there is no progress for long."""
        self._overdue = Overdue(self.step, progress=lambda: self.progress, is_due=is_due, give_up=self._give_up)
        self._overdue.start()

    def is_over(self) -> None:
        """Stop the watchdog: nothing is waited for any more."""
        if self._overdue is not None:
            self._overdue.over()

    async def announce(self, line: str) -> None:
        """Log a state, and report it to the service manager."""
        log.warning("%s: %s", self._mountpoint, line)
        await self._manager.status(f"{self._mountpoint}: {line}")

    def mounted(self) -> None:
        """Record that there is a mount, which can be ended."""
        self.is_serving = True
        self._is_mounted = True

    async def begun(self) -> None:
        """Begin the end: the mount is out of use, and what is left is reported."""
        self._begun = True
        self.is_serving = False
        if self._overdue is not None:
            self._overdue.begin()
        self.doing = "the service manager"
        await self._announce_end()
        self.doing = "the store"

    async def ended(self, failure: str) -> None:
        """Report that everything is stored, except what ``failure`` names."""
        self.doing = "the service manager"
        await self._manager.progress(f"{self._mountpoint}: {failure or 'everything is stored'}", self.step)

    def left(self) -> Left:
        """Return what is not published yet."""
        staging = self._tree.staging
        names: list[str] = [staged.content.ident for staged in staging.unpublished_below("")]
        names.extend(self._tree.queue.keys)
        return Left(len(names), staging.dirty_nbytes + self._tree.queue.nbytes, tuple(names[:_NAMED]))

    async def watch(self) -> None:
        """Report what is left, until cancelled."""
        reported, waited_for = Left(), None
        progress, since = self.progress, trio.current_time()
        while True:
            await trio.sleep(self._every)
            left = self.left()
            if not self._begun or self.progress != progress:
                progress, since = self.progress, trio.current_time()
            elif trio.current_time() - since >= self.step / 2:
                since = float("inf")
                await self.announce(f"ending, waiting for {self.doing}")
            # With the folder of a session it is removed when the user logs out, and a missing one would mean success.
            if self._report is not None and (left != reported or not exit_report.is_there(self._report)):
                try:
                    exit_report.update(self._report, left)
                except OSError as error:
                    log.debug("exit report for umount not updated: %s", error)
                reported = left
            if self._begun and left.files:
                self._print_line(f"{self._mountpoint}: {left}")
            if self._is_announced and left.files and left != waited_for:
                # Only then: without progress it need not be waited for. And not before the end itself was announced.
                await self._manager.progress(self._status(left), self.step)
                waited_for = left

    def _give_up(self, seconds: float) -> None:
        """End the process, from another thread than the event loop's, after ``seconds`` without progress."""
        line = f"{self._mountpoint}: ended while waiting for {self.doing}: no progress for {seconds:.0f} s"
        log.critical("%s", line)
        for each in self._overdue.positions() if self._overdue is not None else ():
            log.error("waiting: %s", each)
        lost = dict(self._tree.losses.failures)
        try:
            lost |= dict.fromkeys(self.left().names, "abandoned")
        except RuntimeError as error:
            log.error("list of unpublished files failed: %s", error)
        if lost:
            line += "; not stored: " + "; ".join(f"{ident}: {reason}" for ident, reason in list(lost.items())[:_NAMED])
        code = 7 if lost else 0
        try:
            self._print_line(line)
            if self._report is not None and exit_report.is_there(self._report):
                exit_report.write(self._report, Outcome(code, line))
        finally:
            logging.shutdown()
            os._exit(code)

    def _status(self, left: Left) -> str:
        return f"Unmounting {self._mountpoint}: {left}"

    @property
    def step(self) -> float:
        """Seconds within which more is stored, or a store operation times out."""
        return self._patience + 2 * self._every + _SPARE_SECONDS

    async def on_signal(self, terminate: Callable[[], None], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """On the first SIGTERM or SIGINT, in the foreground also SIGHUP, publish staged data and call ``terminate()``.

        Before there is a mount they end the process. Further ones only print what is left: written data is not dropped for impatience.
        SIGHUP makes a daemon in the background reopen its log, and SIGUSR1 logs what is waited for. No other signal ends the mount except
        SIGKILL and those of a fault (SIGABRT, SIGSEGV, ...).
        """
        in_background = not self._tree.config.foreground
        heard = signals.heard(in_background)
        with signals.others_ignored(heard), trio.open_signal_receiver(*heard) as received:
            task_status.started()
            async with trio.open_nursery() as nursery:
                async for number in received:
                    name = signal.Signals(number).name
                    if number == signal.SIGUSR1:
                        for line in self._waiting_for():
                            # An answer to a request, so logged at any level.
                            level = max(logging.INFO, log.getEffectiveLevel())
                            log.log(level, "%s: %s", name, line, extra={"asked_for": True})
                    elif number == signal.SIGHUP and in_background:
                        log_file.reopen()
                        log.info("%s: log reopened", name)
                    elif self._begun:
                        self._print_line(f"{self._mountpoint}: {name} again, still publishing: {self.left()}; SIGKILL abandons it")
                    elif not self._is_mounted:
                        # There will be no mount, and nothing is to be stored.
                        if self._report is not None:
                            exit_report.end(self._report)
                        interrupts.end_by(number)
                    else:
                        self._begun = True
                        log.info("%s: publishing staged data, then unmounting", name)
                        nursery.start_soon(self._end, terminate)

    async def _announce_end(self) -> None:
        await self._manager.stopping(self._status(self.left()), self.step)
        self._is_announced = True

    async def _end(self, terminate: Callable[[], None]) -> None:
        await self._announce_end()
        try:
            self.doing = "the kernel to write back its pages"
            # From here on this daemon requests the write-back, and gets its result.
            self._tree.staging.returns_errors = False
            await self._written_back()
            self.doing = "the store"
            # A failure here is tried again later, and counts then.
            for staged, error in await self._tree.staging.publish_all():
                log.warning("%r: publish before unmount failed: %s", staged.content.ident, error)
        finally:
            self.doing = "the answers to requests"
            terminate()

    async def _written_back(self) -> None:
        """Make the kernel write back data written through mappings.

        ``sync -f`` begins that for every file, and on FUSE does not wait for its end; fsync of a file does.
        """
        files = [f"{self._mountpoint}/{self._tree.path_of(ident)}" for ident in self._tree.staging.open_below("")]
        with trio.move_on_after(self._patience) as scope:
            await self._sync("-f", "--", self._mountpoint)
            for start in range(0, len(files), _SYNCED_AT_ONCE):
                await self._sync("--", *files[start : start + _SYNCED_AT_ONCE])
        # What sync(1) has not reached, which is usually nothing.
        self.doing = "the kernel to write back the pages of open files"
        if not await self._pages_written_back(self._patience) or scope.cancelled_caught:
            log.warning(
                "%s: not synced within %g s: data written through mappings may be lost",
                self._mountpoint,
                self._patience,
            )

    async def _sync(self, *arguments: str) -> None:
        """Run sync(1). Its exit code is ignored: publishing reports the errors."""
        try:
            process = await trio.lowlevel.open_process(
                [programs.find("sync") or "/bin/sync", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A further Ctrl-C goes to the whole group of the terminal, but is not meant for it.
                start_new_session=True,
            )
        except OSError as error:
            log.warning("sync: %s: data written through mappings may be lost", error)
            return
        # Not ended if it takes too long: it then hangs in the kernel until the mount is gone.
        await process.wait()
