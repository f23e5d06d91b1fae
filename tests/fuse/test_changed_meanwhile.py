"""Answers with attributes that were read before a change and are sent after its notice: the kernel uses them once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pyfuse3
import pytest
import trio
import trio.testing

from tests.support.callers import CALLER
from tests.support.drivers import RecordingNotifier
from zarrfs.fuse.operations import Operations
from zarrfs.fuse.session import Session
from zarrfs.vfs.changed_entry import ChangedEntry
from zarrfs.vfs.node import Attributes, Directory, Entry, File, Handle, OpenFlags, VfsNode


class Barrier:
    """``passed``: an event that answers wait for, after their attributes are read."""

    passed: trio.Event | None = None

    async def wait(self) -> None:
        if self.passed is not None:
            await self.passed.wait()


class HeldFile(File):
    ident = "raw/d/f"

    def __init__(self, barrier: Barrier) -> None:
        self.barrier = barrier

    async def attributes(self) -> Attributes:
        await self.barrier.wait()
        return Attributes(False, 1)

    async def open(self, flags: OpenFlags) -> Handle:
        raise AssertionError


class HeldFolder(Directory):
    """Contains ``f``, and itself under every other name."""

    def __init__(self, barrier: Barrier) -> None:
        self.barrier = barrier
        self.file = HeldFile(barrier)

    async def attributes(self) -> Attributes:
        await self.barrier.wait()
        return Attributes(True)

    async def lookup(self, name: str) -> VfsNode:
        return self.file if name == "f" else self

    async def entries(self) -> AsyncIterator[Entry]:
        await self.barrier.wait()
        yield "f", False, 1, None, True

    async def unlink(self, name: str) -> None:
        pass

    async def mkdir(self, name: str) -> Directory:
        return HeldFolder(Barrier())

    async def rename(self, name: str, new_directory: Directory, new_name: str, *, replace: bool = True) -> None:
        pass


Seconds = dict[str, tuple[float, float]]

KEPT = (7, 7)
USED_ONCE = (0, 0)


class Requests:
    """The requests about ``d`` and ``d/f``, held at a barrier. ``seconds``: the validity of names and attributes of the answers."""

    async def begin(self) -> None:
        async def free_space() -> None:
            pass

        self.barrier = Barrier()
        notifier: Any = RecordingNotifier()
        self.session = Session(HeldFolder(self.barrier), notifier, timeout=7, writable=True, free_space=free_space)
        self.handlers = Operations(self.session)
        self.seconds: Seconds = {}
        self.folder = (await self.handlers.lookup(pyfuse3.ROOT_INODE, name("d"), CALLER)).st_ino

    async def ask(self, meanwhile: Callable[[Requests], Awaitable[object]]) -> Seconds:
        """Send all requests, let ``meanwhile`` happen once they have read the attributes, and return `seconds`."""
        self.barrier.passed = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_up, "LOOKUP d", pyfuse3.ROOT_INODE, "d")
            nursery.start_soon(self._look_up, "LOOKUP d/f", self.folder, "f")
            nursery.start_soon(self._get, "GETATTR d")
            nursery.start_soon(self._list)
            await trio.testing.wait_all_tasks_blocked()
            await meanwhile(self)
            self.barrier.passed.set()
        return self.seconds

    async def _look_up(self, what: str, folder: pyfuse3.InodeT, child: str) -> None:
        self._record(what, await self.handlers.lookup(folder, name(child), CALLER))

    async def _get(self, what: str) -> None:
        self._record(what, await self.handlers.getattr(self.folder, CALLER))

    async def _list(self) -> None:
        def reply(token: object, listed: bytes, entry: pyfuse3.EntryAttributes, next_id: int) -> bool:
            if listed == b"f":
                self._record("READDIRPLUS d/f", entry)
            return True

        token: Any = None
        number = await self.handlers.opendir(self.folder, CALLER)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pyfuse3, "readdir_reply", reply)
            await self.handlers.readdir(number, 0, token)

    def _record(self, what: str, entry: pyfuse3.EntryAttributes) -> None:
        self.seconds[what] = entry.entry_timeout, entry.attr_timeout


def name(text: str) -> pyfuse3.FileNameT:
    return pyfuse3.FileNameT(text.encode())


def changed(path: str, *, external: bool = False) -> Callable[[Requests], Awaitable[object]]:
    async def change(known: Requests) -> None:
        list(known.session.kernel_cache.changed([ChangedEntry(path=path)], external=external))

    return change


async def forgotten(known: Requests) -> None:
    list(known.session.kernel_cache.forgotten("", ()))


async def unlinked(known: Requests) -> None:
    await known.handlers.unlink(known.folder, name("other"), CALLER)


async def made(known: Requests) -> None:
    await known.handlers.mkdir(known.folder, name("other"), pyfuse3.ModeT(0o755), CALLER)


async def moved_in(known: Requests) -> None:
    await known.handlers.rename(pyfuse3.ROOT_INODE, name("other"), known.folder, name("other"), pyfuse3.FlagT(0), CALLER)


OF_FOLDER = {"LOOKUP d", "GETATTR d"}
OF_FILE = {"LOOKUP d/f", "READDIRPLUS d/f"}


@pytest.mark.parametrize(
    ("meanwhile", "used_once"),
    [
        pytest.param(changed("d/f"), OF_FOLDER | OF_FILE, id="file"),
        pytest.param(changed("d/f", external=True), OF_FILE, id="file by another program"),
        pytest.param(changed("d"), OF_FOLDER, id="folder"),
        pytest.param(changed("d/other"), OF_FOLDER, id="other file"),
        pytest.param(changed("other/f"), set(), id="file elsewhere"),
        pytest.param(forgotten, OF_FOLDER | OF_FILE, id="everything"),
        pytest.param(unlinked, OF_FOLDER, id="unlink"),
        pytest.param(made, OF_FOLDER, id="mkdir"),
        pytest.param(moved_in, OF_FOLDER, id="rename"),
    ],
)
def test_what_changed_between_its_reading_and_the_answer_is_used_once(
    meanwhile: Callable[[Requests], Awaitable[object]], used_once: set[str]
) -> None:
    """The notice comes before the answer, and says nothing to a kernel that does not have the entry yet."""

    async def main() -> None:
        known = Requests()
        await known.begin()
        seconds = await known.ask(meanwhile)
        assert seconds == {each: USED_ONCE if each in used_once else KEPT for each in OF_FOLDER | OF_FILE}

    trio.run(main)


def test_many_changes_elsewhere_during_a_listing_concern_few_of_its_names() -> None:
    """All names listed after 4096 changes were used once: `find` looked up each file that it had just listed."""

    async def main() -> None:
        known = Requests()
        await known.begin()
        cache = known.session.kernel_cache
        begun = cache.epoch
        list(cache.changed(ChangedEntry(path=f"other/{number}") for number in range(8_000)))
        kept = sum(cache.seconds(begun, f"d/{number}") == KEPT for number in range(8_000))
        assert kept > 6_000
        assert all(cache.seconds(begun, f"other/{number}") == USED_ONCE for number in range(8_000))

    trio.run(main)
