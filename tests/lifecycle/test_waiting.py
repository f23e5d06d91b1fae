"""Commands that wait for a mount to end: the right to end it, progress messages, and giving up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from zarrfs.errors import ZarrfsError
from zarrfs.lifecycle import interrupts, unmounting
from zarrfs.lifecycle.daemons import About, Daemon
from zarrfs.lifecycle.exit_report import Left
from zarrfs.lifecycle.mount_table import FSTYPE, Mount, Owner
from zarrfs.lifecycle.unmounting import _Wait


class Storing(Daemon):
    """A daemon that reports the remaining data on each request."""

    def __init__(self, *told: Left) -> None:
        super().__init__(About(os.getpid(), None, 0), os.pidfd_open(os.getpid()))
        self.told = list(told)

    def left(self) -> Left | None:
        return self.told.pop(0) if len(self.told) > 1 else self.told[0]


def mounted(mountpoint: Path, uid: int | None = None) -> Mount:
    return Mount(str(mountpoint), FSTYPE, "0:987654", None if uid is None else Owner(uid, 0))


def test_another_users_mount_is_theirs_and_roots_to_take_off(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mounted(mountpoint, 2**31 - 7)
    monkeypatch.setattr(unmounting, "mount_at", lambda path: found)
    monkeypatch.setattr(unmounting, "may_detach", lambda mount: mount is not found)
    with pytest.raises(ZarrfsError, match=rf"mounted by user {2**31 - 7}: only they and root may unmount it"):
        unmounting.unmount(str(mountpoint))


def test_what_is_left_is_told_for_as_long_as_there_is_progress(mountpoint: Path) -> None:
    said: list[str] = []
    looks = iter([False, False, False, False, True])
    with Storing(Left(3, 4096), Left(2, 2048), Left(1, 1024), Left()) as daemon:
        wait = _Wait(mounted(mountpoint), daemon, said.append, every=0, spare=60)
        assert wait.until(lambda seconds: next(looks))
    assert said == [
        f"{mountpoint}: 3 files, 4.0 KiB left",
        f"{mountpoint}: 2 files, 2.0 KiB left",
        f"{mountpoint}: 1 file, 1.0 KiB left",
        f"{mountpoint}: waiting for its daemon (pid {os.getpid()}), which ends",
    ]


@pytest.mark.parametrize(("lazy", "stays", "code"), [(False, True, 1), (False, False, 1), (True, True, 1), (True, False, 0)])
def test_a_daemon_that_takes_nothing_is_given_up_and_what_to_do_is_said(
    mountpoint: Path, lazy: bool, stays: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = mounted(mountpoint)
    monkeypatch.setattr(unmounting, "mount_at", lambda path: mount if stays else None)
    with Storing(Left(2, 2048)) as daemon:
        wait = _Wait(mount, daemon, lambda line: None, every=0, spare=0)
        assert not wait.until(lambda seconds: False)
        outcome = wait.given_up_unmounting(lazy)
        assert outcome.exit_code == code
        assert outcome.message.startswith(f"{mountpoint}: {'still mounted' if stays else 'unmounted'}, but the kernel has waited")
        assert f"(pid {os.getpid()})" in outcome.message and "2 files, 2.0 KiB left" in outcome.message
        assert "connections/987654/abort" in outcome.message
        outcome = wait.given_up_storing(daemon)
        assert outcome.exit_code == 1
        assert f"`kill -9 {os.getpid()}` drops its unstored data" in outcome.message


def test_a_silent_daemon_of_a_mount_in_use_is_told_of_with_the_way_out(mountpoint: Path) -> None:
    told = unmounting._silent(mounted(mountpoint))
    assert "does not answer" in str(told) and "--lazy" in str(told) and "connections/987654/abort" in str(told)
    assert told.key == str(mountpoint)


# --- signals --------------------------------------------------------------------------------------------------------------------------


@contextmanager
def handled(number: int, handler: signal.Handlers) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_who_was_started_to_ignore_ctrl_c_goes_on_ignoring_it() -> None:
    async def work() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        await trio.lowlevel.checkpoint()
        return "done"

    with handled(signal.SIGINT, signal.SIG_IGN):
        interrupts.are_quiet()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert interrupts.run(work) == "done"


def test_ctrl_c_cancels_what_goes_on_and_nothing_is_left_of_that() -> None:
    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    with pytest.raises(interrupts.Interrupted) as ended:
        interrupts.run(work)
    assert ended.value.exit_code == 130
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
