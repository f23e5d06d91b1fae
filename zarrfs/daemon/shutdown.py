"""How a mount ends: on a signal everything is published, and who waits is told what is left.

Three wait. Whoever runs the daemon in the foreground is told every few seconds while it ends. ``zarrfs umount`` cannot ask any more once
the mount is gone, and the daemon does not learn of that before its last request is answered: so what is left is always kept in
the file of last words, which ``zarrfs umount`` reads while it waits. A service manager kills what takes too long: it is told to wait as
long as less and less is left.

A signal ends the mount even while it is in use, as it ends any program; what its users have written by then is published. That includes
what they wrote through shared mappings, which the kernel keeps until somebody makes it write: sync(1) does. It is a process of its own
because a thread of the daemon that waits for the daemon could not be killed (see `zarrfs.fuse.notifier`).
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable
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

Say = Callable[[str], None]
"""Tells one line to whoever runs the daemon."""

EVERY = 2.0
_NAMED = 20
_SYNCED_AT_ONCE = 500
# Beyond the time that one operation of the store may take: for encoding, and for a machine that is busy.
_SPARE_SECONDS = 30.0


class Shutdown:
    """The end of the mount of ``tree``. ``say`` is called every ``every`` seconds while it takes long; ``patience`` (seconds) is for
    the kernel, to hand over what it has, and for one operation of the store; ``waiting_for()`` gives lines that tell what is under way.
    `watch` and `on_signal` run in the background until the mount has ended."""

    def __init__(
        self,
        tree: MountTree,
        mountpoint: str,
        *,
        words: Path | None,
        say: Say,
        every: float,
        patience: float,
        manager: ServiceManager,
        waiting_for: Callable[[], list[str]],
    ) -> None:
        self._tree = tree
        self._mountpoint = mountpoint
        self._words = words
        self._say = say
        self._every = every
        self._patience = patience
        self._manager = manager
        self._waiting_for = waiting_for
        self._begun = False
        self._is_announced = False
        self._is_mounted = False
        self.is_serving = False
        """Whether the kernel's requests are being answered."""
        self.doing = "the answers to requests"
        """What is waited for, once it has begun."""
        self._overdue: Overdue | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the mount is ending."""
        return self._begun

    @property
    def progress(self) -> object:
        """Another value whenever something went on. May be asked from any thread; raises RuntimeError while what is counted changes."""
        left = self.left()
        return self.doing, left.files, left.nbytes, self._tree.stats()["store_operations"], self._tree.stats()["bytes_written"]

    def is_bounded(self, is_due: Callable[[], bool]) -> None:
        """From now on the process ends when the mount is ending, or ``is_due()``, and nothing goes on for long."""
        self._overdue = Overdue(self.step, progress=lambda: self.progress, is_due=is_due, give_up=self._give_up)
        self._overdue.start()

    def is_over(self) -> None:
        """Nothing is waited for any more."""
        if self._overdue is not None:
            self._overdue.over()

    async def announce(self, line: str) -> None:
        """Tell whom it may concern."""
        log.warning("%s: %s", self._mountpoint, line)
        await self._manager.status(f"{self._mountpoint}: {line}")

    def mounted(self) -> None:
        """There is a mount now, which can be ended."""
        self.is_serving = True
        self._is_mounted = True

    async def begun(self) -> None:
        """From now on nobody uses the mount, and what is left is told."""
        self._begun = True
        self.is_serving = False
        if self._overdue is not None:
            self._overdue.begin()
        self.doing = "the service manager to be told"
        await self._announce_end()
        self.doing = "what is written to be stored"

    async def ended(self, failure: str) -> None:
        """Everything is stored, except what ``failure`` names."""
        self.doing = "the service manager to be told"
        await self._manager.progress(f"{self._mountpoint}: {failure or 'everything is stored'}", self.step)

    def left(self) -> Left:
        """What is not published yet."""
        staging = self._tree.staging
        names: list[str] = [staged.content.ident for staged in staging.unpublished_below("")]
        names.extend(self._tree.pending.keys)
        return Left(len(names), staging.dirty_nbytes + self._tree.pending.nbytes, tuple(names[:_NAMED]))

    async def watch(self) -> None:
        """Tell what is left, as long as it is told to."""
        told, waited_for = Left(), None
        progress, since = self.progress, trio.current_time()
        while True:
            await trio.sleep(self._every)
            left = self.left()
            if not self._begun or self.progress != progress:
                progress, since = self.progress, trio.current_time()
            elif trio.current_time() - since >= self.step / 2:
                since = float("inf")
                await self.announce(f"the mount is ending, and waits for {self.doing}")
            if left != told and self._words is not None:
                try:
                    exit_report.update(self._words, left)
                except OSError as error:
                    log.debug("umount will not learn what is left: %s", error)
                told = left
            if self._begun and left.files:
                self._say(f"{self._mountpoint}: {left}")
            if self._is_announced and left.files and left != waited_for:
                # Only then: who makes no progress is not to be waited for. And not before the end itself was announced.
                await self._manager.progress(self._status(left), self.step)
                waited_for = left

    def _give_up(self, seconds: float) -> None:
        """End the process, in another thread than that of the event loop: nothing went on for so many ``seconds``."""
        line = f"{self._mountpoint}: ended, although it waits for {self.doing}: nothing went on for {seconds:.0f} s"
        log.critical("%s", line)
        for each in self._overdue.waits() if self._overdue is not None else ():
            log.error("waiting: %s", each)
        lost = dict(self._tree.losses.failures)
        try:
            lost |= dict.fromkeys(self.left().names, "given up")
        except RuntimeError as error:
            log.error("what is left is not known: %s", error)
        if lost:
            line += "; not stored: " + "; ".join(f"{ident}: {reason}" for ident, reason in list(lost.items())[:_NAMED])
        code = 7 if lost else 0
        try:
            self._say(line)
            if self._words is not None and self._words.exists():
                exit_report.write(self._words, Outcome(code, line))
        finally:
            logging.shutdown()
            os._exit(code)

    def _status(self, left: Left) -> str:
        return f"Unmounting {self._mountpoint}: {left}"

    @property
    def step(self) -> float:
        """Seconds within which something more is stored, or given up."""
        return self._patience + 2 * self._every + _SPARE_SECONDS

    async def on_signal(self, terminate: Callable[[], None], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """At the first SIGTERM or SIGINT publish what is staged, and ``terminate()``; in the foreground at SIGHUP, too. Before there is a
        mount they end the process.

        Further ones only hear what is left: what was written is not given up because somebody is impatient. SIGHUP has the log of a
        daemon in the background opened again, and SIGUSR1 has what is waited for written to the log. No other signal ends the mount
        but SIGKILL and those of a fault (SIGABRT, SIGSEGV, ...).
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
                            # Whoever asks is answered, whatever the level.
                            level = max(logging.INFO, log.getEffectiveLevel())
                            log.log(level, "%s: %s", name, line, extra={"asked_for": True})
                    elif number == signal.SIGHUP and in_background:
                        log_file.reopen()
                        log.info("%s: the log was opened again", name)
                    elif self._begun:
                        self._say(f"{self._mountpoint}: {name} again, and still publishing: {self.left()}; SIGKILL gives it up")
                    elif not self._is_mounted:
                        # There shall be none, and nothing is to be stored.
                        if self._words is not None:
                            exit_report.end(self._words)
                        interrupts.end_by(number)
                    else:
                        self._begun = True
                        log.info("%s: publishing what is staged and unmounting", name)
                        nursery.start_soon(self._end, terminate)

    async def _announce_end(self) -> None:
        await self._manager.stopping(self._status(self.left()), self.step)
        self._is_announced = True

    async def _end(self, terminate: Callable[[], None]) -> None:
        await self._announce_end()
        try:
            self.doing = "the kernel to hand over what was written"
            # From here on it is this daemon that asks for that, and learns how it goes.
            self._tree.staging.tells = False
            await self._written_back()
            self.doing = "what is written to be stored"
            # What fails now is tried again, and counts then.
            for staged, error in await self._tree.staging.publish_all():
                log.warning("publishing %r before unmounting: %s", staged.content.ident, error)
        finally:
            self.doing = "the answers to requests"
            terminate()

    async def _written_back(self) -> None:
        """Have the kernel hand over what was written through mappings. ``sync -f`` begins that for every file, and on FUSE does not wait
        for the end of it; fsync of a file does."""
        files = [f"{self._mountpoint}/{self._tree.path_of(ident)}" for ident in self._tree.staging.open_below("")]
        with trio.move_on_after(self._patience) as scope:
            await self._sync("-f", "--", self._mountpoint)
            for start in range(0, len(files), _SYNCED_AT_ONCE):
                await self._sync("--", *files[start : start + _SYNCED_AT_ONCE])
        if scope.cancelled_caught:
            log.warning(
                "%s could not be synced in %g s: what programs have written through mappings may be lost",
                self._mountpoint,
                self._patience,
            )

    async def _sync(self, *arguments: str) -> None:
        """sync(1). Its errors are those of publishing, which tells them itself."""
        try:
            process = await trio.lowlevel.open_process(
                [programs.find("sync") or "/bin/sync", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Another Ctrl-C, which the whole group of the terminal gets, is not meant for it.
                start_new_session=True,
            )
        except OSError as error:
            log.warning("sync: %s: what programs have written through mappings may be lost", error)
            return
        # Not ended when it takes too long: it hangs in the kernel then, until the mount is gone.
        await process.wait()
